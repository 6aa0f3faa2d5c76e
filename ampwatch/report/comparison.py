"""Several runs side by side: where they part, figures, settings that differ, learning rate.

    run -> outline, with the first run -> divergence; outlines and divergences -> comparison

The page keeps outlines and divergences of runs that do not change; the comparison itself is cheap.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from ampwatch.diagnosis import advise_on_all, difference_of_models
from ampwatch.diagnosis.findings import SCHEMA, json_value
from ampwatch.diagnosis.learning_rate.advice import Advice
from ampwatch.diagnosis.value_text import (
    bytes_text,
    count_text,
    list_text,
    scale_text,
    share_text,
    time_text,
)
from ampwatch.diagnosis.verdict import verdict_text
from ampwatch.errors import RunError
from ampwatch.report.compared_run import LOSS, At, Outline, ValueCourse, outline_of
from ampwatch.report.divergence import Divergence, divergence_of, step_rows
from ampwatch.report.sweep import (
    RATE,
    Setting,
    Sweep,
    is_of_rate,
    number_in,
    settings_to_sweep,
    sweep_of,
    value_text,
)

if TYPE_CHECKING:
    from ampwatch.store import Run

T = TypeVar("T")

MANY_TIMES = 10.0  # a number that is more than so many times another is not told in per cent
LEAST_SHARE = 0.05  # per cent: less is not told
_NOT_LOGGED = (None, "not logged")
END, BEST = "loss at the end", "best loss"
_FIGURES = (
    "verdict", "headline", "steps", "learning rate", "loss scale", "skipped", LOSS, BEST, END,
)  # fmt: skip
_LAST_FIGURES = ("gradient norm", "step time", "peak memory")


@dataclass(frozen=True, slots=True)
class Figure:
    """One number or text of a run, as it is shown and as it is compared."""

    text: str
    number: float | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """What differs between runs; each tuple holds one value a run, in the order given."""

    names: tuple[str, ...]
    figures: Mapping[str, tuple[str, ...]]
    numbers: Mapping[str, tuple[float | None, ...]]  # of the figures that are numbers
    differences: Mapping[str, tuple[str, ...]]  # of those, to the first run, in words
    values: Mapping[str, tuple[ValueCourse | None, ...]]  # the loss, and the user's own
    settings: Mapping[str, tuple[str | None, ...]]  # those that differ
    same_settings: Mapping[str, str]  # those that all runs have alike
    partings: tuple[Divergence, ...]  # of each run but the first, compared with the first
    uncounted: tuple[str, ...]  # runs whose log does not number its steps
    learning_rate: Advice | None  # for all, where they differ in their rate
    not_together: str | None = None  # why these are not runs of one model
    sweep: Sweep | None = None  # over the setting that was asked for, else over the rate
    swept_by: tuple[Setting, ...] = ()  # all settings that a sweep may go over
    outcomes: tuple[str, ...] = ()  # all figures that may tell what came of a run

    def to_json(self) -> dict[str, Any]:
        """The object that `compare --json` prints."""
        body = json_value(self)
        assert isinstance(body, dict)
        return {"schema": SCHEMA, **body}

    @property
    def by_outcome(self) -> list[int]:
        """The runs by their loss at the end, the best first; those that logged none come last."""
        if END not in self.figures:
            return list(range(len(self.names)))
        numbers = self.numbers.get(END, (None,) * len(self.names))
        ends = [math.inf if number is None else number for number in numbers]
        unlogged = [not text for text in self.figures[END]]
        return sorted(range(len(ends)), key=lambda run: (unlogged[run], ends[run]))


@dataclass(frozen=True, slots=True)
class Asked:
    """What a reader asked of a sweep; None leaves it to the runs."""

    setting: str | None = None
    outcome: str | None = None


def compare(runs: Sequence[Run], asked: Asked = Asked()) -> Comparison:
    """Compare two runs or more; the others are compared with the first.

    Raises RunError where a setting or an outcome was asked for that there is not.
    """
    first = step_rows(runs[0])
    partings = [divergence_of(runs[0], run, first) for run in runs[1:]]
    return compared([outline_of(run) for run in runs], partings, asked)


def compared(
    runs: Sequence[Outline], partings: Sequence[Divergence], asked: Asked = Asked()
) -> Comparison:
    """The comparison of runs whose outlines and divergences from the first one are known."""
    rates = [run.rate for run in runs]
    differ = len(set(rates) - {None}) > 1
    settings, alike = differing([run.settings for run in runs])
    if differ:  # it is told once, and not as the first step of a warm-up
        settings = {
            name: row for name, row in settings.items() if not _is_of_rate(name, row, rates)
        }
        texts = tuple(None if rate is None else value_text(rate) for rate in rates)
        settings = {RATE: texts, **settings}
    figures = _side_by_side([dict(_figures(run)) for run in runs])
    numbers = {
        name: tuple(None if one is None else one.number for one in row)
        for name, row in figures.items()
        if any(one is not None and one.number is not None for one in row)
    }
    difference = difference_of_models([run.for_several for run in runs])
    swept_by, outcomes = settings_to_sweep(runs), _outcomes(runs, numbers)
    return Comparison(
        names=tuple(run.name for run in runs),
        figures={n: tuple(one.text if one else "" for one in row) for n, row in figures.items()},
        numbers=numbers,
        differences={
            name: tuple(difference_text(number, row[0]) for number in row)
            for name, row in numbers.items()
            if name not in _NOT_COMPARED
        },
        values={
            name: tuple(one.values.get(name) for one in runs) for run in runs for name in run.values
        },
        settings=settings,
        same_settings=alike,
        partings=tuple(partings),
        uncounted=tuple(run.name for run in runs if run.is_uncounted),
        learning_rate=_advice(runs) if differ and difference is None else None,
        not_together=difference,
        sweep=_sweep(runs, swept_by, {name: figures[name] for name in outcomes}, asked),
        swept_by=tuple(swept_by),
        outcomes=outcomes,
    )


def _outcomes(runs: Sequence[Outline], numbers: Mapping[str, Any]) -> tuple[str, ...]:
    """The compared figures that may tell what came of a run: of the loss, and the user's own."""
    own = {name for run in runs for name in run.values if name != LOSS}
    told = [END, BEST, *(name for name in numbers if name.rpartition(", ")[0] in own)]
    return tuple(name for name in told if name in numbers)


