"""The dashboard: choose a run, see whether it is healthy, what broke, and what to do.

Start it by `streamlit run dashboard` or `ampwatch dashboard`.
"""

from __future__ import annotations

import html
from collections.abc import Callable
from functools import partial
from pathlib import Path

import address
import alerts_page
import browser_component
import compare_page
import findings_page
import fleet_page
import layers_page
import memory_page
import overview_page
import run_list
import runs_page
import settings_page
import sidebar
import streamlit as st
import timeline_page
from html_text import said, shortened
from page_parts import guarded

from ampwatch.printable_text import printable
from ampwatch.report.painter import style_sheet

_STYLES = Path(__file__).with_name("styles")
_NAME_LENGTH = 90  # characters of a run's name; the mouse over it shows the others


def main() -> None:
    """Draw the style sheet, the sidebar and the page that the address names."""
    st.set_page_config(layout="wide")
    styles = "".join(file.read_text(encoding="utf-8") for file in sorted(_STYLES.glob("*.css")))
    st.html(f"<style>{style_sheet()}{styles}</style>")
    pages = {
        name: st.Page(_page_function(show, name), title=name, url_path=path)
        for name, (path, show) in PAGES.items()
    }
    # The bare address shows the Overview too; it is the one that Streamlit cannot give a path.
    bare = st.Page(_page_function(PAGES["Overview"][1], "bare"), title="Overview", default=True)
    page = st.navigation([bare, *pages.values()], position="hidden")
    if page.url_path != PAGES["Overview"][0]:
        pages["Overview"] = bare
    address.set_pages(pages)
    sidebar.show(pages, page.title)
    browser_component.watch_server()
    alerts_page.start_alerts()
    page.run()


def _draw_page_of_runs(page: str, show: Callable[[], None]) -> None:
    if run_list.current_list().choices:
        show()
    else:
        runs_page.show_no_runs(page)


def _draw_run_page(page: str, show: Callable[..., None]) -> None:
    name = address.read().run
    choice = run_list.find_run(name)
    if choice is None and name:
        runs_page.show_missing_run(name)
    elif choice is None:
        runs_page.show_no_runs(page)
    else:
        browser_component.html(_heading(printable(choice.full_title), page), key="heading")
        show(choice.path)


def _heading(run: str, page: str) -> str:
    """The heading of a run's page as HTML: run, page, and a button that copies the link."""
    return (
        f'<div class="aw-top"><h1 class="aw-run" title="{html.escape(run)}"><bdi>'
        f"{said(shortened(run, _NAME_LENGTH))}</bdi><span>{page}</span></h1>"
        '<button type="button" class="aw-copy" data-link aria-label="copy link to this view">'
        "copy link</button></div>"
    )


PAGES: dict[str, tuple[str, Callable[[], None]]] = {
    "Runs": ("runs", partial(_draw_page_of_runs, "Runs", runs_page.show)),
    "Overview": ("overview", partial(_draw_run_page, "Overview", overview_page.show)),
    "Layers": ("layers", partial(_draw_run_page, "Layers", layers_page.show)),
    "Findings": ("findings", partial(_draw_run_page, "Findings", findings_page.show)),
    "Memory and device": ("memory", partial(_draw_run_page, "Memory and device", memory_page.show)),
    "Timeline": ("timeline", partial(_draw_run_page, "Timeline", timeline_page.show)),
    "Settings": ("settings", partial(_draw_run_page, "Settings", settings_page.show)),
    "Compare": ("compare", partial(_draw_page_of_runs, "Compare", compare_page.show)),
    "Fleet": ("fleet", fleet_page.show),
    "Alerts": ("alerts", alerts_page.show),
}


def _page_function(show: Callable[[], None], name: str) -> Callable[[], None]:
    """A page as a function with its own name, by which Streamlit tells pages apart."""

    @guarded
    def page() -> None:
        show()

    page.__name__ = name
    return page


main()
