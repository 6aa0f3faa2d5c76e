"""The table of runs: what is found, in which order, in which groups; what is kept of it."""

from __future__ import annotations

import dataclasses
import math
import time

import address
import pytest
import run_list
import streamlit as st
from address import RunsView, runs_view_in
from run_list import ListedRun, MadeEntry, Origin, RunEntries, RunList, all_entries
from runs_table import (
    RunGroup,
    RunRow,
    RunsTable,
    SearchError,
    body_html,
    columns_after,
    groups_of,
    head_html,
    in_order,
    natural_key,
    parse_search,
)
from written_runs import write_run

import ampwatch
from ampwatch import store
from ampwatch.follow import ListEntry

ENTRY = ListEntry("healthy", "healthy", "", 100, 99, 0, 2.0**16, 0.1, "Net", "16 16")


def row(title="run", *, entry=ENTRY, live=False, origin=Origin.HERE, **facts):
    """A row of a run that says so."""
    about = {"last_time_ns": 5, "ended": not live, "source": "ampwatch"} | facts
    run = store.RunSummary(run_list.Path(f"/runs/{title}"), title, **about)
    made = None if entry is None else MadeEntry("", 0.0, entry)
    return RunRow(ListedRun(run, title, title, origin, live=live), made)


def failing(finding="AMP301 loss-spike", **facts):
    return dataclasses.replace(
        ENTRY, verdict="failing", words="failing", finding=finding, skipped=9, **facts
    )


NOW_NS = time.time_ns()
ROWS = [
    row("big 9", entry=failing(highest_rate=0.5), tags=("good", "sweep"), last_time_ns=NOW_NS),
    row("big 10", entry=dataclasses.replace(ENTRY, model="Großes Netz"), tags=("goodish",)),
    row("Lr=0.1", entry=None, live=True, note="the one to beat"),
    row("foreign", entry=failing("AMP103 scale-collapse", highest_rate=None), source="apex"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "big 9|big 10|Lr=0.1|foreign"),
        ("BIG", "big 9|big 10"),
        ("big -9", "big 10"),
        ("verdict:failing", "big 9|foreign"),
        ("-verdict:failing finding:amp103", ""),
        ("finding:AMP301", "big 9"),
        ('model:"großes netz"', "big 10"),
        ("tag:good", "big 9"),
        ("-tag:good", "big 10|Lr=0.1|foreign"),
        ("note:beat", "Lr=0.1"),
        ("lr=0.1", "Lr=0.1"),
        ("rate>0.1", "big 9"),
        ("rate>=0.1 rate<.5", "big 10"),
        ("skipped:9 source:apex", "foreign"),
        ("state:live", "Lr=0.1"),
        ("age<300min", "big 9"),  # they are made when this file is loaded
        ("age>1d", "big 10|Lr=0.1|foreign"),
        ("scale=65,536", "big 9|big 10|foreign"),
    ],
)
def test_runs_are_found_by_words_fields_and_comparisons(text, found):
    search = parse_search(text)
    assert "|".join(one.choice.title for one in ROWS if search.finds(one)) == found


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("colour:red", "There is no field 'colour'"),
        ("rate>much", "rate is a number"),
        ("tag>3", "tag is text: write tag:3"),
    ],
)
def test_what_cannot_be_understood_is_said(text, why):
    with pytest.raises(SearchError, match=why):
        parse_search(text)


@pytest.mark.parametrize(
    ("sort", "order"),
    [
        ("", "big 9|big 10|Lr=0.1|foreign"),
        ("run", "big 9|big 10|foreign|Lr=0.1"),
        ("-run", "Lr=0.1|foreign|big 10|big 9"),
        ("verdict", "big 9|foreign|big 10|Lr=0.1"),
        ("-rate", "big 9|big 10|Lr=0.1|foreign"),
        ("rate", "big 10|big 9|Lr=0.1|foreign"),
        ("nonsense", "big 9|big 10|Lr=0.1|foreign"),
    ],
)
def test_a_column_sorts_and_what_is_not_known_comes_last(sort, order):
    assert "|".join(one.choice.title for one in in_order(ROWS, sort)) == order


