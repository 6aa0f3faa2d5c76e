"""AMP204, AMP207 and AMP209: a loss, a weight or an input that is not finite."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.findings import Evidence, Severity, Standing
from ampwatch.diagnosis.overflow_culprits import innermost
from ampwatch.diagnosis.registry import (
    MIXED,
    NOT_ITS_GRADIENTS,
    RATE,
    Page,
    Seen,
    Ties,
    always,
    before_any_update,
    rule,
)
from ampwatch.diagnosis.rules.left_out_steps import ending_text
from ampwatch.diagnosis.rules.scale import no_scale_helps, startup_has_failed
from ampwatch.diagnosis.times import Times
from ampwatch.diagnosis.words import alone_text, count_text, list_text, steps_text


@rule(
    "AMP204",
    "loss-not-finite",
    Severity.ERROR,
    Page(
        meaning="The loss is inf or nan although every layer's output is finite: the loss "
        "function itself, or a mask constant in it, exceeds the range of half precision.",
        looks="A non-finite loss at a step whose activations are all finite; in a text log, "
        "which has no activations, any non-finite loss.",
        not_to_confuse="AMP203, where a layer is the first; AMP209, where the input is.",
        do="Compute the loss in float32; use the forms that take logits; mask with the format's "
        "smallest value instead of -1e9.",
        example="log(softmax(x)) in fp16, exp() of a score above 11, a mask of -1e9.",
    ),
    Ties(
        explained_by=("AMP209", *MIXED, *RATE, "AMP207", "AMP211", "AMP210"),
        excludes_rate=before_any_update,
        shown_late=True,
        cures=("autocast-off", "bfloat16"),
    ),
)
def loss_not_finite(case: Case) -> Iterator[Seen]:
    """A non-finite loss after finite activations."""
    times, value = _bad_losses(case), case.numbers.bad_loss_value
    if not times.count:
        return
    standing = case.standing(times)
    yield Seen(
        standing=standing,
        at=times,
        summary=_loss_summary(case, times, value, standing),
        cause=f"In {count_text(times.count, 'step')} the loss was not finite{_layers_seen(case)}."
        + ending_text(case, times, "the loss"),
        action=_loss_action(case, times),
        evidence=(Evidence("loss", times.first_step, value),),
    )


def _loss_summary(case: Case, times: Times, value: str, standing: Standing) -> str:
    """When the loss was not finite; if it was so from the start, that nothing can be accepted."""
    if times.first_step == case.scale.first_step and case.is_searching and startup_has_failed(case):
        return f"{no_scale_helps(case)}: the loss is {value} from the first step on."
    when = steps_text(times.first_step, times.last_step)
    return f"The loss is {value} {when}{standing.ending}."


def _bad_losses(case: Case) -> Times:
    """The non-finite losses that no non-finite layer, input or weight preceded."""
    numbers, seen = case.numbers, case.numbers.bad_loss_finite_forward
    if not numbers.sees_forward:
        return numbers.bad_loss
    if case.ledger.forward:
        return seen
    unseen, weights = numbers.bad_loss_no_forward, numbers.bad_weights
    # Without a scaler, the step of such a loss is what writes nan into the weights.
    came_first = not case.scale.has_scaler and unseen.began_before(weights)
    elsewhere = (weights.count and not came_first) or numbers.bad_input.count
    return unseen if seen.count or not elsewhere else seen


def _layers_seen(case: Case) -> str:
    """What is known about the layers' outputs in those steps."""
    seen = case.numbers.bad_loss_finite_forward.count
    if not case.numbers.sees_forward:
        return "; the layers were not recorded"
    if not seen:
        return "; none of these steps was sampled, so a layer may have been the first"
    return ", while every layer's output was finite in the sampled steps"


def _loss_action(case: Case, times: Times) -> str:
    cure = "Compute the loss in float32, from logits, and look for constants such as -1e9."
    if case.numbers.sees_forward and not case.numbers.bad_loss_finite_forward.count:
        return (
            f"Check the batch of step {times.first_step}. If you attach with layer_every=1, the "
            f"record shows whether a layer was the first. {cure}"
        )
    return cure


