"""The page of runs in a browser: sorted, found, grouped, scrolled, chosen, by mouse and keys."""

from __future__ import annotations

import re
from contextlib import closing

import pytest
from page_driver import needs_browser, tab
from written_runs import write_run

from ampwatch import store

pytestmark = [pytest.mark.slow_browser, needs_browser]

MANY = 140  # more than are sent to the browser at once
HARD = "\u202eשבת 😀 <b>bold</b> " + "a very long name " * 14
HARD_NAME = store.safe_name(HARD)
ROW = ".aw-runs.all tbody tr[data-go]"


@pytest.fixture(scope="module")
def place(folder):
    """Many runs; one fails and is tagged, one has a name that is hard to show, one was received."""
    for number in range(MANY):
        write_run(folder, f"sweep {number}", age_s=7000 + number)
    store.edit_tags(write_run(folder, "falls", skipped=30, age_s=100), add=["bad"])
    write_run(folder, HARD, ended=False, age_s=80_000)
    got = write_run(folder, "got", age_s=50)
    store.write_copies(got, {0: store.CopyNote(ended_at=2)})
    return folder


def names(page):
    return [name.rstrip() for name in page.page.locator(f"{ROW} a").all_inner_texts()]


def waits_for(page, first):
    """Wait until the first row is of this run."""
    page.page.wait_for_function(
        "([row, name]) => document.querySelector(row)?.dataset.go === name", arg=[ROW, first]
    )


def is_sorted(page, name, how):
    """Wait until this column's heading says so."""
    page.page.locator(f"th[aria-sort={how}]", has_text=name).wait_for()


def test_a_click_and_a_key_on_a_heading_sort_and_the_address_keeps_it(page, server):
    page.open(f"{server.url}/runs")
    waits_for(page, "falls")
    page.page.get_by_role("button", name="run", exact=True).click()
    is_sorted(page, "run", "ascending")
    page.page.get_by_role("button", name="run", exact=True).click()
    is_sorted(page, "run", "descending")
    waits_for(page, HARD_NAME)
    page.page.get_by_role("button", name="skipped").focus()
    page.page.keyboard.press("Enter")
    page.page.wait_for_function("() => location.search.includes('sort%3D-skipped')")
    waits_for(page, "falls")
    is_sorted(page, "skipped", "descending")
    assert page.page.evaluate("() => document.activeElement.dataset.key") == "sort skipped"
    page.page.reload()
    waits_for(page, "falls")
    is_sorted(page, "skipped", "descending")


def test_runs_are_found_by_field_grouped_and_folded(one, server):
    with tab(one, stranger=True) as page:
        page.open(f"{server.url}/runs")
        waits_for(page, "falls")
        page.page.get_by_label("Search runs").fill("verdict:failing")
        waits_for(page, "falls")
        page.says("1 of 142 runs")
        assert names(page) == ["falls"]
        page.page.get_by_label("Search runs").fill("colour:red")
        page.says("There is no field 'colour' to search.")
        page.page.get_by_label("Search runs").fill("")
        page.page.locator(f"{ROW}[data-go='falls']").wait_for()
        page.page.get_by_label("group by").select_option("tag")
        page.page.get_by_role("button", name="no tag 141 runs").click()
        page.page.locator("[data-key='fold no tag'][aria-expanded=false]").wait_for()
        page.page.wait_for_function(f"() => document.querySelectorAll('{ROW}').length === 1")
        page.back()
        page.page.locator("[data-key='fold no tag'][aria-expanded=true]").wait_for()
        assert page.troubles == []


def test_of_clicks_that_follow_each_other_at_once_none_is_lost_or_taken_back(page, server):
    """The browser sends some before it has heard of the address that an earlier one made."""
    page.open(f"{server.url}/runs")
    waits_for(page, "falls")
    page.page.evaluate(
        """async () => {
            const click = (selector) => document.querySelector(selector).click();
            for (let number = 0; number < 6; number++) {
                click(`[data-act=pick][data-value='sweep ${number}']`);
                await new Promise((done) => setTimeout(done, 5 * number));
            }
            click("[data-act=sort][data-key='sort skipped']");
            const group = document.querySelector("select[data-act=group]");
            group.value = "verdict";
            group.dispatchEvent(new Event("change", { bubbles: true }));
        }"""
    )
    page.says("6 chosen")
    page.page.wait_for_url(lambda url: all(part in url for part in ("skipped", "verdict", "runs=")))
    page.back()
    page.page.wait_for_url(lambda url: "group%3Dverdict" not in url)
    page.settled()
    assert "group%3Dverdict" not in page.page.url


def test_a_button_that_is_pressed_while_the_table_changes_is_heard(page, server):
    page.open(f"{server.url}/runs?list=group%3Dtag")
    waits_for(page, "falls")
    place = page.page.locator("[data-key='fold no tag']").bounding_box()
    page.page.mouse.move(place["x"] + 10, place["y"] + place["height"] / 2)
    page.page.mouse.down()
    page.page.get_by_label("Search runs").fill("sweep")
    page.page.wait_for_url(re.compile("find%3Dsweep"))
    page.settled()
    page.page.mouse.up()
    page.page.locator("[data-key='fold no tag'][aria-expanded=false]").wait_for()
    page.says("of 142 runs")


