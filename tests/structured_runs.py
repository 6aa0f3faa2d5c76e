"""Runs on disk that tell what they are made of, and whose rate holds or fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from written_runs import event_columns, fresh_id

from ampwatch import codec, store
from ampwatch.rows import DTYPES, Table

BEGAN_NS = 1_700_000_000_000_000_000
HOUR_NS = 3600 * 10**9


def write_structured(
    folder: Path,
    name: str,
    *,
    rate: float = 1e-3,
    fails: bool = False,
    steps: int = 120,
    hour: int = 0,
    width: int = 64,
    depth: int = 3,
    prefix: str = "body.",
    kind: str = "Linear",
    rows: int = 32,
    micro_batches: int = 1,
    world_size: int = 1,
    ranks: tuple[int, ...] = (0,),
    autocast: str = "float16",
    optimizer: dict[str, Any] | None = None,
    warmup: bool = False,
) -> Path:
    """A run that started so many hours after the first; if it fails, its rate is the cause."""
    began = BEGAN_NS + hour * HOUR_NS
    info = store.RunInfo(
        id=fresh_id(name), name=name, started_ns=began, world_size=world_size,
        scaler={"init_scale": 65536.0, "growth_factor": 2.0, "growth_interval": 2000},
    )  # fmt: skip
    path = store.create_run(folder, info)
    for rank in ranks:
        writer = store.RankWriter(path, rank)
        columns = _steps(rate, steps, began, fails=fails, warmup=warmup)
        columns["autocast_dtype"] = [DTYPES.index(autocast)] * steps
        columns["micro_batches"] = [micro_batches] * steps
        told = _optimizer(rate, optimizer or {})
        events = [(0, "started", {}), (0, "optimizer", told), (steps, "ended", {})]
        writer.append(codec.encode(Table.EVENTS, event_columns(events, began)))
        writer.append(codec.encode(Table.LAYER_INFO, _layers(width, depth, prefix, kind, rows)))
        writer.append(codec.encode(Table.STEPS, columns))
        writer.close()
    return path


def _optimizer(rate: float, settings: dict[str, Any]) -> dict[str, Any]:
    group = {"parameters": 10, "lr": rate, "betas": [0.9, 0.999], "eps": 1e-8, "fused": False}
    group |= {name: value for name, value in settings.items() if name != "class"}
    return {"optimizer": 0, "class": settings.get("class", "AdamW"), "groups": [group]}


def _layers(width: int, depth: int, prefix: str, kind: str, rows: int) -> dict[str, Any]:
    matrices = [(kind, [width, width], f"{prefix}{at}") for at in range(depth)]
    found = [("Net", None, "(root)"), *matrices, ("GELU", None, f"{prefix}act")]
    count = len(found)
    return {
        "step": [0] * count,
        "layer": list(range(count)),
        "name": [name for _, _, name in found],
        "order": list(range(count)),
        "kind": [kind for kind, _, _ in found],
        "trainable": [shape and True for _, shape, _ in found],
        "weight_shape": [shape for _, shape, _ in found],
        "rows": [shape and rows for _, shape, _ in found],
        "param_dtype": [shape and DTYPES.index("float32") for _, shape, _ in found],
    }


def _steps(rate: float, steps: int, began_ns: int, *, fails: bool, warmup: bool) -> dict[str, Any]:
    """The loss falls; where the rate fails it climbs from the middle on while updates grow."""
    rng = np.random.default_rng(0)
    good = steps // 2 if fails else steps
    bad = steps - good
    loss = np.concatenate(
        [0.3 + 2 * np.exp(-3 * np.arange(good) / steps), np.linspace(1.3, 8, bad)]
    )
    ratio = np.concatenate([np.full(good, 0.05 if fails else 1e-3), np.geomspace(0.05, 1.0, bad)])
    grad = np.concatenate([np.ones(good), np.geomspace(1.0, 50.0, bad)])
    rates = rate * (np.arange(1, steps + 1) / (4 * steps) if warmup else np.ones(steps))
    return {
        "step": np.arange(steps), "time_ns": began_ns + np.arange(steps) * 10**6,
        "scale": np.full(steps, 65536.0), "scale_after": np.full(steps, 65536.0),
        "skipped": np.zeros(steps, bool), "found_inf": np.zeros(steps, bool),
        "update_seen": np.ones(steps, bool), "stepped": np.ones(steps, bool),
        "loss": loss + 0.02 * rng.standard_normal(steps), "lr": rates, "lr_base": [rate] * steps,
        "grad_norm": grad, "grad_norm_applied": grad, "param_norm": np.full(steps, 10.0),
        "update_norm": 10 * ratio, "max_update_ratio": 3 * ratio,
        "input_amax": np.full(steps, 3.0), "input_finite": np.ones(steps, bool),
    }  # fmt: skip
