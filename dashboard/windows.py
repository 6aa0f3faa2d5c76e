"""The loss scales a layer could live with: below, gradients are lost; above, they overflow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from desk import Look
from theme import PALETTE
from wire import pack

from ampwatch.rows import Table

MOST_ROWS = 24  # what fits beside the charts; more layers: those with the least room
_ROWS_READ = 20_000  # samples before the moment that are searched for each layer's last
_NO_LOW = -24.0  # smaller scales are never met: fp16 loses everything long before


@dataclass(frozen=True, slots=True)
class Window:
    """One layer's window, as powers of two; `low` is none where even the least loses some."""

    layer: str
    order: int
    low: float | None
    high: float

    @property
    def is_empty(self) -> bool:
        """Whether no scale serves this layer."""
        return self.low is not None and self.low > self.high


def windows_at(look: Look, step: int | None) -> tuple[Window, ...]:
    """Each layer's window at a step (else at the end), in forward order."""
    rows = look.read(Table.LAYERS, ("step", "layer", "order", "scale_low", "scale_high"))
    end = rows.num_rows
    if step is not None:
        end = int(np.searchsorted(rows.column("step").to_numpy(), step, side="right"))
    start = max(0, end - _ROWS_READ)
    found: dict[str, dict[str, Any]] = {}
    for row in rows.slice(start, end - start).to_pylist():
        kept = found.setdefault(row["layer"], {})
        kept.update({name: value for name, value in row.items() if value is not None})
    return tuple(_innermost(list(_windows(found))))


def moment(look: Look, picked: int | None) -> int | None:
    """The step whose windows explain most: the one picked, else where the trouble begins."""
    if picked is not None or look.diagnosis is None:
        return picked
    head = look.diagnosis.headline
    return head.first_step if head is not None and head.severity.weight else None


def message(look: Look, step: int | None) -> bytes | None:
    """What the browser draws; none where the run has no windows."""
    windows = windows_at(look, step)
    if not windows:
        return None
    cap = min(windows, key=lambda window: window.high)
    shown = _tightest(windows)
    header = {
        "component": "windows",
        "rows": [
            {"layer": w.layer, "low": w.low, "high": w.high, "caps": w is cap or w.is_empty}
            for w in shown
        ],
        "calm": look.diagnosis is None or look.diagnosis.verdict.value == "healthy",
        "hidden": len(windows) - len(shown),
        "scale": _scale_now(look),
        "level": None if look.verdict is None or not look.verdict.level
        else float(np.log2(look.verdict.level)),
        "step": step,
        "palette": PALETTE,
    }  # fmt: skip
    return pack(header, {})


def _scale_now(look: Look) -> float | None:
    """The power of two that the record ends with, as the strip says it."""
    final = None if look.diagnosis is None else look.diagnosis.run.final_scale
    return float(np.log2(final)) if final else None


def _windows(found: dict[str, dict[str, Any]]) -> Iterator[Window]:
    for layer, kept in found.items():
        high = kept.get("scale_high")
        if layer and high and np.isfinite(high):
            low = kept.get("scale_low")
            log2_low = float(np.log2(low)) if low else None
            yield Window(layer, kept.get("order", 0), log2_low, float(np.log2(high)))


def _innermost(windows: list[Window]) -> list[Window]:
    """Without containers: what is inside says more."""
    names = {window.layer for window in windows}
    outer = {name.rpartition(".")[0] for name in names} | {"(root)"}
    outer |= {name.rsplit(".", deep)[0] for name in names for deep in range(1, name.count(".") + 1)}
    inner = [w for w in windows if w.layer not in outer] or windows
    return sorted(inner, key=lambda window: (window.order, window.layer))


def _tightest(windows: Sequence[Window]) -> list[Window]:
    if len(windows) <= MOST_ROWS:
        return list(windows)
    by_room = sorted(windows, key=lambda w: w.high - (_NO_LOW if w.low is None else w.low))
    by_high = sorted(windows, key=lambda w: w.high)
    chosen = {w.layer for w in by_high[: MOST_ROWS // 2]}
    for window in by_room:
        if len(chosen) < MOST_ROWS:
            chosen.add(window.layer)
    return [window for window in windows if window.layer in chosen]
