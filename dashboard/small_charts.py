"""Small static charts as SVG: the curve around a finding, a rate's interval, a histogram."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

import numpy as np
from step_curves import StepCurves

from ampwatch.diagnosis.value_text import powers
from ampwatch.report import thinning
from ampwatch.report.overview_chart import SCALE
from ampwatch.rows import EXPONENT_LOWEST

WIDTH, HEIGHT = 320, 64
_POINTS = 160
_SPARK, _SPARK_POINTS = (60, 18), 60
_LOG_RATIO = 30.0  # as the large chart
_MARGIN_SHARE = 0.6  # of a finding's length, shown before and after it
_LEAST_MARGIN = 40  # steps
_COLORS = {SCALE: "scale", "loss": "ink", "grad_norm": "norm", "lr": "rate", "step_time_ms": "time"}


def curve_sketch(
    curves: StepCurves, column: str, first: int, last: int, single: Sequence[int] = ()
) -> str:
    """A small chart of a column around a finding's steps, as SVG: they are shaded; skips below.

    `single` are those that count, where not all between the first and the last do.
    """
    low, high = _around(curves, first, last)
    near = curves.within((low, high), fine=_POINTS)
    step, values = near.points(column, (low, high))
    known = np.isfinite(values)
    if known.sum() < 2:
        return ""
    xs, ys = thinning.thinned(step[known], values[known], _POINTS)
    ys = _heights(column, ys)
    x = _scaled(xs, low, high, 0, WIDTH)
    y = _scaled(ys, float(ys.min()), float(ys.max()), HEIGHT - 14, 6)
    spans = [(step, step) for step in single] or [(first, last)]
    shade = "".join(_shade(*_scaled(np.array(span), low, high, 0, WIDTH)) for span in spans)
    path = _path(x, y, stairs=column == SCALE)
    color = f"var(--aw-{_COLORS[column]})"
    line = f'<path d="{path}" fill="none" stroke="{color}" stroke-width="1.5"/>'
    label = f"{column.replace('_', ' ')} from step {low:,} to {high:,}"
    return _svg(shade + line + _ticks(near, low, high), WIDTH, HEIGHT, label)


def _shade(left: float, right: float) -> str:
    width = max(1.5, right - left)
    return f'<rect x="{left:.1f}" width="{width:.1f}" height="{HEIGHT}" class="aw-shade"/>'


def interval_sketch(
    current: float | None, recommended: float, low: float | None, high: float | None
) -> str:
    """A small chart of the advised learning rate, the present one and the interval, as SVG."""
    known = [v for v in (current, recommended, low, high) if v]
    left, right = np.log10(min(known)) - 0.25, np.log10(max(known)) + 0.25

    def at(value: float) -> float:
        return float(_scaled(np.array([np.log10(value)]), left, right, 8, WIDTH - 8)[0])

    parts = ['<line x1="8" x2="312" y1="30" y2="30" stroke="var(--aw-grid)" stroke-width="2"/>']
    if low and high:
        parts.append(
            f'<rect x="{at(low):.1f}" y="23" width="{max(2.0, at(high) - at(low)):.1f}" height="14"'
            ' rx="3" fill="var(--aw-advice)" opacity="0.3"/>'
        )
    if current:
        parts.append(_pin(at(current), "var(--aw-rate)", f"peak {current:.3g}", 56))
    parts.append(_pin(at(recommended), "var(--aw-advice)", f"recommended {recommended:.3g}", 12))
    label = f"recommended rate {recommended:.3g} and its interval"
    return _svg("".join(parts), WIDTH, HEIGHT, label)


def _heights(column: str, values: np.ndarray) -> np.ndarray:
    """Values as they are drawn small: a scale by its power of two, as in the large chart."""
    is_wide = values.min() > 0 and values.max() > _LOG_RATIO * values.min()
    return np.log10(values) if column != SCALE and is_wide else values


def sparkline(curves: StepCurves, column: str) -> str:
    """The whole curve of a column in a few pixels, as HTML; empty without a curve.

    Streamlit lets no SVG through: it is the mask of an element that has the curve's colour.
    """
    step, values = curves.points(column)
    known = np.isfinite(values)
    if known.sum() < 2:
        return ""
    xs, ys = thinning.thinned(step[known], values[known], _SPARK_POINTS)
    ys, (width, height), (first, last) = _heights(column, ys), _SPARK, curves.ends
    if column == SCALE:  # it is held to the end
        xs, ys = np.append(xs, last), np.append(ys, ys[-1])
    x = _scaled(xs, first, last, 1, width - 1)
    path = _path(x, _spark_heights(ys, height), stairs=column == SCALE)
    svg = (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}'>"
        f"<path d='{path}' fill='none' stroke='black' stroke-width='1.4'/></svg>"
    )
    mask = f"mask-image:url(&quot;data:image/svg+xml,{quote(svg)}&quot;)"
    return f'<i class="aw-spark" style="background:var(--aw-{_COLORS[column]});{mask}"></i>'


def sparkline_path(values: Sequence[float] | np.ndarray, width: int = 110, height: int = 22) -> str:
    """A small curve as the path of an SVG."""
    known = np.asarray(values, np.float64)
    if len(known) < 2:
        return ""
    x = np.linspace(1, width - 1, len(known))
    return _path(x, _spark_heights(known, height), stairs=True)


def _spark_heights(values: np.ndarray, height: int) -> np.ndarray:
    low, high = float(values.min()), float(values.max())
    if low == high:
        return np.full(len(values), height / 2)
    return _scaled(values, low, high, height - 3, 3)


def _around(curves: StepCurves, first: int, last: int) -> tuple[int, int]:
    start, end = curves.ends
    margin = max(_LEAST_MARGIN, int((last - first) * _MARGIN_SHARE))
    return max(start, first - margin), min(end, last + margin)


def _scaled(values: np.ndarray, low: float, high: float, start: float, end: float) -> np.ndarray:
    span = (high - low) or 1.0
    return np.asarray(start + (np.asarray(values, np.float64) - low) / span * (end - start))


def _path(x: np.ndarray, y: np.ndarray, *, stairs: bool) -> str:
    move = "H{:.1f}V{:.1f}" if stairs else "L{:.1f},{:.1f}"
    rest = "".join(move.format(a, b) for a, b in zip(x[1:], y[1:], strict=True))
    return f"M{x[0]:.1f},{y[0]:.1f}{rest}"


def _ticks(curves: StepCurves, low: int, high: int) -> str:
    rug = curves.rug(low, high)
    at = np.unique(np.round(_scaled(rug.first, low, high, 0, WIDTH), 0))
    path = "".join(f"M{x:.0f},{HEIGHT - 9}v7" for x in at)
    return f'<path d="{path}" stroke="var(--aw-skip)" stroke-width="1.2"/>' if path else ""


def _pin(x: float, color: str, text: str, text_y: int) -> str:
    anchor = "end" if x > WIDTH * 0.65 else "start" if x < WIDTH * 0.35 else "middle"
    return (
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="18" y2="42" stroke="{color}" stroke-width="2.5"/>'
        f'<text x="{x:.1f}" y="{text_y}" text-anchor="{anchor}" fill="{color}">{text}</text>'
    )


def _svg(inside: str, width: int, height: int, label: str) -> str:
    return (
        f'<svg class="aw-sketch" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{label}">{inside}</svg>'
    )


_HISTOGRAM_HEIGHT = 120
_LOW, _HIGH = -30, 18  # the powers of two drawn; fp16 holds -24 to 15
_SUBNORMAL = (-24, -14)


def exponent_sketch(counts: np.ndarray) -> str:
    """A small histogram over powers of two as SVG, with the range of fp16."""
    at = np.arange(_LOW, _HIGH)
    shown = counts[at - EXPONENT_LOWEST + 1].astype(np.float64)
    top = float(shown.max()) or 1.0
    width, floor = WIDTH / len(at), _HISTOGRAM_HEIGHT - 18
    bars = "".join(
        f'<rect x="{n * width + 0.5:.1f}" y="{floor - height:.1f}" width="{width - 1:.1f}" '
        f'height="{height:.1f}" fill="var(--aw-norm)"/>'
        for n, height in enumerate(shown / top * (floor - 14))
        if height > 0
    )
    label = "histogram over powers of two"
    return _svg(_fp16_range(width, floor) + bars, WIDTH, _HISTOGRAM_HEIGHT, label)


def _fp16_range(width: float, floor: float) -> str:
    """The ranges outside fp16 and of its subnormals, shaded and labelled in the histogram."""
    place = {power: (power - _LOW) * width for power in (*_SUBNORMAL, 0, 16)}
    low, normal, high = place[_SUBNORMAL[0]], place[_SUBNORMAL[1]], place[16]
    zones = [(0.0, low, 0.16), (low, normal, 0.07), (high, WIDTH, 0.16)]
    drawn = "".join(
        f'<rect x="{left:.1f}" y="0" width="{right - left:.1f}" height="{floor:.1f}" '
        f'fill="var(--aw-skip)" opacity="{opacity}"/>'
        for left, right, opacity in zones
    )
    labels = "".join(
        f'<text x="{x:.1f}" y="{_HISTOGRAM_HEIGHT - 4}" text-anchor="middle" '
        f'fill="var(--aw-muted)">'
        f"{powers(f'2^{power}')}</text>"
        for power, x in place.items()
    )
    return drawn + labels
