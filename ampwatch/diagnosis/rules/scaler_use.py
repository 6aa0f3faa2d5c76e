"""AMP402, AMP407, AMP408: a missing scaler.update(), a scaler too few, or one too many."""

from __future__ import annotations

from collections.abc import Iterator

from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.findings import Evidence, Severity
from ampwatch.diagnosis.rule import Seen, rule
from ampwatch.diagnosis.value_text import count_text

# One step without an update may be the end of the loop; two are a mistake.
MISSING_UPDATES = 2


@rule("AMP402", "update-missing", Severity.ERROR)
def update_missing(case: Case) -> Iterator[Seen]:
    """Steps of a scaler without scaler.update()."""
    numbers = case.numbers
    raised = numbers.second_steps.joined(numbers.second_unscales)
    times = numbers.missing_updates.joined(raised)
    if times.count < MISSING_UPDATES and not raised.count:
        return
    unscaled = times.count == numbers.second_unscales.count
    yield Seen(
        at=times,
        summary="scaler.update() is missing.",
        cause="unscale_() ran again after another backward pass, with no update in between."
        if unscaled
        else f"In {count_text(times.count, 'step')} the optimizer stepped and no update "
        "followed before the next iteration.",
        evidence=(Evidence("update_seen", times.first_step, "false"),),
    )


@rule("AMP408", "fp16-without-scaler", Severity.WARNING)
def fp16_without_scaler(case: Case) -> Iterator[Seen]:
    """Half precision without a scaler."""
    scale = case.scale
    if scale.has_scaler or "float16" not in case.numbers.autocast_dtypes:
        return
    yield Seen(
        at=scale,
        summary="The model runs in fp16 and nothing scales the loss.",
        cause="Autocast is on with float16, and no step of the record has a loss scale.",
        evidence=(Evidence("autocast_dtype", scale.first_step, "float16"),),
    )


@rule("AMP407", "scaler-with-bf16", Severity.INFO)
def scaler_with_bf16(case: Case) -> Iterator[Seen]:
    """A scaler in a run in bf16, which needs none."""
    if not case.scale.has_scaler or case.numbers.autocast_dtypes != {"bfloat16"}:
        return
    yield Seen(
        at=case.scale,
        summary="The model runs in bf16, which needs no loss scale.",
        cause="Autocast is on with bfloat16, whose range is float32's.",
        evidence=(Evidence("autocast_dtype", case.scale.first_step, "bfloat16"),),
    )
