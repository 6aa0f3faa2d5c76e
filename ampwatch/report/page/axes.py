"""An axis for the values that a panel draws: its range and its ticks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ampwatch.report.facts import powers
from ampwatch.report.page.panels import Guide
from ampwatch.report.thinning import Line

_ROOM = 0.08  # of an axis, above and below
# A linear axis would hide the smaller values.
_LOG_RATIO = {"number": 30.0, "rate": 8.0}


def axis_for(kind: str, line: Line, guides: Sequence[Guide]) -> dict[str, Any]:
    """The axis of one panel: powers of two, or a logarithm where a line would hide the small."""
    seen = [float(y) for y in (np.nanmin(line.y), np.nanmax(line.y))]
    seen += [v for guide in guides if guide.fits for v in (guide.low, guide.value, guide.high)]
    low, high = min(seen), max(seen)
    if kind == "power":
        return _power_axis(math.floor(low) - 0.6, math.ceil(high) + 0.6)
    if low > 0 and high > _LOG_RATIO[kind] * low:
        room = _ROOM * math.log10(high / low)
        ends = math.log10(low) - room, math.log10(high) + room
        step = max(1, round((ends[1] - ends[0]) / 4)) if ends[1] - ends[0] > 1.5 else "D2"
        return {"type": "log", "range": list(ends), "dtick": step, "tickformat": "~g"}
    if low == high:
        ends = (-1.0, 1.0) if low == 0 else (min(0.0, 1.25 * low), max(0.0, 1.25 * low))
    else:
        ends = low - _ROOM * (high - low), high + _ROOM * (high - low)
    return {"type": "linear", "range": list(ends), "tickformat": ".4~g"}


def _power_axis(low: float, high: float) -> dict[str, Any]:
    """Whole powers of two, at a stride that gives a handful of ticks."""
    stride = next((n for n in (1, 2, 4, 8, 16, 32) if (high - low) / n <= 6), 64)
    ticks = range(math.ceil(low / stride) * stride, math.floor(high) + 1, stride)
    return {
        "range": [low, high],
        "tickvals": list(ticks),
        "ticktext": [power_text(t) for t in ticks],
    }


def power_text(exponent: float) -> str:
    """A power of two as people read it."""
    if not math.isfinite(exponent):
        return "" if math.isnan(exponent) else f"{exponent}"
    whole = round(float(exponent))
    return powers(f"2^{whole}") if abs(exponent - whole) < 1e-4 else f"{2.0**exponent:.4g}"
