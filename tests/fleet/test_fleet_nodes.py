"""A recorder a node, each of which publishes: the parts become one run, and no secret leaks."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import children
import eager_publisher
import numpy as np
import psutil
import pytest
import s3_server
from s3_server import SECRET
from written_runs import SCALER, event_columns, fresh_id, step_columns

import ampwatch
from ampwatch import codec, feed, open_run, store
from ampwatch.errors import PlaceError
from ampwatch.fleet import list_published
from ampwatch.report import to_json
from ampwatch.rows import FORMAT, Table

pytestmark = pytest.mark.slow_kills

ROOT = Path(ampwatch.__file__).parents[1]
PATIENCE_S = 120.0
RANKS, NODES = 8, 2


def until(condition) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, "nothing came of it"
        time.sleep(0.05)


@contextlib.contextmanager
def recorder(
    folder: Path, place: str, environment: dict[str, str], *, fresh: bool = False
) -> Iterator[children.Running]:
    """A node's recorder, which publishes to the place; what it says is in FOLDER.said."""
    endpoint = f"ipc://{folder}.feed"
    words = ["record", "--bind", endpoint, "-o", str(folder), "--publish", place]
    with Path(f"{folder}.said").open("w") as said:
        told = {**os.environ, **environment, "PYTHONPATH": str(ROOT)}
        child = children.start(
            eager_publisher.__file__, *words, stdout=said.fileno(), stderr=said.fileno(),
            env=told if fresh else children.forking(told), fresh=fresh,
        )  # fmt: skip
    try:
        until(lambda: "Recording from" in Path(f"{folder}.said").read_text() or child.poll())
        yield child
    finally:
        child.send_signal(signal.SIGINT)
        try:
            child.wait(PATIENCE_S)
        finally:
            child.kill()
            child.wait()


class Trainer:
    """A rank with a log of its own, and its sender."""

    def __init__(self, folder: Path, endpoint: str, rank: int, started_ns: int) -> None:
        self.info = store.RunInfo(
            id=fresh_id("wide"), name="wide", world_size=RANKS, scaler=SCALER,
            started_ns=started_ns,
        )  # fmt: skip
        self.log = store.RankWriter(store.create_run(folder, self.info), rank)
        hello = feed.Hello(self.info.id, rank, self.info.to_json(), FORMAT, "0")
        self.sender = feed.Sender(endpoint, hello, self.log)

    def train(self) -> None:
        now = self.info.started_ns
        rows = step_columns(40, 0, now)
        rows["loss"] = rows["loss"] + 0.001 * np.arange(40)
        ended = event_columns([(0, "started", {}), (40, "ended", {})], now)
        for batch in (codec.encode(Table.STEPS, rows), codec.encode(Table.EVENTS, ended)):
            self.sender.send(self.log.append(batch), batch)

    def is_filed(self) -> bool:
        self.sender.poll()
        return self.sender.stats.acknowledged >= self.log.next_sequence

    def close(self) -> None:
        self.log.close()
        self.sender.close()


