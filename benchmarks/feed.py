"""What does the feed cost, on the sender's thread and in the recorder?

    python benchmarks/feed.py [--quick]

Prints the microseconds of `send` and `poll` for one batch of 15 steps with nobody there, with a
recorder, and while an hour's log is served beside it; then the CPU share of a recorder that ten
ranks send ten batches a second.

    python benchmarks/feed.py --ranks 256 --seconds 60

sends so from that many ranks, and says what the recorder filed, its CPU share, and its memory at
each sixth of the time.

    python benchmarks/feed.py --late 8

says how long a recorder that comes an hour late takes to file the logs of that many ranks: as long
as a page would lag if new rows were not sent ahead of old ones. Results: results/feed.md.
"""

from __future__ import annotations

import os
import secrets
import statistics
import tempfile
import time
from pathlib import Path

import psutil
from parts.children import recorder
from parts.machine import keep_state_in
from parts.options import command_line
from parts.ranks import Rank, steps_batch, until_filed

from ampwatch import store

RANKS, BATCHES_PER_S, SECONDS = 10, 10, 10
FLUSH_S = 0.15
HOUR_FLUSHES = 24_000
BATCH = steps_batch()


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--ranks", type=int, default=0)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--late", type=int, default=0, metavar="RANKS")
    parser.add_argument("--quick", action="store_true", help="a minute's log in place of an hour's")
    options = parser.parse_args()
    flushes = HOUR_FLUSHES // 60 if options.quick else HOUR_FLUSHES
    with tempfile.TemporaryDirectory() as scratch:
        keep_state_in(scratch)
        folder = Path(scratch)
        if options.ranks:
            many_ranks(folder, options.ranks, options.seconds)
        elif options.late:
            late_recorder(folder, options.late, flushes)
        else:
            sender_costs(folder, flushes)
            few = many_ranks(folder, RANKS, SECONDS)
            print(f"recorder, {RANKS} ranks x {BATCHES_PER_S}/s {few:6.2%} of a core")


def ranks_of(folder: Path, endpoint: str, count: int) -> list[Rank]:
    run_id = secrets.token_hex(16)
    return [Rank(folder, endpoint, run_id, rank, world_size=count) for rank in range(count)]


def sender_costs(folder: Path, flushes: int) -> None:
    (alone,) = ranks_of(folder / "alone", "tcp://127.0.0.1:9", 1)
    print(f"one batch: {BATCH.row_count} steps, {len(BATCH.payload)} bytes")
    print("nobody there           ", costs(alone, 500, 0.005))
    alone.close()
    with recorder(folder / "copies-of-one") as (endpoint, _):
        (live,) = ranks_of(folder / "live", endpoint, 1)
        live.send(BATCH)
        until_filed([live])
        print("a recorder there       ", costs(live, 500, 0.005))
        live.close()
        (late,) = ranks_of(folder / "late", endpoint, 1)
        for _ in range(flushes):
            late.log.append(BATCH)
        late.send(BATCH)
        print("while a log is served  ", costs(late, 40, FLUSH_S))
        began, left = time.perf_counter(), late.unfiled
        until_filed([late])
        took = time.perf_counter() - began
        print(f"polled without a pause, the log is served at {left / took:.0f} batches/s")
        late.close()


def costs(rank: Rank, flushes: int, pause_s: float) -> str:
    taken = []
    for _ in range(flushes):
        taken.append(rank.send(BATCH))
        time.sleep(pause_s)
    worst = sorted(taken)[int(len(taken) * 0.99)]
    return f"median {statistics.median(taken):7.1f} µs   99 % below {worst:8.1f} µs"


def many_ranks(folder: Path, count: int, seconds: int) -> float:
    """One process plays all ranks; its own lateness is told, for then the rate was not kept."""
    with recorder(folder / "copies") as (endpoint, pid):
        process = psutil.Process(pid)
        ranks = ranks_of(folder / "ranks", endpoint, count)
        for rank in ranks:
            rank.send(BATCH)
        until_filed(ranks)
        memory = [process.memory_info().rss]
        began, busy = time.perf_counter(), process_s(process)
        for beat in range(seconds * BATCHES_PER_S):
            for rank in ranks:
                rank.send(BATCH)
            time.sleep(max(0.0, began + (beat + 1) / BATCHES_PER_S - time.perf_counter()))
            if (beat + 1) % max(1, seconds * BATCHES_PER_S // 6) == 0:
                memory.append(process.memory_info().rss)
        took = time.perf_counter() - began
        share = (process_s(process) - busy) / took
        until_filed(ranks)
        sent = sum(rank.log.next_sequence for rank in ranks)
        for rank in ranks:
            rank.close()
    filed = store.open_run(next((folder / "copies").glob("*/run.json")).parent)
    rows = filed.read("steps", ["step"]).num_rows
    print(f"{count} ranks, {sent / took:.0f} batches/s for {took:.1f} s; load {os.getloadavg()[0]}")
    print(f"filed {rows // BATCH.row_count} of {sent} batches, {share:.2%} of a core")
    print("memory, MiB:", *(f"{rss / 2**20:.0f}" for rss in memory))
    return share


def late_recorder(folder: Path, count: int, flushes: int) -> None:
    """Nothing else goes on, and the senders are polled without a pause."""
    with recorder(folder / "copies") as (endpoint, pid):
        process = psutil.Process(pid)
        ranks = ranks_of(folder / "ranks", endpoint, count)
        for rank in ranks:
            for _ in range(flushes):
                rank.log.append(BATCH)
        began, busy = time.perf_counter(), process_s(process)
        until_filed(ranks)
        took, cpu = time.perf_counter() - began, process_s(process) - busy
        for rank in ranks:
            rank.close()
    print(f"{flushes:,} batches of {count} ranks: filed in {took:.1f} s, CPU {cpu:.1f} s")


def process_s(process: psutil.Process) -> float:
    return float(sum(process.cpu_times()[:2]))


if __name__ == "__main__":
    main()
