"""The loss scales a layer could live with: below, gradients are lost; above, they overflow."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ampwatch.rows import Table

if TYPE_CHECKING:
    import pyarrow as pa

    from ampwatch.diagnosis import Diagnosis

MOST_WINDOWS = 24  # what fits beside the charts; more layers: those with the least room
_ROWS_READ = 20_000  # samples before the moment that are searched for each layer's last
_WORST_IS_LOW = frozenset(("scale_high", "log2_headroom"))
_NO_LOW = -24.0  # smaller scales are never met: fp16 loses everything long before


class Readable(Protocol):
    """What has tables: a run, or a look at one."""

    def last_rows(
        self, table: Table, columns: Sequence[str], most: int, *, step: int | None = None
    ) -> pa.Table:
        """The last rows up to a step, or of all: at most so many."""


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


def windows_at(run: Readable, step: int | None) -> tuple[Window, ...]:
    """Each layer's window at a step (else at the end), in forward order."""
    found = last_known(run, ("order", "scale_low", "scale_high"), step)
    return tuple(_innermost(list(_windows(found))))


def last_known(
    run: Readable, columns: Sequence[str], step: int | None
) -> dict[str, dict[str, Any]]:
    """For each layer the last value there is of each column at a step, or at the end.

    Where several ranks tell one of the same step, the worst: a scale has to suit them all.
    """
    rows = run.last_rows(Table.LAYERS, ("step", "layer", *columns), _ROWS_READ, step=step)
    found: dict[str, dict[str, Any]] = {}
    told_at: dict[tuple[str, str], int] = {}
    for row in rows.to_pylist():
        kept, at = found.setdefault(row["layer"], {}), row["step"]
        for name, value in row.items():
            if value is not None:
                same = told_at.get((row["layer"], name)) == at
                kept[name] = _worse(name, kept[name], value) if same else value
                told_at[row["layer"], name] = at
    return found


def _worse(column: str, one: Any, other: Any) -> Any:
    """The worse of two ranks' values; of words the later, which are the same on all ranks."""
    if not isinstance(one, float) or not isinstance(other, float):
        return other
    if math.isnan(one) or math.isnan(other):
        return math.nan
    return min(one, other) if column in _WORST_IS_LOW else max(one, other)


def telling_step(diagnosis: Diagnosis | None) -> int | None:
    """The step whose windows explain most: where the trouble begins; none of a calm run."""
    head = None if diagnosis is None else diagnosis.headline
    return head.first_step if head is not None and head.severity.weight else None


def tightest(windows: Sequence[Window]) -> list[Window]:
    """Those with the least room, where there are more than can be shown."""
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
    """Without containers: what is inside says more."""
    names = {window.layer for window in windows}
    outer = {name.rpartition(".")[0] for name in names} | {"(root)"}
    outer |= {name.rsplit(".", deep)[0] for name in names for deep in range(1, name.count(".") + 1)}
    inner = [w for w in windows if w.layer not in outer] or windows
    return sorted(inner, key=lambda window: (window.order, window.layer))
