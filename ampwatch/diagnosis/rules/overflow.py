"""AMP201 to AMP203: values that leave half precision, and the layer in which they first do."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np

from ampwatch.diagnosis import thresholds
from ampwatch.diagnosis.blocks import Times
from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.column_arrays import median, median_of_known
from ampwatch.diagnosis.event_history import CulpritOverflows
from ampwatch.diagnosis.findings import Evidence, Severity
from ampwatch.diagnosis.layer_history import ROOT
from ampwatch.diagnosis.learning_rate.noise import rounding_unit
from ampwatch.diagnosis.rule import Seen, rule
from ampwatch.diagnosis.rules.left_out_steps import left_out_ending
from ampwatch.diagnosis.rules.scale_search_and_growth import DEFAULT_SCALE, raise_scale_text
from ampwatch.diagnosis.value_text import (
    alone_text,
    count_text,
    list_text,
    percent_text,
    scale_text,
    steps_text,
)

FP16_MAX = 65504.0
# Where the norm of all gradients is below the smallest normal number of fp16, each of them is. So
# many of the last steps are looked at, so large a share of them has a norm of 0, and so much of the
# first loss is left to learn.
FP16_NORMAL, FLUSHED_STEPS, FLUSHED_SHARE, LEFT_TO_LEARN = 2.0**-14, 200, 0.1, 0.01
# What is wrong with an output, and what causes it.
_OUTPUTS = {
    "nan": (
        "is nan",
        f"an input beyond {FP16_MAX:.0f}, 0/0, inf - inf or the root of a negative number",
    ),
    "inf": ("overflows half precision", f"fp16 ends at {FP16_MAX:.0f}"),
}


@rule("AMP201", "gradient-underflow", Severity.WARNING)
def gradient_underflow(case: Case) -> Iterator[Seen]:
    """A layer that loses its small gradients to underflow in most of its samples."""
    layers = case.layers
    lost = layers.losing_layers()
    # A run that collapsed before its scale was established loses gradients because of that.
    if case.scale.level is None and case.standing_fall is not None:
        return
    if not len(lost):
        yield from _flushed_norms(case)
        return
    worst, share = layers.loses_most(lost)
    name, last = layers.names[worst], int(layers.last_step[worst])
    total = int((layers.samples > 0).sum())
    are_all = "" if total == len(layers.names) else " with gradients other than 0"
    told = "all of them" if share == 1.0 else percent_text(share)
    yield Seen(
        first_step=int(layers.first_step[worst]),
        last_step=last,
        layer=name,
        summary=f"{len(lost)} of {count_text(total, 'layer')}{are_all} lose most of their "
        f"gradients to underflow; layer {name} loses {told}.",
        cause="Their gradients are smaller than the smallest normal fp16 number, 2^-14"
        f"{'' if case.observed.scale else ', and nothing scales the loss'}.",
        action=_keep_gradients(case),
        evidence=Evidence("underflow_share", last, share, thresholds.UNDERFLOW_SHARE, "threshold"),
    )


def _flushed_norms(case: Case) -> Iterator[Seen]:
    """Gradient norms of exactly 0 among others that fp16 hardly holds, where a loss is left."""
    tail, final = case.rate.tail, case.final_scale
    rows = tail.where(tail.accepted & np.isfinite(tail.of("grad_norm"))).part(-FLUSHED_STEPS)
    norm = rows.of("grad_norm")
    zeros, others = rows.where(norm == 0), norm[norm > 0]
    least, usual = FP16_NORMAL / (final or 1.0), median(others)
    few = max(thresholds.NO_ACCIDENT_STEPS, FLUSHED_SHARE * len(norm))
    if len(zeros) < few or not usual < least or others.min() < 10 * rounding_unit(others):
        return  # or a text has rounded them, and the 0
    first = median_of_known(case.rate.head.of("loss")[: thresholds.LOSS_LINES])
    if not median_of_known(np.abs(zeros.of("loss"))) > LEFT_TO_LEARN * abs(first):
        return
    begin, end = (int(step) for step in zeros.of("step")[[0, -1]])
    scaled = "nothing in this record scales the loss"
    if final is not None:
        scaled = f"the loss scale is {scale_text(final)}"
    yield Seen(
        first_step=begin,
        last_step=end,
        summary=f"The gradient norm is exactly 0 in {len(zeros)} of the last "
        f"{count_text(len(norm), 'row')} and about {usual:.2g} in the others: the gradients are "
        "lost to underflow.",
        cause="All gradients together are smaller than the smallest normal fp16 number, 2^-14, and "
        f"{scaled}.",
        action=_keep_gradients(case),
        evidence=Evidence("grad_norm", end, 0.0, least, "smallest normal number"),
    )


def _keep_gradients(case: Case) -> str | None:
    """What to do so that small gradients do not underflow, as far as the scale shows it."""
    final = case.final_scale
    if case.standing_fall is not None:
        return "Fix the cause of the scale drop first."
    if final is None or final >= DEFAULT_SCALE:
        return None
    return f"The loss scale is {scale_text(final)}. {raise_scale_text(case)}"


@rule("AMP202", "backward-overflow", Severity.WARNING)
def backward_overflow(case: Case) -> Iterator[Seen]:
    """A layer that overflows again and again in the backward pass."""
    named = case.scale.culprits.layers
    if not named:
        return
    most = max(named.values(), key=lambda one: one.times.count)
    times = most.times
    if times.count < thresholds.BACKWARD_OVERFLOWS:
        return
    total, standing = sum(one.times.count for one in named.values()), case.standing(times)
    since = (times.last_step or 0) - (case.scale.first_accepted_step or 0)
    if total <= case.scale.scaler.skips_by_growth(since):
        return  # heavy-tailed gradients overflow anywhere below the scale that growth tries
    yield Seen(
        standing=standing,
        at=times,
        layer=most.layer,
        ranks=tuple(sorted(most.ranks)),
        summary=f"Layer {most.layer} {_is_first(most)} to overflow in the backward pass, "
        f"{times.count} times{standing.ending}.",
        cause="The loss is finite; the gradient is not finite after it has passed this layer.",
        action="Check the loss first: the gradient of sqrt, log, norm or a division is not finite "
        "at 0 (add an eps inside, compute it in float32). Then check this layer's gradient."
        if most.is_at_loss
        else "Check this layer's gradient; run the layer in float32, or normalise its input.",
        evidence=Evidence(
            "overflows", times.last_step, float(times.count), float(total), "of all layers"
        ),
    )


@rule("AMP203", "forward-overflow", Severity.ERROR)
def forward_overflow(case: Case) -> Iterator[Seen]:
    """A layer whose activations overflow in the forward pass."""
    named, unnamed = list(case.events.forward.values()), case.events.unnamed_forward
    if not named:
        if unnamed.count:
            yield _somewhere(case, unnamed)
        return
    first = min(named, key=lambda one: one.times.first_step or 0)
    times = functools.reduce(Times.joined, (one.times for one in named)).joined(unnamed)
    standing = case.standing(times)
    is_nan = 2 * first.nans > first.times.count
    what, why = _OUTPUTS["nan" if is_nan else "inf"]
    yield Seen(
        standing=standing,
        first_step=_began(case, times),
        last_step=times.last_step,
        layer=first.layer,
        ranks=tuple(sorted(frozenset().union(*(one.ranks for one in named)))),
        summary=f"{_who(first)} {_is_first(first)} whose output {what}"
        f"{alone_text(case.lone_rank)}{standing.ending}.",
        cause=f"Its inputs and weights are finite, its output is not: {why}, and the loss scale "
        f"cannot help in the forward pass.{left_out_ending(case, times)}",
        action=_forward_action(case, first),
        if_healed=_healed(case),
        evidence=(
            Evidence(
                "act_finite", first.times.first_step, "false", FP16_MAX, "largest number of fp16"
            ),
            Evidence("overflows", times.last_step, float(times.count)),
        ),
    )


def _began(case: Case, times: Times) -> int | None:
    """The step at which the forward pass was first not finite, as the loss shows it.

    Layers are looked at from the step after the one that overflowed.
    """
    lost, seen = case.numbers.bad_loss_no_forward.first_step, times.first_step
    if lost is None or seen is None:
        return seen
    return lost if 0 < seen - lost <= thresholds.DELAY_STEPS else seen


def _somewhere(case: Case, times: Times) -> Seen:
    """A forward overflow that the loop caught, in a layer that no sample names."""
    standing = case.standing(times)
    return Seen(
        standing=standing,
        at=times,
        summary="The model's output is not finite"
        f" {steps_text(times.first_step, times.last_step)}{standing.ending}.",
        cause="The record does not show in which layer it began." + left_out_ending(case, times),
        action="Attach with layer_every=1 and run to that step again: the record then names the "
        "layer.",
        if_healed=_healed(case),
        evidence=Evidence("act_finite", times.first_step, "false"),
    )


def _forward_action(case: Case, first: CulpritOverflows) -> str:
    """What to do about a forward overflow, depending on whether the run had worked before."""
    start, layer = case.scale.first_accepted_step, first.layer
    if first.layer == ROOT and first.own_code is not None:
        return (
            "Check the model's own forward() there: a mask constant (-1e9 is -inf in half "
            "precision, and a fully masked row is nan), exp() without subtracting the "
            "maximum, a product of queries and keys, a division. Compute it in float32."
        )
    call = f"`{_float32_call(case, layer)}`, once, after the model is created."
    if start is None or (first.times.first_step or 0) <= start:
        return f"Run layer {layer} in float32: {call} Or train in bf16 instead."
    return (
        f"The run had worked until then: check {_grown(case)} first. If nothing made the "
        f"activations grow, run layer {layer} in float32: {call} If the rerun then names another "
        "layer, do the same for that one."
    )


def _float32_call(case: Case, layer: str) -> str:
    """The call that runs a layer in float32; `models` is what was given to attach, if several."""
    started = case.events.started
    given = None if started is None else started.detail.get("models")
    models = given if isinstance(given, list) else []
    named = any(isinstance(one, dict) and one.get("prefix") for one in models)
    return f'ampwatch.run_in_float32({"models" if named else "model"}, "{layer}")'


def _healed(case: Case) -> str:
    norms = sorted(case.precision.batch_norms)
    if not norms:
        return "Nothing to do unless it returns."
    return (
        f"BatchNorm after that layer ({list_text(norms)}) has stored the inf or nan in its "
        "running statistics, even if the step was skipped: call reset_running_stats(), or "
        "evaluation returns nan."
    )


def _who(first: CulpritOverflows) -> str:
    """The layer that overflowed; for a container the place in its own code, if known."""
    if first.own_code is None:
        return f"Layer {first.layer}"
    after, before = first.own_code
    whose = "the model" if first.layer == ROOT else first.layer
    return f"The code of {whose} between {after} and {before}"


def _grown(case: Case) -> str:
    """What may have made activations grow until they overflowed."""
    if case.lone_rank is not None:
        return f"rank {case.lone_rank}'s batches (the other ranks' outputs are finite)"
    if case.batches.first is not None:
        return "the data (an input was many times as large as usual)"
    return "the learning rate, and what was loaded or changed before,"


def _is_first(named: CulpritOverflows) -> str:
    """How a finding says that a layer is the first to overflow: surely, or as far as recorded."""
    return "is, as far as the record shows, the first" if named.is_bound else "is the first"
