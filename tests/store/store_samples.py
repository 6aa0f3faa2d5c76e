"""Rows and runs that the store's tests write."""

from __future__ import annotations

from pathlib import Path

from ampwatch.codec import Batch, encode
from ampwatch.rows import Table
from ampwatch.store import RankWriter, RunInfo, create_run

ID = "0123456789abcdef" * 2
OTHER_ID = "fedcba9876543210" * 2


def info(name: str = "run", identity: str = ID) -> RunInfo:
    return RunInfo(id=identity, name=name, started_ns=1_700_000_000_000_000_000)


def steps(first: int, count: int, **columns: list) -> Batch:
    numbers = range(first, first + count)
    defaults = {
        "step": list(numbers),
        "time_ns": [10**18 + number for number in numbers],
        "loss": [number / 8 for number in numbers],
        "lrs": [[0.1, number / 4] for number in numbers],
        "scale_after": [65536.0] * count,
    }
    return encode(Table.STEPS, defaults | columns)


def layers(step: int, count: int = 3) -> Batch:
    norms = [step + number / 16 for number in range(count)]
    return encode(
        Table.LAYERS, {"step": [step] * count, "layer": list(range(count)), "grad_norm": norms}
    )


def layer_info(names: list[str], step: int = 0, **columns: list) -> Batch:
    defaults = {
        "step": [step] * len(names),
        "layer": list(range(len(names))),
        "name": names,
        "order": list(range(len(names))),
    }
    return encode(Table.LAYER_INFO, defaults | columns)


def event(kind: str, step: int | None = 0, time_ns: int = 1) -> Batch:
    return encode(
        Table.EVENTS, {"step": [step], "time_ns": [time_ns], "kind": [kind], "detail": ["{}"]}
    )


def extras(step: int, **values: float) -> Batch:
    return encode(
        Table.EXTRAS,
        {"step": [step] * len(values), "name": list(values), "value": list(values.values())},
    )


def write_run(folder: Path, batches: int = 12, rank: int = 0, *, ended: bool = True) -> Path:
    """A run of `batches` times ten steps, with layers, extras and events."""
    run = create_run(folder, info())
    writer = RankWriter(run, rank)
    writer.append(event("started"))
    writer.append(layer_info(["embed", "blocks.0", "head"]))
    for number in range(batches):
        writer.append(steps(number * 10, 10))
        writer.append(layers(number * 10))
        writer.append(extras(number * 10, accuracy=number / 2))
    if ended:
        writer.append(event("ended", batches * 10))
    writer.close()
    return run