def test_of_many_rows_only_those_near_the_view_are_there_wherever_one_scrolls(page, server):
    page.open(f"{server.url}/runs")
    waits_for(page, "falls")
    page.page.wait_for_function(f"() => document.querySelectorAll('{ROW}').length < 130")
    box = page.page.get_by_test_id("stMain")
    for part, name in ((0.51, "sweep 73"), (1.0, HARD_NAME), (0.0, "falls")):
        box.evaluate("(box, part) => { box.scrollTop = part * box.scrollHeight; }", part)
        page.page.locator(f"{ROW}[data-go='{name}'] a").wait_for()
        page.page.wait_for_function(  # in one look: a refresh may write the rows anew
            """(row) => {
                const seen = document.querySelector(row)?.getBoundingClientRect();
                const around = document.querySelector(".stMain").getBoundingClientRect();
                return seen && around.top - 1 <= seen.top && seen.top <= around.bottom;
            }""",
            arg=f"{ROW}[data-go='{name}']",
        )


def test_columns_are_chosen_and_moved_and_the_address_keeps_them(page, server):
    page.open(f"{server.url}/runs")
    waits_for(page, "falls")
    heads = page.page.locator(".aw-runs.all thead th[aria-sort]")
    words = [text.split("\n")[0] for text in heads.all_inner_texts()]
    assert words[:4] == ["verdict", "run", "loss", "loss scale"]
    page.page.get_by_text("Columns").click()
    menu = page.page.locator(".aw-column-list")
    menu.get_by_role("checkbox", name="learning rate").check()
    heads.get_by_text("learning rate").wait_for()
    menu.get_by_role("checkbox", name="duration").uncheck()
    heads.get_by_text("duration").wait_for(state="detached")
    menu.get_by_role("button", name="move loss scale to the left").click()
    page.page.wait_for_function(
        "() => document.querySelectorAll('.aw-runs.all thead th[aria-sort]')[2].innerText"
        ".startsWith('loss scale')"
    )
    page.page.reload()
    waits_for(page, "falls")
    words = [text.split("\n")[0] for text in heads.all_inner_texts()]
    assert words[2:4] == ["loss scale", "loss"]
    assert "duration" not in words
    assert "learning rate" in words
    assert page.faults() == []


def test_the_table_scrolls_with_the_page_and_cuts_no_row(page, server):
    page.open(f"{server.url}/runs")
    waits_for(page, "falls")
    assert page.page.locator(".aw-box").evaluate("box => box.scrollHeight <= box.clientHeight + 1")
    assert page.page.locator(".aw-box").evaluate("box => box.scrollWidth <= box.clientWidth + 1")


def test_runs_are_chosen_and_compared_and_the_choice_is_in_the_address(page, server):
    page.open(f"{server.url}/runs")
    waits_for(page, "falls")
    for number in (0, 2):
        page.page.get_by_label(f"choose sweep {number}", exact=True).check()
        page.says(f"{1 + number // 2} chosen")
    page.page.wait_for_url(re.compile("runs=sweep"))
    page.page.reload()
    page.says("2 chosen")
    assert page.page.get_by_label("choose sweep 2", exact=True).is_checked()
    page.page.get_by_role("link", name="Compare").last.click()
    page.page.wait_for_url(re.compile("/compare"))
    page.page.get_by_role("heading", name="Compare").wait_for()
    assert "sweep" in page.page.url.split("runs=")[1]
    page.go("Runs")
    page.page.get_by_role("button", name="Choose none").click()
    page.page.get_by_text("2 chosen").wait_for(state="detached")


