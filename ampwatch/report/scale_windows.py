"""Usable loss scales by layer: below its window a layer loses gradients, above it they overflow."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ampwatch.report.painter.message import pack
from ampwatch.rows import Table

if TYPE_CHECKING:
    import pyarrow as pa

    from ampwatch.diagnosis import Diagnosis

MOST_WINDOWS = 24  # that fit beside the charts
_ROWS_READ = 20_000  # before the step; each layer's last sample is among them
_WORST_IS_LOW = frozenset(("scale_high", "log2_headroom"))
_NO_LOW = -24.0  # of a layer without a lower limit; no scale is smaller


class Readable(Protocol):
    """What has tables: a run, or the dashboard's view of one."""

    def last_rows(
        self, table: Table, columns: Sequence[str], most: int, *, step: int | None = None
    ) -> pa.Table:
        """The last rows up to a step, or of all: at most so many."""


@dataclass(frozen=True, slots=True)
class Window:
    """One layer's window, as powers of two; `low` is None if it has no lower limit."""

    layer: str
    order: int
    low: float | None
    high: float

    @property
    def is_empty(self) -> bool:
        """Whether no scale is usable."""
        return self.low is not None and self.low > self.high


def windows_at(run: Readable, step: int | None) -> tuple[Window, ...]:
    """Each layer's window at a step (else at the end), in forward order."""
    found = last_known(run, ("order", "scale_low", "scale_high"), step)
    return tuple(_innermost(list(_windows(found))))


def last_known(
    run: Readable, columns: Sequence[str], step: int | None
) -> dict[str, dict[str, Any]]:
    """For each layer the last known value of each column, at a step or at the end.

    Where several ranks have a value of the same step, the worst: a scale has to suit them all.
    """
    rows = run.last_rows(Table.LAYERS, ("step", "layer", *columns), _ROWS_READ, step=step)
    found: dict[str, dict[str, Any]] = {}
    known_at: dict[tuple[str, str], int] = {}
    for row in rows.to_pylist():
        kept, at = found.setdefault(row["layer"], {}), row["step"]
        for name, value in row.items():
            if value is not None:
                same = known_at.get((row["layer"], name)) == at
                kept[name] = _worse(name, kept[name], value) if same else value
                known_at[row["layer"], name] = at
    return found


def _worse(column: str, one: Any, other: Any) -> Any:
    """The worse of two ranks' values; of texts, which are the same on all ranks, the later."""
    if not isinstance(one, float) or not isinstance(other, float):
        return other
    if math.isnan(one) or math.isnan(other):
        return math.nan
    return min(one, other) if column in _WORST_IS_LOW else max(one, other)


def telling_step(diagnosis: Diagnosis | None) -> int | None:
    """The step whose windows explain most: where the trouble begins; None for a calm run."""
    head = None if diagnosis is None else diagnosis.headline
    return head.first_step if head is not None and head.severity.weight else None


def windows_message(
    run: Readable, step: int | None, diagnosis: Diagnosis | None, level: float | None
) -> bytes | None:
    """What the browser draws; None where the run has no windows.

    One layer is red: the one that limits the scale, unless the findings name another.
    """
    windows = windows_at(run, step)
    if not windows:
        return None
    limit = min(windows, key=lambda window: window.high)
    suspect = None if diagnosis is None else diagnosis.suspect
    red = limit if suspect is None or suspect.layer == limit.layer else None
    shown = tightest(windows)
    final = None if diagnosis is None else diagnosis.run.final_scale
    header = {
        "component": "windows",
        "rows": [
            {"layer": w.layer, "low": _low(w), "high": w.high, "caps": w is red or w.is_empty}
            for w in shown
        ],
        "calm": diagnosis is None or diagnosis.calm is not None,
        "hidden": len(windows) - len(shown),
        "scale": _log2(final),
        "level": _log2(level),
        "step": step,
    }
    return pack(header, {})


def _low(window: Window) -> float | None:
    """Its lower limit, at most what float32 holds."""
    return None if window.low is None else min(window.low, 128.0)


def _log2(scale: float | None) -> float | None:
    return math.log2(scale) if scale and 0 < scale < math.inf else None


def tightest(windows: Sequence[Window]) -> list[Window]:
    """The windows to show: where there are too many, those with the least room."""
    if len(windows) <= MOST_WINDOWS:
        return list(windows)
    by_room = sorted(windows, key=lambda w: w.high - (_NO_LOW if w.low is None else w.low))
    by_high = sorted(windows, key=lambda w: w.high)
    chosen = {w.layer for w in by_high[: MOST_WINDOWS // 2]}
    for window in by_room:
        if len(chosen) < MOST_WINDOWS:
            chosen.add(window.layer)
    return [window for window in windows if window.layer in chosen]


def _windows(found: Mapping[str, Mapping[str, Any]]) -> Iterator[Window]:
    for layer, kept in found.items():
        high = kept.get("scale_high")
        if layer and high and 0 < high < math.inf:
            low = kept.get("scale_low")
            log2_low = math.log2(low) if low and low > 0 else None
            yield Window(layer, kept.get("order", 0), log2_low, math.log2(high))


def _innermost(windows: list[Window]) -> list[Window]:
    """Without containers: the layers inside them are more specific."""
    names = {window.layer for window in windows}
    outer = {name.rpartition(".")[0] for name in names} | {"(root)"}
    outer |= {name.rsplit(".", deep)[0] for name in names for deep in range(1, name.count(".") + 1)}
    inner = [w for w in windows if w.layer not in outer] or windows
    return sorted(inner, key=lambda window: (window.order, window.layer))
