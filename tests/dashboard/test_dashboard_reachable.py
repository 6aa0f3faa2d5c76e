"""Everything on the page can be reached: nothing is covered, at any width."""

from __future__ import annotations

import pytest
from page_driver import PAGES, needs_browser, tab, training
from written_runs import write_run

pytestmark = [pytest.mark.slow_browser, needs_browser]

# Turned round, in Hebrew, with an emoji, and as long as a folder's name may be.
LONG = "\u202eשבת 😀 " + "a long name " * 16
WIDTHS = (360, 420, 640, 641, 768, 900, 1150, 1400, 1920)
OF_RUN = ("Overview", "Layers", "Findings", "Memory and device")

# What can be pressed or is a heading, in view, and has something else on top of it in a corner.
COVERED = """() => [...document.querySelectorAll('.stMain :is(button, a, input, h1, .aw-title)')]
  .filter((one) => !one.closest('[data-testid=stHeader]')).filter((one) => {
    const { left, top, right, bottom, width } = one.getBoundingClientRect();
    if (!width || top > innerHeight || getComputedStyle(one).opacity === '0') return false;
    return [left + 3, right - 3].some((x) => [top + 3, bottom - 3].some((y) => {
      const found = document.elementFromPoint(x, y);
      return found?.closest('[data-testid=stHeader]');
    }));
  }).map((one) => one.outerHTML.slice(0, 120))"""
SIDEWAYS = "() => document.querySelector('.stMain').scrollWidth - innerWidth"


@pytest.fixture(scope="module")
def place(folder):
    """A real run that fails, one with a name that is hard to show, and twelve more."""
    with training(folder, "falls", 160, 0.0, 120) as child:
        assert child.wait(120) == 0
    write_run(folder, LONG, age_s=5000)
    for number in range(12):
        write_run(folder, f"other {number}", age_s=7000 + number)
    return folder


def test_nothing_is_covered_and_nothing_scrolls_sideways_at_any_width(one, server):
    with tab(one) as page:
        page.open(f"{server.url}/?run=falls")
        page.drawn()
        for name in ("Layers", "Runs"):
            page.page.set_viewport_size({"width": 1400, "height": 900})
            page.go(name)
            page.settled()
            for width in WIDTHS:
                page.page.set_viewport_size({"width": width, "height": 900})
                page.page.wait_for_function(f"() => ({SIDEWAYS})() <= 0")
                assert page.page.evaluate(COVERED) == [], (name, width)
        page.page.get_by_test_id("stSidebar").hover()
        page.page.get_by_test_id("stSidebarCollapseButton").get_by_role("button").click()
        page.page.get_by_test_id("stExpandSidebarButton").wait_for()
        assert page.page.evaluate(COVERED) == []


def test_every_page_names_its_run_on_a_phone(one, server, place):
    names = [path.name for path in place.iterdir() if "long" in path.name or path.name == "falls"]
    assert len(names) == 2
    with tab(one, size=(420, 900)) as page:
        for run in names:
            for name in OF_RUN:
                page.open(f"{server.url}/{PAGES[name][0]}?run={run}")
                heading = page.page.get_by_role("heading", level=1)
                heading.wait_for()
                assert heading.inner_text().endswith(name)
                assert heading.get_attribute("title") == run
                page.page.wait_for_function(f"() => ({SIDEWAYS})() <= 0")
        assert page.troubles == []


def test_the_sidebar_says_how_many_more_runs_there_are(page, server, place):
    page.open(f"{server.url}/?run=falls")
    page.page.get_by_role("link", name="5 more runs").click()
    page.page.locator(".aw-runs.all").wait_for()
    assert "run=falls" in page.page.url
    assert page.page.locator(".aw-runs tbody tr").count() == 14
