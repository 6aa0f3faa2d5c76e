"""What a live chart draws: panels over one axis, and the points, thinned for the span in view.

The points are a *base*, thinned once and kept by the browser, and the *tail* of rows that came
since. A tail is small, and holds all rows after its base, so a lost message costs nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from course import Course
from numpy.typing import NDArray
from theme import PALETTE
from wire import pack

from ampwatch.report import thinning

# Rows after which the base is thinned anew: a share of the run, so that a run of any length is
# thinned a few dozen times, within what a message may carry.
TAIL_SHARE, TAIL_LEAST, TAIL_MOST = 0.02, 400, 2000
_BASES_KEPT = 32

Span = tuple[int, int]
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Stroke:
    """One line of a panel."""

    column: str
    label: str
    color: str
    stepped: bool = False
    faint: bool = False
    dash: str = "solid"
    said: str = ""  # added to the panel's title where it is drawn

    def header(self) -> dict[str, Any]:
        """As the browser reads it."""
        return {
            "key": self.column, "label": self.label, "color": self.color,
            "stepped": self.stepped, "faint": self.faint, "dash": self.dash,
            "width": 2 if self.stepped else 1.6,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Guide:
    """A value drawn across a panel, with an interval around it; `fits` makes room for it."""

    value: float
    low: float
    high: float
    color: str
    said: str
    fits: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart of the figure; its title says what it shows, a part in the colour it speaks of."""

    title: tuple[tuple[str, str], ...]
    strokes: tuple[Stroke, ...]
    kind: str = "number"  # or power, rate, share
    height: int = 96
    unit: str = ""
    rug: bool = False
    guides: tuple[Guide, ...] = ()

    def header(self) -> dict[str, Any]:
        """As the browser reads it."""
        title = [*self.title, *((guide.said, "muted") for guide in self.guides)]
        title += [(stroke.said, "muted") for stroke in self.strokes if stroke.said]
        return {
            "title": title, "kind": self.kind, "height": self.height, "unit": self.unit,
            "rug": self.rug, "lines": [stroke.header() for stroke in self.strokes],
            "guides": [
                {"value": g.value, "low": g.low, "high": g.high, "color": g.color, "fits": g.fits}
                for g in self.guides
            ],
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mark:
    """The steps of a finding, drawn pale through all panels."""

    first: int
    last: int
    label: str
    color: str

    def header(self) -> dict[str, Any]:
        """As the browser reads it."""
        return {"first": self.first, "last": self.last, "label": self.label, "color": self.color}


@dataclass(frozen=True, slots=True)
class Picture:
    """All of a chart but its points."""

    name: str  # another one is another picture: what the reader chose on the one before is dropped
    panels: Sequence[Panel]
    ends: tuple[int, int]
    marks: Sequence[Mark] = ()
    restart: int | None = None
    span: Span | None = None
    picked: int | None = None
    rows: int = 0
    unit: str = "step"  # of the axis: step, or second
    reports: bool = True  # whether the span and the step that the reader chooses come back
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Base:
    """The points of a span, thinned, and how many rows they were made of."""

    id: str
    rows: int
    hole: float
    arrays: Arrays


class Bases:
    """The bases in use, shared by all tabs that look at the same span of the same run."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._kept: OrderedDict[tuple[str, Span | None], tuple[int, Base]] = OrderedDict()

    def of(self, name: str, course: Course, span: Span | None) -> Base:
        """The base for a span, thinned anew once its tail is too long."""
        key = (name, span)
        with self._lock:
            epoch, base = self._kept.get(key, (-1, None))
        if base is None or epoch != course.epoch or _is_long(course, base, span):
            base = thinned_base(name, course, span)
            with self._lock:
                self._kept[key] = (course.epoch, base)
                self._kept.move_to_end(key)
                while len(self._kept) > _BASES_KEPT:
                    self._kept.popitem(last=False)
        return base


_RECENT_ROWS = 4096  # tell at which distance steps are logged now


def thinned_base(name: str, course: Course, span: Span | None) -> Base:
    """The points for a span, or for all there is; `name` tells courses apart."""
    first, last = span or course.ends
    near = course.within(span)
    rug = near.rug(first, last)
    arrays = {
        **thinned_lines(near, span),
        "base.skips.first": rug.first,
        "base.skips.last": rug.last,
        "base.skips.count": rug.count,
    }
    named = "all" if span is None else f"{first}-{last}"
    recent = course.step[-_RECENT_ROWS:]
    hole = max(course.hole, thinning.hole_of(first, last), thinning.usual_hole(recent))
    return Base(f"{name} {course.epoch}.{len(course)}.{named}", len(course), hole, arrays)


def thinned_lines(course: Course, span: Span | None = None, prefix: str = "") -> Arrays:
    """The lines of a course as arrays of a message."""
    near, arrays = course.within(span), {}
    for name in course.present:
        step, values = near.points(name, span)
        if name in course.stepped:
            line = thinning.stepped_line(step, values)
        else:
            line = thinning.broken_line(step, values, course.hole)
        arrays[f"base.{prefix}{name}.x"], arrays[f"base.{prefix}{name}.y"] = line.x, line.y
    return arrays


def live_message(picture: Picture, course: Course, base: Base, *, whole: bool) -> bytes:
    """What the browser is sent of a course that grows; the base only when it is `whole`."""
    tail = _tail(course, base, picture.span)
    header = _header(picture, base.id, base.hole, whole=whole)
    return pack(header, {**(base.arrays if whole else {}), **tail})


def still_message(picture: Picture, arrays: Arrays) -> bytes:
    """What the browser is sent of lines that are sent anew whenever they change."""
    hole = thinning.hole_of(*picture.ends)
    return pack(_header(picture, f"still {picture.rows}", hole, whole=True), arrays)


def _header(picture: Picture, base: str, hole: float, *, whole: bool) -> dict[str, Any]:
    return {
        "component": "chart",
        "run": picture.name,
        "rows": picture.rows,
        "base": base,
        "hasBase": whole,
        "hole": hole,
        "axis": list(picture.ends),
        "unit": picture.unit,
        "reports": picture.reports,
        "span": None if picture.span is None else list(picture.span),
        "picked": picture.picked,
        "panels": [panel.header() for panel in picture.panels],
        "marks": [mark.header() for mark in picture.marks],
        "restart": picture.restart,
        "palette": PALETTE,
        **picture.extra,
    }


def _is_long(course: Course, base: Base, span: Span | None) -> bool:
    added = len(course) - base.rows
    most = min(TAIL_MOST, max(TAIL_LEAST, int(base.rows * TAIL_SHARE)))
    if added <= most:
        return False
    return span is None or int(course.step[course.since(base.rows)].min()) <= span[1]


def _tail(course: Course, base: Base, span: Span | None) -> Arrays:
    rows: Any = course.since(base.rows)
    if span is not None:
        rows = course.rows_within(*span, start=base.rows)
    step = course.step[rows]
    arrays: Arrays = {"tail.step": step}
    for name in course.present:
        arrays[f"tail.{name}"] = course.columns[name][rows]
    since = course.skips[course.skips >= step.min()] if len(step) else step
    arrays["tail.skips"] = since
    return arrays
