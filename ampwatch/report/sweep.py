"""A sweep: runs that differ in a setting, from which value on they fail, and its charts.

The boundary is counted, not estimated: the highest value at which no run failed, and the lowest at
which one did. If the runs contradict each other, the reason is given instead of a boundary.

The charts are HTML with positions in per cent, so that they fit any width while the text keeps its
size. A run's outcome is shown by the mark's shape and text, never by colour alone.
"""

from __future__ import annotations

import enum
import html
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ampwatch.diagnosis import Action, Verdict
from ampwatch.diagnosis.value_text import count_text, list_text
from ampwatch.printable_text import cut, printable
from ampwatch.report.compared_run import Outline

RATE = "learning rate"
_RATES = ("optimizer.lr", "optimizer.group.0.lr", "config.lr", "config.learning_rate")
# Names of the learning rate itself; early in a warm-up it is a fixed share of the peak.
_IS_RATE = re.compile(r"(^|\.)(lr|learning_rate|base_lr|peak_lr)$")
# They differ from run to run without any effect.
_ASIDE = re.compile(r"^(command|host(\..*)?)$|seed", re.IGNORECASE)
_NAMED = 3  # runs or settings in a sentence
_SAME_SHARE = 1e-3  # settings are recorded in few digits


class Fate(str, enum.Enum):
    """How a run ended, with regard to the setting."""

    STABLE = "stable"
    FAILED = "failed"
    ELSEWHERE = "failed, but not by its rate"
    UNJUDGED = "too short to judge"


@dataclass(frozen=True, slots=True)
class Point:
    """One run of a sweep."""

    run: int  # its number among those compared
    value: float | None  # of the setting; None where it is no number
    text: str
    outcome: float | None  # None where it is not finite, or was not logged,
    outcome_text: str  # which this tells
    verdict: str
    fate: Fate


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting that differs between runs: each run's value, also as a number if all are."""

    name: str
    texts: tuple[str | None, ...]
    numbers: tuple[float | None, ...] | None


@dataclass(frozen=True, slots=True)
class Sweep:
    """The runs sorted by a setting, and from which value on they fail."""

    setting: str
    outcome: str
    higher_is_better: bool
    points: tuple[Point, ...]
    stable: float | None  # the highest value below all that failed,
    failing: float | None  # and the lowest that failed; both only where the runs agree
    sentence: str
    besides: tuple[str, ...]  # settings that differ as well: they may be the cause


def settings_to_sweep(runs: Sequence[Outline]) -> list[Setting]:
    """The settings that differ and may matter: the rate first, each once."""
    rates = tuple(_rate(run) for run in runs)
    names = []
    if len(set(rates) - {None}) > 1:
        texts = tuple(None if rate is None else f"{rate:.4g}" for rate in rates)
        names.append(Setting(RATE, texts, rates))
    for name in dict.fromkeys(name for run in runs for name in run.settings):
        texts = tuple(run.settings.get(name) for run in runs)
        numbers = tuple(None if text is None else number_in(text) for text in texts)
        values = [text for text in texts if text is not None]
        is_number = all((n is None) == (t is None) for n, t in zip(numbers, texts, strict=True))
        is_a_name = not is_number and len(set(values)) == len(runs) > 2
        if (
            len(set(texts)) < 2
            or _ASIDE.search(name)
            or is_a_name
            or (is_number and is_of_rate(name, numbers, rates))
        ):
            continue
        names.append(Setting(name, texts, numbers if is_number else None))
    return sorted(names, key=_importance)


def is_of_rate(name: str, numbers: Sequence[float | None], rates: Sequence[float | None]) -> bool:
    """Whether a setting is the learning rate by another name, or its first step of a warm-up."""
    if tuple(numbers) == tuple(rates):
        return True
    pairs = [(own, rate) for own, rate in zip(numbers, rates, strict=True) if own and rate]
    if not _IS_RATE.search(name) or len(pairs) < len(numbers):
        return False
    first = pairs[0][0] / pairs[0][1]
    return all(math.isclose(own / rate, first, rel_tol=_SAME_SHARE) for own, rate in pairs)