def test_numbers_in_names_are_sorted_as_numbers_and_no_name_fails():
    names = ["run-10", "run-9", "9", "x", "", "½²٣", "٣", "7" * 400]
    assert sorted(names, key=natural_key)[:2] == ["", "٣"]
    assert sorted(names, key=natural_key).index("run-9") < sorted(names, key=natural_key).index(
        "run-10"
    )


def test_a_run_is_in_the_group_of_each_of_its_tags():
    assert groups_of(ROWS[0], "tag") == ("good", "sweep")
    assert groups_of(ROWS[3], "tag") == ("no tag",)
    assert groups_of(ROWS[2], "verdict") == ("reading",)
    assert groups_of(ROWS[3], "finding") == ("AMP103 scale-collapse",)


def test_the_view_in_the_address_is_the_view_that_was_written():
    view = RunsView("rate>0.1 & größe", "-rate", "tag", "received", ("a&b", "no tag"))
    assert runs_view_in(view.text()) == view
    encoded = address.link("runs", address.Address(list=RunsView("verdict:failing lr>1").text()))
    assert encoded == "./runs?list=find%3Dverdict%3Afailing+lr%3E1"  # and not twice
    assert RunsView().text() is None
    assert runs_view_in("group=nonsense&%&find").group == ""


def shown(rows, view=None):
    """The table of these rows."""
    st.cache_resource.clear()
    listed = RunList(tuple(one.choice for one in rows), ())
    entries = all_entries()
    for one in rows:
        if one.made is not None:
            entries._made[one.choice.path] = one.made
    return RunsTable().contents(listed, view or RunsView())


def test_received_runs_are_in_a_section_of_their_own():
    rows = [*ROWS, row("got", origin=Origin.RECEIVED), row("far", origin=Origin.ELSEWHERE)]
    assert [item.choice.title for item in shown(rows).items] == [r.choice.title for r in ROWS]
    [got] = shown(rows, RunsView(origin="received")).items
    assert got.choice.title == "got"
    assert len(shown(rows, RunsView(origin="all")).items) == len(rows)
    assert len(shown(rows[-2:]).items) == 2  # none of one's own: all are shown
    assert shown(rows).counts == {Origin.HERE: 4, Origin.RECEIVED: 1, Origin.ELSEWHERE: 1}


def test_groups_are_headings_among_the_rows_and_are_folded():
    items = shown(ROWS, RunsView(group="verdict", folded=("failing",))).items
    assert items[0] == RunGroup("failing", 2, is_folded=True)
    assert [getattr(item, "name", None) or item.choice.title for item in items] == [
        "failing", "healthy", "big 10", "reading", "Lr=0.1",
    ]  # fmt: skip


def test_a_column_that_no_run_fills_is_left_out():
    assert "source" not in shown(ROWS[:2]).columns
    assert {"source", "tags"} <= set(shown(ROWS).columns)
    assert "tags" not in shown([row("plain")]).columns


def test_the_gravest_verdicts_are_grouped_first_whichever_run_is_newest():
    rows = [
        row("fine"), row("odd", entry=dataclasses.replace(ENTRY, verdict="warning")),
        row("broken", entry=failing()), row("unread", entry=None),
    ]  # fmt: skip
    items = shown(rows, RunsView(group="verdict")).items
    names = [item.name for item in items if isinstance(item, RunGroup)]
    assert names == ["failing", "warning", "healthy", "reading"]


def test_columns_are_those_that_were_chosen_in_that_order():
    chosen = ("run", "rate", "verdict")
    assert shown(ROWS, RunsView(columns=("run", "rate", "nonsense", "verdict"))).columns == chosen
    assert columns_after("raise", "rate", chosen) == ("rate", "run", "verdict")
    assert columns_after("column", "loss", chosen) == (*chosen, "loss")
    assert columns_after("column", "rate", chosen) == ("run", "verdict")
    assert columns_after("column", "run", ("run",)) == ("run",)  # one stays
    assert runs_view_in(RunsView(columns=chosen).text()).columns == chosen


