"""Lines and ticks as plotly draws them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ampwatch.diagnosis.words import count_text
from ampwatch.report.page.axes import power_text
from ampwatch.report.page.curves import SCALE
from ampwatch.report.page.panels import Panel
from ampwatch.report.thinning import Line, Rug

_MANY_TICKS = 600  # thinner, or they would look like one band
HOLDS = 400  # over the axis: one every few pixels


def trace(panel: Panel, line: Line, axis: str) -> dict[str, Any]:
    """One line; a scale holds and then jumps."""
    is_scale = panel.column == SCALE
    line = _held(line) if is_scale else line
    made = {
        "type": "scatter", "mode": _mode(line), "x": [int(x) for x in line.x],
        "y": [_number(y) for y in line.y], "yaxis": axis, "name": panel.name, "connectgaps": False,
        "line": {
            "color": f"@{panel.color}@", "width": 2 if is_scale else 1.5,
            "shape": "hv" if is_scale else "linear",
        },
        "marker": {"size": 3},
        "hovertemplate": f"%{{y:.4~g}}{panel.unit}",
    }  # fmt: skip
    if is_scale:
        made |= {"text": [power_text(y) for y in line.y], "hovertemplate": "%{text}"}
    return made


def _held(line: Line) -> Line:
    """A scale's stairs with what holds between two jumps, for the reader who points there."""
    x, count = line.x, len(line.x)
    if not count or (np.diff(x) < 0).any():
        return line
    between = np.unique(np.linspace(x[0], x[-1], HOLDS).astype(np.int64)).astype(x.dtype)
    between = between[~np.isin(between, x)]
    at = np.searchsorted(x, between, side="right")
    return Line(np.insert(x, at, between), np.insert(line.y, at, line.y[at - 1]))


def _mode(line: Line) -> str:
    """Points too where there are few: a single one between two breaks would have no line."""
    return "lines+markers" if len(line.x) < 60 or _has_lonely(line) else "lines"


def _has_lonely(line: Line) -> bool:
    broken = np.concatenate(([True], ~np.isfinite(line.y), [True]))
    return bool((~broken[1:-1] & broken[:-2] & broken[2:]).any())


def ticks(skips: Rug, axis: str) -> dict[str, Any]:
    """One path for all ticks: thousands of elements would take seconds to paint."""
    x: list[int | None] = []
    y: list[float | None] = []
    texts: list[str] = []
    for first, last, count in zip(skips.first, skips.last, skips.count, strict=True):
        said = _skips_text(int(first), int(last), int(count))
        for step in dict.fromkeys((int(first), int(last))):
            x += [step, step, None]
            y += [0.05, 0.85, None]
            texts += [said, said, ""]
    return {
        "type": "scatter", "mode": "lines", "x": x, "y": y, "yaxis": axis, "name": "skipped",
        "text": texts, "hovertemplate": "%{text}",
        "line": {
            "color": "@skip@", "width": 1.5 if len(texts) < _MANY_TICKS else 1, "simplify": False
        },
    }  # fmt: skip


def _skips_text(first: int, last: int, count: int) -> str:
    if count == 1:
        return f"step {first:,}"
    return f"{count_text(count, 'step')} of {first:,} to {last:,}"


def _number(value: float) -> float | None:
    """Seven digits, which is what a float32 has; None breaks the line."""
    return float(f"{value:.7g}") if math.isfinite(value) else None
