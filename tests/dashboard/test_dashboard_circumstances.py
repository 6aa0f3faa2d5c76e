"""Bad circumstances: many values with hard names, a slow line, a deleted run, two people."""

from __future__ import annotations

import re
import shutil
from urllib.parse import quote

import pytest
from many_values_training import ODD_NAMES, names
from page_driver import needs_browser, tab, training
from written_runs import write_run

from ampwatch import store

pytestmark = [pytest.mark.slow_browser, needs_browser]

# A poor mobile line: 100 kB a second each way, a quarter of a second until anything comes.
SLOW_LINE = {
    "offline": False, "latency": 250, "downloadThroughput": 100_000, "uploadThroughput": 100_000,
}  # fmt: skip
SIDEWAYS = "() => document.querySelector('.stMain').scrollWidth - innerWidth"
TITLES = "() => [...document.querySelectorAll('.aw-plot text.title')].map((one) => one.textContent)"
# Where each letter of the numbers in a title lies: in order, whatever stands before them.
NUMBERS_LIE = """() => [...document.querySelectorAll('.aw-plot text.title')]
    .filter((one) => one.textContent.includes(' at step ')).map((one) => {
        const from = one.textContent.indexOf(' at step ');
        return [0, 3, 6].map((more) => one.getStartPositionOfChar(from + more).x);
    })"""


@pytest.fixture(scope="module")
def place(folder):
    """A real run that logs four hundred values, and some that are written."""
    with training(folder, "many", script="many_values_training.py") as child:
        assert child.wait(120) == 0
    for name in ("tagged", "goes away", "stays"):
        write_run(folder, name, age_s=5000)
    return folder


def test_of_four_hundred_values_with_hard_names_each_is_offered_and_none_is_dropped_unsaid(
    page, server
):
    page.open(f"{server.url}/?run=many&values={quote(','.join(map(quote, ODD_NAMES)))}")
    page.drawn()
    page.settled()
    titles = [title for title in page.page.evaluate(TITLES) if " at step " in title]
    assert len(titles) == len(ODD_NAMES)
    assert "<img src=x" in titles[0]
    assert "\u202e" not in "".join(titles)
    assert max(map(len, titles)) < 100
    assert all(xs == sorted(xs) for xs in page.page.evaluate(NUMBERS_LIE))
    assert page.page.title() != "taken"
    rows = names()[len(ODD_NAMES) :]
    page.open(f"{server.url}/?run=many&values={quote(rows[-1], safe='')}")
    page.says("rows/395")
    page.open(f"{server.url}/?run=many&values={quote(','.join(rows))}")
    page.says("24 of the 396 chosen values are drawn")
    page.page.wait_for_function(
        "() => document.querySelector('.aw-plot')?.drawn?.panels.length === 24 + 5"
    )
    assert page.page.evaluate(SIDEWAYS) <= 0


def test_on_a_slow_line_a_phone_shows_the_verdict_and_keeps_what_its_reader_chose(one, server):
    with tab(one, size=(420, 900), stranger=True) as page:
        page.page.context.new_cdp_session(page.page).send(
            "Network.emulateNetworkConditions", SLOW_LINE
        )
        page.page.set_default_timeout(120_000)
        page.open(f"{server.url}/?run=many")
        page.page.locator(".aw-band").wait_for()
        page.drawn()
        assert page.page.locator(".aw-silence").count() == 0  # slow is not dead
        page.page.locator(".aw-plot").focus()
        for key in ("Home", "Enter"):
            page.page.keyboard.press(key)
        page.page.wait_for_function("() => location.search.includes('step=')")
        page.page.get_by_role("heading", level=1).wait_for()
        page.page.reload()
        page.drawn()
        assert "step=" in page.page.url
        assert page.troubles == []


def test_a_run_that_is_deleted_while_it_is_shown_is_said_and_the_others_are_there(
    page, server, place
):
    page.open(f"{server.url}/?run=goes%20away")
    page.drawn()
    shutil.rmtree(place / "goes away")
    page.page.get_by_role("heading", name="This run is gone").wait_for()
    page.choose_run("stays")
    page.page.wait_for_url(re.compile("run=stays"))
    page.drawn()


def test_two_people_who_tag_one_run_keep_what_both_wrote(one, server, place):
    with tab(one) as first, tab(one, stranger=True) as second:
        for person in (first, second):  # both have the dialog open before either saves
            person.open(f"{server.url}/runs?runs=tagged&list=find%3Dtagged")
            person.says("1 chosen")
            person.page.get_by_role("button", name="Tags and note").click()
            person.page.get_by_role("dialog").wait_for()
        for person, words in ((first, "mine"), (second, "yours")):
            dialog = person.page.get_by_role("dialog")
            dialog.get_by_label("Tags to add").fill(words)
            dialog.get_by_label("Note").fill(f"a note of {words}")
            dialog.get_by_role("button", name="Save").click()
            dialog.wait_for(state="hidden")
        kept = store.read_tags(place / "tagged")
        assert set(kept.tags) == {"mine", "yours"}
        assert "a note of mine" in kept.note
        assert "a note of yours" in kept.note
        first.page.locator(".aw-tag", has_text="yours").wait_for()  # it is seen without a reload
        assert first.troubles == second.troubles == []
