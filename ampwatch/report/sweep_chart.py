"""A sweep drawn: each run as a mark over its setting, and all settings side by side.

The charts are HTML with positions in per cent, so that they fit any width while the text keeps its
size. A run's outcome is shown by the mark's shape and text, never by colour alone.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ampwatch.printable_text import cut, printable
from ampwatch.report.sweep import RATE, Fate, Point, Setting, Sweep, value_text

MOST_AXES = 8  # beside one another
_LOG_RATIO = 8.0  # a linear axis would hide the smaller values
_TICK_ROOM = 0.13  # of the width, from one tick to the next: a phone has no more
_MOST_TICKS = 6  # values of an axis that are written
_STACK, _STACKED = 8.0, 1.8  # per cent of the width: of all marks at one place, of one to the next
_MOST_LETTERS = 16  # of a name or a value beside an axis
_ABOVE = 2.0  # the place of what is no number, above the axis
_MARKS = {Fate.STABLE: "●", Fate.FAILED: "✕", Fate.ELSEWHERE: "◇", Fate.UNJUDGED: "◇"}
_TONES = {
    Fate.STABLE: "healthy", Fate.FAILED: "skip", Fate.ELSEWHERE: "advice", Fate.UNJUDGED: "muted",
}  # fmt: skip

Link = Callable[[int], str]  # the attributes that make an element of this run lead to it


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis from 0 to 1, with its labelled values."""

    low: float
    high: float
    is_log: bool
    ticks: tuple[float, ...]

    def place(self, value: float) -> float:
        """The position of a value, 0 to 1."""
        low, high, at = (self._scaled(one) for one in (self.low, self.high, value))
        return 0.5 if high == low else (at - low) / (high - low)

    def _scaled(self, value: float) -> float:
        return math.log10(value) if self.is_log else value


def axis_of(values: Sequence[float], *, is_log: bool | None = None) -> Axis:
    """The axis of a sweep's values; as many of them as fit are its ticks."""
    low, high = min(values), max(values)
    log = low > 0 and (high > _LOG_RATIO * low if is_log is None else is_log)
    axis = Axis(low, high, log, ())
    ticks: list[float] = []
    for value in sorted(set(values)):
        if not ticks or axis.place(value) - axis.place(ticks[-1]) >= _TICK_ROOM:
            ticks.append(value)
    return Axis(low, high, log, tuple(ticks))


# --- rate against outcome ------------------------------------------------------------------------


def sweep_html(sweep: Sweep, names: Sequence[str], link: Link) -> str:
    """A sweep's chart, runs over the setting; empty if that is no number or has one value."""
    points = [point for point in sweep.points if point.value is not None]
    values = [point.value for point in points if point.value is not None]
    if len(set(values)) < 2:
        return ""
    x = axis_of(values, is_log=True if sweep.setting == RATE and min(values) > 0 else None)
    outcomes = [point.outcome for point in points if point.outcome is not None]
    y = axis_of(outcomes) if outcomes else None
    kind = ", logarithmic" if x.is_log else ""
    title = sweep.outcome[:1].upper() + sweep.outcome[1:]
    return (
        f'<figure class="aw-sweep" aria-label="{html.escape(printable(sweep.sentence))}">'
        f"<figcaption><b>{_said(title)}</b> by {_said(sweep.setting)}{kind}"
        f"{_key(sweep)}</figcaption>"
        f'<div class="aw-sweep-plot">{_lane(points)}{_band(sweep, x)}{_rows(y)}'
        f"{''.join(_marks(points, sweep, names, x, y, link))}</div>"
        f'<div class="aw-sweep-axis">{_columns(x)}</div></figure>'
    )


def _key(sweep: Sweep) -> str:
    """The legend of the marks that are drawn."""
    shown = dict.fromkeys(
        (_MARKS[point.fate], _TONES[point.fate], point.fate.value) for point in sweep.points
    )
    return "".join(
        f'<span class="aw-sweep-key"><i style="color:var(--aw-{tone})">{mark}</i> {text}</span>'
        for mark, tone, text in shown
    )


