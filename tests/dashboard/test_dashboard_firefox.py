"""The page in Firefox: it loads, judges, draws, changes runs, and goes back."""

from __future__ import annotations

import pytest
from firefox_driver import firefox, needs_firefox
from written_runs import write_run

pytestmark = [pytest.mark.slow_browser, needs_firefox]

HEADING = "document.querySelector('h1')?.innerText"
VERDICT = "document.querySelector('.aw-verdict')?.textContent"
DRAWN = "Number(document.querySelector('[data-drawn]')?.dataset.drawn)"
LINES = (
    "document.querySelector('.aw-plot svg path') && document.querySelector('.aw-plot').drawn.panels"
    ".some(({ lines }) => lines.some(({ x }) => x.length > 50))"
)


def _run(name: str) -> str:
    return f"document.querySelector('.aw-switcher-rows [data-go={name}]')"


@pytest.fixture(scope="module")
def place(folder):
    write_run(folder, "falls", skipped=60, age_s=4000)
    write_run(folder, "well", age_s=5000)
    return folder


def test_a_run_is_judged_drawn_changed_and_come_back_to(server, tmp_path):
    with firefox(tmp_path) as page:
        page.open(f"{server.url}/?run=falls")
        page.is_so(f"{HEADING}?.startsWith('falls')")
        page.is_so(f"{VERDICT} === 'FAILING'")
        page.is_so(f"{DRAWN} === 160 && {LINES}")
        page.click("document.querySelector('.aw-switcher')")
        page.click(_run("well"))
        page.is_so("location.search === '?run=well'")
        page.is_so(f"{HEADING}?.startsWith('well') && {VERDICT} === 'HEALTHY'")
        page.is_so(f"{DRAWN} === 100 && {LINES}")
        page.back()
        page.is_so("location.search === '?run=falls'")
        page.is_so(f"{HEADING}?.startsWith('falls') && {VERDICT} === 'FAILING'")
        page.is_so(f"{DRAWN} === 160 && {_run('falls')}.ariaCurrent === 'true'")