def train(tmp_path: Path, endpoints: list[str]) -> None:
    """Ranks that are one run, each sent to its node's recorder."""
    each = RANKS // len(endpoints)
    began = time.time_ns() - 3600 * 10**9
    trainers = [
        Trainer(tmp_path / "logs", endpoints[rank // each], rank, began) for rank in range(RANKS)
    ]
    for trainer in trainers:
        trainer.train()
    until(lambda: all(trainer.is_filed() for trainer in trainers))
    for trainer in trainers:
        trainer.close()


def ranks_in(place: str) -> int:
    try:
        return sum(run.ranks for run in list_published(place))
    except PlaceError:  # nothing is there yet
        return 0


def test_recorders_of_several_nodes_publish_all_ranks_of_one_run(s3, s3_place, tmp_path):
    told = s3_server.environment(s3.port)
    nodes = [tmp_path / f"node-{number}" for number in range(NODES)]
    with contextlib.ExitStack() as stack:
        for node in nodes:
            stack.enter_context(recorder(node, s3_place, told))
        train(tmp_path, [f"ipc://{node}.feed" for node in nodes])
        until(lambda: ranks_in(s3_place) == RANKS)
    (row,) = list_published(s3_place)
    run, own = open_run(f"{s3_place}#{row.name}"), open_run(tmp_path / "logs" / "wide")
    assert run.ranks == tuple(range(RANKS))
    assert run.steps.equals(own.steps)
    assert to_json(ampwatch.diagnose(run)) == to_json(ampwatch.diagnose(own))


def commands_of(child: children.Running) -> str:
    family = [psutil.Process(child.pid), *psutil.Process(child.pid).children(recursive=True)]
    return "\n".join(" ".join(one.cmdline()) for one in family)


def files_in(folder: Path) -> Iterator[bytes]:
    for path in folder.rglob("*"):
        if path.is_file():
            yield path.read_bytes()


def objects_in(s3, place: str) -> Iterator[bytes]:
    bucket, _, prefix = place.removeprefix("s3://").partition("/")
    for page in s3.client().get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
        for entry in page["Contents"]:
            yield s3.client().get_object(Bucket=bucket, Key=entry["Key"])["Body"].read()


def test_a_recorder_that_publishes_writes_its_credentials_nowhere(s3, s3_place, tmp_path):
    """Neither where all is well, nor where libraries log all that they do, nor where it fails."""
    loud = {"RUST_LOG": "trace", "AWS_SESSION_TOKEN": f"{SECRET}-token"}
    told = s3_server.environment(s3.port) | loud
    well, failing = tmp_path / "well", tmp_path / "failing"
    with (
        recorder(well, s3_place, told, fresh=True) as first,
        recorder(failing, "s3://nobodys-bucket/runs", told, fresh=True) as second,
    ):
        train(tmp_path, [f"ipc://{well}.feed"])
        train(tmp_path / "again", [f"ipc://{failing}.feed"])
        until(lambda: ranks_in(s3_place) == RANKS)
        until(lambda: "It is tried again" in Path(f"{failing}.said").read_text())
        started_with = commands_of(first) + commands_of(second)
    assert "Published to" in Path(f"{well}.said").read_text()
    assert SECRET not in started_with
    written = [*files_in(tmp_path), *files_in(Path(os.environ["AMPWATCH_CONFIG_DIR"])),
               *files_in(Path(os.environ["XDG_STATE_HOME"]))]  # fmt: skip
    stored = list(objects_in(s3, s3_place))
    assert len(written) > 20
    assert len(stored) > 10
    assert not [data for data in (*written, *stored) if SECRET.encode() in data]


WITH_CREDENTIALS = [
    (f"s3://me:{SECRET}@team/runs", {}),
    (f"s3://team/runs?secret_access_key={SECRET}", {}),
    ("s3://team/runs", {"AWS_ENDPOINT_URL": f"http://me:{SECRET}@127.0.0.1:9"}),
    ("az://team/runs", {"AZURE_STORAGE_ENDPOINT": f"https://127.0.0.1:9?sig={SECRET}"}),
]
REFUSED = """
import json, os, sys
from ampwatch import cli
for place, environment in json.loads(sys.argv[1]):
    os.environ.update(environment)
    words = ["--bind", "ipc://node.feed", "-o", "node", "--publish", place]
    print(cli.run(["record", *words]))
    for name in environment:
        del os.environ[name]
"""


def test_credentials_in_an_address_are_refused_and_not_repeated(tmp_path):
    told = {**os.environ, "PYTHONPATH": str(ROOT), "RUST_LOG": "trace"}
    done = children.run(
        "-c", REFUSED, json.dumps(WITH_CREDENTIALS), env=told, cwd=tmp_path, fresh=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == 4 * ["2"]
    assert " ".join(done.stderr.split()).count("was given with credentials in it") == 4
    assert SECRET not in done.stdout + done.stderr
