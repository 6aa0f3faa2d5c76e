"""Go from one page to another: a click on a chart asks for it, and the page then switches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import address
import streamlit as st

_PAGES, _WANTED = "pages", "go to"


def offer(pages: Mapping[str, Any]) -> None:
    """Say which pages there are."""
    st.session_state[_PAGES] = pages


def ask(page: str, to: address.Address | None = None, **parts: Any) -> None:
    """Go to a page as soon as the page at hand calls `follow`, with these parts of the address.

    The address is left as it is until then: it would be a page of its own for Back.
    """
    st.session_state[_WANTED] = page, replace(to or address.read(), **parts)


def follow() -> None:
    """Go to the page that was asked for, if any."""
    wanted = st.session_state.pop(_WANTED, None)
    if wanted is not None:
        page, where = wanted
        st.switch_page(st.session_state[_PAGES][page], query_params=where.parameters())


def link(page: str, words: str, **parts: Any) -> None:
    """A link to a page, in these words, that keeps the address but for these parts."""
    query = replace(address.read(), **parts).parameters()
    st.page_link(st.session_state[_PAGES][page], label=words, query_params=query)