def test_runs_are_tagged_and_noted_on_the_page(page, server, place):
    page.open(f"{server.url}/runs?list=find%3Dsweep%2B12&runs=sweep%20120,sweep%20121")
    page.says("2 chosen")
    page.page.get_by_role("button", name="Tags and note").click()
    dialog = page.page.get_by_role("dialog")
    dialog.get_by_label("Tags to add").fill("good, a-b")
    dialog.get_by_label("Line to add to the note of each").fill("of the sweep")
    dialog.get_by_role("button", name="Save").click()
    dialog.wait_for(state="hidden")
    page.page.locator(".aw-tag", has_text="good").nth(1).wait_for()
    store.edit_tags(place / "sweep 120", add=["theirs"])  # somebody else, meanwhile
    page.page.get_by_label("choose sweep 121", exact=True).uncheck()
    page.says("1 chosen")
    page.page.get_by_role("button", name="Tags and note").click()
    assert dialog.get_by_label("Note").input_value() == "of the sweep"
    dialog.get_by_label("Note").fill("the <b>best</b>\nso far")
    dialog.get_by_label("Name in lists").fill("My best")
    dialog.get_by_label("Pinned").select_option("yes")
    dialog.get_by_label("good").check()
    dialog.get_by_label("Tags to add").fill("x" * 99)
    dialog.get_by_role("button", name="Save").click()
    dialog.get_by_role("alert").get_by_text("is too long").wait_for()
    assert dialog.get_by_label("Note").input_value() == "the <b>best</b>\nso far"
    dialog.get_by_label("Tags to add").fill("better")
    dialog.get_by_role("button", name="Save").click()
    dialog.wait_for(state="hidden")
    page.page.locator(".aw-tag", has_text="better").wait_for()
    assert store.read_tags(place / "sweep 120") == store.RunTags(
        ("a-b", "theirs", "better"), "the <b>best</b>\nso far", "My best", True
    )
    page.page.locator(".aw-name", has_text="My best").wait_for()
    page.page.get_by_label("Search runs").fill("tag:good")
    waits_for(page, "sweep 121")
    store.edit_tags(place / "sweep 120", title="", pin=False)  # other tests look for the first


def test_runs_are_deleted_after_a_question_and_said_to_be_gone(one, page, server, place):
    for name in ("junk 1", "junk 2"):
        write_run(place, name, ended=name == "junk 1", age_s=9_000)
    with closing(store.RankWriter(place / "junk 2", 0)), tab(one) as other:
        other.open(f"{server.url}/layers?run=junk%201")
        other.page.get_by_role("heading", name="junk 1").wait_for()
        page.open(f"{server.url}/runs?list=find%3Djunk&runs=junk%201,junk%202")
        page.says("2 chosen")
        page.page.locator(ROW).nth(1).wait_for()
        page.page.get_by_role("button", name="Delete").click()
        dialog = page.page.get_by_role("dialog")
        dialog.get_by_text("This cannot be undone.").wait_for()
        assert "kB on this disk" in dialog.inner_text()
        page.page.keyboard.press("Escape")
        dialog.wait_for(state="hidden")
        assert (place / "junk 1").exists()
        page.page.get_by_role("button", name="Delete").click()
        dialog.get_by_text("junk 2 is live and stays.").wait_for()
        dialog.get_by_role("button", name="Delete").click()
        page.page.locator(f"{ROW}[data-go='junk 1']").wait_for(state="detached")
        assert not (place / "junk 1").exists()
        assert (place / "junk 2" / "run.json").exists()
        other.says("This run is gone")
        assert other.troubles == []


def test_a_log_that_is_not_understood_is_named_as_its_owner_does(page, server, tmp_path, place):
    log = tmp_path / "<b>my notes<b>.txt"
    log.write_text("nothing that a trainer prints\n" * 9)
    page.open(f"{server.url}/runs")
    waits_for(page, "falls")
    page.page.locator("input[type=file]").set_input_files(log)
    trouble = page.page.locator(".aw-problem")
    trouble.wait_for()
    assert trouble.inner_text().startswith("No training log found in <b>my notes<b>.txt")
    assert "choose it below" in trouble.inner_text()
    assert "--as" not in trouble.inner_text()
    assert str(tmp_path.parents[2]) not in trouble.inner_text()
    page.page.get_by_label("Its format").last.click()
    page.page.get_by_role("option", name="apex").wait_for()
    assert not [path for path in place.iterdir() if "notes" in path.name]


def test_nothing_here_keeps_some_readers_out(page, server):
    page.open(f"{server.url}/runs?runs=falls,got&list=from%3Dall%26group%3Dtag")
    page.says("2 chosen")
    page.page.locator(ROW).first.wait_for()
    for name in ("Tags and note", "Delete"):
        page.page.get_by_role("button", name=name, exact=True).click()
        page.page.get_by_role("dialog").wait_for()
        assert page.faults() == [], name
        page.page.keyboard.press("Escape")
        page.page.get_by_role("dialog").wait_for(state="hidden")
    assert page.faults() == []


def test_received_runs_are_apart(page, server):
    page.open(f"{server.url}/runs")
    waits_for(page, "falls")
    page.page.get_by_role("button", name="received 1").click()
    waits_for(page, "got")
    assert names(page) == ["got"]
    page.page.get_by_role("link", name="1 more").first.wait_for(state="detached")


def test_hard_names_are_shown_as_they_are_and_the_page_fits_a_phone(one, server):
    with tab(one, "dark", (420, 900)) as page:
        page.open(f"{server.url}/runs?list=find%3Dbold")
        page.page.locator(f"{ROW} a").wait_for()
        assert "<b>b" in names(page)[0]
        assert "<b>bold</b>" in page.page.locator(f"{ROW} a").get_attribute("title")
        page.page.locator(f"{ROW} .aw-chip, {ROW} .aw-cut").get_by_text("cut off").wait_for()
        width = page.page.evaluate("() => document.querySelector('.stMain').scrollWidth")
        assert width <= 420
        assert page.troubles == []
