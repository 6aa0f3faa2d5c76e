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


def test_the_switcher_finds_a_run_and_is_worked_by_keys_alone(page, server, place):
    page.open(f"{server.url}/layers?run=falls")
    page.page.locator(".aw-map-body canvas").wait_for()
    page.page.locator(".aw-switcher").focus()
    page.page.keyboard.press("Enter")
    rows = page.page.get_by_role("dialog", name="Choose a run").get_by_role("link")
    rows.nth(13).wait_for()
    assert rows.count() == 14
    assert page.faults() == []
    page.page.keyboard.type("OTHER 7")
    rows.nth(1).wait_for(state="detached")
    assert "other 7" in rows.inner_text()
    page.page.keyboard.press("ArrowDown")
    page.page.keyboard.press("Enter")
    page.page.wait_for_url(re.compile(r"/layers\?run=other"))  # the page stays
    page.page.locator(".aw-switcher").get_by_text("other 7").wait_for()


SIDEBAR_OPEN = """wanted => (document.querySelector('[data-testid=stSidebar]')
    .getBoundingClientRect().right > 0) === wanted"""


def test_a_question_mark_lists_the_keys_and_they_do_what_it_says(page, server):
    page.open(f"{server.url}/runs?run=falls")
    page.page.locator(".aw-runs.all").wait_for()
    page.page.keyboard.press("?")
    page.page.get_by_role("dialog").get_by_role("heading", name="Keys").wait_for()
    assert page.faults() == []
    page.page.keyboard.press("Escape")
    page.page.get_by_role("dialog").wait_for(state="hidden")
    page.at_rest()  # the colours were changed, and the server answers that too
    page.page.keyboard.press("/")
    search = page.page.locator(".stMain .aw-search")
    search.and_(page.page.locator(":focus")).wait_for()
    page.page.keyboard.type("fa?r")  # in a field they are letters
    assert search.input_value() == "fa?r"
    page.page.keyboard.press("Tab")
    page.page.evaluate("() => document.activeElement.blur()")
    page.page.keyboard.press("r")
    page.page.get_by_role("dialog", name="Choose a run").wait_for()


def test_on_a_phone_the_sidebar_goes_once_something_was_chosen_and_stays_away(one, server):
    with tab(one, size=(420, 900)) as page:
        page.open(f"{server.url}/?run=falls")
        page.drawn()
        choices = (lambda: page.go("Findings"), lambda: page.choose_run("other 3"))
        for choose in (*choices, page.page.reload):
            page.page.get_by_test_id("stExpandSidebarButton").click()
            page.page.wait_for_function(SIDEBAR_OPEN, arg=True)
            choose()
            page.page.locator("h1.aw-run").wait_for()
            page.page.wait_for_function(SIDEBAR_OPEN, arg=False)
        assert page.troubles == []


def test_one_entry_of_the_sidebar_is_lit_on_every_page(page, server):
    page.open(f"{server.url}/?run=falls")
    for name in PAGES:
        page.go(name)
        page.page.mouse.move(5, 5)
        page.settled()
        lit = page.sidebar.get_by_role("link").evaluate_all(
            "links => links.filter((link) => link.closest('[data-testid=stPageLink]')"
            " && getComputedStyle(link).backgroundColor !== 'rgba(0, 0, 0, 0)')"
            ".map((link) => link.innerText)"
        )
        assert len(lit) == 1, (name, lit)
        assert name in lit[0]


def test_the_bare_address_and_the_name_of_the_overview_show_it(page, server):
    for path in ("", "overview"):
        page.open(f"{server.url}/{path}?run=falls")
        page.drawn(160)
        page.page.get_by_role("heading", level=1).get_by_text("Overview").wait_for()
        assert page.page.title() == "✕ falls - ampwatch"
        assert page.page.get_by_role("dialog").count() == 0  # Streamlit's "Page not found"
        page.go("Layers")


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
    page.page.locator(".aw-heatmap[data-rows]").wait_for()
    page.settled()
    for _ in range(80):
        page.page.keyboard.press("Tab")
        assert page.page.evaluate(HAS_RING)
        if page.page.evaluate("() => document.activeElement.matches('.aw-map-scroll')"):
            break
    for _ in range(3):
        page.page.keyboard.press("ArrowDown")
    wanted = page.page.locator(".aw-heatmap .aw-spoken").text_content().split(",")[0]
    page.page.keyboard.press("Enter")
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
