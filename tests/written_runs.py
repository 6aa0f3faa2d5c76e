"""Runs written by the store's own writer, for tests of what reads them."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from ampwatch import codec, store
from ampwatch.rows import Table

SCALER = {"init_scale": 65536.0, "growth_factor": 2.0, "growth_interval": 2000}


def write_run(
    folder: Path,
    name: str = "one",
    *,
    accepted: int = 100,
    skipped: int = 0,
    ended: bool = True,
    age_s: float = 3600.0,
    **info: Any,
) -> Path:
    """A run of accepted steps at 2^16, then skips that halve the scale."""
    began = time.time_ns() - int(age_s * 1e9)
    values = {"scaler": SCALER, "started_ns": began, **info}
    path = store.create_run(folder, store.RunInfo(id=fresh_id(name), name=name, **values))
    writer = store.RankWriter(path, 0)
    writer.append(codec.encode(Table.STEPS, step_columns(accepted, skipped, began)))
    events = [(0, "started", {})] + ([(accepted + skipped, "ended", {})] if ended else [])
    writer.append(codec.encode(Table.EVENTS, event_columns(events, began)))
    writer.close()
    return path


def more(path, accepted=0, skipped=0, *, first=100, rank=0, ended=False, writer=None, **columns):
    """A trainer writes on, `writer` being the one that holds the run if there is one."""
    with contextlib.ExitStack() as stack:
        writer = writer or stack.enter_context(contextlib.closing(store.RankWriter(path, rank)))
        now = time.time_ns()
        rows = step_columns(accepted, skipped, now, first=first) | columns
        writer.append(codec.encode(Table.STEPS, rows))
        if ended:
            events = [(first + accepted + skipped, "ended", {})]
            writer.append(codec.encode(Table.EVENTS, event_columns(events, now)))


def fresh_id(name: str) -> str:
    """An id that differs by name."""
    return name.encode().hex()[:32].ljust(32, "0")


def step_columns(accepted: int, skipped: int, began_ns: int, first: int = 0) -> dict[str, Any]:
    """Steps: the loss falls, then it is not finite while steps are skipped."""
    count = accepted + skipped
    step = np.arange(first, first + count)
    is_skipped = np.arange(count) >= accepted
    halvings = np.maximum(np.arange(count) - accepted, 0)
    scale = 65536.0 * 2.0 ** -halvings.astype(float)
    return {
        "step": step,
        "time_ns": began_ns + np.arange(count) * 1_000_000,
        "scale": scale,
        "scale_after": np.where(is_skipped, scale / 2, scale),
        "skipped": is_skipped,
        "found_inf": is_skipped,
        "loss": np.where(is_skipped, np.nan, 2.0 / (1 + 0.01 * np.arange(count))),
        "lr": np.full(count, 0.1),
        "grad_norm": np.where(is_skipped, np.inf, 1.0),
    }


def event_columns(events: list[tuple[int, str, dict[str, Any]]], began_ns: int) -> dict[str, Any]:
    """Events as columns."""
    return {
        "step": [step for step, _, _ in events],
        "time_ns": [began_ns + step for step, _, _ in events],
        "kind": [kind for _, kind, _ in events],
        "detail": [json.dumps(detail) for _, _, detail in events],
    }
