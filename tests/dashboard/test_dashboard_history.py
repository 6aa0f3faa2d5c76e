"""Back, Forward and a reload bring back what was seen; the address holds all of it."""

from __future__ import annotations

import re

import pytest
from page_driver import needs_browser, tab, training
from written_runs import more, write_run

pytestmark = [pytest.mark.slow_browser, needs_browser]

# As a browser does that is told to keep nothing.
REFUSED = """for (const name of ['localStorage', 'sessionStorage']) {
    Object.defineProperty(window, name, { get() {
        throw new DOMException('Access is denied for this document.', 'SecurityError');
    } });
}"""


@pytest.fixture(scope="module")
def place(folder):
    """Two runs: one of two ranks, and a real one, with layers, whose scale falls at the end."""
    two = write_run(folder, "two", age_s=5000, ended=False)
    more(two, 100, first=0, rank=1, ended=True)
    with training(folder, "one", 90, 0.0, 60) as child:
        assert child.wait(120) == 0
    return folder


def heads(page, run: str, name: str) -> None:
    """Wait until the page is this one, of this run, and the sidebar says so too."""
    heading = page.page.get_by_role("heading", level=1)
    heading.get_by_text(run, exact=True).wait_for()
    heading.get_by_text(name, exact=True).wait_for()
    page.page.locator(".aw-switcher").get_by_text(run, exact=True).wait_for()


def follows(page, *, wanted: bool) -> None:
    page.page.wait_for_url(lambda url: ("follow=off" in url) != wanted)
    page.page.wait_for_function(
        "wanted => document.querySelector('.aw-follow')?.ariaChecked === `${wanted}`", arg=wanted
    )


def test_back_forward_and_reload_restore_run_page_layer_and_following(page, server):
    page.open(f"{server.url}/?run=two")
    heads(page, "two", "Overview")
    page.choose_run("one")
    page.page.wait_for_url(re.compile("run=one"))
    heads(page, "one", "Overview")
    page.go("Layers")
    heads(page, "one", "Layers")
    page.page.locator(".aw-map-body .aw-map-name").first.click()
    page.page.wait_for_url(re.compile("layer="))
    whole = page.page.get_by_role("button", name="Close")
    whole.wait_for()
    page.page.reload()
    heads(page, "one", "Layers")
    whole.wait_for()
    page.back()
    whole.wait_for(state="detached")
    heads(page, "one", "Layers")
    page.back()
    heads(page, "one", "Overview")
    page.back()
    heads(page, "two", "Overview")
    page.forward()
    heads(page, "one", "Overview")


def test_back_and_a_reload_restore_whether_a_live_run_is_followed(page, server, place):
    with training(place, "goes", 100_000, 0.05):
        page.open(f"{server.url}/?run=goes")
        follows(page, wanted=True)
        page.page.get_by_role("switch", name="Follow live").click()
        follows(page, wanted=False)
        page.page.reload()
        follows(page, wanted=False)
        page.back()
        follows(page, wanted=True)


def ranks(page, wanted: str) -> None:
    page.page.wait_for_function(
        "wanted => document.querySelector('input[aria-label=Ranks]')?.value === wanted", arg=wanted
    )


def test_back_restores_the_rank(page, server):
    page.open(f"{server.url}/?run=two")
    ranks(page, "all 2 ranks")
    page.page.get_by_role("combobox", name="Ranks").click()
    page.page.get_by_role("option", name="rank 1").click()
    page.page.wait_for_url(re.compile("rank=1"))
    page.back()
    ranks(page, "all 2 ranks")
    page.forward()
    ranks(page, "rank 1")


def test_nothing_breaks_where_the_browser_refuses_storage(one, server):
    with tab(one) as page:
        page.page.add_init_script(REFUSED)
        page.open(f"{server.url}/?run=one")
        page.drawn(60)
        page.go("Layers")
        page.settled()
        page.page.reload()
        page.page.locator(".aw-map-body .aw-map-name").first.wait_for()
        assert page.troubles == []


def leads(page, path: str, click) -> None:
    """A click leads to another page, and one press of Back to what was seen before."""
    page.at_rest()
    before = page.page.url
    click()
    page.page.wait_for_url(re.compile(rf"/{path}\?"))
    page.at_rest()
    after = page.page.url
    page.back()
    page.page.wait_for_url(before)
    page.forward()
    page.page.wait_for_url(after)


def test_one_press_of_back_takes_back_one_switch_of_pages(page, server):
    page.open(f"{server.url}/?run=one")  # a healthy run: its Overview has no bars to click
    page.drawn()
    page.go("Runs")
    leads(page, "", page.page.locator(".aw-runs.all tr[data-go]", has_text="two").click)
    heads(page, "two", "Overview")


def test_a_step_that_was_picked_before_a_link_was_pressed_is_an_entry_of_its_own(page, server):
    page.open(f"{server.url}/?run=one")
    page.drawn(60)
    page.settled()
    page.page.locator(".aw-plot").click(position={"x": 300, "y": 200})
    page.page.wait_for_url(re.compile("step="))
    page.go("Layers")
    page.back()
    page.page.wait_for_url(re.compile(r"/\?.*step="))
    page.back()
    page.page.wait_for_url(lambda url: "step=" not in url)
