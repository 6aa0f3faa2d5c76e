"""What earlier runs with the same structure have shown: which rates were stable, which failed.

Only a failure caused by the rate counts against a rate. A stable run proves its rate for the number
of steps it ran. It proves nothing if another run failed at that rate or a lower one, but later.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ampwatch.diagnosis.findings import Diagnosis, Severity, Verdict
from ampwatch.diagnosis.learning_rate import constants
from ampwatch.diagnosis.learning_rate.advice import Action
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
    def rate_known_to_fail(self) -> float | None:
        """The lowest rate that failed in an alike earlier run; None if another one held it."""
        if not self.are_alike or _of(self.failing_from) <= _of(self.stable_to):
            return None
        return _of(self.failing_from)

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
    """The diagnosis, its advised rate and interval below what failed in alike earlier runs.

    A rate that held bounds nothing: with it the interval held the limit far less often. Findings
    and verdict come from the run's own rows: they are the same whatever ran before.
    """
    advice, failed = diagnosis.learning_rate, None if lesson is None else lesson.rate_known_to_fail
    now, at, low, high = advice.current, advice.recommended, advice.low, advice.high
    if failed is None or not now or not at or not low or not high or failed >= now:
        return diagnosis
    most = failed * 2.0**-constants.BELOW_FAILED
    advised = min(at, failed * 2.0**-constants.LEAST_OCTAVES)
    below = f" The advised rate is below that, not {at:.3g}." if advised < at else ""
    told = f"Earlier runs alike failed at {failed:.3g}, which bounds the interval.{below}"
    bounded = replace(
        advice,
        because=f"{advice.because} {told}",
        recommended=advised,
        low=low if low < most else most * low / high,
        high=min(high, most),
        factor=advised / now,
        warmup_steps=None if below else advice.warmup_steps,  # it was to the old peak
    )
    return replace(diagnosis, learning_rate=bounded)


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


def _of(one: EarlierRun | None) -> float:
    return 0.0 if one is None else one.rate or 0.0


def _rate(one: EarlierRun | None) -> str:
    return f"{one.rate:.3g}" if one is not None and one.rate is not None else ""
