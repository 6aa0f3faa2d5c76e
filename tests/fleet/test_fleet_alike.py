"""Runs of a place that are made of the same, and what they teach a run elsewhere."""

from __future__ import annotations

import pytest
from structured_runs import write_structured
from written_runs import write_run

from ampwatch import cli, store
from ampwatch.diagnosis.earlier_runs import signature_of
from ampwatch.errors import RunError
from ampwatch.fleet import list_published, publish
from ampwatch.fleet.alike_runs import alike_in, runs_in
from ampwatch.fleet.judging import judge_run
from ampwatch.fleet.place import Place
from ampwatch.fleet.verdicts import store_verdicts, tables_of
from ampwatch.follow import diagnose, entry_of

TOLD = "3 earlier runs alike: stable up to 0.003 (120 steps), failing from 0.1 on."


@pytest.fixture
def there(tmp_path):
    """A place with judged runs."""
    folder, place = tmp_path / "runs", str(tmp_path / "place")
    for hour, (rate, fails) in enumerate([(1e-3, False), (3e-3, False), (0.1, True)]):
        write_structured(folder, f"r{hour}", rate=rate, fails=fails, hour=hour)
    write_structured(folder, "wide", width=128, hour=3)
    write_run(folder, "bare")
    publish(folder, place)
    found = Place(place)
    store_verdicts(tables_of(found), [judge_run(found, row) for row in list_published(found)])
    return place


@pytest.mark.parametrize("place", ["path"], indirect=True)  # the same in a bucket
def test_a_published_run_has_the_signature_of_its_folder(place, tmp_path):
    path = write_structured(tmp_path / "runs", "one", ranks=(0, 1), world_size=2)
    write_run(tmp_path / "runs", "bare")
    publish(tmp_path / "runs", place)
    local = signature_of(store.open_run(path)).text
    assert {row.name: row.signature for row in list_published(place)} == {
        "one": local,
        "bare": None,
    }
    assert signature_of(store.open_run(f"{place}#one")).text == local


def test_a_place_tells_of_a_run_what_its_folder_keeps(there, tmp_path):
    for one in runs_in(there):
        run = store.open_run(tmp_path / "runs" / one.name)
        entry = entry_of(run, diagnose(run))
        told = (one.id, one.signature.text, one.outcome.value, one.rate)
        assert told == (entry.run_id, entry.signature, entry.outcome, entry.rate)
        assert one.started_ns // 1000 == entry.started_ns // 1000
        assert abs(one.steps - entry.steps_held) <= 1


def test_report_asks_a_place(there, tmp_path, capsys, monkeypatch):
    path = str(write_structured(tmp_path / "elsewhere", "next", hour=9))
    assert cli.run(["report", path, "--earlier", there]) == 0
    assert TOLD in " ".join(capsys.readouterr().out.split())
    monkeypatch.setenv("AMPWATCH_EARLIER", there)
    assert cli.run(["report", path]) == 0
    assert TOLD in " ".join(capsys.readouterr().out.split())


def test_a_run_that_is_here_and_there_counts_once(there, tmp_path, capsys):
    for name in ("r0", "r2"):
        assert cli.run(["report", str(tmp_path / "runs" / name)]) == 0
    capsys.readouterr()
    path = str(write_structured(tmp_path / "runs", "next", hour=9))
    assert cli.run(["report", path, "--earlier", there]) == 0
    assert TOLD in " ".join(capsys.readouterr().out.split())


def test_a_place_that_is_away_leaves_the_report_as_it_is(tmp_path, capsys):
    path = str(write_structured(tmp_path / "runs", "next"))
    assert cli.run(["report", path]) == 0
    plain = capsys.readouterr().out
    assert cli.run(["report", path, "--earlier", str(tmp_path / "nothing")]) == 0
    shown = capsys.readouterr()
    assert shown.out == plain
    assert "Earlier runs are left out" in shown.err
    assert "nothing was published there" in shown.err


def test_runs_like_one_are_listed_newest_first(there, tmp_path):
    like = store.open_run(write_structured(tmp_path / "elsewhere", "next", hour=9))
    assert [one.name for one in alike_in(there, like)] == ["r2", "r1", "r0"]
    bare = store.open_run(tmp_path / "runs" / "bare")
    with pytest.raises(RunError, match="does not show its layers"):
        alike_in(there, bare)