@rule(
    "AMP207",
    "weights-not-finite",
    Severity.ERROR,
    Page(
        meaning="A weight is inf or nan before the forward pass. The run cannot recover: every "
        "later loss and gradient is a consequence.",
        looks="A layer whose weights are not finite, then skips at any scale.",
        not_to_confuse="A forward overflow (AMP203), where the weights are finite.",
        do="Restart from the last checkpoint with finite weights. Find what wrote them: a step at "
        "a scale below 2^-126, an optimizer whose eps vanishes in fp16, a step without the scaler.",
        example="Adam in fp16 with eps 1e-8: nan after the first step.",
    ),
    Ties(
        explained_by=(*NOT_ITS_GRADIENTS, "AMP414", "AMP209", *RATE, "AMP104", "AMP211"),
        excludes_rate=before_any_update,
        shown_late=True,
        in_strict_order=True,
        cures=("clip", "autocast-off"),
    ),
)
def weights_not_finite(case: Case) -> Iterator[Seen]:
    """A weight is not finite before the forward pass."""
    times, layers, told = case.numbers.bad_weights, case.layers, case.ledger.weights
    if not times.count:
        return
    named = [layers.names[i] for i in np.flatnonzero(layers.weight_bad)]
    names = [told.layer] if told is not None and told.layer else innermost(named)
    where = names[0] if len(names) == 1 else None
    yield Seen(
        first_step=times.first_step,
        last_step=case.scale.last_step,
        layer=where,
        summary="Weights are not finite" + (f" in layer {where}." if where else "."),
        cause=f"At step {times.first_step} the weights held inf or nan before the forward pass"
        + (f", in {count_text(len(names), 'layer')}." if names else ".")
        + ending_text(case, times),
        evidence=(Evidence("weight_finite", times.first_step, "false"),),
    )


# One broken file or one bad row does not spoil so many batches one after the other.
EVERY_BATCH = 5

# What a skipped step does not undo.
_KEPT = "The running statistics of {} have stored it: evaluation returns nan from then on."


@rule(
    "AMP209",
    "non-finite-input",
    Severity.ERROR,
    Page(
        meaning="An input of the model contains inf or nan. No number format and no loss scale "
        "helps.",
        looks="The input itself is not finite; everything after it is a consequence. If it is so "
        f"in {EVERY_BATCH} steps or more and to the end, every batch is bad. A skipped "
        "step protects the weights, but not the running statistics of BatchNorm: they keep "
        "the nan, and the model stays broken when the input is finite again.",
        not_to_confuse="AMP203, where the inputs are finite.",
        do="Check the data: division by zero in a normalisation, missing values, a broken file.",
        example="a column of constants, standardised: 0 / 0.",
    ),
    # A rise of the loss that this input cut short might have recovered, as most do.
    Ties(excludes_rate=always, late_to=RATE),
)
def non_finite_input(case: Case) -> Iterator[Seen]:
    """A tensor entering the model is not finite."""
    times = case.numbers.bad_input
    if not times.count:
        return
    norms = sorted(case.precision.batch_norms)
    spoilt = _spoilt_weights(case)
    standing = Standing.HEALS if spoilt else case.standing(times)
    are_all = _are_all(case, times)
    cure = (
        "Check the preprocessing, not single batches: a normalisation that divides by zero, "
        "missing values. Look at one batch after each of its stages."
        if are_all is not None
        else f"Check the batch of step {times.first_step}: missing values, or a division by zero."
    )
    if spoilt:
        cure += " Restart from an earlier checkpoint: the weights are not finite any more."
    elif norms:
        cure += " Call reset_running_stats(), or load them from a checkpoint."
    yield Seen(
        standing=standing,
        severity=Severity.WARNING if norms and not standing.weighs else None,
        at=times,
        ranks=None if case.lone_rank is None else (case.lone_rank,),
        summary=(f"Every batch{are_all} is bad: the" if are_all is not None else "The")
        + f" model's input is not finite in {count_text(times.count, 'step')}"
        f"{alone_text(case.lone_rank)}{standing.ending}.",
        cause="An input of the model contained inf or nan."
        + (f" {_KEPT.format(list_text(norms))}" if norms else "")
        + ending_text(case, times),
        action=cure,
        if_healed=cure,  # the same batch comes again in the next epoch
        evidence=(Evidence("input_finite", times.first_step, "false"),),
    )


def _are_all(case: Case, times: Times) -> str | None:
    """Since when every batch is bad, to the end of the record; None if some are good, or few."""
    first, last = times.first_step, case.scale.last_step
    if first is None or last is None or times.last_step != last:
        return None
    if times.count != last - first + 1 or times.count < EVERY_BATCH:
        return None
    return "" if first == case.scale.first_step else f" since step {first:,}"


def _spoilt_weights(case: Case) -> bool:
    """Whether such an input was the first value that was not finite, and made the weights so.

    The run cannot recover from that, even if the input is finite again at the end.
    """
    numbers = case.numbers
    came_first = not numbers.bad_loss.began_before(numbers.bad_input)
    return came_first and numbers.bad_input.began_before(numbers.bad_weights)
