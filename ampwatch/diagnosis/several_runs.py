"""Several runs of one model: each by itself, and one advice on the rate out of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ampwatch.diagnosis import learning_rate
from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.engine import Engine, conclude
from ampwatch.diagnosis.findings import SCHEMA, Action, Advice, Diagnosis, Severity, plain
from ampwatch.diagnosis.signals import Record
from ampwatch.errors import DifferentModelsError


@dataclass(frozen=True, slots=True)
class Together:
    """Each run's diagnosis, in the order given, and the advice that stands on all of them."""

    diagnoses: tuple[Diagnosis, ...]
    learning_rate: Advice

    def worst(self) -> Severity | None:
        """The gravest severity among all findings."""
        known = [severity for each in self.diagnoses if (severity := each.worst())]
        return max(known, key=lambda severity: severity.weight, default=None)

    def to_json(self) -> dict[str, Any]:
        """The object of `report --json` with several runs, made of what JSON knows."""
        runs = [each.to_json() for each in self.diagnoses]
        return {"schema": SCHEMA, "runs": runs, "learning_rate": plain(self.learning_rate)}


def diagnose_together(runs: Sequence[Record]) -> Together:
    """Diagnose runs of one model together; of several models or optimizers they are refused."""
    cases = [Engine().feed(run).case() for run in runs]
    sizes = {case.rate.setup.elements for case in cases} - {None}
    if len(sizes) > 1:
        told = " and ".join(f"{size:,}" for size in sorted(size for size in sizes if size))
        raise DifferentModelsError(
            f"these are not runs of one model: they train {told} parameters. "
            "Report each of them by itself."
        )
    kinds = sorted({kind for case in cases for kind in _optimizers(case)})
    if len(kinds) > 1:
        raise DifferentModelsError(
            f"their optimizers differ ({' and '.join(kinds)}): a rate of one says nothing of "
            "another's. Report each of them by itself."
        )
    diagnoses = tuple(conclude(case) for case in cases)
    # What something else brought down says nothing of the rate.
    telling = [
        case.rate
        for case, diagnosis in zip(cases, diagnoses, strict=True)
        if diagnosis.learning_rate.action is not Action.NOT_THE_CAUSE
    ]
    if not telling:
        return Together(diagnoses, diagnoses[-1].learning_rate)
    return Together(diagnoses, learning_rate.advise_together(telling))


def _optimizers(case: Case) -> set[str]:
    """The classes of a run's optimizers, as far as it tells them; those of a GAN are several."""
    told = {
        str(event.detail["class"]) for event in case.ledger.optimizers if "class" in event.detail
    }
    return {" with ".join(sorted(told))} if told else set()
