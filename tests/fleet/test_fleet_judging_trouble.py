"""What can go wrong around judging: a sentence, nothing lost, and the other runs go on."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from subprocess import PIPE, STDOUT

import children
import deltalake
import numpy as np
import pyarrow as pa
import pytest
import s3_server
from relay import Relay
from stuck_run import StuckRun
from written_runs import event_columns, more, step_columns, write_run

import ampwatch
from ampwatch import cli, codec, store
from ampwatch.errors import PlaceError
from ampwatch.fleet import judging, publish
from ampwatch.fleet.chosen_runs import choice_of
from ampwatch.fleet.judging import judge_place
from ampwatch.fleet.place import Extent, Place
from ampwatch.fleet.runs_delta_table import list_published
from ampwatch.fleet.verdicts import read_verdicts
from ampwatch.fleet.workers import LocalWorkers
from ampwatch.rows import Table

ROOT = Path(ampwatch.__file__).parents[1]


@pytest.fixture
def folder(tmp_path):
    for number in range(6):
        write_run(tmp_path / "runs", f"run-{number}", accepted=200, age_s=7200.0 + number)
    return tmp_path / "runs"


def judged(place):
    return judge_place(place, choice_of(), LocalWorkers(1))


def started(arguments, port, before=""):
    """The command in a process of its own; some of its limits made small first."""
    script = f"import sys; {before}; from ampwatch import cli; cli.main(sys.argv[1:])"
    environment = {**os.environ, **s3_server.environment(port), "PYTHONPATH": str(ROOT)}
    return children.start("-c", script, *arguments, stdout=PIPE, stderr=STDOUT, env=environment)


@pytest.mark.slow_kills
def test_a_bucket_that_goes_away_keeps_what_was_judged(s3, s3_place, tmp_path):
    for number in range(40):
        write_run(tmp_path / "runs", f"run-{number:02}", accepted=2000)
    publish(tmp_path / "runs", s3_place)
    relay = Relay(s3.port)
    child = started(
        ["fleet", s3_place, "--workers", "1"],
        relay.port,
        "from ampwatch.fleet import judging as p; p._STORED_RUNS = 1; p._RUNS = p._LEAST_RUNS = 2",
    )
    deadline = time.monotonic() + 100
    while not read_verdicts(s3_place) and time.monotonic() < deadline:
        assert child.poll() is None
        time.sleep(0.05)
    relay.cut()
    said, _ = child.communicate(timeout=150)
    assert child.returncode == 2
    assert "Traceback" not in said
    assert "run the same command again; it goes on where it stopped" in " ".join(said.split())
    kept = len(read_verdicts(s3_place))
    assert 0 < kept < 40
    assert judged(s3_place).judged == 40 - kept


def test_wrong_credentials_are_said_and_never_printed(tmp_path):
    from test_fleet_trouble import refusing

    with refusing(403, b"<Error><Code>SignatureDoesNotMatch</Code></Error>") as server:
        child = started(["fleet", "s3://team/runs"], server.server_port, "pass")
        said, _ = child.communicate(timeout=100)
        server.shutdown()
    assert child.returncode == 2
    assert "access was refused: check the credentials" in said
    assert "hush-hush" not in said
    assert "Traceback" not in said


def test_a_place_that_holds_something_else_is_left_alone(tmp_path, folder, capsys):
    publish(folder, tmp_path / "place")
    deltalake.write_deltalake(tmp_path / "place" / "verdicts", pa.table({"verdict": ["guilty"]}))
    assert cli.run(["fleet", str(tmp_path / "place")]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "holds a table 'verdicts' that ampwatch did not make" in said
    told = deltalake.DeltaTable(str(tmp_path / "place" / "verdicts")).to_pyarrow_table()
    assert told.column("verdict").to_pylist() == ["guilty"]


def test_where_nothing_was_published_it_is_said(tmp_path, capsys):
    assert cli.run(["fleet", str(tmp_path / "nothing")]) == 2
    assert "nothing was published there" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "nothing").exists()


def test_a_run_that_is_deleted_while_it_is_judged_is_no_failure(tmp_path, folder, monkeypatch):
    place = str(tmp_path / "place")
    publish(folder, place)
    during(monkeypatch, lambda: _delete(place, "run-3"))
    found = judged(place)
    assert (found.judged, found.failed, found.changed) == (5, (), 1)
    assert "run-3" not in {one.name for one in read_verdicts(place)}


def _delete(place, name):
    """A run's row, and its rows, as if a sweep had freed them already."""
    row = next(row for row in list_published(place) if row.name == name)
    deltalake.DeltaTable(f"{place}/runs").delete(f"name = '{name}'")
    path = Path(place) / row.detail_path
    data = bytearray(path.read_bytes())
    data[row.detail_offset : row.detail_offset + row.detail_length] = bytes(row.detail_length)
    path.write_bytes(data)


