"""Made-up runs for benchmarks/dashboard.py: the same numbers for ampwatch and for TensorBoard."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ampwatch.codec import encode
from ampwatch.rows import Table
from ampwatch.store import RankWriter, RunInfo, compact, create_run

CHUNK = 100_000
SPIKES = 500  # one-step spikes of the gradient norm, in the whole run
SKIP_EVERY = 997  # steps
SEED = 1
SHORT_STEPS, SHORT_BATCH = 1000, 50


def chunks(steps: int) -> Iterator[dict[str, np.ndarray]]:
    """The run's columns, a stretch at a time."""
    chance = np.random.default_rng(SEED)
    spikes = spike_steps(steps)
    for first in range(0, steps, CHUNK):
        step = np.arange(first, min(first + CHUNK, steps))
        skipped = step % SKIP_EVERY == SKIP_EVERY - 1
        norm = 1.0 + 0.1 * chance.standard_normal(len(step))
        norm[np.isin(step, spikes)] = 40.0
        yield {
            "step": step,
            "time_ns": 10**18 + step * 100_000_000,
            "scale": np.where(skipped, 2.0**17, 2.0**16),
            "scale_after": np.full(len(step), 2.0**16),
            "skipped": skipped,
            "found_inf": skipped,
            "loss": 2.5 / (1 + step / 50_000) + 0.02 * chance.standard_normal(len(step)),
            "lr": 1e-3 * np.cos(step / steps),
            "grad_norm": norm,
            "grad_norm_applied": np.minimum(norm, 2.0),
            "step_time_ms": chance.gamma(9, 10, len(step)),
        }


def spike_steps(steps: int) -> np.ndarray:
    """Where the spikes are."""
    return np.sort(np.random.default_rng(SEED + 1).choice(steps, SPIKES, replace=False))


def write_run(folder: Path, name: str, steps: int) -> Path:
    """A finished and compacted run."""
    path = create_run(folder, RunInfo(id=name.encode().hex()[:32].ljust(32, "0"), name=name))
    writer = RankWriter(path, 0)
    writer.append(encode(Table.EVENTS, event(0, "started")))
    for columns in chunks(steps):
        writer.append(encode(Table.STEPS, columns))
    writer.append(encode(Table.EVENTS, event(steps, "ended")))
    writer.close()
    compact(path)
    return path


def write_short_runs(folder: Path, count: int) -> None:
    """Many runs of a thousand steps each, as a courier logs them; every eleventh was cut off."""
    columns = next(chunks(SHORT_STEPS))
    began_ns = time.time_ns() - count * 60_000_000_000
    for number in range(count):
        started_ns = began_ns + number * 60_000_000_000
        made = {**columns, "time_ns": started_ns + columns["step"] * 100_000_000}
        name = f"sweep-{number:06d}"
        info = RunInfo(id=f"{number:032x}", name=name, started_ns=started_ns)
        path = create_run(folder / f".{number // 500}", info)  # it looks at all its neighbours
        writer = RankWriter(path, 0)
        writer.append(encode(Table.EVENTS, event(0, "started")))
        for first in range(0, SHORT_STEPS, SHORT_BATCH):
            part = {key: values[first : first + SHORT_BATCH] for key, values in made.items()}
            writer.append(encode(Table.STEPS, part))
        if number % 11:
            writer.append(encode(Table.EVENTS, event(SHORT_STEPS, "ended")))
        writer.close()
        path.rename(folder / name)


BLOCK = ("norm1", "attn.q", "attn.k", "attn.v", "attn.out", "norm2", "mlp.up", "mlp.down")
SAMPLE_EVERY = 100


def layer_names(count: int) -> list[str]:
    """The layers of a transformer, as many as asked for."""
    blocks = -(-count // len(BLOCK))
    return [f"model.blocks.{at}.{part}" for at in range(blocks) for part in BLOCK][:count]


def write_layers_run(folder: Path, name: str, layers: int, steps: int) -> Path:
    """A finished, compacted run whose layers were sampled each hundredth step."""
    chance, at = np.random.default_rng(SEED), np.arange(layers)
    path = create_run(folder, RunInfo(id=name.encode().hex()[:32].ljust(32, "0"), name=name))
    writer = RankWriter(path, 0)
    writer.append(encode(Table.EVENTS, event(0, "started")))
    info = {"step": [0] * layers, "layer": at, "name": layer_names(layers), "order": at}
    writer.append(encode(Table.LAYER_INFO, info))
    for columns in chunks(steps):
        writer.append(encode(Table.STEPS, columns))
    usual = 10 ** chance.uniform(-4, 0, layers)
    for step in range(0, steps, SAMPLE_EVERY):
        norm = usual * chance.lognormal(0, 0.3, layers)
        rows = {
            "step": [step] * layers, "layer": at, "grad_norm": norm, "act_amax": 10 * norm,
            "log2_headroom": 12 - np.log2(norm), "update_ratio": norm / 100,
            "underflow_share": np.clip(1e-4 / norm, 0, 1), "scale_low": 1e-3 / norm,
            "scale_high": 2**14 / norm, "exponents": [[1] * 60] * layers,
        }  # fmt: skip
        writer.append(encode(Table.LAYERS, rows))
    writer.append(encode(Table.EVENTS, event(steps, "ended")))
    writer.close()
    compact(path)
    return path


def event(step: int, kind: str) -> dict[str, list[object]]:
    return {
        "step": [step], "time_ns": [time.time_ns()], "kind": [kind], "detail": [json.dumps({})],
    }  # fmt: skip


def write_tensorboard(folder: Path, steps: int) -> Path:
    """The same losses as TensorBoard events."""
    from torch.utils.tensorboard import SummaryWriter

    path = folder / f"tensorboard-{steps}"
    with SummaryWriter(str(path), max_queue=10_000) as writer:
        for columns in chunks(steps):
            for step, value in zip(columns["step"], columns["loss"], strict=True):
                writer.add_scalar("loss", float(value), int(step))
    return path
