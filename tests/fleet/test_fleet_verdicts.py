"""Verdicts are stored once, whoever stores them, and read for what is in the place now."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import deltalake
import pytest
from written_runs import more, write_run

import ampwatch
from ampwatch.fleet import publish, verdicts
from ampwatch.fleet.judging import judge_run
from ampwatch.fleet.place import Place
from ampwatch.fleet.runs_delta_table import list_published
from ampwatch.fleet.verdicts import (
    findings_text,
    read_verdicts,
    rules_version,
    store_verdicts,
    tables_of,
)


@pytest.fixture
def folder(tmp_path):
    write_run(tmp_path / "runs", "healthy", accepted=300, config={"model": "vit", "user": "ada"})
    write_run(tmp_path / "runs", "broken", accepted=200, skipped=40, age_s=7200.0)
    return tmp_path / "runs"


def judged(place):
    found = Place(place)
    return [judge_run(found, row) for row in list_published(found)]


@pytest.mark.parametrize("place", ["path"], indirect=True)  # the same in a bucket
def test_a_verdict_is_what_report_says_of_the_run(place, folder):
    publish(folder, place)
    store_verdicts(tables_of(Place(place)), judged(place))
    found = read_verdicts(place, findings=True)
    assert [one.name for one in found] == ["healthy", "broken"]
    for one in found:
        said = ampwatch.diagnose(ampwatch.open_run(folder / one.name)).to_json()
        assert one.findings_json == findings_text(said)
        assert json.loads(json.dumps(one.learning_rate)) == said["learning_rate"]
        assert (one.verdict, one.steps) == (said["verdict"], said["run"]["steps"])
    assert found[0].config == {"model": "vit", "user": "ada"}
    assert found[1].codes[0] == found[1].findings[0]["code"]
    assert found[1].headline == found[1].findings[0]["summary"]


@pytest.mark.parametrize("place", ["path"], indirect=True)  # the same in a bucket
def test_findings_are_rows_for_who_asks_with_sql(place, folder):
    publish(folder, place)
    store_verdicts(tables_of(Place(place)), judged(place))
    rows = deltalake.DeltaTable(f"{place}/findings").to_pyarrow_table().to_pylist()
    of_broken = [row["code"] for row in rows if row["name"] == "broken"]
    (broken,) = [one for one in read_verdicts(place, findings=True) if one.name == "broken"]
    assert sorted(of_broken) == sorted(one["code"] for one in broken.findings)


def test_two_who_store_the_same_at_once_store_it_once(place, folder):
    publish(folder, place)
    found = judged(place)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: store_verdicts(tables_of(Place(place)), found), range(4)))
    for name in ("verdicts", "findings"):
        rows = deltalake.DeltaTable(f"{place}/{name}").to_pyarrow_table()
        expected = 2 if name == "verdicts" else sum(len(one.findings) for one in found)
        assert rows.num_rows == expected


def test_a_run_that_was_published_again_has_no_verdict_until_it_is_judged(tmp_path):
    place, path = str(tmp_path / "place"), write_run(tmp_path / "runs", "grows", accepted=100)
    publish(path, place)
    store_verdicts(tables_of(Place(place)), judged(place))
    more(path, 50, ended=True)
    publish(path, place)
    assert read_verdicts(place) == []
    store_verdicts(tables_of(Place(place)), judged(place))
    assert [one.steps for one in read_verdicts(place)] == [150]


def test_a_verdict_by_other_rules_counts_until_there_is_one_by_ours(tmp_path, folder):
    place = str(tmp_path / "place")
    publish(folder, place)
    ours = judged(place)
    theirs = [replace(one, rules="9.9+somebody", headline="Theirs.") for one in ours]
    store_verdicts(tables_of(Place(place)), theirs)
    assert {one.headline for one in read_verdicts(place)} == {"Theirs."}
    store_verdicts(tables_of(Place(place)), ours)
    assert {one.rules for one in read_verdicts(place)} == {rules_version()}


def test_many_small_files_become_few(tmp_path, folder, monkeypatch):
    monkeypatch.setattr(verdicts, "_MANY_FILES", 6)
    place = str(tmp_path / "place")
    publish(folder, place)
    (one, _) = judged(place)
    tables = tables_of(Place(place))
    for number in range(8):
        store_verdicts(tables, [replace(one, stamp=str(number))])
    for table in tables:
        table.tidy()
    made = deltalake.DeltaTable(f"{place}/verdicts")
    assert len(made.file_uris()) == 1
    assert made.to_pyarrow_table().num_rows == len(tables[0].keys()) == 8


def test_a_place_in_which_nothing_was_judged_has_no_verdicts(tmp_path, folder):
    publish(folder, tmp_path / "place")
    assert read_verdicts(str(tmp_path / "place")) == []