def test_a_run_that_is_published_again_while_it_is_judged_is_judged_next(
    tmp_path, folder, monkeypatch, capsys
):
    place = str(tmp_path / "place")
    publish(folder, place)

    def again() -> None:
        more(folder / "run-2", 70, first=200, ended=True)
        publish(folder / "run-2", place)

    during(monkeypatch, again)
    assert cli.run(["fleet", place, "--workers", "1"]) == 0
    assert "6 runs, 6 of them judged now" in " ".join(capsys.readouterr().out.split())
    assert "run-2" not in {one.name for one in read_verdicts(place)}
    assert cli.run(["fleet", place, "--workers", "1"]) == 0
    assert "6 runs, 1 of them judged now" in " ".join(capsys.readouterr().out.split())
    assert {one.name: one.steps for one in read_verdicts(place)}["run-2"] == 270


def during(monkeypatch, act):
    """Have something happen once the first share begins."""
    real, acted = judging._ShareJudge.all_of, []

    def all_of(self, rows):
        if not acted:
            acted.append(act())
        real(self, rows)

    monkeypatch.setattr(judging._ShareJudge, "all_of", all_of)


def test_rows_that_anybody_wrote_are_one_line_each(tmp_path, folder, capsys):
    """Files whose checks hold, and whose contents no training writes."""
    place = tmp_path / "place"
    hostile = {
        "run-1": {"step": np.full(200, -(2**62)), "scale": np.full(200, -np.inf)},
        "run-2": {"time_ns": np.full(200, 2**62), "lr": np.full(200, 1e300)},
        "run-3": {"loss": np.full(200, 1e308), "grad_norm": np.full(200, -1.0)},
    }
    for name, columns in hostile.items():
        shutil.rmtree(folder / name)
        path = store.create_run(
            folder, store.RunInfo(id=name.encode().hex().ljust(32, "0"), name=name, started_ns=1)
        )
        writer = store.RankWriter(path, 0)
        writer.append(codec.encode(Table.STEPS, step_columns(200, 0, 1) | columns))
        events = event_columns([(0, "started", {}), (5, "optimizer", {"groups": "none"})], 1)
        writer.append(codec.encode(Table.EVENTS, events | {"detail": ["[[[", "{" * 900]}))
        writer.close()
    publish(folder, place, live=True)  # by its last time run-2 goes on
    code = cli.run(["fleet", str(place), "--json"])
    shown = capsys.readouterr()
    told = json.loads(shown.out)
    named = {run["name"] for run in told["runs"]} | {one["name"] for one in told["not_judged"]}
    assert named == {f"run-{number}" for number in range(6)}
    assert code == (4 if told["not_judged"] else 0)
    assert "Traceback" not in shown.err


