"""AMP401 to AMP404, AMP407 to AMP409, AMP412: mistakes in the loop, and in who scales the loss.

Of AMP401, 403, 404, 409 and 412 the probe records the first as a `misuse` event with the finding's
code and its numbers. A rule of these is only the wording of the event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ampwatch.diagnosis import thresholds
from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.findings import Evidence, Severity
from ampwatch.diagnosis.record import Event
from ampwatch.diagnosis.rule import Rule, Seen, rule
from ampwatch.diagnosis.rules.run_endings import is_about_dtypes
from ampwatch.diagnosis.value_text import count_text, list_text, scale_text

Numbers = Callable[[Event], tuple[str, tuple[Evidence, ...]]]


def _mistake(
    code: str,
    name: str,
    severity: Severity,
    *,
    summary: str,
    cause: str,
    numbers: Numbers = lambda _event: ("", ()),
    harms: Callable[[Case], bool] = lambda _case: True,
    left: Callable[[Case], str] = lambda _case: "",
) -> Rule:
    """Make the rule for a mistake in the loop from its code and the words of its event.

    `left` tells what the mistake has left at the end of the record, as the end of the summary. If
    the record shows no harm by the mistake, the finding is information.
    """

    def check(case: Case) -> Iterator[Seen]:
        event = case.events.misuse.get(code)
        if event is None:
            return
        told, evidence = numbers(event)
        yield Seen(
            severity=severity if harms(case) else Severity.INFO,
            first_step=event.step,
            summary=f"{summary.removesuffix('.')}{left(case)}.",
            cause=cause + told,
            ranks=(event.rank,),
            evidence=evidence,
        )

    return Rule(code, name, severity, check)


clip_before_unscale = _mistake(
    "AMP401",
    "clip-before-unscale",
    Severity.ERROR,
    summary="Gradients were clipped or changed before they were unscaled.",
    cause="The gradients changed between backward() and unscale_(), where they are still "
    "multiplied by the loss scale. A limit for clipping is far too small there.",
)


def _mixed(event: Event) -> tuple[str, tuple[Evidence, ...]]:
    """What an update() inside an accumulation mixed up: which scales, as text and evidence."""
    if event.detail.get("raised"):
        return " torch raised an error, because no optimizer had unscaled or used them.", ()
    seen, updates = event.detail.get("scales"), event.detail.get("updates")
    if not isinstance(updates, int) or not isinstance(seen, list):
        return "", ()
    scales = [float(scale) for scale in seen if isinstance(scale, (int, float))]
    different = [scale_text(scale) for scale in dict.fromkeys(scales)]
    told = f" In step {event.step} it had been called {count_text(updates, 'time')} before the "
    told += f"optimizer's step; the backward passes ran at a scale of {list_text(different)}."
    if event.detail.get("unscaled"):
        told += " unscale_ ran each time, so the first gradients were divided more than once."
    last, first = (scales[-1], scales[0]) if scales else (None, None)
    return told, (Evidence("scale", event.step, last, first, "in the first backward pass"),)


update_inside_accumulation = _mistake(
    "AMP403",
    "update-inside-accumulation",
    Severity.ERROR,
    summary="scaler.update() is called inside a gradient accumulation.",
    cause="It ran while gradients were waiting for their optimizer's step.",
    numbers=_mixed,
)

step_bypasses_scaler = _mistake(
    "AMP404",
    "step-bypasses-scaler",
    Severity.ERROR,
    summary="optimizer.step() was called directly, not through the scaler.",
    cause="The loss is scaled, so this update used gradients multiplied by the scale, and an "
    "overflow would not have been skipped.",
)


def _met_mixed_types(case: Case) -> bool:
    """Whether training ended by the dtype error that backward under autocast can cause."""
    return any(is_about_dtypes(str(event.detail.get("message", ""))) for event in case.events.fatal)


backward_under_autocast = _mistake(
    "AMP409",
    "backward-under-autocast",
    Severity.WARNING,
    summary="backward() runs inside the autocast block.",
    cause="Autocast was still on when the backward pass began.",
    harms=_met_mixed_types,
)


def _inf_in_grad(case: Case) -> str:
    """Since when an inf has stayed in gradients that are not cleared: every step is skipped."""
    scale, ending = case.scale, case.scale.ending
    if case.is_searching and scale.search.skips >= thresholds.SPIKE_SKIPS:
        return f": an inf has been left in .grad since step {scale.first_step or 0:,}"
    if ending is None or ending.last != scale.steps - 1 or ending.streak < thresholds.SPIKE_SKIPS:
        return ""
    since = ending.last_step - ending.streak + 1
    return f": an inf has been left in .grad since step {since:,}"


grads_not_cleared = _mistake(
    "AMP412",
    "grads-not-cleared",
    Severity.ERROR,
    summary="The gradients are not cleared between steps.",
    cause="The gradients of the previous step were still in .grad when the next backward pass "
    "began, and were used again; an overflow stays there for ever.",
    left=_inf_in_grad,
)


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
        evidence=Evidence("update_seen", times.first_step, "false"),
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
        evidence=Evidence("autocast_dtype", scale.first_step, "float16"),
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
        evidence=Evidence("autocast_dtype", case.scale.first_step, "bfloat16"),
    )
