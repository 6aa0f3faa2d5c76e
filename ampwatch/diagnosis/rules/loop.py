"""AMP401 to AMP415 and AMP506: what is wrong in the training loop, as the probe saw it happen.

The probe records a mistake as a `misuse` event with the finding's code, an error that left the
loop as an `exception` event. These rules only read them.
"""

from __future__ import annotations

from collections.abc import Iterator

from ampwatch.diagnosis import policy
from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.findings import Evidence, Severity
from ampwatch.diagnosis.registry import Page, Seen, rule
from ampwatch.diagnosis.signals import Event
from ampwatch.diagnosis.words import count_text


@rule(
    "AMP401",
    "clip-before-unscale",
    Severity.ERROR,
    Page(
        meaning="Gradients were clipped (or edited) while they were still multiplied by the loss "
        "scale, so the limit means max_norm / scale and nearly every step is cut to nothing.",
        looks="Gradients change between backward and unscale_.",
        not_to_confuse="Clipping after scaler.unscale_(optimizer), which is right.",
        do="Call scaler.unscale_(optimizer) before clip_grad_norm_.",
        example="backward, clip_grad_norm_(..., 1.0), scaler.step: an effective limit of 2^-16.",
    ),
)
def clip_before_unscale(case: Case) -> Iterator[Seen]:
    """Gradients edited before they were unscaled."""
    for event in _misuse(case, "AMP401"):
        yield Seen(
            severity=Severity.ERROR,
            first_step=event.step,
            summary="Gradients were clipped before they were unscaled.",
            cause="They changed between the backward pass and unscale_, when they were still "
            "multiplied by the loss scale: the limit is that many times too small.",
            action="Call scaler.unscale_(optimizer) before clipping.",
            ranks=(event.rank,),
        )


@rule(
    "AMP402",
    "update-missing",
    Severity.ERROR,
    Page(
        meaning="An optimizer stepped and scaler.update() did not follow: the scale never "
        "changes, and a second scaler.step() raises.",
        looks="A step that ends without an update.",
        not_to_confuse="Accumulation: there, backward is called more often, not step.",
        do="Call scaler.update() once after the last scaler.step() of each iteration.",
        example="RuntimeError: step() has already been called since the last update().",
    ),
)
def update_missing(case: Case) -> Iterator[Seen]:
    """Steps that no update closed."""
    twice = case.numbers.second_steps
    times = case.numbers.missing_updates.joined(twice)
    if times.count < policy.MISSING_UPDATES and not twice.count:
        return
    yield Seen(
        severity=Severity.ERROR,
        first_step=times.first_step,
        last_step=times.last_step,
        summary="scaler.update() is missing.",
        cause=f"In {count_text(times.count, 'step')} the optimizer stepped and no update "
        "followed before the next iteration.",
        action="Call scaler.update() once after the last scaler.step() of each iteration.",
        evidence=(Evidence("update_seen", times.first_step, "false"),),
    )


@rule(
    "AMP404",
    "step-bypasses-scaler",
    Severity.ERROR,
    Page(
        meaning="optimizer.step() was called directly although a scaler scales the loss: the "
        "update uses gradients that are `scale` times too large, and overflows are not skipped.",
        looks="An optimizer's step outside scaler.step.",
        not_to_confuse="A second optimizer whose loss is not scaled on purpose.",
        do="Replace optimizer.step() by scaler.step(optimizer).",
        example="scaler.scale(loss).backward(); optimizer.step()",
    ),
)
def step_bypasses_scaler(case: Case) -> Iterator[Seen]:
    """An optimizer stepped past an enabled scaler."""
    for event in _misuse(case, "AMP404"):
        yield Seen(
            severity=Severity.ERROR,
            first_step=event.step,
            summary="optimizer.step() was called past the scaler.",
            cause="The loss is scaled, so this update used gradients multiplied by the scale, and "
            "an overflow would not have been skipped.",
            action="Call scaler.step(optimizer) instead of optimizer.step().",
            ranks=(event.rank,),
        )


@rule(
    "AMP408",
    "fp16-without-scaler",
    Severity.WARNING,
    Page(
        meaning="The model runs in fp16 and nothing scales the loss: small gradients become zero.",
        looks="Autocast to float16, no loss scale in the record.",
        not_to_confuse="bf16, whose range is float32's: it needs no scaler.",
        do="Use torch.amp.GradScaler, or autocast to bfloat16 where the device can.",
        example='torch.autocast("cuda", torch.float16) and loss.backward()',
    ),
)
def fp16_without_scaler(case: Case) -> Iterator[Seen]:
    """Half precision with nothing that scales the loss."""
    scale = case.scale
    if scale.has_scaler or "float16" not in case.numbers.autocast_dtypes:
        return
    yield Seen(
        severity=Severity.WARNING,
        first_step=scale.first_step,
        last_step=scale.last_step,
        summary="The model runs in fp16 and nothing scales the loss.",
        cause="Autocast is on with float16, and no step of the record has a loss scale.",
        action="Use torch.amp.GradScaler, or bfloat16, which needs none.",
        evidence=(Evidence("autocast_dtype", scale.first_step, "float16"),),
    )


