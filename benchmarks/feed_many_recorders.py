"""Many ranks over many recorders, each of which publishes to one place: do they become one run?

    python benchmarks/feed_many_recorders.py [--quick] [--ranks 4096] [--recorders 16] [--out FILE]

Every recorder is an `ampwatch record --publish PLACE` of its own, with a folder of its own, as on a
node. Beside each stands a process that plays its ranks: each rank has a log and a sender, encrypted
over loopback, and sends a batch of 15 steps every so many seconds. When all have ended, the run in
the place must have every rank and every row; it is opened and judged from there.

Results: results/feed_many_recorders.md.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from parts.children import kept, told_by
from parts.machine import keep_state_in, machine
from parts.options import command_line
from parts.ranks import BATCH_STEPS, PATIENCE_S, Rank, event_batch, steps_batch, until_filed
from parts.tables import page
from parts.timing import peak_mb

from ampwatch.errors import AmpwatchError

RUN_ID = hashlib.sha256(b"many recorders").hexdigest()[:32]
BEGAN_NS = 1_700_000_000_000_000_000
SCALER = {"init_scale": 65536.0, "growth_interval": 2000}


def play(part: dict[str, Any]) -> None:
    """The ranks of a recorder: connect, wait for a word, send at the beat, end; say how it went."""
    folder, every_s, count = Path(part["folder"]), part["every_s"], part["count"]
    ranks = [
        Rank(folder, part["endpoint"], RUN_ID, part["first"] + number, world_size=part["ranks"],
             scaler=SCALER, started_ns=BEGAN_NS)
        for number in range(count)
    ]  # fmt: skip
    for rank in ranks:
        rank.send(event_batch("started", 0))
    until_filed(ranks, 0.25)
    print("connected", flush=True)
    sys.stdin.readline()
    began, sent, beats = time.perf_counter(), 0, round(part["seconds"] / every_s)
    for beat in range(beats):
        for rank in ranks:
            rank.send(steps_batch(beat * BATCH_STEPS))
            sent += 1  # the beats of ranks are spread, as those of a cluster's are
            due = began + every_s * (beat + (sent % count) / count)
            time.sleep(max(0.0, due - time.perf_counter()))
    took = time.perf_counter() - began
    for rank in ranks:
        rank.send(event_batch("ended", beats * BATCH_STEPS))
    until_filed(ranks, 0.25)
    filed, lost = time.perf_counter() - began, sum(rank.sender.stats.lost for rank in ranks)
    for rank in ranks:
        rank.close()
    print(json.dumps({"sent": sent, "took": took, "filed": filed, "lost": lost}), flush=True)


@contextlib.contextmanager
def recorder(folder: Path, place: Path) -> Iterator[tuple[str, psutil.Process]]:
    """A recorder that publishes, as its endpoint and process."""
    command = [sys.executable, "-m", "ampwatch", "record", "--bind", "tcp://127.0.0.1:*", "-o",
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


def measure(folder: Path, options: argparse.Namespace) -> dict[str, str]:
    each, place, facts = options.ranks // options.recorders, folder / "place", {}
    with contextlib.ExitStack() as stack:
        recorders = [
            stack.enter_context(recorder(folder / f"node-{number:02}", place))
            for number in range(options.recorders)
        ]
        began = time.perf_counter()
        players = []
        for number, (endpoint, _) in enumerate(recorders):
            part = {
                "folder": str(folder / f"ranks-{number:02}"), "endpoint": endpoint,
                "first": number * each, "count": each, "ranks": options.ranks,
                "every_s": options.every, "seconds": options.seconds,
            }  # fmt: skip
            player, words = stack.enter_context(kept(__file__, "--play", json.dumps(part)))
            assert words == ["connected"]
            players.append(player)
        facts["all connected"] = f"after {time.perf_counter() - began:.1f} s"
        roots = [root for _, root in recorders]
        before = sum(map(cpu_s, roots))
        for player in players:
            player.stdin.write("go\n")
        told = [json.loads(player.stdout.readline()) for player in players]
        spent = sum(map(cpu_s, roots)) - before
        sent = sum(player["sent"] for player in told)
        took, filed = (max(player[name] for player in told) for name in ("took", "filed"))
        asked = options.ranks / options.every
        facts["sent"] = f"{sent:,} batches, {sent / took:,.0f} a second (asked: {asked:,.0f})"
        facts["filed"] = f"all, {filed - took:.1f} s after the last was sent"
        facts["lost"] = str(sum(player["lost"] for player in told))
        facts["recorders' CPU"] = (
            f"{spent / filed:.2f} cores for all, {spent / sent * 1e3:.2f} ms a batch"
        )
        most = max(sum(one.memory_info().rss for one in family(root)) for root in roots)
        facts["memory of a recorder with its publisher"] = f"{most / 2**20:.0f} MiB at most"
        facts["published"] = f"{_published(place, options.ranks):.1f} s after the end of the last"
    facts |= told_by(__file__, "--judge", place)
    rows = options.ranks * round(options.seconds / options.every) * BATCH_STEPS
    assert facts["rows"] == f"{rows:,} of {options.ranks:,} ranks", facts
    return facts


def _published(place: Path, ranks: int) -> float:
    """Seconds until the place has every rank."""
    from ampwatch.fleet import list_published

    began = time.monotonic()
    while time.monotonic() - began < PATIENCE_S:
        with contextlib.suppress(AmpwatchError):  # nothing is there yet
            runs = list_published(str(place))
            if runs and runs[0].ranks == ranks:
                return time.monotonic() - began
        time.sleep(0.2)
    raise TimeoutError("not published")


def judge(place: str) -> dict[str, str]:
    """Opened and judged from the place, in a process of its own."""
    import ampwatch
    from ampwatch.fleet import list_published

    began = time.perf_counter()
    run = ampwatch.open_run(f"{place}#{list_published(place)[0].name}")
    opened = time.perf_counter()
    rows = run.read("steps", ["step"]).num_rows
    read = time.perf_counter()
    diagnosis = ampwatch.diagnose(run)
    seconds = time.perf_counter() - read
    return {
        "rows": f"{rows:,} of {len(run.ranks):,} ranks",
        "opened": f"{opened - began:.1f} s",
        "one column of all ranks read": f"{read - opened:.1f} s",
        "judged": f"{diagnosis.verdict.value}, {seconds:.1f} s, {peak_mb():.0f} MiB",
    }


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--ranks", type=int, default=4096)
    parser.add_argument("--recorders", type=int, default=16)
    parser.add_argument("--every", type=float, default=4.0, help="seconds from batch to batch")
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--quick", action="store_true", help="eight ranks over two recorders")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--play", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--judge", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.play:
        return play(options.play)
    if options.judge:
        return print(json.dumps(judge(options.judge)))
    if options.quick:
        options.ranks, options.recorders, options.seconds = 8, 2, 8.0
    with tempfile.TemporaryDirectory(prefix="ampwatch-wide-") as scratch:
        keep_state_in(scratch)
        facts = measure(Path(scratch), options)
    about = (
        f"{options.ranks:,} ranks over {options.recorders} recorders, a batch a rank every "
        f"{options.every:g} s for {options.seconds:g} s. {machine()}"
    )
    page("Many ranks over many recorders", about, "what | measured", facts.items(), options.out)
    return None


if __name__ == "__main__":
    main()
