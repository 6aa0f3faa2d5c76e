"""What the live chart draws of a run: panels, marks, and the points, thinned for the span in view.

The points are a *base*, thinned once and kept by the browser, and the *tail* of rows that came
since. A tail is small, and holds all rows after its base, so a lost message costs nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
import thinning
from course import SCALE, Course
from desk import Look
from numpy.typing import NDArray
from theme import PALETTE, SEVERITY_COLOR
from wire import pack

from ampwatch.diagnosis import Action, Advice, Finding, Severity

# Rows after which the base is thinned anew: a share of the run, so that a run of any length is
# thinned a few dozen times, within what a message may carry.
TAIL_SHARE, TAIL_LEAST, TAIL_MOST = 0.02, 400, 2000
MOST_MARKS = 4
_BASES_KEPT = 32

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Stroke:
    """One line of a panel."""

    column: str
    label: str
    color: str
    stepped: bool = False
    faint: bool = False
    said: str = ""  # added to the panel's title where it is drawn

    def header(self) -> dict[str, Any]:
        """As the browser reads it."""
        return {
            "key": self.column, "label": self.label, "color": self.color,
            "stepped": self.stepped, "faint": self.faint,
            "width": 2 if self.stepped else 1.6,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart of the figure; its title says what it shows, a part in the colour it speaks of."""

    title: tuple[tuple[str, str], ...]
    strokes: tuple[Stroke, ...]
    kind: str = "number"
    height: int = 96
    unit: str = ""
    rug: bool = False


