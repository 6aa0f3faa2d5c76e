"""Several runs of one model: the diagnosis of each, and one advice on the rate from all of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ampwatch.diagnosis import learning_rate
from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.engine import Engine
from ampwatch.diagnosis.findings import SCHEMA, Diagnosis, Severity, Verdict, json_value
from ampwatch.diagnosis.learning_rate import constants
from ampwatch.diagnosis.learning_rate.advice import Action, Advice, advise
from ampwatch.diagnosis.learning_rate.estimate import ABOVE, BELOW, MARGIN, Estimate, times_text
from ampwatch.diagnosis.learning_rate.judgement import judge_rate
from ampwatch.diagnosis.learning_rate.rate_history import RateState
from ampwatch.diagnosis.record import Record
from ampwatch.diagnosis.value_text import count_text, rate_text
from ampwatch.diagnosis.verdict import conclude
from ampwatch.errors import DifferentModelsError


@dataclass(frozen=True, slots=True)
class SeveralDiagnoses:
    """The diagnosis of each of several runs, and one advice from all of them."""

    diagnoses: tuple[Diagnosis, ...]
    learning_rate: Advice

    def worst(self) -> Severity | None:
        """The highest severity among the findings of all runs."""
        severities = [severity for each in self.diagnoses if (severity := each.worst())]
        return max(severities, key=lambda severity: severity.weight, default=None)

    def to_json(self) -> dict[str, Any]:
        """The object that `report --json` prints for several runs."""
        runs = [each.to_json() for each in self.diagnoses]
        return {"schema": SCHEMA, "runs": runs, "learning_rate": json_value(self.learning_rate)}


@dataclass(frozen=True, slots=True)
class ForSeveralRuns:
    """What one run contributes to the advice on several: it is small, however long the run."""

    rate: learning_rate.RateState
    optimizers: str  # their classes, as far as recorded; a GAN has several
    advice: Advice  # its own, held against its outcome
    fails: bool

    @classmethod
    def of(cls, case: Case, diagnosis: Diagnosis) -> ForSeveralRuns:
        """What this run contributes to the advice on several runs."""
        kinds = {str(e.detail["class"]) for e in case.events.optimizers if "class" in e.detail}
        fails = diagnosis.verdict is Verdict.FAILING
        return cls(case.rate, " with ".join(sorted(kinds)), diagnosis.learning_rate, fails)

    @property
    def failed_rate(self) -> float | None:
        """The learning rate that is to be lowered by its own advice."""
        return self.advice.current if self.advice.action is Action.LOWER else None


def diagnose_together(runs: Sequence[Record]) -> SeveralDiagnoses:
    """Diagnose several runs of one model together; runs of different models are refused."""
    cases = [Engine().feed(run).case() for run in runs]
    diagnoses = tuple(conclude(case) for case in cases)
    contributions = [
        ForSeveralRuns.of(case, diagnosis) for case, diagnosis in zip(cases, diagnoses, strict=True)
    ]
    return SeveralDiagnoses(diagnoses, advise_on_all(contributions) or diagnoses[-1].learning_rate)


def advise_on_all(runs: Sequence[ForSeveralRuns]) -> Advice | None:
    """One advice on the rate from several runs of one model; None if none shows its rate.

    Raises DifferentModelsError if the runs have different models or optimizers.
    """
    difference = difference_of_models(runs)
    if difference is not None:
        sentence = difference[:1].lower() + difference[1:]
        raise DifferentModelsError(f"{sentence} Report each of them by itself.")
    telling = [run for run in runs if run.advice.action is not Action.NOT_THE_CAUSE]
    return advise_together(telling) if telling else None


def difference_of_models(runs: Sequence[ForSeveralRuns]) -> str | None:
    """A sentence that says why these are not runs of one model; None if they may be."""
    sizes = {run.rate.setup.elements for run in runs} - {None}
    if len(sizes) > 1:
        counts = " and ".join(f"{size:,}" for size in sorted(size for size in sizes if size))
        return f"These are not runs of one model: they train {counts} parameters."
    kinds = sorted({run.optimizers for run in runs} - {""})
    if len(kinds) > 1:
        return (
            f"Their optimizers differ ({' and '.join(kinds)}): a learning rate of one says nothing "
            "of another's."
        )
    return None


# Where a rate failed, the run's base rate, how far the limit lies below, and the run.
_Failure: TypeAlias = "tuple[float, float, Estimate, RateState]"


def advise_together(runs: Sequence[ForSeveralRuns]) -> Advice:
    """One advice from several runs.

    Where the numbers of none say which rate failed, it is the advice of a run: of the one that asks
    for the lowest rate, else of the last.
    """
    failed, worked = _failed_and_worked(runs)
    if not failed:
        return _lowest_or_last(runs, worked)
    fails, base, _, lowest = min(failed, key=lambda failure: failure[0])
    fails = min([fails, *(run.failed_rate for run in runs if run.failed_rate is not None)])
    works = max((rate for rate in worked if rate < fails), default=None)
    # Above what worked, below what failed, and where the estimates place the limit.
    floor, ceiling = -math.inf if works is None else math.log2(works), math.log2(fails)
    # Estimates from runs of one model have the same error: their mean is steadier, but no more
    # certain than one of them.
    mean = sum(math.log2(rate) - estimate.octaves for _, rate, estimate, _ in failed) / len(failed)
    doubt = min(estimate.doubt for *_, estimate, _ in failed)
    limit = min(max(mean, floor), ceiling)
    goal = max(min(limit - MARGIN, ceiling - constants.LEAST_OCTAVES), floor)
    text = f"{fails:.3g} failed" + ("" if works is None else f", {works:.3g} worked")
    low = max(limit - ABOVE - doubt, floor)
    high = max(min(limit + BELOW + doubt, ceiling - constants.BELOW_FAILED), low)
    spared = "what has worked" if goal == floor else f"{times_text(limit - goal)} below it"
    return dataclasses.replace(
        advise(lowest),
        action=Action.LOWER,
        because=f"{count_text(len(runs), 'run')} together: {text}. The first updates of what "
        f"failed place the limit at about {2.0**limit:.2g}; the advised learning rate is {spared}.",
        current=base,
        recommended=2.0**goal,
        factor=2.0**goal / base,
        low=2.0**low,
        high=2.0**high,
        warmup_steps=None,
        leapt_at_step=None,
    )


def _failed_and_worked(runs: Sequence[ForSeveralRuns]) -> tuple[list[_Failure], list[float]]:
    """The runs whose own numbers say where their rate failed, and the rates that worked."""
    failed: list[_Failure] = []
    worked: list[float] = []
    for run in runs:
        judgement = judge_rate(run.rate)
        estimate = None if judgement.trouble is None else judgement.trouble.estimate
        bounds = None if judgement.trouble is None else judgement.trouble.bounds
        calm = judgement.onset is None and judgement.sees_course and judgement.accepted
        if judgement.base is not None and calm and not run.fails:
            worked.append(judgement.base)
        elif judgement.base is not None and judgement.is_the_rate and estimate is not None:
            assert bounds is not None  # the base rate is known
            failed.append((bounds.failed, judgement.base, estimate, run.rate))
    return failed, worked


def _lowest_or_last(runs: Sequence[ForSeveralRuns], worked: Sequence[float]) -> Advice:
    """The advice of the run that asks for the lowest rate, or of the last if none asks for less.

    No lower rate than one that worked is asked for.
    """
    lower = [run.advice for run in runs if run.failed_rate is not None and run.advice.recommended]
    if not lower:
        return runs[-1].advice
    advice = min(lower, key=lambda each: each.recommended or 0.0)
    current, asked = advice.current or 0.0, advice.recommended or 0.0
    works = max((rate for rate in worked if asked < rate < current), default=None)
    if works is None:
        return advice
    because = f"{advice.because} Another run trained at {rate_text(works)}."
    return dataclasses.replace(advice, because=because, recommended=works, factor=works / current)
