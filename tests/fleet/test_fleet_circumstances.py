"""Clocks that differ, other versions, half a file, a key that is not known, and very long runs."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import children
import deltalake
import numpy as np
import pytest
import s3_server
from s3_server import SECRET
from written_runs import SCALER, event_columns, fresh_id, more, step_columns, write_run

import ampwatch
from ampwatch import codec, open_run, store
from ampwatch.errors import PlaceError
from ampwatch.fleet import list_published, publish
from ampwatch.fleet.sweeping import LEAST_AGE, sweep
from ampwatch.report import to_json
from ampwatch.rows import FORMAT, Table

YEAR_NS = 365 * 86400 * 10**9
MOST_MIB = 1024


def told(*words: str, port: int) -> tuple[int, str]:
    """What the command says to a server, in a process of its own."""
    root = Path(ampwatch.__file__).parents[1]
    environment = {**os.environ, **s3_server.environment(port), "PYTHONPATH": str(root)}
    done = children.run("-m", "ampwatch", *words, env=environment)
    return done.returncode, " ".join((done.stdout + done.stderr).split())


# --- credentials ----------------------------------------------------------------------------------


def test_a_key_that_the_service_does_not_know_is_said(tmp_path, monkeypatch):
    """A server that checks keys and signatures, as S3 does."""
    monkeypatch.setenv("INITIAL_NO_AUTH_ACTION_COUNT", "0")
    server, port = s3_server.start(tmp_path / "requests")
    try:
        code, said = told("publish", str(write_run(tmp_path / "runs")), "s3://team/x", port=port)
    finally:
        server.kill()
        server.communicate()
    assert " 403" in (tmp_path / "requests").read_text()
    assert code == 2
    assert "access was refused: check the credentials" in said
    assert SECRET not in said


# --- clocks ---------------------------------------------------------------------------------------


def test_a_service_that_refuses_this_machines_clock_is_said(tmp_path):
    body = b"<Error><Code>RequestTimeTooSkewed</Code><Message>The difference ...</Message></Error>"

    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(403)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_PUT = do_POST = do_HEAD = answer

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        code, said = told("list", "s3://team/x", port=server.server_port)
        server.shutdown()
    assert code == 2
    assert "it refuses this machine's clock: set the clock" in said


@pytest.mark.parametrize("place", ["path"], indirect=True)  # the same in a bucket
def test_runs_of_hosts_whose_clocks_are_years_apart_stand_side_by_side(place, tmp_path):
    folder = tmp_path / "runs"
    began = {
        "past": 0,
        "now": 1_700_000_000 * 10**9,
        "future": 1_700_000_000 * 10**9 + 30 * YEAR_NS,
    }
    for name, started_ns in began.items():
        write_run(folder, name, started_ns=started_ns)
    assert len(publish(folder, place).published) == 3
    assert [run.name for run in list_published(place)] == ["future", "now", "past"]
    for name in began:
        own = to_json(ampwatch.diagnose(open_run(folder / name)))
        assert to_json(ampwatch.diagnose(open_run(f"{place}#{name}"))) == own


@pytest.mark.parametrize("off_s", [-86400.0 * 400, 86400.0 * 400])
def test_a_publisher_whose_clock_is_off_loses_nothing_and_nothing_of_others(
    place, tmp_path, monkeypatch, off_s
):
    """Nor does a sweep by the right clock, for what runs need is never freed by age."""
    publish(write_run(tmp_path / "runs", "right"), place)
    right = time.time
    with monkeypatch.context() as patched:
        patched.setattr(time, "time", lambda: right() + off_s)
        path = write_run(tmp_path / "runs", "wrong")
        publish(path, place)
        more(path, 20, ended=True)
        publish(path, place)
    assert publish(tmp_path / "runs", place).published == []
    sweep(place, older_than=LEAST_AGE)
    assert {run.name: run.steps for run in list_published(place)} == {"right": 100, "wrong": 120}
    assert open_run(f"{place}#right").steps.num_rows == 100
    assert open_run(f"{place}#wrong").steps.num_rows == 120


# --- half a file ----------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["path"], indirect=True)  # the same in a bucket
def test_a_run_that_was_cut_off_in_mid_write_is_published_as_far_as_it_is_good(place, tmp_path):
    path = write_run(tmp_path / "runs", "cut", ended=False)
    more(path, 40)
    steps, index = path / "rank-0" / "steps.arrows", path / "rank-0" / "index"
    steps.write_bytes(steps.read_bytes()[:-100])  # a disk that was full: the index is ahead
    index.write_bytes(index.read_bytes()[:-7])
    assert publish(path, place).published == ["cut"]
    own = open_run(path)
    assert own.steps.num_rows == 100
    run = open_run(f"{place}#cut")
    assert run.steps.equals(own.steps)
    assert any("cut off in mid-write" in note for note in run.notes)


def test_half_a_file_that_a_publisher_left_is_seen_by_nobody(tmp_path):
    place = tmp_path / "place"
    publish(write_run(tmp_path / "runs", "whole"), place)
    (whole,) = (place / "steps").glob("day=*/*.parquet")
    whole.with_name("part-0123456789abcdef.parquet").write_bytes(whole.read_bytes()[:200])
    whole.with_name(".part-half.parquet#1").write_bytes(b"PAR1")
    publish(write_run(tmp_path / "runs", "next"), place)
    for name in ("whole", "next"):
        assert open_run(f"{place}#{name}").steps.num_rows == 100
    assert deltalake.DeltaTable(str(place / "steps")).to_pyarrow_table().num_rows == 200


# --- versions -------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["path"], indirect=True)  # the same in a bucket
def test_a_run_in_a_later_format_is_left_out_and_the_others_are_published(place, tmp_path):
    folder = tmp_path / "runs"
    later = write_run(folder, "later")
    write_run(folder, "ours")
    facts = json.loads((later / "run.json").read_text())
    assert facts["format"] <= FORMAT
    (later / "run.json").write_text(json.dumps(facts | {"format": FORMAT + 1}))
    outcome = publish(folder, place)
    assert outcome.published == ["ours"]
    assert "ampwatch" in outcome.skipped["later"]
    assert [run.name for run in list_published(place)] == ["ours"]


def test_a_place_that_a_later_ampwatch_made_is_refused_and_left_as_it_is(tmp_path):
    place = tmp_path / "place"
    publish(write_run(tmp_path / "runs", "first"), place)
    table = deltalake.DeltaTable(str(place / "runs"))
    table.alter.set_table_description("ampwatch place, format 2")
    version = table.version()
    with pytest.raises(PlaceError, match=r"has format 2 and this ampwatch reads up to 1: update"):
        publish(write_run(tmp_path / "runs", "second"), place)
    assert deltalake.DeltaTable(str(place / "runs")).version() == version
    assert not list((place / "steps").glob("day=*/*second*"))


def test_two_versions_publish_to_one_place_though_one_has_a_column_more(tmp_path):
    """A later one adds columns at the end; ours passes them over, and its own rows lack them."""
    place, folder = tmp_path / "place", tmp_path / "runs"
    publish(write_run(folder, "by-the-earlier"), place)
    add_column_as_a_later_version(place / "steps")
    publish(write_run(folder, "by-ours-again"), place)
    seen = deltalake.DeltaTable(str(place / "steps")).to_pyarrow_table()
    assert seen.num_rows == 200
    assert seen.column("momentum_norm").null_count == 200
    for name in ("by-the-earlier", "by-ours-again"):
        own = to_json(ampwatch.diagnose(open_run(folder / name)))
        assert to_json(ampwatch.diagnose(open_run(f"{place}#{name}"))) == own


def add_column_as_a_later_version(path: Path) -> None:
    table = deltalake.DeltaTable(str(path))
    table.alter.add_columns([deltalake.Field("momentum_norm", "float")])


# --- length ---------------------------------------------------------------------------------------

# Not by `ru_maxrss`: a process begins with its parent's, and the tests' own may be higher.
PUBLISH = """
import sys
from pathlib import Path
from ampwatch.fleet import publish
outcome = publish(sys.argv[1], sys.argv[2])
print(*outcome.published, Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
"""


@pytest.mark.slow_rows
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells the peak")
def test_ten_million_steps_are_published_in_less_than_a_gigabyte(tmp_path):
    path, count, at_once = tmp_path / "runs" / "long", 10_000_000, 100_000
    began = 1_700_000_000 * 10**9
    info = store.RunInfo(id=fresh_id("long"), name="long", scaler=SCALER, started_ns=began)
    writer = store.RankWriter(store.create_run(tmp_path / "runs", info), 0)
    for first in range(0, count, at_once):
        rows = step_columns(at_once, 0, began + first * 1_000_000, first=first)
        writer.append(codec.encode(Table.STEPS, rows))
    ended = event_columns([(0, "started", {}), (count, "ended", {})], began)
    writer.append(codec.encode(Table.EVENTS, ended))
    writer.close()
    place = tmp_path / "place"
    done = subprocess.run(
        [sys.executable, "-c", PUBLISH, str(path), str(place)],
        check=True, capture_output=True, text=True, timeout=170,
    )  # fmt: skip
    name, peak_kib = done.stdout.split()
    assert name == "long"
    assert int(peak_kib) / 1024 < MOST_MIB
    (row,) = list_published(str(place))
    assert row.steps == count
    run = open_run(f"{place}#long")
    last = run.last_rows(Table.STEPS, ["step"], 3)
    assert np.array_equal(last.column("step"), np.arange(count - 3, count))
