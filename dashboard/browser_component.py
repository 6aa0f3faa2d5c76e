"""Our Streamlit component: it draws charts and HTML parts in the browser by the painter's scripts.

Streamlit puts a component's script into each of its messages, so it is given a loader of a few
lines; the browser loads the painter once, from its folder, which is served here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import server_options
import streamlit as st
from streamlit.components.v1 import declare_component

from ampwatch.report.painter import FOLDER
from ampwatch.report.painter.message import pack

_NAME = "ampwatch_live"
_SERVER = "server"


def draw(data: bytes, key: str, **on_change: Any) -> Any:
    """Draw or update a component in the browser; the header of `data` says which one."""
    return _declared()(data=data, key=key, **on_change)


@st.cache_resource(show_spinner=False)
def _declared() -> Any:
    """The component, declared once: Streamlit searches all modules for the caller each time."""
    folder = declare_component("painter", path=str(FOLDER)).name
    loader = (FOLDER / "loader.js").read_text(encoding="utf-8").replace("@FOLDER@", folder)
    return st.components.v2.component(_NAME, js=loader, isolate_styles=False)


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
    on_go: Callable[[], None] | None = None,
    on_find: Callable[[], None] | None = None,
    on_sort: Callable[[], None] | None = None,
) -> None:
    """Draw a part of the page in our HTML, with SVG, copy buttons and links; names are escaped.

    `search` names a field that hides rows as its reader types; `found` is what is in it at first.
    """
    message = pack({"component": "html", "html": text, "search": search, "found": found}, {})
    heard = {"on_go_change": on_go, "on_find_change": on_find, "on_sort_change": on_sort}
    draw(message, key, **{name: call for name, call in heard.items() if call})
