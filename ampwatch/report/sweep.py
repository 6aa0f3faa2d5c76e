"""A sweep: runs that differ in a setting, and from which value on they fail.

The boundary is counted, not estimated: the highest value at which no run failed, and the lowest at
which one did. If the runs contradict each other, the reason is given instead of a boundary.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ampwatch.diagnosis import Action, Verdict
from ampwatch.diagnosis.value_text import count_text, list_text
from ampwatch.report.compared_run import Outline

RATE = "learning rate"
_RATES = ("optimizer.lr", "optimizer.group.0.lr", "config.lr", "config.learning_rate")
# They differ from run to run without any effect.
_ASIDE = re.compile(r"^(command|host(\..*)?)$|seed", re.IGNORECASE)
_NAMED = 3  # runs or settings in a sentence


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
    found = []
    if len(set(rates) - {None}) > 1:
        texts = tuple(None if rate is None else f"{rate:.4g}" for rate in rates)
        found.append(Setting(RATE, texts, rates))
    for name in dict.fromkeys(name for run in runs for name in run.settings):
        texts = tuple(run.settings.get(name) for run in runs)
        numbers = tuple(None if text is None else _number(text) for text in texts)
        known = [text for text in texts if text is not None]
        is_number = all((n is None) == (t is None) for n, t in zip(numbers, texts, strict=True))
        is_a_name = not is_number and len(set(known)) == len(runs) > 2
        if (
            len(set(texts)) < 2
            or _ASIDE.search(name)
            or is_a_name
            or (is_number and numbers == rates)
        ):
            continue
        found.append(Setting(name, texts, numbers if is_number else None))
    return sorted(found, key=_importance)


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
    told = (run.settings.get(name) for name in _RATES)
    return next((rate for text in told if text and (rate := _number(text)) is not None), None)


def _number(text: str) -> float | None:
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
        return f"No boundary can be told: no run could be judged.{_aside(points)}"
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
        f"No boundary can be told: {names[low.run]} failed at {low.text} and {names[high.run]} is "
        f"stable at {high.text}. Something besides the {setting.name} decides."
    )


def _by_value(points: Sequence[Point]) -> str:
    """For a setting that is not a number: how many runs failed at each value."""
    groups: dict[str, list[Point]] = {}
    for one in points:
        groups.setdefault(one.text, []).append(one)
    told = [
        f"{text}: {_count(some, Fate.FAILED)} of {len(some)} failed"
        for text, some in groups.items()
    ]
    return f"{'; '.join(told[: _NAMED * 2])}."


def _aside(points: Sequence[Point]) -> str:
    """The runs of a sweep that do not count for the boundary."""
    told: Mapping[str, int] = {
        fate.value: count
        for fate in (Fate.ELSEWHERE, Fate.UNJUDGED)
        if (count := _count(points, fate))
    }
    unknown = sum(one.value is None for one in points)
    parts = [f"{count:,} {text}" for text, count in told.items()]
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
        f"Besides the {sweep.setting}, {list_text(sweep.besides, _NAMED)} {verb}: the boundary "
        "holds as far as that does not matter."
    )
