"""AMP201 to AMP209: where a number left its format, and which layer it was."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import numpy as np

from ampwatch.diagnosis import policy
from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.findings import Evidence, Severity
from ampwatch.diagnosis.layer_course import LayerCourse
from ampwatch.diagnosis.named import Named, Times
from ampwatch.diagnosis.paste import float32_island, with_lines
from ampwatch.diagnosis.registry import Page, Seen, rule
from ampwatch.diagnosis.signals import Integers
from ampwatch.diagnosis.words import count_text, scale_text, steps_text

FP16_MAX = 65504.0
DEFAULT_SCALE = 2.0**16  # GradScaler's own
ROOT = "(root)"


@rule(
    "AMP201",
    "gradient-underflow",
    Severity.WARNING,
    Page(
        meaning="Most of a layer's gradients are too small for half precision: they become zero "
        "or lose their digits, and the layer learns slowly or not at all.",
        looks="At accepted steps, most of the non-zero values in the gradient at a layer's output "
        "are below the smallest normal fp16 number, 2^-14. At worst all are zero, under a loss "
        "that is not.",
        not_to_confuse="Zeros after a collapse: there the scale is the consequence. Zeros of a "
        "dead unit, a frozen layer, a matrix born zero or a loss of exactly 0 are not lost values. "
        "A few lost values in the tail are normal.",
        do="Use a GradScaler; with one, raise its initial scale or find what keeps it low. The "
        "learning rate has no part in it.",
        example="autocast without a GradScaler: 98 % lost in the first layers, the loss is flat.",
    ),
)
def gradient_underflow(case: Case) -> Iterator[Seen]:
    """A layer loses its small gradients, in most of its samples."""
    layers = case.layers
    lost = layers.losing_layers()
    # A run that collapsed before it had a level shows what it lost while it fell apart.
    if not len(lost) or (case.scale.level is None and case.standing_fall is not None):
        return
    worst = _worst(layers, lost)
    share = float(layers.share_sum[worst] / layers.samples[worst])
    name, last = layers.names[worst], int(layers.last_step[worst])
    scaled = case.scale.has_scaler
    total = int((layers.samples > 0).sum())
    told = "all of them" if share == 1.0 else f"{share:.0%}".replace("%", " %")
    yield Seen(
        severity=Severity.WARNING,
        first_step=int(layers.first_step[worst]),
        last_step=last,
        layer=name,
        summary=f"{len(lost)} of {count_text(total, 'layer')} lose most of their gradients to "
        f"underflow; {name} loses {told}.",
        cause="Their gradients are smaller than the smallest normal fp16 number, 2^-14."
        if scaled
        else "Nothing scales the loss, so small gradients fall below fp16's smallest normal "
        "number, 2^-14.",
        action=_higher_scale(case.final_scale)
        if scaled
        else "Scale the loss: torch.amp.GradScaler, or bf16, whose range is wide enough.",
        evidence=(Evidence("underflow_share", last, share, policy.UNDERFLOW_SHARE),),
    )


def _worst(layers: LayerCourse, lost: Integers) -> int:
    """The layer that loses most; of nested ones the innermost."""
    holders = {part for at in lost for part in _around(layers.names[at])}
    inner = np.array([at for at in lost if layers.names[at] not in holders], np.int64)
    return int(inner[np.argmax(layers.share_sum[inner] / layers.samples[inner])])


def _around(name: str) -> Iterator[str]:
    """The modules that a layer stands in."""
    if name != ROOT:
        yield ROOT
    parts = name.split(".")
    yield from (".".join(parts[:count]) for count in range(1, len(parts)))


def _higher_scale(final: float | None) -> str:
    """What to do where a scaler is there and its scale is too low."""
    if final is None or final >= DEFAULT_SCALE:
        return "Find what keeps the loss scale low; a higher one brings these gradients back."
    return (
        f"Raise the loss scale, which is {scale_text(final)}: GradScaler(init_scale=2.0**16), or "
        "once scaler.update(new_scale=2.0**16); it finds its level from there."
    )


@rule(
    "AMP202",
    "backward-overflow",
    Severity.WARNING,
    Page(
        meaning="The loss is finite and a layer's backward pass is not: its gradients, times the "
        "loss scale, leave fp16.",
        looks="At least three overflows that name the same layer, with a finite forward pass.",
        not_to_confuse="Overflows just after the scale grew (AMP102): any layer may cap a scale.",
        do="Look at that layer: a missing normalisation, a very large fan-in, an operation whose "
        "gradient explodes (sqrt, division, log near 0). Run it in float32.",
        example="encoder.11.output.dense named in 14 of 15 overflows.",
    ),
)
def backward_overflow(case: Case) -> Iterator[Seen]:
    """The same layer overflows again and again in the backward pass."""
    named = case.scale.culprits.layers
    if not named:
        return
    most = max(named.values(), key=lambda one: one.times.count)
    times = most.times
    if times.count < policy.BACKWARD_OVERFLOWS:
        return
    standing = case.stands(times)
    total = sum(one.times.count for one in named.values())
    yield Seen(
        severity=Severity.WARNING if standing else Severity.INFO,
        first_step=times.first_step,
        last_step=times.last_step,
        layer=most.layer,
        ranks=tuple(sorted(most.ranks)),
        summary=f"Layer {most.layer} {_is_first(most)} to overflow in the backward pass, "
        f"{times.count} times" + ("." if standing else ", and no longer at the end."),
        cause="The loss is finite; the gradient is not once it has passed this layer.",
        action="Look at this layer's gradient; run it in float32, or normalise what enters it.",
        evidence=(Evidence("overflows", times.last_step, float(times.count), float(total)),),
    )


@rule(
    "AMP203",
    "forward-overflow",
    Severity.ERROR,
    Page(
        meaning="A layer's output is inf or nan though its inputs and weights are finite. fp16 "
        "ends at 65504; the loss scale has no part in the forward pass and cannot help.",
        looks="The first layer, innermost and in forward order, whose output is not finite.",
        not_to_confuse="A non-finite loss above finite activations (AMP204); weights that were "
        "not finite before (AMP207).",
        do="Run that layer in float32 (torch.autocast(enabled=False) around it), scale its "
        "activations down, or use bf16.",
        example="a feed-forward output of 66,246 in a model that was trained in bf16.",
    ),
)
def forward_overflow(case: Case) -> Iterator[Seen]:
    """A layer's activations leave fp16."""
    named = list(case.ledger.forward.values())
    if not named:
        return
    first = min(named, key=lambda one: one.times.first_step or 0)
    times = functools.reduce(Times.joined, (one.times for one in named))
    standing = case.stands(times)
    yield Seen(
        severity=Severity.ERROR if standing else Severity.INFO,
        first_step=first.times.first_step,
        last_step=times.last_step,
        layer=first.layer,
        ranks=tuple(sorted(frozenset().union(*(one.ranks for one in named)))),
        summary=f"Layer {first.layer} {_is_first(first)} whose output overflows half precision"
        f"{'.' if standing else ', and the run got over it.'}",
        cause=f"Its inputs and weights are finite, its output is not: fp16 ends at {FP16_MAX:.0f}, "
        "and the loss scale cannot help in the forward pass.",
        action=_forward_action(case, first) if standing else "Nothing to do unless it returns.",
        evidence=(
            Evidence("act_finite", first.times.first_step, "false", FP16_MAX),
            Evidence("overflows", times.last_step, float(times.count)),
        ),
    )


