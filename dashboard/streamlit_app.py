"""The dashboard: choose a run; is it all right, what broke, what to do, show me.

Start it by `streamlit run dashboard` or `ampwatch dashboard`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import address
import compare
import empty
import findings
import layers
import memory
import navigate
import overview
import runs
import runs_page
import sidebar
import streamlit as st
import theme
from edge import guarded


def main() -> None:
    st.set_page_config(page_title="ampwatch", page_icon="📉", layout="wide")
    st.html(theme.style())
    pages = {
        name: st.Page(_named(show, name), title=name, url_path=path, default=path == "overview")
        for name, (path, show) in PAGES.items()
    }
    page = st.navigation(list(pages.values()), position="hidden")
    navigate.offer(pages)
    sidebar.show(pages)
    page.run()


def _runs() -> None:
    if runs.shelf().choices:
        runs_page.show()
    else:
        empty.show()


def _compare() -> None:
    if runs.shelf().choices:
        compare.show(follow=sidebar.follows())
    else:
        empty.show()


def _of_run(show: Callable[..., None]) -> None:
    name = address.read().run
    choice = runs.chosen(name)
    if choice is None and name:
        empty.show_awaited(name)
    elif choice is None:
        empty.show()
    else:
        show(choice.path, follow=sidebar.follows())


PAGES: dict[str, tuple[str, Callable[[], None]]] = {
    "Runs": ("runs", _runs),
    "Overview": ("overview", partial(_of_run, overview.show)),
    "Layers": ("layers", partial(_of_run, layers.show)),
    "Findings": ("findings", partial(_of_run, findings.show)),
    "Memory and device": ("memory", partial(_of_run, memory.show)),
    "Compare": ("compare", _compare),
}


def _named(show: Callable[[], None], name: str) -> Callable[[], None]:
    """The page under a name of its own, by which Streamlit tells pages apart."""

    @guarded
    def page() -> None:
        show()

    page.__name__ = name
    return page


main()