def _sweep(
    runs: Sequence[Outline],
    settings: Sequence[Setting],
    outcomes: Mapping[str, Sequence[Figure | None]],
    asked: Asked,
) -> Sweep | None:
    setting = _asked_for(asked.setting, {one.name: one for one in settings}, "setting that differs")
    names = {name: name for name in outcomes} or {END: END}
    outcome = _asked_for(asked.outcome, names, "outcome")
    if setting is None or outcome is None:
        return None
    cells = [
        _NOT_LOGGED if one is None else (one.number, one.text)
        for one in outcomes.get(outcome, (None,) * len(runs))
    ]
    course = outcome.rpartition(", ")[0]
    value = next((run.values[course] for run in runs if course in run.values), None)
    is_up = value is not None and bool(value.higher_is_better)
    return sweep_of(runs, setting, outcome, cells, higher_is_better=is_up)


def _asked_for(asked: str | None, known: Mapping[str, T], what: str) -> T | None:
    """What was asked of a comparison, by its whole name or its end; the first if nothing was."""
    if asked is None:
        return next(iter(known.values()), None)
    matches = [name for name in known if asked in {name, name.rpartition(".")[2]}]
    if len(matches) != 1 and asked not in known:
        choices = list_text(list(known), 12) or "none"
        raise RunError(f"{asked!r} is no {what} of these runs; they have {choices}.")
    return known[asked if asked in known else matches[0]]


def _advice(runs: Sequence[Outline]) -> Advice:
    advice = advise_on_all([run.for_several for run in runs])
    return advice or runs[-1].diagnosis.learning_rate


def differing(
    settings: Sequence[Mapping[str, str]],
) -> tuple[dict[str, tuple[str | None, ...]], dict[str, str]]:
    """The settings in which compared runs differ, None where one lacks it; and those alike."""
    names = dict.fromkeys(name for one in settings for name in one)
    found = {name: tuple(one.get(name) for one in settings) for name in names}
    differ = {name: values for name, values in found.items() if len(set(values)) > 1}
    return differ, {name: settings[0][name] for name in names if name not in differ}


def _is_of_rate(name: str, texts: Sequence[str | None], rates: Sequence[float | None]) -> bool:
    return is_of_rate(name, [None if text is None else number_in(text) for text in texts], rates)