@rule(
    "AMP204",
    "loss-not-finite",
    Severity.ERROR,
    Page(
        meaning="The loss is inf or nan though every layer's output is finite: the loss function "
        "itself, or a mask constant in it, leaves half precision.",
        looks="A non-finite loss at a step whose activations are all finite; in a text log, "
        "where nobody saw the activations, any non-finite loss.",
        not_to_confuse="AMP203: there a layer comes first. AMP209: there the input does.",
        do="Compute the loss in float32; use the forms that take logits; mask with the format's "
        "own minimum instead of -1e9.",
        example="log(softmax(x)) in fp16, exp() of a score above 11, a mask of -1e9.",
    ),
)
def loss_not_finite(case: Case) -> Iterator[Seen]:
    """A non-finite loss above finite activations."""
    numbers = case.numbers
    times = numbers.bad_loss_finite_forward if numbers.sees_forward else numbers.bad_loss
    if not times.count:
        return
    standing, value = case.stands(times), numbers.bad_loss_value
    seen = "every layer's output was finite" if numbers.sees_forward else "the layers were not seen"
    yield Seen(
        severity=Severity.ERROR if standing else Severity.INFO,
        first_step=times.first_step,
        last_step=times.last_step,
        summary=f"The loss is {value} {steps_text(times.first_step, times.last_step)}"
        + ("." if standing else ", and finite again at the end."),
        cause=f"In {count_text(times.count, 'step')} the loss was not finite while {seen}.",
        action="Compute the loss in float32, from logits, and look for constants such as -1e9."
        if standing
        else "Nothing to do unless it returns.",
        evidence=(Evidence("loss", times.first_step, value),),
    )


