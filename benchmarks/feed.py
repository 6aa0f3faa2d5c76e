"""What the feed costs: on the sender's thread, and in the recorder.

    python benchmarks/feed.py

Prints the microseconds of `send` and `poll` for one batch of 15 steps (what a loop of 10 ms a step
makes in one flush) with nobody there, with a recorder, and while an hour's log is served beside it;
then the CPU share of a recorder that ten ranks send ten batches a second.

    python benchmarks/feed.py --ranks 256 --seconds 60

sends so from that many ranks, and says what the recorder filed, its CPU share, and its memory at
each sixth of the time.

    python benchmarks/feed.py --late 8

says how long a recorder that comes an hour late takes to file the logs of that many ranks: as long
as a page would lag if new rows were not sent ahead of old ones.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from ampwatch import feed, store
from ampwatch.codec import Batch, encode
from ampwatch.rows import FORMAT, Table

RANKS, BATCHES_PER_S, SECONDS = 10, 10, 10
FLUSH_S = 0.15
HOUR_FLUSHES = 24_000

RECORDER = """
import sys
from ampwatch.recorder import Recorder
with Recorder("tcp://127.0.0.1:*", sys.argv[1]) as recorder:
    print(recorder.endpoint, recorder.process_id, flush=True)
    sys.stdin.readline()