def sweep_of(
    runs: Sequence[Outline],
    setting: Setting,
    outcome: str,
    told: Sequence[tuple[float | None, str]],
    *,
    higher_is_better: bool = False,
) -> Sweep:
    """The sweep over a setting; `told` is each run's outcome, as a number and as text."""
    values = setting.numbers or (None,) * len(runs)
    points = [
        Point(
            number, values[number], setting.texts[number] or "not recorded", *told[number],
            verdict=run.diagnosis.verdict.value, fate=_fate(run, of_rate=setting.name == RATE),
        )
        for number, run in enumerate(runs)
    ]  # fmt: skip
    points.sort(key=lambda one: (one.value is None, one.value or 0.0, one.text))
    stable, failing = _limits(points)
    sentence = _sentence(setting, points, [run.name for run in runs])
    others = [one.name for one in settings_to_sweep(runs) if one.name != setting.name]
    return Sweep(
        setting.name, outcome, higher_is_better, tuple(points), stable, failing, sentence,
        tuple(name for name in others if not name.startswith("versions.")),
    )  # fmt: skip


def value_text(value: float) -> str:
    """A value of a swept setting as people write it: 3e-4, 0.1, 16."""
    if not value or 1e-3 <= abs(value) < 1e4:
        return f"{value:.4g}"
    mantissa, exponent = f"{value:.3e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def _rate(run: Outline) -> float | None:
    if run.rate is not None:
        return run.rate
    rates = (run.settings.get(name) for name in _RATES)
    return next((rate for text in rates if text and (rate := number_in(text)) is not None), None)


