"""A rank without a training: a log of its own, and the sender that a trainer would drive."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ampwatch import feed, store
from ampwatch.codec import Batch, encode
from ampwatch.rows import FORMAT, Table

BATCH_STEPS = 15  # what a loop of 10 ms a step makes in one flush
PATIENCE_S = 900.0


class Rank:
    """Files batches and sends them."""

    def __init__(
        self, folder: Path, endpoint: str, run_id: str, rank: int = 0, **info: Any
    ) -> None:
        run = store.RunInfo(id=run_id, name="bench", **info)
        self.rank, self.folder = rank, store.create_run(folder, run)
        self.log = store.RankWriter(self.folder, rank)
        hello = feed.Hello(run.id, rank, run.to_json(), FORMAT, "0")
        self.sender = feed.Sender(endpoint, hello, self.log)

    def send(self, batch: Batch) -> float:
        """File a batch, then send it; the microseconds of the sending alone."""
        sequence = self.log.append(batch)
        began = time.perf_counter()
        self.sender.send(sequence, batch)
        self.sender.poll()
        return (time.perf_counter() - began) * 1e6

    @property
    def unfiled(self) -> int:
        """How many batches its recorder has not on its disk."""
        self.sender.poll()
        return self.log.next_sequence - self.sender.stats.acknowledged

    def close(self) -> None:
        self.sender.close()
        self.log.close()


def until_filed(ranks: Iterable[Rank], pause_s: float = 0.001) -> None:
    """Poll until a recorder has all of all."""
    waiting, end = list(ranks), time.monotonic() + PATIENCE_S
    while waiting := [rank for rank in waiting if rank.unfiled]:
        if time.monotonic() > end:
            raise TimeoutError(f"{len(waiting)} ranks are not filed")
        time.sleep(pause_s)


def steps_batch(first: int = 0, count: int = BATCH_STEPS) -> Batch:
    """Steps of a loss that comes down, a quarter of a second each."""
    steps = range(first, first + count)
    return encode(
        Table.STEPS,
        {
            "step": list(steps),
            "time_ns": [1_700_000_000_000_000_000 + step * 250_000_000 for step in steps],
            "scale": [65536.0] * count,
            "skipped": [False] * count,
            "loss": [2.0 / (1.0 + 0.05 * step) for step in steps],
            "lr": [1e-3] * count,
            "grad_norm": [1.0 / (1.0 + 0.01 * step) for step in steps],
        },
    )


def event_batch(kind: str, step: int) -> Batch:
    columns = {"step": [step], "time_ns": [1_700_000_000_000_000_000 + step * 250_000_000]}
    return encode(Table.EVENTS, {**columns, "kind": [kind], "detail": ["{}"]})