@rule(
    "AMP409",
    "backward-under-autocast",
    Severity.WARNING,
    Page(
        meaning="backward() ran inside the autocast block. PyTorch advises against it: gradients "
        "may be computed in another type than their forward.",
        looks="Autocast is on when the backward pass starts.",
        not_to_confuse="A gradient penalty's inner torch.autograd.grad, which may stand inside.",
        do="End the `with torch.autocast(...)` block before backward().",
        example="with torch.autocast(...): loss = f(x); scaler.scale(loss).backward()",
    ),
)
def backward_under_autocast(case: Case) -> Iterator[Seen]:
    """A backward pass that autocast still covers."""
    for event in _misuse(case, "AMP409"):
        yield Seen(
            severity=Severity.WARNING,
            first_step=event.step,
            summary="backward() runs inside the autocast block.",
            cause="Autocast was still on when the backward pass began.",
            action="End the `with torch.autocast(...)` block before backward().",
            ranks=(event.rank,),
        )


@rule(
    "AMP412",
    "grads-not-cleared",
    Severity.ERROR,
    Page(
        meaning="Gradients that an optimizer's step has used are still there at its next step, so "
        "every step also takes all the steps before it again.",
        looks="Since the last step only backward passes have written to the gradients that it "
        "used, and they were not zero when the pass began.",
        not_to_confuse="Accumulation over micro-batches, which clears after its step; gradients "
        "that another loss left and that are cleared before this one's backward.",
        do="Call optimizer.zero_grad() once a step, before the first backward.",
        example="for batch in data: scaler.scale(loss(batch)).backward(); scaler.step(optimizer); "
        "scaler.update()",
    ),
)
def grads_not_cleared(case: Case) -> Iterator[Seen]:
    """A step whose gradients are added to instead of cleared."""
    for event in _misuse(case, "AMP412"):
        yield Seen(
            severity=Severity.ERROR,
            first_step=event.step,
            summary="The gradients are not cleared between steps.",
            cause="What the step before had used was still in .grad when the next backward began, "
            "and was used again; one overflow stays in it for ever.",
            action="Call optimizer.zero_grad() once a step, before the first backward.",
            ranks=(event.rank,),
        )


@rule(
    "AMP415",
    "dtype-mismatch",
    Severity.ERROR,
    Page(
        meaning="Training ended by an error about data types: two tensors of different types met, "
        "or an operation that autocast forbids was used.",
        looks="The exception that left the loop names two types, or says it is unsafe to autocast.",
        not_to_confuse="Wrong shapes or devices.",
        do="Cast the odd tensor, or let autocast cover the operation; use the _with_logits form "
        "of a loss.",
        example="RuntimeError: mat1 and mat2 must have the same dtype, but got Half and Float",
    ),
)
def dtype_mismatch(case: Case) -> Iterator[Seen]:
    """An exception about mixed data types."""
    for event in case.ledger.fatal:
        if any(mark in _message(event) for mark in _DTYPE_MARKS):
            yield _ended_by(
                event,
                "Training ended by a mixed-dtype error",
                "Use binary_cross_entropy_with_logits, or leave autocast for this operation."
                if "unsafe to autocast" in _message(event)
                else "Cast the odd tensor to the layer's type, or run both under one autocast.",
            )


# How torch words it: matrix products, element-wise operations, convolutions, losses, autocast.
_DTYPE_MARKS = (
    "must have the same dtype",
    "expected scalar type",
    "expected m1 and m2 to have the same dtype",
    "Found dtype",
    "Input type (",
    "unsafe to autocast",
    "must match the dtype",
    "same dtype",
)


@rule(
    "AMP506",
    "out-of-memory",
    Severity.ERROR,
    Page(
        meaning="The device ran out of memory and the error ended training.",
        looks="An out-of-memory exception left the loop; the layer is the innermost one in which "
        "it was raised, which is where memory ended, not always what used it.",
        not_to_confuse="The host's memory: then the process is killed without an exception.",
        do="A smaller batch with accumulation, activation checkpointing, or a leaner optimizer. "
        "Look for tensors that are kept from step to step.",
        example="OutOfMemoryError in encoder.11.attention at step 412.",
    ),
)
def out_of_memory(case: Case) -> Iterator[Seen]:
    """The device's memory ended training."""
    for event in case.ledger.fatal:
        if event.detail.get("out_of_memory") or "out of memory" in _message(event):
            yield _ended_by(
                event,
                "Training ran out of memory",
                "Take a smaller batch with accumulation, or checkpoint activations.",
            )


def _misuse(case: Case, code: str) -> list[Event]:
    """The first record of this mistake; the rest say the same."""
    event = case.ledger.misuse.get(code)
    return [] if event is None else [event]


def _message(event: Event) -> str:
    return str(event.detail.get("message", ""))


def _ended_by(event: Event, what: str, action: str) -> Seen:
    layer = event.detail.get("layer")
    where = f" in {layer}" if layer else ""
    text = " ".join(_message(event).split())
    return Seen(
        severity=Severity.ERROR,
        first_step=event.step,
        last_step=event.step,
        layer=str(layer) if layer else None,
        summary=f"{what}{where}.",
        cause=f"{event.exception}: {text[:200]}",
        action=action,
        ranks=(event.rank,),
        evidence=(Evidence("exception", event.step, event.exception),),
    )
