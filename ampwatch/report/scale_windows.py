"""Each layer's usable loss scales at one sampled step, with the scale of that step.

Bars, line and title are of the same step: values of different steps would contradict one another.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ampwatch.diagnosis.column_arrays import flags, integers, known
from ampwatch.diagnosis.layer_history import innermost_layers
from ampwatch.diagnosis.thresholds import UNDERFLOW_SHARE
from ampwatch.report.last_layer_values import Readable, last_of_layers, sampled_rows
from ampwatch.rows import Table

if TYPE_CHECKING:
    import pyarrow as pa

_NO_LOW = -24.0  # of a layer without a lower limit; no scale is smaller
_MOST_LOW = 128.0  # what float32 holds
_NEAR = 1.0  # octave: the next growth of the scale goes beyond
_COLUMNS = ("order", "scale_low", "scale_high", "underflow_share")
_OPTIMIZERS = 8  # of which each has a row a step


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


@dataclass(frozen=True, slots=True)
class WindowSample:
    """The windows of all layers at one sampled step, and the loss scale of that step."""

    step: int
    windows: tuple[Window, ...]  # in forward order
    scale: float | None  # its power of two


def windows_at(run: Readable, step: int | None) -> WindowSample | None:
    """The last sample of windows up to a step, else up to the end; None where there is none.

    A step that overflowed tells no windows of the layers behind the overflow: the one before it is
    taken. A live run's layers may be known before the row of their step, which has its scale.
    """
    steps = run.last_rows(Table.STEPS, ("step",), 1, step=step)
    step = int(integers(steps, "step")[-1]) if steps.num_rows else step
    rows = sampled_rows(run, ("scale_high",), step)
    last = integers(rows, "step")[known(rows, "scale_high")]
    if not len(last):
        return None
    rows = sampled_rows(run, (*_COLUMNS, "out_grad_finite", "rank"), int(last.max()))
    at = _step_with_all(rows)
    values = last_of_layers(rows.filter(integers(rows, "step") == at), _COLUMNS)
    scale = loss_scale_at(run, at)
    windows = tuple(_innermost(list(_windows(values, scale))))
    return WindowSample(at, windows, scale) if windows else None


def _step_with_all(rows: pa.Table) -> int:
    """The last step that all ranks have sampled and where no gradient overflowed."""
    has_windows = known(rows, "scale_high")
    steps, at = np.unique(integers(rows, "step"), return_inverse=True)
    places = np.unique(np.stack((at, integers(rows, "rank")), axis=1)[has_windows], axis=0)[:, 0]
    ranks = np.bincount(places, minlength=len(steps))
    overflowed = np.bincount(at, weights=flags(rows, "out_grad_finite") == 0, minlength=len(steps))
    is_whole = ranks == ranks.max()
    usable = is_whole & (overflowed == 0)
    return int(steps[usable if usable.any() else is_whole][-1])


def loss_scale_at(run: Readable, step: int | None) -> float | None:
    """The power of two of the loss scale that gradients had at a step, or at the end."""
    rows = run.last_rows(Table.STEPS, ("step", "scale"), _OPTIMIZERS, step=step).to_pylist()
    scales = [row["scale"] for row in rows if row["step"] == rows[-1]["step"] and row["scale"]]
    return _log2(scales[0]) if scales else None


def _log2(scale: float) -> float | None:
    return math.log2(scale) if 0 < scale < math.inf else None


def _windows(values: Mapping[str, Mapping[str, Any]], scale: float | None) -> Iterator[Window]:
    for layer, kept in values.items():
        high = kept.get("scale_high")
        if layer and high and 0 < high < math.inf:
            low = kept.get("scale_low")
            log2_low = min(math.log2(low), _MOST_LOW) if low and low > 0 else None
            if log2_low is None and (kept.get("underflow_share") or 0) >= UNDERFLOW_SHARE:
                log2_low = None if scale is None else scale + 1  # how much more nothing tells
            yield Window(layer, kept.get("order", 0), log2_low, math.log2(high))


def _innermost(windows: list[Window]) -> list[Window]:
    """The scale windows without those of containers: the layers inside are more specific."""
    names = set(innermost_layers({window.layer for window in windows}))
    inner = [window for window in windows if window.layer in names]
    return sorted(inner, key=lambda window: (window.order, window.layer))


# --- in words ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WindowTitle:
    """The sentence over the windows, and the layers that it is about."""

    text: str
    layers: tuple[str, ...]
    is_trouble: bool = True  # at the loss scale of that step: it costs something, or is about to


def window_title(
    windows: Sequence[Window], scale: float | None, named: str | None = None
) -> WindowTitle:
    """What the windows say of the loss scale; of the layer that a finding names if it has one."""
    mine = next((window for window in windows if window.layer == named), None)
    limit = min(windows, key=lambda window: window.high)
    neediest = max(windows, key=_low)
    empty = mine if mine and mine.is_empty else next((w for w in windows if w.is_empty), None)
    if empty is not None:
        return WindowTitle(f"No loss scale suits layer {empty.layer}", (empty.layer,))
    if _low(neediest) > limit.high:
        pair = neediest.layer, limit.layer
        text = f"No loss scale suits layer {pair[0]} and layer {pair[1]} at once"
        return WindowTitle(text, pair)
    losing = mine if mine and _loses(mine, scale) else neediest
    if _loses(losing, scale):
        text = (
            f"Layer {losing.layer} needs a loss scale of {_power(math.ceil(_low(losing)))} or more"
        )
        return WindowTitle(text, (losing.layer,))
    lowest = mine or limit
    is_near = scale is not None and lowest.high - scale <= _NEAR
    top = _power(math.floor(lowest.high))
    text = f"Layer {lowest.layer} caps the loss scale at {top}"
    if lowest is not limit:
        text = f"Layer {lowest.layer} overflows above a loss scale of {top}"
    return WindowTitle(text, (lowest.layer,), is_trouble=is_near)


def _low(window: Window) -> float:
    return _NO_LOW if window.low is None else window.low


def _loses(window: Window, scale: float | None) -> bool:
    return scale is not None and _low(window) > scale


def _power(exponent: int) -> str:
    return f"2^{exponent}"


def range_text(window: Window) -> str:
    """The layer's usable loss scales, in whole powers of two."""
    if window.is_empty:
        return "none"
    top = _power(math.floor(window.high))
    return f"up to {top}" if window.low is None else f"{_power(math.ceil(window.low))} to {top}"


def tightest(
    windows: Sequence[Window], most: int, named: Collection[str | None] = ()
) -> list[Window]:
    """The windows to show: where there are too many, those named and those with least room."""
    if len(windows) <= most:
        return list(windows)
    by_room = sorted(windows, key=lambda w: w.high - _low(w))
    by_high = sorted(windows, key=lambda w: w.high)
    chosen = {w.layer for w in by_high[: most // 2]}
    chosen |= {w.layer for w in windows if w.layer in named}
    for window in by_room:
        if len(chosen) < most:
            chosen.add(window.layer)
    return [window for window in windows if window.layer in chosen]