def number_in(text: str) -> float | None:
    """The finite number that a setting's text is; None if it is none."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _importance(setting: Setting) -> tuple[bool, bool, bool]:
    return (
        setting.name != RATE,
        setting.name.startswith(("versions.", "scaler.")),
        setting.numbers is None,
    )


def _fate(run: Outline, *, of_rate: bool) -> Fate:
    verdict, action = run.diagnosis.verdict, run.diagnosis.learning_rate.action
    if verdict is Verdict.INCOMPLETE or not run.diagnosis.run.steps:
        return Fate.UNJUDGED
    if of_rate and action is Action.LOWER:
        return Fate.FAILED
    if verdict is not Verdict.FAILING:
        return Fate.STABLE
    return Fate.FAILED if not of_rate or action is Action.UNKNOWN else Fate.ELSEWHERE


# --- the boundary --------------------------------------------------------------------------------


def _limits(points: Sequence[Point]) -> tuple[float | None, float | None]:
    """The highest stable value and the lowest failing one, if the runs agree."""
    top = max(_values(points, Fate.STABLE), default=None)
    low = min(_values(points, Fate.FAILED), default=None)
    return (None, None) if top is not None and low is not None and top >= low else (top, low)


def _values(points: Sequence[Point], fate: Fate) -> list[float]:
    return [one.value for one in points if one.fate is fate and one.value is not None]


def _sentence(setting: Setting, points: Sequence[Point], names: Sequence[str]) -> str:
    """The sentence on the boundary, or on why it is unknown."""
    if setting.numbers is None:
        return _by_value(points)
    stable, failed = (_values(points, fate) for fate in (Fate.STABLE, Fate.FAILED))
    well, ill = count_text(len(stable), "run"), count_text(len(failed), "run")
    if not stable and not failed:
        return f"The boundary is unknown: no run could be judged.{_aside(points)}"
    if not failed:
        text = (
            f"None of {well} failed: they show no upper limit. The highest {setting.name} that was "
            f"tried is {value_text(max(stable))}."
        )
    elif not stable:
        text = (
            f"All of {ill} failed: the highest stable {setting.name} lies below "
            f"{value_text(min(failed))}, the lowest that was tried."
        )
    elif max(stable) < min(failed):
        up, on = value_text(max(stable)), value_text(min(failed))
        text = (
            f"Stable up to {up} ({well}), failing from {on} on ({ill}): the highest stable "
            f"{setting.name} lies between {up} and {on}."
        )
    elif min(stable) > max(failed):
        up, on = value_text(max(failed)), value_text(min(stable))
        text = f"Failing up to {up} ({ill}), stable from {on} on ({well})."
    else:
        text = _contradiction(setting, points, names)
    return text + _aside(points)


def _contradiction(setting: Setting, points: Sequence[Point], names: Sequence[str]) -> str:
    low = next(one for one in points if one.fate is Fate.FAILED and one.value is not None)
    high = [one for one in points if one.fate is Fate.STABLE and one.value is not None][-1]
    if low.value == high.value:
        return (
            f"At {low.text} {names[low.run]} failed and {names[high.run]} is stable: the highest "
            f"stable {setting.name} lies about there."
        )
    return (
        f"The boundary is unknown: {names[low.run]} failed at {low.text} and {names[high.run]} is "
        f"stable at {high.text}. Something other than the {setting.name} decides."
    )


def _by_value(points: Sequence[Point]) -> str:
    """For a setting that is not a number: how many runs failed at each value."""
    groups: dict[str, list[Point]] = {}
    for one in points:
        groups.setdefault(one.text, []).append(one)
    parts = [
        f"{text}: {_count(some, Fate.FAILED)} of {len(some)} failed"
        for text, some in groups.items()
    ]
    return f"{'; '.join(parts[: _NAMED * 2])}."


def _aside(points: Sequence[Point]) -> str:
    """The runs of a sweep that do not count for the boundary."""
    counts: Mapping[str, int] = {
        fate.value: count
        for fate in (Fate.ELSEWHERE, Fate.UNJUDGED)
        if (count := _count(points, fate))
    }
    unknown = sum(one.value is None for one in points)
    parts = [f"{count:,} {text}" for text, count in counts.items()]
    parts += [f"{unknown:,} without a record of it"] if unknown else []
    return f" Left aside: {', '.join(parts)}." if parts else ""


def _count(points: Sequence[Point], fate: Fate) -> int:
    return sum(one.fate is fate for one in points)


def besides_text(sweep: Sweep) -> str:
    """The sentence on other settings that differ; empty if none does."""
    if not sweep.besides:
        return ""
    verb = "differs" if len(sweep.besides) == 1 else "differ"
    return (
        f"In these runs {list_text(sweep.besides, _NAMED)} {verb}, too, which may have moved the "
        "boundary."
    )


# --- the charts -----------------------------------------------------------------------------------

MOST_AXES = 8  # beside one another
_LOG_RATIO = 8.0  # a linear axis would hide the smaller values
_TICK_ROOM = 0.13  # of the width, from one tick to the next: a phone has no more
_MOST_TICKS = 6  # values of an axis that are written
_STACK, _STACKED = 8.0, 1.8  # per cent of the width: of all marks at one place, of one to the next
_MOST_LETTERS = 16  # of a name or a value beside an axis
_ABOVE = 2.0  # the place of what is no number, above the axis
_MARKS = {Fate.STABLE: "●", Fate.FAILED: "✕", Fate.ELSEWHERE: "◇", Fate.UNJUDGED: "◇"}
_TONES = {fate: "skip" if fate is Fate.FAILED else "muted" for fate in Fate}  # no run's own colour

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
        f"<figcaption><b>{_escaped(title)}</b> by {_escaped(sweep.setting)}{kind}"
        f"{_key(sweep)}</figcaption>"
        f'<div class="aw-sweep-plot">{_lane(points)}{_band(sweep, x)}{_rows(y)}'
        f"{''.join(_marks(points, sweep, names, x, y, link))}</div>"
        f'<div class="aw-sweep-axis">{_columns(x)}</div></figure>'
    )


def _key(sweep: Sweep) -> str:
    """The legend of the marks that are drawn."""
    marks = dict.fromkeys(
        (_MARKS[point.fate], _TONES[point.fate], point.fate.value) for point in sweep.points
    )
    return "".join(
        f'<span class="aw-sweep-key"><i style="color:var(--aw-{tone})">{mark}</i> {text}</span>'
        for mark, tone, text in marks
    )


def _lane(points: Sequence[Point]) -> str:
    """The lane above the axis for runs whose outcome is not a number."""
    words = {point.outcome_text for point in points if point.outcome is None}
    if not words:
        return ""
    text = words.pop() if len(words) == 1 else "no number"
    return f'<span class="aw-sweep-lane">{_escaped(text)}</span>'


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
        f"{_escaped(sweep.outcome)}</b>, a line a run; what failed is dashed{more}</figcaption>"
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
    ticks = texts if len(texts) <= _MOST_TICKS else [texts[0], texts[-1]]
    return _Column(
        setting.name,
        tuple(None if text is None else places[text] for text in setting.texts),
        tuple((places[text], text) for text in ticks),
    )


def _numbers_column(name: str, numbers: Sequence[float | None]) -> _Column:
    values = [number for number in numbers if number is not None]
    if not values:
        return _Column(name, tuple(None for _ in numbers), ())
    axis = axis_of(values)
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
        f"{_escaped(cut(text, _MOST_LETTERS))}</span>"
        for place, text in column.labels
    )
    name = _escaped(cut(short, _MOST_LETTERS))
    return (
        f'<div class="aw-parallel-head{side}" style="left:{left:.2f}%" '
        f'title="{html.escape(printable(column.name))}"><b>{name}</b>{ticks}</div>'
    )


def _escaped(text: str) -> str:
    return html.escape(printable(text))
