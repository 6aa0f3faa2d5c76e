"""Settings of the loss scaler that the layers' windows suggest, and the skipped steps they save.

A layer's window is known where it was sampled; between samples it is taken to stay. What a setting
costs follows from it by the scaler's own arithmetic.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ampwatch.diagnosis import Diagnosis, Record, Severity
from ampwatch.diagnosis.column_arrays import Integers, flags, integers, numbers
from ampwatch.diagnosis.value_text import count_text, scale_text
from ampwatch.rows import Table

DEFAULT_INTERVAL = 2000  # torch's own: growth costs one skip in 2,001 steps
_FIRST_STEPS = 20  # whose windows the first scale has to suit
_USUAL_SHARE = 90  # percent of samples whose lower limit the scale must not fall below
_WORTH_SKIPS, _WORTH_SHARE = 3, 0.01  # fewer are not worth a change

Floats = NDArray[np.floating]


@dataclass(frozen=True, slots=True)
class ScalerSettings:
    """What to give the scaler; None where the record does not tell."""

    init_scale: float | None
    growth_interval: int | None
    minimum: float | None  # below it layers lose gradients
    skips: int  # that the run's own settings cost, by the windows
    saved: int  # of these
    steps: int

    @property
    def is_worth_it(self) -> bool:
        """Whether it saves more than a few steps."""
        return self.saved >= max(_WORTH_SKIPS, _WORTH_SHARE * self.steps)

    @property
    def text(self) -> str:
        """The advice in words."""
        parts = []
        if self.init_scale is not None:
            parts.append(f"init_scale=2.0**{round(math.log2(self.init_scale))}")
        if self.growth_interval is not None:
            parts.append(f"growth_interval={self.growth_interval}")
        saved = f"GradScaler({', '.join(parts)}) saves about {self.saved:,} of "
        saved += f"{count_text(self.skips, 'skipped step')} in {self.steps:,}"
        if self.minimum is None:
            return f"{saved}."
        return f"{saved}; below a scale of {scale_text(self.minimum)} layers lose gradients."


def worthwhile_settings(run: Record, diagnosis: Diagnosis) -> ScalerSettings | None:
    """Settings of the scaler that save skipped steps; None if they would not, or after an error."""
    if diagnosis.run.skipped < _WORTH_SKIPS or diagnosis.worst() is Severity.ERROR:
        return None
    settings = scaler_settings(run, diagnosis)
    return settings if settings is not None and settings.is_worth_it else None


@dataclass(frozen=True, slots=True)
class _Windows:
    """At each step the largest scale at which nothing overflows, and the smallest that loses
    nothing; nan where it is not known."""

    high: Floats
    low: Floats


def scaler_settings(run: Record, diagnosis: Diagnosis) -> ScalerSettings | None:
    """The settings of the scaler that a run's windows suggest; None without windows."""
    scaler = run.info.scaler
    first, interval = diagnosis.run.first_scale, scaler.get("growth_interval")
    if not scaler.get("enabled") or not first or not isinstance(interval, int):
        return None
    rank = min(run.ranks, default=0)
    rows = run.read(Table.STEPS, ("step", "scale", "skipped"), rank)
    steps = integers(rows, "step")
    windows = _windows_of(run, steps)
    if windows is None:
        return None
    suits_first = 2.0 ** math.floor(math.log2(windows.high[:_FIRST_STEPS].min()))
    start = min(suits_first, _found_by_search(rows))
    costs = _costs(windows.high, first, interval)
    by_skips = [(_costs(windows.high, start, one), one) for one in _intervals(interval)]
    least, best = min(by_skips)
    return ScalerSettings(
        init_scale=start, growth_interval=best, minimum=_minimum(windows, start),
        skips=costs, saved=max(0, costs - least), steps=len(steps),
    )  # fmt: skip


def _windows_of(run: Record, steps: Integers) -> _Windows | None:
    """The windows of all layers together, at each step; of all ranks, which share one scale."""
    rows = run.read(Table.LAYERS, ("step", "scale_low", "scale_high"))
    at = np.searchsorted(steps, integers(rows, "step"))
    high = numbers(rows, "scale_high")
    low = numbers(rows, "scale_low")
    count = len(steps)
    fits = (at < count) & np.isfinite(high) & (high > 0)
    if not fits.any():
        return None
    lowest, highest = np.full(count, np.inf), np.full(count, -np.inf)
    np.minimum.at(lowest, at[fits], high[fits])
    inside = (at < count) & np.isfinite(low)
    np.maximum.at(highest, at[inside], low[inside])
    return _Windows(_carried(np.where(np.isinf(lowest), np.nan, lowest)),
                    _carried(np.where(np.isinf(highest), np.nan, highest)))  # fmt: skip


def _carried(values: Floats) -> Floats:
    """Each unknown value as the one before it; the first ones as the first that is known."""
    places = np.flatnonzero(np.isfinite(values))
    if not len(places):
        return values
    place = np.clip(np.searchsorted(places, np.arange(len(values)), side="right") - 1, 0, None)
    carried: Floats = values[places[place]]
    return carried


def _found_by_search(rows: pa.Table) -> float:
    """The first scale that worked, where the run had to search for it; else inf."""
    accepted = np.flatnonzero(flags(rows, "skipped") != 1)
    if not len(accepted) or not accepted[0]:
        return math.inf
    scale = rows.column("scale")[int(accepted[0])].as_py()
    return float(scale) if scale and scale > 0 else math.inf


def _intervals(interval: int) -> list[int]:
    """Growth intervals of the scaler to try: the run's own, and longer ones up to torch's."""
    intervals = [interval]
    while intervals[-1] < DEFAULT_INTERVAL:
        intervals.append(min(DEFAULT_INTERVAL, 4 * intervals[-1]))
    return intervals


def _costs(high: Floats, scale: float, interval: int) -> int:
    """How many steps GradScaler skips where nothing overflows up to these scales."""
    skips = good = 0
    for limit in high.tolist():
        if scale > limit:
            scale, good, skips = scale / 2, 0, skips + 1
            continue
        good += 1
        if good >= interval:
            scale, good = 2 * scale, 0
    return skips


def _minimum(windows: _Windows, start: float) -> float | None:
    """What the scale must not fall below; None where no scale suits all layers."""
    lows = windows.low[np.isfinite(windows.low) & (windows.low > 0)]
    if not len(lows):
        return None
    needed: float = 2.0 ** math.ceil(math.log2(float(np.percentile(lows, _USUAL_SHARE))))
    return needed if needed <= start else None
