"""A published run is the run: its rows, its notes, and every byte of its findings."""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
from pathlib import Path

import children
import deltalake
import numpy as np
import pytest
from written_runs import event_columns, more, step_columns, write_run

import ampwatch
from ampwatch import codec, open_run, store
from ampwatch.fleet import list_published, publish
from ampwatch.fleet.place import Place
from ampwatch.fleet.row_tables import open_published
from ampwatch.report import to_json
from ampwatch.rows import TABLES, Table

sys.path.insert(0, str(Path(__file__).parents[1] / "store"))
import hostile_runs
import store_samples


def varied(folder: Path) -> Path:
    """Runs that differ in all that a place has to keep."""
    chance = random.Random(7)
    for number in range(32):
        path = write_run(
            folder,
            f"run-{number}",
            accepted=chance.randrange(0, 400),
            skipped=chance.randrange(0, 60) * (number % 2),
            ended=number % 5 > 0,
            age_s=3600.0 * (number + 1),
            config={"lr": 10.0 ** -chance.randrange(1, 6)},
        )
        if number % 7 == 3:  # resumed
            more(path, 80, first=50, ended=number % 2 == 0)
            writer = store.RankWriter(path, 0)
            writer.append(codec.encode(Table.EVENTS, event_columns([(90, "started", {})], 10**18)))
            writer.append(codec.encode(Table.STEPS, step_columns(60, 5, 10**18, first=90)))
            writer.close()
        if number % 6 == 1:
            more(path, 100, 20, first=0, rank=1, ended=True)
        if number % 9 == 4:
            store.compact(path)
    store_samples.write_run(folder, 12)
    for number, path in enumerate(hostile_runs.good_runs(folder.parent / "others")):
        # One id each: they are made with the same.
        told = json.loads((path / "run.json").read_text())
        told["id"] = f"{number:032x}"
        (path / "run.json").write_text(json.dumps(told))
        shutil.move(path, folder / f"other-{number}")
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    return varied(tmp_path_factory.mktemp("varied") / "runs")


@pytest.fixture(scope="module")
def local_place(runs, tmp_path_factory) -> str:
    place = str(tmp_path_factory.mktemp("places") / "place")
    outcome = publish(runs, place, live=True)
    assert not outcome.skipped
    return place


def test_the_findings_of_every_run_are_the_same_to_the_byte(runs, local_place):
    published = list_published(local_place)
    assert len(published) == 36
    verdicts = set()
    for row in published:
        local = to_json(ampwatch.diagnose(open_run(runs / row.name)))
        assert to_json(ampwatch.diagnose(open_run(f"{local_place}#{row.name}"))) == local, row.name
        verdicts.add(json.loads(local)["verdict"])
    assert len(verdicts) > 2, "the runs are too much alike"


def test_every_row_and_note_is_the_same(runs, local_place):
    for row in list_published(local_place):
        one, other = open_run(runs / row.name), open_run(f"{local_place}#{row.name}")
        assert one.info == other.info
        assert one.ended == other.ended
        assert one.notes == other.notes
        for table in TABLES:
            mine, theirs = one.read(table), other.read(table)
            assert mine.column_names == theirs.column_names
            assert mine.to_pydict().__repr__() == theirs.to_pydict().__repr__(), (row.name, table)


def test_a_run_on_s3_reads_as_in_its_folder(runs, s3_place):
    publish([runs / "run-3", runs / "run-7"], s3_place)
    for name in ("run-3", "run-7"):
        local = to_json(ampwatch.diagnose(open_run(runs / name)))
        assert to_json(ampwatch.diagnose(open_run(f"{s3_place}#{name}"))) == local


def test_a_long_run_is_read_in_portions_and_only_what_is_asked_for(tmp_path, monkeypatch):
    chance = np.random.default_rng(1)
    path = write_run(tmp_path / "runs", "long", accepted=10)
    for first in range(10, 300_010, 60_000):
        noise = {"grad_norm": chance.random(60_000), "loss": chance.random(60_000)}
        more(path, 60_000, first=first, **noise)
    place = Place(tmp_path / "place")
    publish(path, place)
    local = to_json(ampwatch.diagnose(open_run(path)))
    fetched = 0
    get = Place.get

    def counted(self, name, start, length):
        nonlocal fetched
        fetched += length
        return get(self, name, start, length)

    monkeypatch.setattr(Place, "get", counted)
    run = open_published(f"{place.address}#long")
    opened = fetched
    assert run.read(Table.STEPS, ["step", "scale"]).num_rows == 300_010
    size = sum(f.stat().st_size for f in (tmp_path / "place" / "steps").rglob("*.parquet"))
    assert fetched - opened < size / 4, "columns that nobody asked for were fetched"
    assert to_json(ampwatch.diagnose(run)) == local


def test_opening_one_run_of_many_takes_few_requests(runs, s3, s3_place):
    paths = [runs / f"run-{number}" for number in range(12)]
    for number in range(6):
        publish(paths[number::6], s3_place, live=True)
    before = len(s3.requests())
    ampwatch.diagnose(open_run(f"{s3_place}#run-7"))
    asked = s3.requests()[before:]
    # Which files `runs` has, and that it has them still; its file, the run's detail, its tables.
    assert len(asked) <= 12, asked


def test_what_another_tool_changed_is_seen(runs, place):
    publish([runs / "run-3", runs / "run-7"], place)
    assert len(list_published(place)) == 2
    deltalake.DeltaTable(f"{place}/runs").delete("name = 'run-3'")
    assert [run.name for run in list_published(place)] == ["run-7"]
    assert publish([runs / "run-3"], place).published == ["run-3"]
    assert len(list_published(place)) == 2


def test_damage_in_a_place_is_said(runs, tmp_path):
    place = tmp_path / "place"
    publish([runs / "run-7"], place)
    (steps,) = (place / "steps").rglob("*.parquet")
    data = bytearray(steps.read_bytes())
    data[40] ^= 0xFF
    steps.write_bytes(data)
    with pytest.raises(ampwatch.AmpwatchError, match="not as it was published"):
        open_run(f"{place}#run-7").steps  # noqa: B018


def test_many_workers_publish_what_one_does(runs, tmp_path, monkeypatch):
    monkeypatch.setattr("ampwatch.fleet.publishing._SHARE_RUNS", 15)
    place = str(tmp_path / "place")
    outcome = publish(runs, place, live=True, workers=2)
    assert len(outcome.published) == 36
    for name in ("run-3", "run-31"):
        local = to_json(ampwatch.diagnose(open_run(runs / name)))
        assert to_json(ampwatch.diagnose(open_run(f"{place}#{name}"))) == local


@pytest.mark.slow_starts
def test_a_script_without_a_guard_is_run_once_though_workers_publish(runs, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "print('run')\n"
        "from ampwatch.fleet import publish, publishing\n"
        "publishing._SHARE_RUNS = 15\n"
        f"print(len(publish({str(runs)!r}, {str(tmp_path / 'place')!r}, workers=2).published))\n"
    )
    done = children.run(script, env=os.environ, fresh=True)
    said = done.stdout.split()
    assert said[0] == "run", done.stderr
    assert len(said) == 2
    assert int(said[1]) > 30