def test_details_that_anybody_wrote_are_one_line(tmp_path, folder, capsys):
    """A run's detail is well packed and says what is not so."""
    import zlib

    place = tmp_path / "place"
    publish(folder, place)
    lies = {
        "run-1": lambda facts: facts["ranks"][0].update(row_ends={"steps": [10**9]}),
        "run-2": lambda facts: facts["parts"][0].update(rows=10**9),
        "run-3": lambda facts: facts["parts"][0].update(path="../../../etc/passwd"),
        "run-4": lambda facts: facts.update(info="[]"),
    }
    for row in list_published(str(place)):
        if row.name in lies:
            path = place / row.detail_path
            data = path.read_bytes()[row.detail_offset : row.detail_offset + row.detail_length]
            facts = json.loads(zlib.decompress(data))
            lies[row.name](facts)
            packed = zlib.compress(json.dumps(facts).encode())
            (place / "details" / row.name).write_bytes(packed)
            table = deltalake.DeltaTable(str(place / "runs"))
            told = {
                "detail_path": f"'details/{row.name}'",
                "detail_offset": "0",
                "detail_length": f"{len(packed)}",
                "detail_crc": f"{zlib.crc32(packed)}",
            }
            table.update(updates=told, predicate=f"name = '{row.name}'")
    assert cli.run(["fleet", str(place), "--json"]) == 4
    shown = capsys.readouterr()
    assert {run["name"] for run in json.loads(shown.out)["runs"]} == {"run-0", "run-5"}
    assert shown.err.count("Not judged: run-") == 4
    assert "Traceback" not in shown.err


@pytest.mark.slow_kills
def test_a_worker_that_is_killed_is_replaced(tmp_path, folder):
    import psutil

    place = str(tmp_path / "place")
    publish(folder, place)
    publish(write_run(tmp_path / "runs", "stuck"), place)
    stuck = StuckRun(place, "stuck")
    child = started(
        ["fleet", place, "--workers", "2"], 0,
        "from ampwatch.fleet import judging as p; p._STORED_RUNS = 1; "
        "p._RUNS = p._LEAST_RUNS = 1",
    )  # fmt: skip
    deadline = time.monotonic() + 100
    while not read_verdicts(place) and time.monotonic() < deadline:
        assert child.poll() is None
        time.sleep(0.05)
    workers = [
        one for one in psutil.Process(child.pid).children() if "spawn_main" in str(one.cmdline())
    ]
    stuck.come_loose()
    workers[0].kill()
    said, _ = child.communicate(timeout=150)
    assert child.returncode == 0, said
    assert "7 runs, 7 of them judged now" in " ".join(said.split())


def test_bytes_that_lie_together_are_fetched_together_and_are_the_same(s3, s3_place):
    place = Place(s3_place)
    data = np.random.default_rng(3).integers(0, 256, 300_000, np.uint8).tobytes()
    place.put("a", data)
    place.put("b", data[::-1])
    wanted = [Extent("a", at, 1000) for at in range(0, 200_000, 1000)]
    wanted += [Extent("b", 5, 70), Extent("a", 299_000, 1000)]
    before = len(s3.requests())
    place.fetch_ahead([*wanted, Extent("nowhere", 0, 10)])
    for one in wanted:
        whole = data if one.path == "a" else data[::-1]
        assert place.get(*one) == whole[one.offset : one.offset + one.length]
    asked = [line.rpartition("/")[2] for line in s3.requests()[before:] if line.startswith("GET")]
    assert len(asked) <= 4, asked  # once or twice of "a", once of "b", and what is not there
    assert place.get("b", 100, 7) == data[::-1][100:107]
    with pytest.raises(PlaceError):
        place.get("nowhere", 0, 10)


def test_two_versions_that_judge_each_have_their_verdicts(tmp_path, folder):
    """The newer one's are read by the newer one, and none is lost."""
    place = str(tmp_path / "place")
    publish(folder, place)
    child = started(["fleet", place], 0, "import ampwatch; ampwatch.__version__ = '99.0'")
    said, _ = child.communicate(timeout=100)
    assert child.returncode == 0, said
    assert judged(place).judged == 6
    assert judged(place).judged == 0
    rows = deltalake.DeltaTable(f"{place}/verdicts").to_pyarrow_table()
    assert len(set(rows.column("rules").to_pylist())) == 2
    assert rows.num_rows == 12