"""


def batch_of(first_step: int, steps: int = 15) -> Batch:
    columns = {
        name: [0.1 * n for n in range(steps)] for name in ("scale", "loss", "lr", "grad_norm")
    }
    numbers = list(range(first_step, first_step + steps))
    return encode(Table.STEPS, {"step": numbers, "time_ns": numbers, **columns})


class Trainer:
    """A rank with a log of its own and a sender."""

    def __init__(self, folder: Path, endpoint: str, rank: int = 0, run_id: str = "") -> None:
        info = store.RunInfo(id=run_id or secrets.token_hex(16), name="bench", world_size=RANKS + 1)
        self.log = store.RankWriter(store.create_run(folder, info), rank)
        hello = feed.Hello(info.id, rank, info.to_json(), FORMAT, "0")
        self.sender = feed.Sender(endpoint, hello, self.log)
        self.batch = batch_of(0)

    def flush(self) -> float:
        """File a batch, then send it; the microseconds of the sending alone."""
        sequence = self.log.append(self.batch)
        start = time.perf_counter()
        self.sender.send(sequence, self.batch)
        self.sender.poll()
        return (time.perf_counter() - start) * 1e6

    def costs(self, flushes: int, pause_s: float) -> str:
        found = []
        for _ in range(flushes):
            found.append(self.flush())
            time.sleep(pause_s)
        worst = sorted(found)[int(len(found) * 0.99)]
        return f"median {statistics.median(found):7.1f} µs   99 % below {worst:8.1f} µs"

    def close(self) -> None:
        self.sender.close()
        self.log.close()


def connected(trainer: Trainer) -> Trainer:
    while trainer.sender.stats.acknowledged < trainer.log.next_sequence:
        trainer.sender.poll()
        time.sleep(0.001)
    return trainer


@contextlib.contextmanager
def recorder(folder: Path) -> Iterator[tuple[str, psutil.Process]]:
    """A recorder in a process of its own, as its endpoint and process."""
    command = [sys.executable, "-c", RECORDER, str(folder)]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        endpoint, process_id = child.stdout.readline().split()
        yield endpoint, psutil.Process(int(process_id))
        child.stdin.close()


def sender_costs(folder: Path) -> None:
    alone = Trainer(folder / "alone", "tcp://127.0.0.1:9")
    print(f"one batch: {alone.batch.row_count} steps, {len(alone.batch.payload)} bytes")
    print("nobody there           ", alone.costs(500, 0.005))
    alone.close()
    with recorder(folder / "copies") as (endpoint, _):
        live = Trainer(folder / "live", endpoint)
        live.flush()
        print("a recorder there       ", connected(live).costs(500, 0.005))
        live.close()
        late = Trainer(folder / "late", endpoint)
        for _ in range(HOUR_FLUSHES):
            late.log.append(late.batch)
        late.flush()
        print("while an hour is served", late.costs(40, FLUSH_S))
        start, left = time.perf_counter(), HOUR_FLUSHES - late.sender.stats.acknowledged
        connected(late)
        seconds = time.perf_counter() - start
        print(f"polled without a pause, the log is served at {left / seconds:.0f} batches/s")
        late.close()


def recorder_share(folder: Path) -> None:
    with recorder(folder / "ten") as (endpoint, process):
        print(
            f"recorder, nobody there   {cpu_share(process, lambda: time.sleep(5)):6.2%} of a core"
        )
        run_id = secrets.token_hex(16)
        ranks = [Trainer(folder / "ranks", endpoint, rank, run_id) for rank in range(RANKS)]
        for trainer in ranks:
            trainer.flush()
            connected(trainer)

        def drive() -> None:
            for _ in range(SECONDS * BATCHES_PER_S):
                for trainer in ranks:
                    trainer.flush()
                time.sleep(1 / BATCHES_PER_S)

        share = cpu_share(process, drive)
        print(f"recorder, {RANKS} ranks x {BATCHES_PER_S}/s {share:6.2%} of a core")
        for trainer in ranks:
            trainer.close()


def many_ranks(folder: Path, count: int, seconds: int) -> None:
    """One process plays all ranks; its own lateness is told, for then the rate was not kept."""
    with recorder(folder / "copies") as (endpoint, process):
        run_id = secrets.token_hex(16)
        ranks = [Trainer(folder / "ranks", endpoint, rank, run_id) for rank in range(count)]
        for trainer in ranks:
            trainer.flush()
        for trainer in ranks:
            connected(trainer)
        memory = [process.memory_info().rss]
        began, busy = time.perf_counter(), sum(process.cpu_times()[:2])
        for beat in range(seconds * BATCHES_PER_S):
            for trainer in ranks:
                trainer.flush()
            time.sleep(max(0.0, began + (beat + 1) / BATCHES_PER_S - time.perf_counter()))
            if (beat + 1) % max(1, seconds * BATCHES_PER_S // 6) == 0:
                memory.append(process.memory_info().rss)
        took = time.perf_counter() - began
        share = (sum(process.cpu_times()[:2]) - busy) / took
        for trainer in ranks:
            connected(trainer)
        sent = sum(trainer.log.next_sequence for trainer in ranks)
        for trainer in ranks:
            trainer.close()
    filed = store.open_run(next((folder / "copies").glob("*/run.json")).parent)
    rows = filed.read("steps", ["step"]).num_rows
    print(f"{count} ranks, {sent / took:.0f} batches/s for {took:.1f} s; load {os.getloadavg()[0]}")
    print(f"filed {rows // ranks[0].batch.row_count} of {sent} batches, {share:.2%} of a core")
    print("memory, MiB:", *(f"{rss / 2**20:.0f}" for rss in memory))


def late_recorder(folder: Path, count: int) -> None:
    """Nothing else goes on, and the senders are polled without a pause."""
    with recorder(folder / "copies") as (endpoint, process):
        run_id = secrets.token_hex(16)
        ranks = [Trainer(folder / "ranks", endpoint, rank, run_id) for rank in range(count)]
        for trainer in ranks:
            for _ in range(HOUR_FLUSHES):
                trainer.log.append(trainer.batch)
        start, busy = time.perf_counter(), sum(process.cpu_times()[:2])
        while any(one.sender.stats.acknowledged < one.log.next_sequence for one in ranks):
            for trainer in ranks:
                trainer.sender.poll()
            time.sleep(0.001)
        took, cpu = time.perf_counter() - start, sum(process.cpu_times()[:2]) - busy
        for trainer in ranks:
            trainer.close()
    print(f"an hour of {count} ranks: filed in {took:.1f} s, recorder's CPU {cpu:.1f} s")


def cpu_share(process: psutil.Process, work: Callable[[], object]) -> float:
    before, start = sum(process.cpu_times()[:2]), time.perf_counter()
    work()
    return (sum(process.cpu_times()[:2]) - before) / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=0)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--late", type=int, default=0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["AMPWATCH_CONFIG_DIR"] = os.environ["XDG_STATE_HOME"] = f"{scratch}/home"
        if asked.ranks:
            many_ranks(Path(scratch), asked.ranks, asked.seconds)
            return
        if asked.late:
            late_recorder(Path(scratch), asked.late)
            return
        sender_costs(Path(scratch))
        recorder_share(Path(scratch))


if __name__ == "__main__":
    main()