def _lane(points: Sequence[Point]) -> str:
    """The lane above the axis for runs whose outcome is not a number."""
    words = {point.outcome_text for point in points if point.outcome is None}
    if not words:
        return ""
    text = words.pop() if len(words) == 1 else "no number"
    return f'<span class="aw-sweep-lane">{_said(text)}</span>'


def _band(sweep: Sweep, x: Axis) -> str:
    """The band between the highest stable and the lowest failing value."""
    if sweep.stable is None or sweep.failing is None:
        return ""
    left, right = x.place(sweep.stable), x.place(sweep.failing)
    return (
        f'<div class="aw-sweep-band" style="left:{100 * left:.2f}%;'
        f'width:{100 * (right - left):.2f}%"><span>the limit</span></div>'
    )


def _rows(y: Axis | None) -> str:
    if y is None:
        return ""
    middle = math.sqrt(y.low * y.high) if y.is_log else (y.low + y.high) / 2
    return "".join(
        f'<span class="aw-sweep-row" style="bottom:{100 * y.place(value):.2f}%">'
        f"<span>{value:.3g}</span></span>"
        for value in dict.fromkeys((y.low, middle, y.high))
    )


def _columns(x: Axis) -> str:
    return "".join(
        f'<span style="left:{100 * x.place(value):.2f}%">{value_text(value)}</span>'
        for value in x.ticks
    )


def _marks(
    points: Sequence[Point], sweep: Sweep, names: Sequence[str], x: Axis, y: Axis | None, link: Link
) -> Iterator[str]:
    """The marks; those at the same position are drawn side by side."""
    places: dict[tuple[float, float], list[Point]] = {}
    for point in points:
        assert point.value is not None
        up = _ABOVE if point.outcome is None or y is None else y.place(point.outcome)
        places.setdefault((x.place(point.value), round(up, 2)), []).append(point)
    for (across, up), some in places.items():
        apart = min(_STACKED, _STACK / len(some))
        for number, point in enumerate(some):
            left = 100 * across + apart * (number - (len(some) - 1) / 2)
            yield _mark(point, left, up, _tip(point, sweep, names[point.run]), link)


def _mark(point: Point, left: float, up: float, tip: str, link: Link) -> str:
    side = (" none" if up == _ABOVE else "") + (" left" if left > 60 else "")
    text = html.escape(tip)
    return (
        f'<a class="aw-sweep-mark{side}" {link(point.run)} aria-label="{text}" '
        f'style="left:{left:.2f}%;bottom:{100 * min(1.0, up):.2f}%;'
        f'color:var(--aw-{_TONES[point.fate]})">{_MARKS[point.fate]}'
        f'<span class="aw-tip"><bdi>{text}</bdi></span></a>'
    )


def _tip(point: Point, sweep: Sweep, name: str) -> str:
    return printable(
        f"{name}: {sweep.setting} {point.text}, {sweep.outcome} {point.outcome_text}, "
        f"{point.fate.value}"
    )


# --- all settings beside one another -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Column:
    """One axis of the parallel view: each run's position, and the labels."""

    name: str
    places: tuple[float | None, ...]
    labels: tuple[tuple[float, str], ...]


