"""`--since`, `--where` and `--like` say which runs are meant; nothing in them is evaluated."""

from __future__ import annotations

import shutil

import pytest
from structured_runs import write_structured
from written_runs import write_run

import ampwatch
from ampwatch import cli
from ampwatch.errors import RunError, SearchError
from ampwatch.fleet import publish

SETTINGS = {
    "old": {"model": "vit", "optimizer": {"name": "AdamW", "lr": 3e-4}, "user": "ada"},
    "new": {"model": "gpt", "optimizer": {"name": "SGD", "lr": 0.1}, "user": "bob"},
    "bad": {"arch": "gpt", "optimizer": {"name": "SGD", "lr": 0.5}, "fp16": True},
}
DAY_S = 86400.0


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """Three runs of which nothing is judged, and beside them their folder."""
    tmp_path = tmp_path_factory.mktemp("chosen")
    runs = tmp_path / "runs"
    write_run(runs, "old", accepted=300, age_s=9 * DAY_S, config=SETTINGS["old"])
    write_run(runs, "new", accepted=200, age_s=2 * DAY_S, config=SETTINGS["new"])
    write_run(runs, "bad", accepted=200, skipped=40, age_s=DAY_S, config=SETTINGS["bad"])
    assert cli.run(["tag", str(runs / "new"), "sweep", "--note", "as a baseline"]) == 0
    publish(runs, tmp_path / "place")
    return tmp_path / "place"


@pytest.fixture(scope="module")
def judged(published):
    """The same, judged."""
    place = shutil.copytree(published, published.parent / "judged")
    ampwatch.fleet(str(place), workers=1)
    return str(place)


@pytest.fixture
def place(published, tmp_path):
    return str(shutil.copytree(published, tmp_path / "place"))


@pytest.mark.parametrize(
    ("where", "found"),
    [
        ("", "bad new old"),
        ("model:gpt", "bad new"),
        ("person:ada", "old"),
        ("tag:sweep", "new"),
        ("-tag:sweep", "bad old"),
        ("note:baseline", "new"),
        ("verdict:failing", "bad"),
        ("-verdict:failing", "new old"),
        ("finding:scale-collapse", "bad"),
        ("finding:AMP103 model:gpt", "bad"),
        ("steps>=240", "bad old"),
        ("lost_steps>10", "bad"),
        ("rate>0.01", "bad new old"),
        ("optimizer.name:adam", "old"),
        ("optimizer.name=sgd", "bad new"),
        ("optimizer.lr>0.1", "bad"),
        ("optimizer.lr=0.1", "new"),
        ("fp16=true", "bad"),
        ("age<5d", "bad new"),
        ("ol", "old"),
        ('"as a base"', "new"),
    ],
)
def test_where_finds_runs_by_words_fields_and_settings(judged, where, found):
    told = ampwatch.fleet(judged, workers=1, where=where)
    assert " ".join(sorted(one.name for one in told.runs)) == found


def test_what_is_known_before_judging_keeps_the_others_from_being_judged(place):
    assert ampwatch.fleet(place, workers=1, where="model:gpt verdict:failing").judged == 2


def test_since_is_an_age(place):
    told = ampwatch.fleet(place, workers=1, since="7d")
    assert [one.name for one in told.runs] == ["bad", "new"]
    assert told.judged == 2
    assert len(ampwatch.fleet(place, workers=1, since="2w").runs) == 3


@pytest.mark.parametrize(
    ("where", "why"),
    [
        ("verdit:failing", "No run has a setting 'verdit'"),
        ("steps>many", "steps is a number"),
        ("model>3", "model is text: write model:3"),
        ("optimizer.lr>high", "optimizer.lr is a number"),
    ],
)
def test_what_cannot_be_understood_is_said_and_nothing_is_judged(place, capsys, where, why):
    assert cli.run(["fleet", place, "--where", where]) == 2
    assert why in " ".join(capsys.readouterr().err.split())
    assert ampwatch.fleet(place, workers=1).judged == 3


def test_what_looks_like_code_is_text(place, tmp_path):
    trap = tmp_path / "trap"
    code = f"__import__('pathlib').Path({str(trap)!r}).touch()"
    assert ampwatch.fleet(place, workers=1, where=f'"{code}"').runs == ()
    with pytest.raises(SearchError):
        ampwatch.fleet(place, workers=1, where=f"steps>{code}")
    assert not trap.exists()


@pytest.mark.parametrize("since", ["7", "soon", "-3d", "7y"])
def test_an_age_that_is_none_is_said(judged, since):
    with pytest.raises(SearchError, match="is not an age: give hours, days or weeks, such as 7d"):
        ampwatch.fleet(judged, workers=1, since=since)


def test_like_leaves_the_runs_that_are_made_of_the_same(tmp_path, capsys):
    folder, place = tmp_path / "runs", str(tmp_path / "place")
    for hour, rate in enumerate((1e-3, 3e-3)):
        write_structured(folder, f"same-{hour}", rate=rate, hour=hour)
    write_structured(folder, "wide", width=128, hour=3)
    write_run(folder, "bare")
    publish(folder, place)
    path = write_structured(tmp_path / "elsewhere", "mine", hour=9)
    told = ampwatch.fleet(place, workers=1, like=path)
    assert sorted(one.name for one in told.runs) == ["same-0", "same-1"]
    assert told.judged == 2
    assert cli.run(["fleet", place, "--similar-to", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "2 runs" in shown
    assert "2 earlier runs alike: stable up to 0.003 (120 steps)" in shown
    assert "wide" not in shown


def test_like_a_run_that_does_not_tell_what_it_is_made_of_is_refused(judged, published):
    with pytest.raises(RunError, match="does not show its layers"):
        ampwatch.fleet(judged, workers=1, like=published.parent / "runs" / "old")
