"""Go from one page of the dashboard to another: a click asks for it, then the page switches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import address
import streamlit as st

_PAGES, _WANTED = "pages", "go to"


def set_pages(pages: Mapping[str, Any]) -> None:
    """Note which pages the dashboard has."""
    st.session_state[_PAGES] = pages


def ask_for_page(page: str, to: address.Address | None = None, **parts: Any) -> None:
    """Go to a page once the present one calls `switch_if_asked`, with these parts of the address.

    The address is left as it is until then: it would be a page of its own for Back.
    """
    st.session_state[_WANTED] = page, replace(to or address.read(), **parts)


def switch_if_asked() -> None:
    """Go to the page of the dashboard that was asked for, if any."""
    wanted = st.session_state.pop(_WANTED, None)
    if wanted is not None:
        page, where = wanted
        st.switch_page(st.session_state[_PAGES][page], query_params=where.parameters())


def page_link(page: str, words: str, **parts: Any) -> None:
    """Draw a link to a page in these words; it keeps the address but for these parts."""
    query = replace(address.read(), **parts).parameters()
    st.page_link(st.session_state[_PAGES][page], label=words, query_params=query)
