"""The fleet on the page: the numbers are the terminal's, each bar leads to its runs."""

from __future__ import annotations

import datetime as dt

import pytest
from address import FleetView, fleet_view_in
from fleet_page import Fleet, filters_html, findings_table, groups_table, runs_table, summary_html

from ampwatch.fleet.verdicts import RunVerdict

NOW = dt.datetime(2026, 11, 24, 12, tzinfo=dt.timezone.utc)


def verdict(number, *, codes=(), days=1, person="ana", lost=0, **others):
    given = {
        "run_id": f"{number:032x}", "stamp": "s", "rules": "r", "name": f"run-{number}",
        "started": NOW - dt.timedelta(days=days), "last_time": NOW, "steps": 100, "ranks": 1,
        "verdict": "failing" if codes else "healthy", "codes": codes,
        "headline": "It broke." if codes else "", "layer": None,
        "learning_rate": {"current": 0.1}, "lost_steps": lost, "lost_hours": lost / 100,
        "hours": 1.0, "config": {"person": person}, "tags": (), "note": "", "signature": None,
        "findings_json": None, "judged": NOW,
    }  # fmt: skip
    return RunVerdict(**given | others)


RUNS = (
    verdict(1, codes=("AMP301", "AMP103"), lost=50),
    verdict(2, codes=("AMP203",), lost=10, person="bo", days=10),
    verdict(3, person="bo"),
    verdict(4, days=60),
)


def fleet(**chosen):
    return Fleet(FleetView(**chosen), RUNS, NOW)


def test_the_numbers_at_the_top_are_those_of_the_chosen_runs():
    text = summary_html(fleet(), unjudged=2)
    assert "<span>runs judged</span><b>4</b>" in text
    assert "<span>failing</span><b>2</b>" in text
    assert "<b>60 · 15.0 %</b>" in text
    assert "<span>not judged</span><b>2</b>" in text
    assert "<b>50 · 50.0 %</b>" in summary_html(fleet(code="AMP301"), unjudged=0)


@pytest.mark.parametrize(
    ("chosen", "left"),
    [
        ({}, ["run-1", "run-2", "run-3", "run-4"]),
        ({"code": "AMP103"}, ["run-1"]),
        ({"since": "7"}, ["run-1", "run-3"]),
        ({"group": "person", "only": "bo"}, ["run-2", "run-3"]),
        ({"group": "person", "only": "bo", "since": "7"}, ["run-3"]),
        ({"only": "2026-11-09"}, ["run-2"]),
    ],
)
def test_what_is_chosen_leaves_these_runs(chosen, left):
    assert [one.name for one in fleet(**chosen).chosen()] == left


def test_a_choice_does_not_empty_the_table_that_it_was_made_in():
    some = fleet(group="person", only="bo", code="AMP203")
    assert [tally.key for tally in some.findings()] == ["AMP203"]
    assert [tally.key for tally in some.groups()] == ["bo"]
    assert [tally.key for tally in fleet(code="AMP203").findings()] == [
        "AMP301", "AMP203", "AMP103"]  # fmt: skip
    assert [tally.key for tally in fleet(group="person", only="bo").groups()] == ["ana", "bo"]


def test_what_was_chosen_is_said_and_can_be_taken_back():
    text = filters_html(FleetView(code="AMP301", group="person", only=""))
    assert 'data-go="code="' in text
    assert "only AMP301 learning-rate-too-high" in text
    assert "only person no person told" in text
    assert filters_html(FleetView()) == ""


def test_names_that_strangers_chose_are_escaped():
    bad = "<img src=x onerror=alert(1)>\"'&"
    some = Fleet(FleetView(group="person"), (verdict(1, name=bad, person=bad, layer=bad),), NOW)
    for text in (groups_table(some), runs_table(some, {}, [])):
        assert "<img" not in text
        assert "\"'&" not in text


def test_runs_that_were_published_can_be_chosen_and_opened(monkeypatch):
    import address

    monkeypatch.setattr(address, "read", address.Address)
    text = runs_table(fleet(), {RUNS[0].run_id: "run-1"}, ["run-1"])
    assert 'data-go="run=run-1"' in text
    assert 'data-go="pick=run-1" data-key="pick=run-1" aria-pressed="true"' in text
    assert text.count("data-go=") == 2  # the others are not listed by now
    assert text.index("run-1") < text.index("run-2") < text.index("run-3")


def test_no_finding_is_said():
    assert "No warning and no error" in findings_table(Fleet(FleetView(), RUNS[2:], NOW))


@pytest.mark.parametrize(
    "view",
    [FleetView(), FleetView("7", "person", "AMP103", "bo"), FleetView(only=""),
     FleetView(group="optimizer.lr", only="ä=&#")],
)  # fmt: skip
def test_a_view_comes_back_from_the_address(view):
    assert fleet_view_in(view.text()) == view


@pytest.mark.parametrize("text", [None, "", "since=x", "%%%", "a=b&&&="])
def test_a_damaged_address_shows_the_fleet_as_at_first(text):
    assert fleet_view_in(text) == FleetView()
