"""The dashboard: choose a run; is it all right, what broke, what to do, show me.

Start it by `streamlit run dashboard` or `ampwatch dashboard`.
"""

from __future__ import annotations

from collections.abc import Callable

import address
import empty
import overview
import runs
import sidebar
import streamlit as st
import theme
from texts import said

from ampwatch.errors import AmpwatchError


def main() -> None:
    st.set_page_config(page_title="ampwatch", page_icon="📉", layout="wide")
    st.html(theme.style())
    pages = {
        name: st.Page(_page(show), title=name, url_path=name.lower(), default=name == "Overview")
        for name, show in PAGES.items()
    }
    page = st.navigation(list(pages.values()), position="hidden")
    sidebar.show(pages)
    page.run()


Show = Callable[[str, bool], None]


def _overview(path: str, follow: bool) -> None:  # noqa: FBT001
    overview.show(path, follow=follow)


PAGES: dict[str, Show] = {"Overview": _overview}


def _page(show: Show) -> Callable[[], None]:
    """A page of the chosen run; what cannot be read is said in its place."""

    def page() -> None:
        choice = runs.chosen(address.read().run)
        if choice is None:
            empty.show()
            return
        try:
            show(choice.path, sidebar.follows())
        except (AmpwatchError, OSError) as error:
            st.html(f'<div class="aw-problem">{said(str(error))}</div>')

    page.__name__ = show.__name__  # Streamlit tells pages apart by it
    return page


main()