def parallel_html(
    settings: Sequence[Setting], sweep: Sweep, names: Sequence[str], link: Link
) -> str:
    """The settings that differ and the outcome as axes, a line a run; empty of fewer than two."""
    if len(settings) < 2:
        return ""
    columns = [_column_of(setting) for setting in settings[:MOST_AXES]]
    columns.append(_outcome_column(sweep, len(names)))
    apart = 100 / (len(columns) - 1)
    uprights = "".join(
        f'<path class="aw-parallel-axis" d="M{n * apart:.2f},0V100"/>' for n in range(len(columns))
    )
    fates = {point.run: point for point in sweep.points}
    lines = "".join(
        _line(columns, apart, fates[run], sweep, names[run], link(run)) for run in fates
    )
    heads = "".join(_head(column, n * apart) for n, column in enumerate(columns))
    hidden = len(settings) - MOST_AXES
    more = f"; {hidden} more differ, see the table of settings" if hidden > 0 else ""
    return (
        f'<figure class="aw-parallel"><figcaption><b>Settings that differ, and '
        f"{_said(sweep.outcome)}</b>, a line a run; what failed is dashed{more}</figcaption>"
        f'<div class="aw-parallel-wide" style="min-width:{6.4 * len(columns):.1f}rem">'
        f'<div class="aw-parallel-plot"><svg viewBox="0 0 100 100" preserveAspectRatio="none">'
        f"{uprights}{lines}</svg>{heads}</div></div></figure>"
    )


def _column_of(setting: Setting) -> _Column:
    if setting.numbers is not None:
        return _numbers_column(setting.name, setting.numbers)
    texts = list(dict.fromkeys(text for text in setting.texts if text is not None))
    apart = 1 / max(1, len(texts) - 1)
    places = {text: number * apart for number, text in enumerate(texts)}
    shown = texts if len(texts) <= _MOST_TICKS else [texts[0], texts[-1]]
    return _Column(
        setting.name,
        tuple(None if text is None else places[text] for text in setting.texts),
        tuple((places[text], text) for text in shown),
    )


def _numbers_column(name: str, numbers: Sequence[float | None]) -> _Column:
    known = [number for number in numbers if number is not None]
    if not known:
        return _Column(name, tuple(None for _ in numbers), ())
    axis = axis_of(known)
    ticks = axis.ticks if len(axis.ticks) <= _MOST_TICKS else (axis.low, axis.high)
    return _Column(
        name,
        tuple(None if number is None else axis.place(number) for number in numbers),
        tuple((axis.place(value), value_text(value)) for value in ticks),
    )


def _outcome_column(sweep: Sweep, count: int) -> _Column:
    numbers: list[float | None] = [None] * count
    for point in sweep.points:
        numbers[point.run] = point.outcome
    return _numbers_column(sweep.outcome, numbers)


def _line(
    columns: Sequence[_Column], apart: float, point: Point, sweep: Sweep, name: str, link: str
) -> str:
    """The line through the axes for which the run has a value."""
    at = [
        (n * apart, 100 - 100 * place)
        for n, column in enumerate(columns)
        if (place := column.places[point.run]) is not None
    ]
    if len(at) < 2:
        return ""
    path = "L".join(f"{across:.2f},{down:.2f}" for across, down in at)
    tip = html.escape(_tip(point, sweep, name))
    dash = "" if point.fate is Fate.STABLE else ' stroke-dasharray="6 4"'
    return (
        f'<a class="aw-parallel-line" {link} aria-label="{tip}"><title>{tip}</title>'
        f'<path d="M{path}" stroke="var(--aw-{_TONES[point.fate]})"{dash}/></a>'
    )


def _head(column: _Column, left: float) -> str:
    """An axis's name above it, and its values beside it."""
    short = column.name.removeprefix("config.").removeprefix("optimizer.")
    side = " last" if left > 99 else " first" if left < 1 else ""
    ticks = "".join(
        f'<span class="aw-parallel-tick" style="bottom:{100 * place:.2f}%">'
        f"{_said(cut(text, _MOST_LETTERS))}</span>"
        for place, text in column.labels
    )
    name = _said(cut(short, _MOST_LETTERS))
    return (
        f'<div class="aw-parallel-head{side}" style="left:{left:.2f}%" '
        f'title="{html.escape(printable(column.name))}"><b>{name}</b>{ticks}</div>'
    )


def _said(text: str) -> str:
    return html.escape(printable(text))