CLIPPED = "grad_norm_applied"
PANELS = (
    Panel(
        (("Loss scale", "scale"), (" and ", "muted"), ("skipped steps", "skip")),
        (Stroke(SCALE, "loss scale", "scale", stepped=True),),
        kind="power", height=140, rug=True,
    ),
    Panel((("Loss", "ink"),), (Stroke("loss", "loss", "ink"),)),
    Panel(
        (("Gradient norm", "norm"),),
        (
            Stroke(CLIPPED, "after clipping", "norm", faint=True, said=", pale after clipping"),
            Stroke("grad_norm", "gradient norm", "norm"),
        ),
    ),
    Panel(
        (("Learning rate", "rate"),), (Stroke("lr", "learning rate", "rate"),),
        kind="rate", height=84,
    ),
    Panel(
        (("Step time", "time"), (", ms", "muted")),
        (Stroke("step_time_ms", "step time", "time"),), height=70, unit="ms",
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Base:
    """The points of a span, thinned, and how many rows they were made of."""

    id: str
    rows: int
    hole: float
    arrays: dict[str, NDArray[Any]]


class Bases:
    """The bases in use, shared by all tabs that look at the same span of the same run."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._kept: OrderedDict[tuple[str, Span | None], tuple[int, Base]] = OrderedDict()

    def of(self, look: Look, span: Span | None) -> Base:
        """The base for a span, thinned anew once its tail is too long."""
        key, course = (look.path, span), look.course
        with self._lock:
            epoch, base = self._kept.get(key, (-1, None))
        if base is None or epoch != course.epoch or _is_long(course, base, span):
            base = _thinned(course, span)
            with self._lock:
                self._kept[key] = (course.epoch, base)
                self._kept.move_to_end(key)
                while len(self._kept) > _BASES_KEPT:
                    self._kept.popitem(last=False)
        return base


def _is_long(course: Course, base: Base, span: Span | None) -> bool:
    added = len(course) - base.rows
    most = min(TAIL_MOST, max(TAIL_LEAST, int(base.rows * TAIL_SHARE)))
    if added <= most:
        return False
    return span is None or int(course.step[base.rows :].min()) <= span[1]


def _thinned(course: Course, span: Span | None) -> Base:
    first, last = span or course.ends
    rows = course.rows_within(first, last) if span else slice(None)
    step = course.step[rows]
    arrays: dict[str, NDArray[Any]] = {}
    for name in course.present:
        thin = thinning.stepped_line if name == SCALE else thinning.broken_line
        line = thin(step, course.columns[name][rows])
        arrays[f"base.{name}.x"], arrays[f"base.{name}.y"] = line.x, line.y
    rug = thinning.merged(course.skips_within(first, last), first, last)
    arrays["base.skips.first"], arrays["base.skips.last"] = rug.first, rug.last
    arrays["base.skips.count"] = rug.count
    named = "all" if span is None else f"{first}-{last}"
    hole = thinning.hole_of(first, last)
    return Base(f"{course.epoch}.{len(course)}.{named}", len(course), hole, arrays)


def message(look: Look, base: Base, *, span: Span | None, step: int | None, whole: bool) -> bytes:
    """What the browser is sent; the base only when it is `whole`."""
    course, tail = look.course, _tail(look.course, base, span)
    header = {
        "component": "chart",
        "run": look.path,
        "rows": len(course),
        "base": base.id,
        "hasBase": whole,
        "hole": base.hole,
        "axis": list(course.ends),
        "span": None if span is None else list(span),
        "picked": step,
        "panels": list(_panels(look)),
        "marks": list(_marks(look)),
        "restart": _restart(look),
        "palette": PALETTE,
    }
    return pack(header, {**(base.arrays if whole else {}), **tail})


def _tail(course: Course, base: Base, span: Span | None) -> dict[str, NDArray[Any]]:
    rows: Any = slice(base.rows, None)
    if span is not None:
        rows = course.rows_within(*span, start=base.rows)
    step = course.step[rows]
    arrays: dict[str, NDArray[Any]] = {"tail.step": step}
    for name in course.present:
        arrays[f"tail.{name}"] = course.columns[name][rows]
    since = course.skips[np.searchsorted(course.skips, step.min()) :] if len(step) else step
    arrays["tail.skips"] = since
    return arrays


def _panels(look: Look) -> Iterator[dict[str, Any]]:
    """The panels that have something to show."""
    for panel in PANELS:
        strokes = [s for s in panel.strokes if _is_shown(look.course, s)]
        if strokes:
            guides = list(_guides(look, strokes[-1].column))
            title = [*panel.title, *((guide["said"], "muted") for guide in guides)]
            title += [(s.said, "muted") for s in strokes if s.said]
            yield {
                "title": title, "kind": panel.kind, "height": panel.height,
                "unit": panel.unit, "rug": panel.rug,
                "lines": [stroke.header() for stroke in strokes],
                "guides": guides,
            }  # fmt: skip


def _is_shown(course: Course, stroke: Stroke) -> bool:
    return stroke.column in course.present and (stroke.column != CLIPPED or course.clips)


def _guides(look: Look, column: str) -> Iterator[dict[str, Any]]:
    """The established scale, and the advised rate with its interval."""
    if look.verdict is None:
        return
    level, advice = look.verdict.level, look.verdict.diagnosis.learning_rate
    if column == SCALE and level:
        value = float(np.log2(level))
        yield {
            "value": value, "low": value, "high": value, "color": "scale", "fits": False,
            "said": ", dotted the established level",
        }  # fmt: skip
    if column == "lr" and is_change(advice):
        low, high = advice.low or advice.recommended, advice.high or advice.recommended
        yield {
            "value": advice.recommended, "low": low, "high": high, "color": "advice", "fits": True,
            "said": ", dotted the advised one, pale the 90 % interval of the highest stable one",
        }  # fmt: skip


def is_change(advice: Advice) -> bool:
    """Whether another rate is advised."""
    return advice.action in {Action.LOWER, Action.RAISE} and advice.recommended is not None


def _marks(look: Look) -> Iterator[dict[str, Any]]:
    """The steps of the findings that matter, the headline's first."""
    first, last = look.course.ends
    for finding in _marked(look)[:MOST_MARKS]:
        assert finding.first_step is not None
        if finding.first_step > first or (finding.last_step or last) < last:
            yield {
                "first": finding.first_step,
                "last": last if finding.last_step is None else finding.last_step,
                "label": finding.code,
                "color": SEVERITY_COLOR[finding.severity.value],
            }


def _marked(look: Look) -> list[Finding]:
    if look.verdict is None:
        return []
    return [
        finding
        for finding in look.verdict.diagnosis.findings
        if finding.severity is not Severity.INFO and finding.first_step is not None
    ]


def _restart(look: Look) -> int | None:
    """The step to restart from, where a restart is advised."""
    if look.verdict is None or look.verdict.diagnosis.verdict.value == "healthy":
        return None
    advice = look.verdict.diagnosis.learning_rate
    if advice.restart_checkpoint_step is not None:
        return advice.restart_checkpoint_step
    return advice.restart_from_step
