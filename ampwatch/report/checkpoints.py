"""Whether a checkpoint is clean, judged by the recorded steps before it."""

from __future__ import annotations

from ampwatch.diagnosis import Diagnosis, Severity
from ampwatch.report.overview_chart import is_change

_WEIGHTS = "AMP207"
# Memory, speed and the record itself say nothing about the weights.
_NOT_OF_WEIGHTS = ("AMP5", "AMP9")
CLEAN, SUSPECT, POISONED = "clean", "suspect", "poisoned"


def condition_of(step: int, diagnosis: Diagnosis | None) -> tuple[str, str]:
    """The mark of a checkpoint saved before this step, and its reason."""
    if diagnosis is None:
        return "", "it is not judged yet"
    before = step - 1
    covering = [
        one for one in diagnosis.findings
        if one.first_step is not None and one.first_step <= before
        and (one.last_step is None or one.last_step >= before)
    ]  # fmt: skip
    broken = next((one for one in covering if one.code == _WEIGHTS), None)
    if broken is not None:
        return POISONED, f"the weights are not finite since step {broken.first_step:,}"
    for one in covering:
        if one.severity is Severity.ERROR and not one.code.startswith(_NOT_OF_WEIGHTS):
            return SUSPECT, f"during {one.code} {one.name}, since step {one.first_step:,}"
    advice = diagnosis.learning_rate
    good = advice.restart_from_step
    if is_change(advice) and good is not None and step > good:
        return SUSPECT, f"later than step {good:,}, the last good one"
    return CLEAN, "no error is known of the steps before"
