"""Many ranks over many recorders, each of which publishes to one place: do they become one run?

    python benchmarks/feed_many_recorders.py [--ranks 4096] [--recorders 16]

Every recorder is an `ampwatch record --publish PLACE` of its own, with a folder of its own, as on a
node. Beside each stands a process that plays its ranks: each rank has a log and a sender, encrypted
over loopback, and sends a batch of 15 steps every so many seconds. When all have ended, the run in
the place must have every rank and every row; it is opened and judged from there.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import platform
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from ampwatch import feed, store
from ampwatch.codec import Batch, encode
from ampwatch.errors import AmpwatchError
from ampwatch.rows import FORMAT, Table

BATCH_STEPS = 15
STEP_NS = 250_000_000
RUN_ID = hashlib.sha256(b"many recorders").hexdigest()[:32]
PATIENCE_S = 900.0
BEGAN_NS = 1_700_000_000_000_000_000
RESULT = Path(__file__).parent / "results" / "feed_many_recorders.md"


# --- one process that plays the ranks of a recorder -----------------------------------------------


class Rank:
    """A rank with a log of its own, and its sender."""

    def __init__(self, folder: Path, endpoint: str, rank: int, ranks: int) -> None:
        scaler = {"init_scale": 65536.0, "growth_interval": 2000}
        info = store.RunInfo(
            id=RUN_ID, name="wide", world_size=ranks, scaler=scaler, started_ns=BEGAN_NS
        )
        self.log = store.RankWriter(store.create_run(folder, info), rank)
        hello = feed.Hello(RUN_ID, rank, info.to_json(), FORMAT, "0")
        self.sender = feed.Sender(endpoint, hello, self.log)
        self._steps = 0
        self._send(event("started", 0))

    def flush(self) -> None:
        """Log and send the next steps."""
        self._send(batch_of(self._steps))
        self._steps += BATCH_STEPS

    def end(self) -> None:
        """Log and send that the run has ended."""
        self._send(event("ended", self._steps))

    def _send(self, batch: Batch) -> None:
        self.sender.send(self.log.append(batch), batch)
        self.sender.poll()

    @property
    def is_all_filed(self) -> bool:
        """Whether its recorder has all of it on its disk."""
        self.sender.poll()
        return self.sender.stats.acknowledged >= self.log.next_sequence


def event(kind: str, step: int) -> Batch:
    columns = {"step": [step], "time_ns": [BEGAN_NS + step * STEP_NS], "kind": [kind],
               "detail": ["{}"]}  # fmt: skip
    return encode(Table.EVENTS, columns)


def batch_of(first: int) -> Batch:
    """A loss that comes down at a steady rate."""
    steps = np.arange(first, first + BATCH_STEPS)
    columns = {
        "step": steps,
        "time_ns": BEGAN_NS + steps * STEP_NS,
        "scale": np.full(BATCH_STEPS, 65536.0),
        "skipped": np.zeros(BATCH_STEPS, bool),
        "loss": 2.0 / (1.0 + 0.05 * steps),
        "lr": np.full(BATCH_STEPS, 1e-3),
        "grad_norm": 1.0 / (1.0 + 0.01 * steps),
    }
    return encode(Table.STEPS, columns)


@dataclass(frozen=True)
class Part:
    """The ranks that one process plays, and how."""

    folder: str
    endpoint: str
    first: int
    count: int
    ranks: int
    every_s: float
    seconds: float


def play(part: Part) -> None:
    """Connect, wait for a word, send at the beat, end; say how it went."""
    ranks = [
        Rank(Path(part.folder), part.endpoint, part.first + n, part.ranks)
        for n in range(part.count)
    ]
    until_filed(ranks)
    print("connected", flush=True)
    sys.stdin.readline()
    began, sent = time.perf_counter(), 0
    beats = round(part.seconds / part.every_s)
    for number, rank in [(b, r) for b in range(beats) for r in ranks]:
        rank.flush()
        sent += 1  # the beats of ranks are spread, as those of a cluster's are
        due = began + part.every_s * (number + (sent % part.count) / part.count)
        time.sleep(max(0.0, due - time.perf_counter()))
    took = time.perf_counter() - began
    for rank in ranks:
        rank.end()
    until_filed(ranks)
    filed = time.perf_counter() - began
    lost = sum(rank.sender.stats.lost for rank in ranks)
    for rank in ranks:
        rank.log.close()
        rank.sender.close()
    print(json.dumps({"sent": sent, "took": took, "filed": filed, "lost": lost}), flush=True)


def until_filed(ranks: Sequence[Rank]) -> None:
    waiting, end = list(ranks), time.monotonic() + PATIENCE_S
    while waiting := [rank for rank in waiting if not rank.is_all_filed]:
        if time.monotonic() > end:
            raise TimeoutError(f"{len(waiting)} ranks are not filed")
        time.sleep(0.25)


# --- the whole ------------------------------------------------------------------------------------


@contextlib.contextmanager
def recorder(folder: Path, place: Path) -> Iterator[tuple[str, psutil.Process]]:
    """A recorder that publishes, as its endpoint and process."""
    command = [sys.executable, "-m", "ampwatch", "record", "--bind", "tcp://127.0.0.1:*", "--dir",
               str(folder), "--publish", str(place)]  # fmt: skip
    with (folder.parent / f"{folder.name}.said").open("w") as said:
        child = subprocess.Popen(command, stderr=said, stdin=subprocess.DEVNULL)
    try:
        yield _endpoint(Path(said.name)), psutil.Process(child.pid)
    finally:
        child.send_signal(signal.SIGINT)
        try:
            child.wait(120)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _endpoint(said: Path) -> str:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        words = said.read_text().split()
        if "Recording" in words and "Press" in words:
            return words[words.index("Recording") + 2]
        time.sleep(0.05)
    raise TimeoutError(said.read_text())


def family(process: psutil.Process) -> list[psutil.Process]:
    return [process, *process.children(recursive=True)]


def cpu_s(process: psutil.Process) -> float:
    return sum(sum(one.cpu_times()[:2]) for one in family(process))


def memory(process: psutil.Process) -> int:
    return sum(one.memory_info().rss for one in family(process))


def measure(folder: Path, asked: argparse.Namespace) -> dict[str, str]:
    each, place, facts = asked.ranks // asked.recorders, folder / "place", {}
    with contextlib.ExitStack() as stack:
        recorders = [
            stack.enter_context(recorder(folder / f"node-{number:02}", place))
            for number in range(asked.recorders)
        ]
        began = time.perf_counter()
        children = [
            stack.enter_context(_player(Part(
                str(folder / f"ranks-{number:02}"), endpoint, number * each, each, asked.ranks,
                asked.every, asked.seconds,
            )))
            for number, (endpoint, _) in enumerate(recorders)
        ]  # fmt: skip
        for child in children:
            assert child.stdout.readline().strip() == "connected"
        facts["all connected"] = f"after {time.perf_counter() - began:.1f} s"
        processes = [process for _, process in recorders]
        before = sum(map(cpu_s, processes))
        for child in children:
            child.stdin.write("go\n")
            child.stdin.flush()
        told = [json.loads(child.stdout.readline()) for child in children]
        after, load = sum(map(cpu_s, processes)), os.getloadavg()[0]
        sent, took = sum(one["sent"] for one in told), max(one["took"] for one in told)
        filed = max(one["filed"] for one in told)
        wanted = asked.ranks / asked.every
        facts["sent"] = f"{sent:,} batches, {sent / took:,.0f} a second (asked: {wanted:,.0f})"
        facts["filed"] = f"all, {filed - took:.1f} s after the last was sent"
        facts["lost"] = str(sum(one["lost"] for one in told))
        facts["recorders' CPU"] = (
            f"{(after - before) / filed:.2f} cores for all, {(after - before) / sent * 1e3:.2f} ms "
            f"a batch; load {load:.1f}"
        )
        highest = max(map(memory, processes))
        facts["memory of a recorder with its publisher"] = f"{highest / 2**20:.0f} MiB at most"
        facts["published"] = f"{_published(place, asked.ranks):.1f} s after the end of the last"
    facts |= json.loads(
        subprocess.run(
            [sys.executable, __file__, "--judge", str(place)], check=True, stdout=subprocess.PIPE
        ).stdout
    )
    expected = asked.ranks * round(asked.seconds / asked.every) * BATCH_STEPS
    assert facts["rows"] == f"{expected:,} of {asked.ranks:,} ranks", facts
    return facts


@contextlib.contextmanager
def _player(part: Part) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, __file__, "--play", json.dumps(vars(part))]
    child = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def _published(place: Path, ranks: int) -> float:
    """Seconds until the place has every rank."""
    from ampwatch.fleet import list_published

    began = time.monotonic()
    while time.monotonic() - began < PATIENCE_S:
        with contextlib.suppress(AmpwatchError):  # nothing is there yet
            found = list_published(str(place))
            if found and found[0].ranks == ranks:
                return time.monotonic() - began
        time.sleep(0.2)
    raise TimeoutError("not published")


def judge(place: str) -> dict[str, str]:
    """Opened and judged from the place, in a process of its own."""
    import ampwatch
    from ampwatch.fleet import list_published

    start = time.perf_counter()
    run = ampwatch.open_run(f"{place}#{list_published(place)[0].name}")
    opened = time.perf_counter()
    rows = run.read("steps", ["step"]).num_rows
    read = time.perf_counter()
    diagnosis = ampwatch.diagnose(run)
    judged = time.perf_counter()
    highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "rows": f"{rows:,} of {len(run.ranks):,} ranks",
        "opened": f"{opened - start:.1f} s",
        "one column of all ranks read": f"{read - opened:.1f} s",
        "judged": f"{diagnosis.verdict.value}, {judged - read:.1f} s, {highest / 2**10:.0f} MiB",
    }


def page(facts: dict[str, str], asked: argparse.Namespace) -> str:
    about = " ".join((__doc__ or "").split("\n\n")[2].split())
    machine = (
        f"{asked.ranks:,} ranks over {asked.recorders} recorders, a batch a rank every "
        f"{asked.every:g} s for {asked.seconds:g} s, on {os.cpu_count()} cores "
        f"({platform.machine()}), {platform.system()}, Python {platform.python_version()}."
    )
    rows = [f"| {name} | {value} |" for name, value in facts.items()]
    return "\n".join(["# Many ranks over many recorders", "", machine, "", about, "",
                      "| what | measured |", "|---|---|", *rows, ""])  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4096)
    parser.add_argument("--recorders", type=int, default=16)
    parser.add_argument("--every", type=float, default=4.0)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--play", help=argparse.SUPPRESS)
    parser.add_argument("--judge", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.play:
        play(Part(**json.loads(asked.play)))
        return
    if asked.judge:
        print(json.dumps(judge(asked.judge)))
        return
    with tempfile.TemporaryDirectory(prefix="ampwatch-wide-") as scratch:
        os.environ["AMPWATCH_CONFIG_DIR"] = os.environ["XDG_STATE_HOME"] = f"{scratch}/home"
        facts = measure(Path(scratch), asked)
    for name, value in facts.items():
        print(f"{name}: {value}")
    if asked.out:
        asked.out.write_text(page(facts, asked))


if __name__ == "__main__":
    main()
