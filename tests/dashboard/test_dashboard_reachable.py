"""Everything on the page can be reached: by mouse and keys, at any width, by every reader."""

from __future__ import annotations

import os
import re
from itertools import pairwise
from pathlib import Path

import pytest
from page_driver import PAGES, needs_browser, tab, training
from written_runs import write_run

from ampwatch import store
from ampwatch.printable_text import printable

pytestmark = [pytest.mark.slow_browser, needs_browser]

# Turned round, in Hebrew, with an emoji, and as long as a folder's name may be.
LONG = "\u202eשבת 😀 " + "a long name " * 16
WIDTHS = (360, 420, 640, 641, 768, 900, 1150, 1400, 1920)
OF_RUN = ("Overview", "Layers", "Findings", "Memory and device", "Timeline", "Settings")

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

HEADINGS = """() => [...document.querySelectorAll('.stMain :is(h1, h2, h3, h4, [role=heading])')]
  .map((one) => Number(one.ariaLevel ?? one.tagName.slice(1)))"""

HAS_RING = """() => {
    const one = document.activeElement;
    if (one === document.body || one.matches('iframe')) return true;
    const seen = [one, one.parentElement, one.parentElement.querySelector('div, span')];
    return seen.some((part) => part && (getComputedStyle(part).outlineStyle !== 'none'
        || getComputedStyle(part).boxShadow !== 'none'));
}"""


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
                name_given = store.read_info(place / run).name  # the folder's is made safe
                assert heading.get_attribute("title") == printable(name_given)
                page.settled()
                page.page.wait_for_function(f"() => ({SIDEWAYS})() <= 0")
        assert page.troubles == []


def test_the_sidebar_says_how_many_more_runs_there_are(page, server, place):
    page.open(f"{server.url}/?run=falls")
    page.page.get_by_role("link", name="5 more runs").click()
    page.page.locator(".aw-runs.all").wait_for()
    assert "run=falls" in page.page.url
    page.page.locator(".aw-runs tbody tr[data-go]").nth(13).wait_for()
    assert page.page.locator(".aw-runs tbody tr[data-go]").count() == 14


def pasted(page) -> str:
    """What a paste brings, into a field made for it."""
    page.evaluate(
        "() => { const field = document.createElement('textarea'); field.id = 'paste';"
        " document.body.append(field); field.focus(); }"
    )
    page.keyboard.press("Control+V")
    return page.locator("#paste").input_value()


def test_every_page_opens_is_kept_as_a_picture_and_holds_nothing_that_some_readers_cannot_use(
    page, server, tmp_path
):
    shots = Path(os.environ.get("AMPWATCH_SCREENSHOTS", tmp_path))
    shots.mkdir(exist_ok=True)
    page.open(f"{server.url}/?run=falls")
    page.drawn(160)
    schemes = ["light", "dark"]
    for name in PAGES:
        page.go(name)
        page.settled()
        assert page.page.locator("[data-testid=stException], .aw-problem").count() == 0, name
        for scheme in schemes:
            assert page.faults([scheme]) == [], name
            page.page.screenshot(path=shots / f"{name.split()[0].lower()}-{scheme}.png")
        schemes.reverse()  # every other page is opened in the dark
        levels = page.page.evaluate(HEADINGS)
        assert levels[0] == 1, name
        assert levels.count(1) == 1, name
        assert all(b <= a + 1 for a, b in pairwise(levels)), name


def test_a_layer_is_reached_and_opened_by_keys_alone(page, server):
    page.open(f"{server.url}/layers?run=falls")
    page.page.locator(".aw-leaf").first.wait_for()
    page.settled()
    for _ in range(80):
        page.page.keyboard.press("Tab")
        assert page.page.evaluate(HAS_RING)
        if page.page.evaluate("() => document.activeElement.matches('.aw-leaf')"):
            break
    wanted = page.page.evaluate("() => document.activeElement.dataset.go")
    page.page.keyboard.press(" ")
    page.page.wait_for_url(re.compile(rf"layer={wanted}(&|$)"))


def test_a_copy_works_without_a_clipboard_and_says_when_it_did_not(one, server):
    with tab(one) as page:
        page.page.add_init_script(
            "Object.defineProperty(navigator, 'clipboard', { value: undefined })"
        )
        page.open(f"{server.url}/findings?run=falls")
        copy = page.page.get_by_role("button", name="copy what to do").first
        lines = copy.get_attribute("data-copy")
        copy.click()
        page.page.get_by_role("status").get_by_text("copied", exact=True).wait_for()
        assert pasted(page.page) == lines
        page.page.evaluate("() => { document.execCommand = () => false; }")
        page.page.get_by_role("button", name="copy link").click()
        page.page.get_by_role("status").get_by_text("not copied").wait_for()
