"""Several runs of one model: the diagnosis of each, and one advice on the rate from all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ampwatch.diagnosis import learning_rate
from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.engine import Engine
from ampwatch.diagnosis.findings import SCHEMA, Action, Advice, Diagnosis, Severity, json_value
from ampwatch.diagnosis.record import Record
from ampwatch.diagnosis.verdict import conclude
from ampwatch.errors import DifferentModelsError


@dataclass(frozen=True, slots=True)
class SeveralDiagnoses:
    """The diagnosis of each of several runs, and one advice from all of them."""

    diagnoses: tuple[Diagnosis, ...]
    learning_rate: Advice

    def worst(self) -> Severity | None:
        """The highest severity among the findings of all runs."""
        known = [severity for each in self.diagnoses if (severity := each.worst())]
        return max(known, key=lambda severity: severity.weight, default=None)

    def to_json(self) -> dict[str, Any]:
        """The object that `report --json` prints for several runs."""
        runs = [each.to_json() for each in self.diagnoses]
        return {"schema": SCHEMA, "runs": runs, "learning_rate": json_value(self.learning_rate)}


@dataclass(frozen=True, slots=True)
class ForSeveralRuns:
    """What one run contributes to the advice on several: it is small, however long the run."""

    rate: learning_rate.RateState
    optimizers: str  # their classes, as far as the run tells them; those of a GAN are several
    says_nothing_of_the_rate: bool  # something else brought it down

    @classmethod
    def of(cls, case: Case, diagnosis: Diagnosis) -> ForSeveralRuns:
        """What this run contributes to the advice on several runs."""
        kinds = {str(e.detail["class"]) for e in case.events.optimizers if "class" in e.detail}
        is_other = diagnosis.learning_rate.action is Action.NOT_THE_CAUSE
        return cls(case.rate, " with ".join(sorted(kinds)), is_other)


def diagnose_together(runs: Sequence[Record]) -> SeveralDiagnoses:
    """Diagnose several runs of one model together; runs of different models are refused."""
    cases = [Engine().feed(run).case() for run in runs]
    diagnoses = tuple(conclude(case) for case in cases)
    told = [ForSeveralRuns.of(case, one) for case, one in zip(cases, diagnoses, strict=True)]
    return SeveralDiagnoses(diagnoses, advise_on_all(told) or diagnoses[-1].learning_rate)


def advise_on_all(runs: Sequence[ForSeveralRuns]) -> Advice | None:
    """One advice on the rate from several runs of one model; None if none shows its rate.

    Raises DifferentModelsError if the runs have different models or optimizers.
    """
    sizes = {run.rate.setup.elements for run in runs} - {None}
    if len(sizes) > 1:
        told = " and ".join(f"{size:,}" for size in sorted(size for size in sizes if size))
        raise DifferentModelsError(
            f"these are not runs of one model: they train {told} parameters. "
            "Report each of them by itself."
        )
    kinds = sorted({run.optimizers for run in runs} - {""})
    if len(kinds) > 1:
        raise DifferentModelsError(
            f"their optimizers differ ({' and '.join(kinds)}): a rate of one says nothing of "
            "another's. Report each of them by itself."
        )
    telling = [run.rate for run in runs if not run.says_nothing_of_the_rate]
    return learning_rate.advise_together(telling) if telling else None