@rule(
    "AMP207",
    "weights-not-finite",
    Severity.ERROR,
    Page(
        meaning="A weight is inf or nan before the forward pass. Nothing recovers from there: "
        "every later loss and gradient is its consequence.",
        looks="A layer whose weights are not finite, then skips at any scale.",
        not_to_confuse="A forward overflow (AMP203), where the weights are finite.",
        do="Restart from the last checkpoint with finite weights. Find what wrote them: a step at "
        "a scale below 2^-126, an optimizer whose eps vanishes in fp16, a step past the scaler.",
        example="Adam in fp16 with eps 1e-8: nan after the first step.",
    ),
)
def weights_not_finite(case: Case) -> Iterator[Seen]:
    """A weight is not finite before the forward."""
    times, layers, told = case.numbers.bad_weights, case.layers, case.ledger.weights
    if not times.count:
        return
    named = [layers.names[i] for i in np.flatnonzero(layers.weight_bad)]
    names = [told.layer] if told is not None and told.layer else _innermost(named)
    where = names[0] if len(names) == 1 else None
    yield Seen(
        severity=Severity.ERROR,
        first_step=times.first_step,
        last_step=case.scale.last_step,
        layer=where,
        summary="Weights are not finite" + (f" in {where}." if where else "."),
        cause=f"At step {times.first_step} inf or nan stood in the weights before the forward pass"
        + (f", in {count_text(len(names), 'layer')}." if names else "."),
        action="Restart from the last checkpoint whose weights are finite; nothing recovers here.",
        evidence=(Evidence("weight_finite", times.first_step, "false"),),
    )


@rule(
    "AMP209",
    "non-finite-input",
    Severity.ERROR,
    Page(
        meaning="A tensor that enters the model holds inf or nan. No format and no scale helps.",
        looks="The input itself is not finite; what follows is its consequence.",
        not_to_confuse="AMP203: there the inputs are finite.",
        do="Check the data: division by zero in a normalisation, missing values, a broken file.",
        example="a column of constants, standardised: 0 / 0.",
    ),
)
def non_finite_input(case: Case) -> Iterator[Seen]:
    """A tensor entering the model is not finite."""
    times = case.numbers.bad_input
    if not times.count:
        return
    standing = case.stands(times)
    yield Seen(
        severity=Severity.ERROR if standing else Severity.INFO,
        first_step=times.first_step,
        last_step=times.last_step,
        summary=f"The model's input is not finite in {count_text(times.count, 'step')}"
        + ("." if standing else ", none of them recent."),
        cause="inf or nan stood in a tensor that enters the model.",
        action=f"Look at the batch of step {times.first_step}: missing values, or a division by "
        "zero.",
        evidence=(Evidence("input_finite", times.first_step, "false"),),
    )


_ISLAND_USE = (
    "Paste once the model is made; if the rerun then names the next layer, paste for that one, too."
)


def _forward_action(case: Case, first: Named) -> str:
    """What to do depends on whether the run had worked before."""
    start, layer = case.scale.first_accepted_step, first.layer
    island = float32_island(layer)
    if start is None or (first.times.first_step or 0) <= start:
        return with_lines(
            f"Use bf16, or run {layer} in float32 (paste once the model is made).", island
        )
    return with_lines(
        f"The run had worked until then: look first at {_grown(case)}. If nothing made the "
        f"activations grow, run {layer} in float32. {_ISLAND_USE}",
        island,
    )


def _grown(case: Case) -> str:
    """What may have made the activations grow."""
    outlier = case.batches.first
    if outlier is None or outlier.signal != "input_amax":
        return "the learning rate, and at what was loaded or changed before"
    return (
        f"the data, whose largest input was {outlier.value / outlier.median:,.0f} times its median "
        f"at step {outlier.step}"
    )


def _is_first(named: Named) -> str:
    """`is the first`, or what the record can say when the layer is only a bound."""
    return "is, as far as the record can tell, the first" if named.is_bound else "is the first"


def _innermost(names: Sequence[str]) -> list[str]:
    """Without the containers of others in the list."""
    return [n for n in names if not any(m.startswith(f"{n}.") or n == "(root)" != m for m in names)]
