"""What earlier runs with the same structure have shown: which rates were stable, which failed.

Only a failure caused by the rate counts against a rate. A stable run proves its rate for the number
of steps it ran. It proves nothing if another run failed at that rate or a lower one, but later.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ampwatch.diagnosis.findings import Diagnosis, Severity, Verdict
from ampwatch.diagnosis.learning_rate.advice import Action
from ampwatch.diagnosis.learning_rate.earlier_rates import TriedRate, bounded
from ampwatch.diagnosis.signature import Signature
from ampwatch.diagnosis.value_text import count_text

_CALM = frozenset((Verdict.HEALTHY.value, Verdict.CUT_OFF.value))
_LEFT = frozenset((Action.KEEP.value, Action.RAISE.value))


class Outcome(str, enum.Enum):
    """What an earlier run shows about its learning rate."""

    STABLE = "stable"
    FAILING = "failing"  # because of its rate
    NEITHER = "neither"  # failing for another reason, too short to be judged, or in between


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """An earlier run. `rate` is its base rate; of a stable run, the highest that it reached."""

    id: str
    name: str
    started_ns: int
    signature: Signature | None
    outcome: Outcome
    rate: float | None
    steps: int  # that it held: until it ended, or failed


@dataclass(frozen=True, slots=True)
class LessonOfEarlierRuns:
    """Which rates held and which failed in earlier runs; None where none of them shows it."""

    runs: tuple[EarlierRun, ...]
    stable_to: EarlierRun | None  # the highest rate that held
    failing_from: EarlierRun | None  # the lowest that failed
    are_alike: bool = True  # else only near: another width, depth or batch

    @property
    def text(self) -> str:
        """The lesson of the earlier runs as a sentence."""
        how = "alike" if self.are_alike else "of the same kind at another width, depth or batch"
        count = count_text(len(self.runs), "earlier run")
        return f"{count} {how}: {self._rates()}{self._others()}."

    @property
    def tried(self) -> tuple[TriedRate, ...]:
        """The rates that alike earlier runs tried; runs that are only near bound no advice."""
        told = (Outcome.STABLE, Outcome.FAILING) if self.are_alike else ()
        return tuple(
            TriedRate(one.rate, one.steps, held=one.outcome is Outcome.STABLE)
            for one in self.runs
            if one.rate and one.outcome in told
        )

    def _rates(self) -> str:
        held, failed = self.stable_to, self.failing_from
        if held is None and failed is None:
            return "none tells which rate holds"
        if held is None:
            return f"failing from {_rate(failed)} on, none stable"
        stable = f"stable up to {_rate(held)} ({count_text(held.steps, 'step')})"
        if failed is None:
            return f"{stable}, none failed by its rate"
        if _of(failed) > _of(held):
            return f"{stable}, failing from {_rate(failed)} on"
        return f"{stable}, yet others failed from {_rate(failed)} on"

    def _others(self) -> str:
        count = sum(one.outcome is Outcome.NEITHER for one in self.runs)
        none = count == len(self.runs)
        return f"; {count:,} did not tell" if count and not none else ""


def lesson_of(
    signature: Signature | None, others: Iterable[EarlierRun], *, run_id: str, started_ns: int
) -> LessonOfEarlierRuns | None:
    """The lesson of the earlier runs among these that are similar; None if none is."""
    if signature is None:
        return None
    earlier = [one for one in others if one.id != run_id and 0 < one.started_ns < started_ns]
    told = [(one.signature, one) for one in earlier if one.signature is not None]
    alike = [one for made, one in told if signature.is_alike(made)]
    near = [one for made, one in told if signature.is_near(made)]
    if not alike and not near:
        return None
    return replace(_lesson(alike or near), are_alike=bool(alike))


def with_lesson(diagnosis: Diagnosis, lesson: LessonOfEarlierRuns | None) -> Diagnosis:
    """The diagnosis, its advice on the rate bounded by what alike earlier runs have shown.

    Findings and verdict come from the run's own rows: they are the same whatever ran before.
    """
    if lesson is None:
        return diagnosis
    advice = bounded(diagnosis.learning_rate, lesson.tried, steps_held(diagnosis))
    return replace(diagnosis, learning_rate=advice)


def outcome_of(verdict: str, action: str) -> Outcome:
    """What an earlier run with this verdict and advice shows about its learning rate."""
    if action == Action.LOWER.value:
        return Outcome.FAILING if verdict == Verdict.FAILING.value else Outcome.NEITHER
    is_left = verdict == Verdict.WARNING.value and action in _LEFT
    return Outcome.STABLE if verdict in _CALM or is_left else Outcome.NEITHER


def rate_told(advice_rate: float | None, group: int | None, reached: float | None) -> float | None:
    """The rate that a stable earlier run proves: what it reached, if it ended in its warm-up.

    `reached` is the highest rate of group 0; it does not apply to other groups.
    """
    if advice_rate is None or reached is None or group not in (None, 0):
        return advice_rate
    return min(advice_rate, reached)


def steps_held(diagnosis: Diagnosis) -> int:
    """How many steps an earlier run's rate held: up to the first error that stands at its end."""
    errors = [one for one in diagnosis.findings if one.severity is Severity.ERROR]
    began = [one.first_step for one in errors if one.first_step is not None]
    return min([diagnosis.run.steps, *(max(0, step) for step in began)])


def _lesson(runs: Sequence[EarlierRun]) -> LessonOfEarlierRuns:
    failing = [one for one in runs if one.outcome is Outcome.FAILING and one.rate]
    stable = [one for one in runs if one.outcome is Outcome.STABLE and one.rate]
    proven = [one for one in stable if not any(_refutes(other, one) for other in failing)]
    return LessonOfEarlierRuns(
        runs=tuple(runs),
        stable_to=max(proven, key=lambda one: (_of(one), one.steps), default=None),
        failing_from=min(failing, key=_of, default=None),
    )


def _refutes(failed: EarlierRun, stable: EarlierRun) -> bool:
    """Whether a stable earlier run ended before the step at which another one failed."""
    return _of(failed) <= _of(stable) and stable.steps <= failed.steps


def _of(one: EarlierRun) -> float:
    return one.rate or 0.0


def _rate(one: EarlierRun | None) -> str:
    return f"{one.rate:.3g}" if one is not None and one.rate is not None else ""
