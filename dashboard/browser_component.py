"""Our Streamlit component: it draws charts and HTML parts in the browser by the painter's scripts.

Streamlit serves the painter's folder, which `ampwatch/pyproject.toml` names; the browser loads the
scripts once, by their addresses.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import server_options
import streamlit as st

from ampwatch.report.painter.message import pack

Acts = Mapping[str, Callable[[Any], None]]

_NAME = "ampwatch.painter"  # as Streamlit calls what the file names: the package, the component
_SERVER = "server"
_CONFIRMED = struct.Struct("<II")  # part of the page, number of the act


def draw(data: bytes, key: str, acts: Acts | None = None, **on_change: Any) -> Any:
    """Draw or update a component in the browser; the header of `data` says which one.

    `acts` holds what is called for each thing that its reader may do, with the value of it: once
    for each click, in order. The browser sends a click again until it is confirmed.
    """
    confirmed = _CONFIRMED.pack(*st.session_state.get(_confirmed_key(key), (0, 0)))
    on_change["on_acts_change"] = partial(_do_acts, key, acts or {})
    return _declared()(data=confirmed + data, key=key, **on_change)


def draw_on_base(
    message: Callable[[bool], bytes],
    base: object,
    key: str,
    acts: Acts | None = None,
    **on_change: Any,
) -> None:
    """Draw a component whose message is whole only if the browser lacks this base of it.

    The browser says if it has lost the base; it is then sent again.
    """
    acts = {"lost": lambda _: forget_base(key), **(acts or {})}
    draw(message(st.session_state.get(_base_key(key)) != base), key, acts, **on_change)
    st.session_state[_base_key(key)] = base


def forget_base(key: str) -> None:
    """Send a component's base again with its next message: the browser may have lost it."""
    st.session_state.pop(_base_key(key), None)


def _base_key(key: str) -> str:
    return f"base sent to {key}"


def _do_acts(key: str, acts: Acts) -> None:
    """Do what a reader did in a component, but for what was done already."""
    told = getattr(st.session_state.get(key), "acts", None)
    if not isinstance(told, dict):
        return
    begun, last = st.session_state.get(_confirmed_key(key), (0, 0))
    if begun != told["from"]:
        last = 0
    for number, name, value in told["acts"]:
        if number > last:
            last = number
            st.session_state[_confirmed_key(key)] = told["from"], last
            if name in acts:
                acts[name](value)


def _confirmed_key(key: str) -> str:
    return f"last act in {key}"


@st.cache_resource(show_spinner=False)
def _declared() -> Any:
    """The component, declared once a server."""
    return st.components.v2.component(_NAME, js="dashboard.js", isolate_styles=False)


def watch_server() -> None:
    """Let the page in the browser say when this server no longer answers."""
    message = pack({"component": "server", "command": server_options.start_command()}, {})
    draw(message, _SERVER, on_rests_change=_tab_shown_or_hidden)


def is_tab_hidden() -> bool:
    """Whether the browser hides this tab: it is refreshed once it is looked at again."""
    return getattr(st.session_state.get(_SERVER), "rests", None) is True


def _tab_shown_or_hidden() -> None:
    """Called when the tab is shown or hidden; Streamlit then draws the page anew."""


def html(
    text: str,
    key: str,
    *,
    search: str = "",
    found: str = "",
    acts: Acts | None = None,
    on_find: Callable[[], None] | None = None,
) -> None:
    """Draw a part of the page in our HTML, with SVG, copy buttons and links; names are escaped.

    `search` names a field that hides rows as its reader types; `found` is what is in it at first.
    """
    message = pack({"component": "html", "html": text, "search": search, "found": found}, {})
    draw(message, key, acts, **({"on_find_change": on_find} if on_find else {}))