def test_headings_say_how_they_sort_and_names_are_data():
    assert 'aria-sort="descending"' in head_html(RunsView(sort="-rate"), ["run", "rate"])
    assert 'data-value="rate"' in head_html(RunsView(sort="-rate"), ["run", "rate"])
    hostile = row("<img src=x>\" onload='x' \u202egnp", tags=("<b>",), note="<i>")
    text = body_html([hostile], 0, shown([hostile]).columns, set())
    assert "<img" not in text
    assert "<b>" not in text
    assert "<i>" not in text
    assert "\u202e" not in text.split("<bdi>")[1]


def test_a_name_is_shown_as_it_was_given_and_a_second_run_of_it_is_numbered(tmp_path, monkeypatch):
    monkeypatch.setenv("AMPWATCH_DASHBOARD_DIRS", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / ".state"))
    st.cache_resource.clear()
    for age_s, run_id in ((50, "1"), (40, "2")):
        write_run(tmp_path, "<b>x</b>", age_s=age_s)
        info = dataclasses.replace(store.read_info(tmp_path / "-b-x--b-"), id=run_id * 32)
        store.describe_run(tmp_path / "-b-x--b-", info)
    write_run(tmp_path, "other").rename(tmp_path / "renamed by hand")
    titles = {choice.name: choice.title for choice in run_list.current_list().choices}
    assert titles == {
        "-b-x--b-": "<b>x</b>", "-b-x--b--2": "<b>x</b> (2)", "renamed by hand": "renamed by hand",
    }  # fmt: skip


# --- entries -------------------------------------------------------------------------------------


@pytest.fixture
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / ".state"))


def choice_of(path):
    [run] = [one for one in store.list_runs(path.parent) if one.path == path]
    return ListedRun(run, path.name, path.name)


def awaited(entries, choice):
    """The entry, once it is there."""
    entries.request([choice])
    until = time.monotonic() + 60
    while (made := entries.entry_of(choice)) is None or made.stamp != choice.run.stamp:
        assert time.monotonic() < until
        time.sleep(0.01)
    return made.entry


def test_an_entry_is_kept_on_disk_until_the_runs_files_change(state, tmp_path, monkeypatch):
    path = write_run(tmp_path / "runs", "bad", skipped=30)
    choice, entries = choice_of(path), RunEntries()
    made = awaited(entries, choice)
    head = ampwatch.diagnose(store.open_run(path)).headline
    assert (made.verdict, made.finding) == ("failing", f"{head.code} {head.name}")
    assert made.last_step == 129
    assert (made.highest_rate, made.skipped) == (0.1, 30)
    assert made.course.split()[0] == "16"
    assert math.isnan(made.loss)  # the last one
    assert float(made.loss_course.split()[0]) == 2.0
    entries._workers.shutdown()
    monkeypatch.setattr("run_list._make_entry", lambda _: pytest.fail("it is kept"))
    again = RunEntries().entry_of(choice).entry
    assert repr(again) == repr(made)  # NaN is no equal of itself
    (path / "rank-0" / "devices.arrows").write_bytes(b"more")
    assert RunEntries().entry_of(choice_of(path)) is None


def test_a_run_that_cannot_be_read_says_why_in_its_row(state, tmp_path):
    path = write_run(tmp_path / "runs", "bad")
    choice, entries = choice_of(path), RunEntries()
    (path / "run.json").write_text("{")
    entries.request([choice])
    while (made := entries.entry_of(choice)) is None:
        time.sleep(0.01)
    assert "bad cannot be opened" in made.problem


def test_a_link_from_before_another_run_had_the_same_name_still_opens_the_first():
    here, elsewhere = (
        ListedRun(
            store.RunSummary(run_list.Path(f"/{folder}/same"), "same"),
            f"same~{folder}",
            "same",
            origin,
        )
        for folder, origin in (("here", Origin.HERE), ("elsewhere", Origin.ELSEWHERE))
    )
    runs = RunList((here, elsewhere), ())
    assert runs.find("same") is here
    assert runs.find("same~elsewhere") is elsewhere
    assert runs.find("another") is None
