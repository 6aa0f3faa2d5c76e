"""Real trackio databases, read with trackio's own API and with sqlite."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from mirror_parts import logged, skips, train, weights
from written_runs import write_run

from ampwatch.errors import MirrorError
from ampwatch.mirrors import open_mirror

pytest.importorskip("trackio", reason="no trackio here")


@pytest.fixture
def store(tmp_path, monkeypatch):
    """Where trackio keeps its databases."""
    folder = tmp_path / "trackio"
    monkeypatch.setenv("TRACKIO_DIR", str(folder))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return folder


ROWS = "select run_name, step, metrics from metrics order by id"


def rows(store, project):
    """Every logged row: run, step, numbers."""
    [path] = [path for path in Path(store).rglob("*.db") if path.stem == project]
    with sqlite3.connect(path) as database:
        found = database.execute(
            "select run_name, step, metrics from metrics order by id"
        ).fetchall()
        alerts = database.execute("select title, level from alerts").fetchall()
    database.close()
    return [(run, step, json.loads(metrics)) for run, step, metrics in found], alerts


def curve(found, name):
    return [
        (s, values[f"ampwatch/{name}"]) for _, s, values in found if f"ampwatch/{name}" in values
    ]


MIRRORED_FROM_OUTSIDE = """
import sys
from ampwatch import cli
sys.exit(cli.run(["watch", sys.argv[1], "--to", "trackio:mine"]))
"""


def test_a_run_of_its_own_has_every_row_and_an_alert(tmp_path, store, run_python):
    path = write_run(tmp_path / "runs", skipped=20, config={"rate": 0.25})
    run_python(MIRRORED_FROM_OUTSIDE, str(path))
    found, alerts = rows(store, "mine")
    assert {run for run, _, _ in found} == {"one"}
    assert curve(found, "scale") == logged(path, "scale")
    assert curve(found, "skipped") == skips(path)
    [(title, level)] = alerts
    assert "one is failing" in title
    assert level == "error"


def test_in_the_users_run_theirs_and_ours_stand_side_by_side(tmp_path, store, bare_weights):
    mirrored = train(
        tmp_path,
        before="import trackio\nrun = trackio.init(project='theirs', name='n', embed=False)",
        after="ampwatch.mirror(watch, every_s=0.02)",  # the active run is found
        each="trackio.log({'theirs': step}, step=step)",
        end="watch.close(); trackio.finish()",
    )
    assert weights(mirrored) == bare_weights
    found, _ = rows(store, "theirs")
    path = tmp_path / "runs" / "r"
    assert {run for run, _, _ in found} == {"n"}
    assert [(s, values["theirs"]) for _, s, values in found if "theirs" in values] == [
        (step, step) for step in range(40)
    ]
    assert sorted(curve(found, "scale")) == logged(path, "scale")
    assert curve(found, "skipped")[-1] == (39, 2)


@pytest.mark.slow_frameworks
def test_of_a_training_that_is_resumed_the_active_run_has_each_step_once(tmp_path, store):
    begin = "import trackio\ntrackio.init(project='p', name='n', embed=False, resume='allow')"
    options = ", resume=True", ", resume=True, start_step=40"
    for option in options:
        train(
            tmp_path, before=begin, options=option, end="watch.close(); trackio.finish()",
            after="ampwatch.mirror(watch)",
        )  # fmt: skip
    found, _ = rows(store, "p")
    assert curve(found, "scale") == logged(tmp_path / "runs" / "r", "scale")
    assert [step for step, _ in curve(found, "skipped")] == list(range(80))
    assert curve(found, "skipped")[-1] == (79, 4)


def test_a_run_of_its_own_leaves_the_users_alone(tmp_path, store):
    train(
        tmp_path,
        before="import trackio\nrun = trackio.init(project='theirs', name='n', embed=False)",
        after="ampwatch.mirror(watch, to='trackio:ours', every_s=0.02)",
        each="trackio.log({'theirs': step})",
        end="trackio.finish()",
    )
    theirs, _ = rows(store, "theirs")
    assert [(s, values) for _, s, values in theirs] == [(s, {"theirs": s}) for s in range(40)]
    ours, _ = rows(store, "ours")
    assert curve(ours, "scale") == logged(tmp_path / "runs" / "r", "scale")


def test_inside_it_asks_for_a_run_that_is_active():
    with pytest.raises(MirrorError, match=r"trackio\.init\(\)"):
        open_mirror("trackio", is_inside=True)
