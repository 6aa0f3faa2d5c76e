"""The points of a live chart, thinned for the span in view.

They are a *base*, thinned once and kept by the browser, and a *tail*: all rows after the base. Each
message holds the whole tail, so a lost message costs nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock
from typing import Any

import streamlit as st
from step_curves import StepCurves

from ampwatch.report import thinning
from ampwatch.report.painter.message import Arrays, Picture, odd_arrays, pack

# Rows after which the base is thinned anew: a share of the run, so that a run of any length is
# thinned a few dozen times, within what a message may carry.
TAIL_SHARE, TAIL_LEAST, TAIL_MOST = 0.02, 400, 2000
_BASES_KEPT = 32

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class ThinnedBase:
    """The thinned points of a span of a live chart, and how many rows they were made of."""

    id: str
    rows: int
    hole: float
    arrays: Arrays


class ThinnedBases:
    """The thinned points in use, shared by all tabs that look at the same span of the same run."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._kept: OrderedDict[tuple[str, Span | None], tuple[int, ThinnedBase]] = OrderedDict()

    def base_for(self, name: str, curves: StepCurves, span: Span | None) -> ThinnedBase:
        """The thinned points for a span, thinned anew once the tail after them is too long."""
        key = (name, span)
        with self._lock:
            epoch, base = self._kept.get(key, (-1, None))
        if base is None or epoch != curves.epoch or _is_long(curves, base, span):
            base = thinned_base(name, curves, span)
            with self._lock:
                self._kept[key] = (curves.epoch, base)
                self._kept.move_to_end(key)
                while len(self._kept) > _BASES_KEPT:
                    self._kept.popitem(last=False)
        return base


@st.cache_resource(show_spinner=False)
def thinned_bases() -> ThinnedBases:
    """The thinned points of live charts, shared by all tabs."""
    return ThinnedBases()


_RECENT_ROWS = 4096  # that tell the usual interval between logged steps


def thinned_base(name: str, curves: StepCurves, span: Span | None) -> ThinnedBase:
    """The thinned points of a live chart for a span, or for the whole run."""
    first, last = span or curves.ends
    near = curves.within(span)
    rug = near.rug(first, last)
    arrays = {
        **thinned_lines(near, span),
        "base.skips.first": rug.first,
        "base.skips.last": rug.last,
        "base.skips.count": rug.count,
    }
    named = "all" if span is None else f"{first}-{last}"
    recent = curves.step[-_RECENT_ROWS:]
    hole = max(curves.hole, thinning.hole_of(first, last), thinning.usual_hole(recent))
    return ThinnedBase(f"{name} {curves.epoch}.{len(curves)}.{named}", len(curves), hole, arrays)


def thinned_lines(curves: StepCurves, span: Span | None = None, prefix: str = "") -> Arrays:
    """The thinned lines of a run's chart, as arrays of a message to the browser."""
    near = curves.within(span)
    arrays: Arrays = {}
    for name in curves.present:
        step, values = near.points(name, span)
        if name in curves.stepped:
            line = thinning.stepped_line(step, values)
        else:
            line = thinning.broken_line(step, values, curves.hole, inf_breaks=True)
        arrays[f"base.{prefix}{name}.x"], arrays[f"base.{prefix}{name}.y"] = line.x, line.y
    return arrays


def live_message(
    picture: Picture, curves: StepCurves, base: ThinnedBase, more: Arrays, *, whole: bool
) -> bytes:
    """The points of a growing run's chart as a message; with the thinned base if it is `whole`."""
    tail = _tail(curves, base, picture.span)
    header = picture.header(base.id, base.hole, whole=whole)
    odd = odd_lines(curves, picture.span)
    return pack(header, {**(base.arrays if whole else {}), **tail, **odd, **more})


def odd_lines(curves: StepCurves, span: Span | None = None, prefix: str = "") -> Arrays:
    """Where a chart's lines are not finite, as arrays of a message to the browser."""
    arrays: Arrays = {}
    for name, odd in curves.odd.items():
        arrays |= odd_arrays(f"{prefix}{name}", odd.within(*(span or curves.ends)))
    return arrays


def _is_long(curves: StepCurves, base: ThinnedBase, span: Span | None) -> bool:
    added = len(curves) - base.rows
    most = min(TAIL_MOST, max(TAIL_LEAST, int(base.rows * TAIL_SHARE)))
    if added <= most:
        return False
    return span is None or int(curves.step[curves.since(base.rows)].min()) <= span[1]


def _tail(curves: StepCurves, base: ThinnedBase, span: Span | None) -> Arrays:
    rows: Any = curves.since(base.rows)
    if span is not None:
        rows = curves.rows_within(*span, start=base.rows)
    step = curves.step[rows]
    arrays: Arrays = {"tail.step": step}
    for name in curves.present:
        arrays[f"tail.{name}"] = curves.columns[name][rows]
    since = curves.skips[curves.skips >= step.min()] if len(step) else step
    arrays["tail.skips"] = since
    return arrays
