"""What the runs of a folder teach the next one, in its report."""

from __future__ import annotations

import json

import pytest
from structured_runs import write_structured
from written_runs import more, write_run

from ampwatch import cli, store
from ampwatch.diagnosis.earlier_runs import signature_of, with_lesson
from ampwatch.follow import KeptEntries, diagnose, keep_for_later, lesson_for
from ampwatch.report import to_json


@pytest.fixture
def sweep(tmp_path):
    """Judged runs of one structure: two rates that held, one that failed."""
    folder = tmp_path / "runs"
    for hour, (rate, fails) in enumerate([(1e-3, False), (3e-3, False), (0.1, True)]):
        keep(write_structured(folder, f"r{hour}", rate=rate, fails=fails, hour=hour))
    return folder


def keep(path):
    run = store.open_run(path)
    keep_for_later(run, diagnose(run))


def lesson(path):
    found = lesson_for(store.open_run(path))
    return found.text if found else None


def test_a_run_learns_from_those_before_it(sweep):
    text = "3 earlier runs alike: stable up to 0.003 (120 steps), failing from 0.1 on."
    assert lesson(write_structured(sweep, "next", hour=9)) == text
    first_ones = (
        "1 earlier run alike: stable up to 0.001 (120 steps), none failed by its learning rate."
    )
    assert lesson(sweep / "r1") == first_ones
    assert lesson(sweep / "r0") is None


def test_a_run_ended_in_its_warm_up_proves_the_rate_that_it_reached(tmp_path):
    keep(write_structured(tmp_path, "short", rate=1.0, warmup=True))
    assert "stable up to 0.25" in lesson(write_structured(tmp_path, "next", hour=1))


def test_a_run_whose_files_changed_since_it_was_judged_does_not_count(sweep):
    more(sweep / "r2", 10, ended=True)
    text = lesson(write_structured(sweep, "next", hour=9))
    assert text.startswith("2 earlier runs alike: stable up to 0.003")


def test_a_run_that_does_not_tell_what_it_is_made_of_learns_and_teaches_nothing(sweep):
    path = write_run(sweep, "bare")
    keep(path)
    assert lesson(path) is None
    made = signature_of(store.open_run(sweep / "r0"))
    assert len(list(KeptEntries().similar(sweep, made, 9))) == 3
    assert [name for name, _, _ in KeptEntries().similar(sweep, made, 2)] == ["r2", "r1"]


def test_report_says_it_and_its_json_stays_as_it_was(sweep, capsys):
    path = str(write_structured(sweep, "next", hour=9))
    assert cli.run(["report", path, "--json"]) == 0
    before = capsys.readouterr().out
    assert cli.run(["report", path, "--all"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "alike 3 earlier runs alike: stable up to 0.003 (120 steps), failing from" in shown
    assert cli.run(["report", path, "--json"]) == 0
    assert capsys.readouterr().out == before
    assert json.loads(before)["learning_rate"]["action"] == "keep"


def test_each_report_teaches_the_next(tmp_path, capsys):
    first = write_structured(tmp_path / "runs", "first", rate=0.1, fails=True)
    assert cli.run(["report", str(first)]) == 0
    assert "earlier run" not in capsys.readouterr().out
    second = write_structured(tmp_path / "runs", "second", hour=1)
    assert cli.run(["report", str(second), "--all"]) == 0
    assert "1 earlier run alike: failing from 0.1 on, none stable." in capsys.readouterr().out


def as_json(path, capsys):
    capsys.readouterr()
    assert cli.run(["report", str(path), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_what_earlier_runs_showed_bounds_the_advice_and_no_finding(sweep, tmp_path, capsys):
    alone = as_json(write_structured(tmp_path / "alone", "next", rate=0.2, fails=True), capsys)
    beside = as_json(write_structured(sweep, "next", rate=0.2, fails=True, hour=9), capsys)
    own, bounded = alone["learning_rate"], beside["learning_rate"]
    assert own["action"] == bounded["action"] == "lower"
    assert own["high"] > 0.1 > bounded["high"]
    assert "failed at 0.1" in bounded["because"]
    assert bounded["because"].startswith(own["because"])
    assert beside["findings"] == alone["findings"]
    assert beside["verdict"] == alone["verdict"]


def test_without_earlier_runs_the_report_is_that_of_the_rows(tmp_path, capsys):
    path = write_structured(tmp_path / "alone", "one", rate=0.2, fails=True)
    assert cli.run(["report", str(path), "--json"]) == 0
    assert capsys.readouterr().out.rstrip("\n") == to_json(diagnose(store.open_run(path)))


def test_the_report_as_one_file_says_the_same(sweep, tmp_path, capsys):
    path = write_structured(sweep, "next", rate=0.2, fails=True, hour=9)
    assert cli.run(["report", str(path), "-o", str(tmp_path / "out.html")]) == 0
    assert "failed at 0.1, which bounds the interval" in (tmp_path / "out.html").read_text()


def test_near_runs_bound_nothing(tmp_path):
    keep(write_structured(tmp_path, "wide", rate=0.05, fails=True, width=128))
    path = write_structured(tmp_path, "next", rate=0.2, fails=True, hour=9)
    run = store.open_run(path)
    assert "at another width" in lesson(path)
    assert with_lesson(diagnose(run), lesson_for(run)) == diagnose(run)