def difference_text(number: float | None, base: float | None) -> str:
    """How a number compares with the first run's: `+3.2 %`, `37 times`; nothing if unknown."""
    if number is None or base is None or not math.isfinite(number) or not math.isfinite(base):
        return ""
    if number == base:
        return "the same"
    if base <= 0 or number < 0:
        return f"{number - base:+.3g}"
    times = number / base
    if times > MANY_TIMES:
        return f"{times:.3g} times"
    if 0 < times < 1 / MANY_TIMES:
        return f"1/{1 / times:.3g} of it"
    share = 100 * (times - 1)
    if abs(share) < LEAST_SHARE:
        return "about the same"
    return f"{share:+.0f} %" if abs(share) >= 10 else f"{share:+.1f} %"


# --- figures -------------------------------------------------------------------------------------

_NOT_COMPARED = frozenset({"steps", "learning rate"})


def _side_by_side(runs: Sequence[Mapping[str, Figure]]) -> dict[str, tuple[Figure | None, ...]]:
    """Each figure that any of the compared runs has."""
    told = dict.fromkeys(name for one in runs for name in one)
    own = [name for name in told if name not in {*_FIGURES, *_LAST_FIGURES}]
    names = [name for name in (*_FIGURES, *own, *_LAST_FIGURES) if name in told]
    return {name: tuple(one.get(name) for one in runs) for name in names}


def _figures(run: Outline) -> Iterator[tuple[str, Figure]]:
    facts, head = run.diagnosis.run, run.diagnosis.headline
    yield "verdict", Figure(verdict_text(run.diagnosis))
    if head is not None and head.severity.weight:
        begin = head.first_step if run.broke_down_at is None else run.broke_down_at
        since = "" if begin is None else f" since step {begin:,}"
        yield "headline", Figure(f"{head.code} {head.name}{since}")
    yield "steps", Figure(f"{facts.steps:,}", facts.steps)
    if run.rate is not None:
        yield "learning rate", Figure(f"{run.rate:.4g}", run.rate)
    if facts.first_scale is not None:
        scales = f"{scale_text(facts.first_scale)} to {scale_text(facts.final_scale)}"
        yield "loss scale", Figure(scales)
    if facts.first_scale is not None or facts.skipped:
        share = share_text(facts.skipped, facts.steps)
        yield "skipped", Figure(f"{facts.skipped:,}, {share}", facts.skipped)
    yield from _loss_figures(run.values.get(LOSS))
    for name, course in run.values.items():
        if name != LOSS:
            yield from _value_figures(name, course)
    if run.grad_norm is not None:
        yield "gradient norm", Figure(f"{run.grad_norm:.4g}", run.grad_norm)
    if run.step_time_ms is not None:
        yield "step time", Figure(time_text(run.step_time_ms), run.step_time_ms)
    if run.peak_bytes is not None:
        text = bytes_text(run.peak_bytes) + (" (host)" if run.is_host_memory else "")
        yield "peak memory", Figure(text, run.peak_bytes)


def _loss_figures(loss: ValueCourse | None) -> Iterator[tuple[str, Figure]]:
    if loss is None:
        return
    yield LOSS, Figure(_course_text(loss))
    if loss.lowest is not None:
        yield BEST, _figure_at(loss.lowest)
    end = "not finite" if loss.at_the_end is None else f"{loss.at_the_end:.4g}"
    yield END, Figure(end, loss.at_the_end)


def _course_text(course: ValueCourse) -> str:
    if course.first is None or course.lowest is None or course.highest is None:
        return "never finite"
    text = f"{course.first:.4g} to {course.last:.4g}"
    if course.lowest.value == course.highest.value:
        text = f"{course.first:.4g}"
    lost = count_text(course.lost, "value")
    return f"{text}, then {lost} not finite" if course.lost else text


def _value_figures(name: str, course: ValueCourse) -> Iterator[tuple[str, Figure]]:
    """The best and the last value; where it is not known what is better, both ends."""
    best = course.best
    ends = {"best": best} if best else {"lowest": course.lowest, "highest": course.highest}
    for word, at in ends.items():
        if at is not None:
            yield f"{name}, {word}", _figure_at(at)
    last = "not finite" if course.lost or course.last is None else f"{course.last:.4g}"
    yield f"{name}, last", Figure(last, None if course.lost else course.last)


def _figure_at(at: At) -> Figure:
    return Figure(f"{at.value:.4g} at step {at.step:,}", at.value)
