"""AMP204, AMP207, AMP209, AMP211: a loss, weights, an input or gradients that are not finite."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ampwatch.diagnosis import thresholds
from ampwatch.diagnosis.blocks import Times
from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.column_arrays import Floats
from ampwatch.diagnosis.findings import FindingStatus, Severity
from ampwatch.diagnosis.layer_history import innermost_layers
from ampwatch.diagnosis.rule import RuleHit, rule
from ampwatch.diagnosis.rules.scale import no_scale_helps, startup_has_failed
from ampwatch.diagnosis.rules.training_loop import left_out_ending
from ampwatch.diagnosis.value_text import Evidence, alone_text, count_text, list_text, steps_text

_LEAST_EVALUATIONS = 2  # a single one may be of an empty batch


@rule("AMP204", "loss-not-finite", Severity.ERROR)
def loss_not_finite(case: Case) -> Iterator[RuleHit]:
    """A loss that is not finite although the activations are."""
    times, value = _bad_losses(case), case.numbers.bad_loss_value
    if not times.count:
        yield from _lost_evaluations(case)
        return
    standing = case.standing(times)
    yield RuleHit(
        standing=standing,
        at=times,
        comes_and_goes=case.comes_and_goes(times),
        summary=_loss_summary(case, times, value, standing),
        cause=f"In {count_text(times.count, 'step')} the loss was not finite{_layers_seen(case)}."
        + left_out_ending(case, times, "the loss"),
        action=_loss_action(case, times),
        evidence=Evidence("loss", times.first_step, value),
    )


def _lost_evaluations(case: Case) -> Iterator[RuleHit]:
    """A loss of an evaluation that is not finite any more, while that of training is."""
    for name, lost in case.metrics.lost.items():
        if lost.count < _LEAST_EVALUATIONS or case.numbers.any_bad_loss:
            continue
        yield RuleHit(
            severity=Severity.WARNING,
            first_step=lost.since,
            last_step=case.scale.last_step,
            summary=f"{name} is not finite in its last {lost.count} values, from step "
            f"{lost.since:,} on; the loss of training is.",
            cause="The loss of training is finite, so the weights are: the data of the evaluation, "
            "its labels or what it computes are not.",
            action="Look for nan in the data of the evaluation, for empty batches and for a "
            "division by a count of zero. No best checkpoint and no early stopping can work "
            "with it.",
            evidence=Evidence("metric", lost.since, "nan", None, name),
        )
        return


def _loss_summary(case: Case, times: Times, value: str, standing: FindingStatus) -> str:
    """The summary of a non-finite loss: when, or that no step can be accepted."""
    if times.first_step == case.scale.first_step and case.is_searching and startup_has_failed(case):
        return f"{no_scale_helps(case)}: the loss is {value} from the first step on."
    if case.comes_and_goes(times):
        return f"The loss was {value} {case.times_text(times)}."
    when = steps_text(times.first_step, times.last_step)
    return f"The loss is {value} {when}{standing.ending}."


def _bad_losses(case: Case) -> Times:
    """The losses that were not finite before any layer, input or weight was."""
    numbers, sampled = case.numbers, case.numbers.bad_loss_finite_forward
    if not numbers.sees_forward:
        return numbers.bad_loss
    if case.events.forward:
        return sampled
    unseen, weights = numbers.bad_loss_no_forward, numbers.bad_weights
    # Without a scaler, the step of such a loss is what writes nan into the weights.
    came_first = not case.scale.has_scaler and unseen.began_before(weights)
    elsewhere = (weights.count and not came_first) or numbers.bad_input.count
    return unseen if sampled.count or not elsewhere else sampled


def _layers_seen(case: Case) -> str:
    """What is known about the layers when the loss was not finite, as part of a sentence."""
    count = case.numbers.bad_loss_finite_forward.count
    if not case.numbers.sees_forward:
        return "; this log shows no layers"
    if not count:
        return "; none of these steps was sampled, so a layer may have been the first"
    return ", while every layer's output was finite in the sampled steps"


def _loss_action(case: Case, times: Times) -> str:
    if not case.observed.loop:
        try_it = "Try" if case.scale.has_scaler else "If you train in fp16, try"
        return (
            f"{try_it} bf16: some models, such as T5, have values too large for "
            "fp16. To find the first layer whose output is inf or NaN, attach ampwatch (Hugging "
            "Face's Trainer: AmpwatchCallback())."
        )
    cure = "Compute the loss in float32, from logits, and look for constants such as -1e9."
    if case.numbers.sees_forward and not case.numbers.bad_loss_finite_forward.count:
        return (
            f"Check the batch of step {times.first_step}. If you attach with layer_every=1, the "
            f"record shows whether a layer was the first. {cure}"
        )
    return cure


@rule("AMP207", "weights-not-finite", Severity.ERROR)
def weights_not_finite(case: Case) -> Iterator[RuleHit]:
    """Weights that are not finite before the forward pass."""
    times, layers, event = case.numbers.bad_weights, case.layers, case.events.weights
    if not times.count:
        return
    named = [layers.names[i] for i in np.flatnonzero(layers.weight_bad)]
    names = [event.layer] if event is not None and event.layer else innermost_layers(named)
    where = names[0] if len(names) == 1 else None
    yield RuleHit(
        first_step=times.first_step,
        last_step=case.scale.last_step,
        layer=where,
        summary="Weights are not finite" + (f" in layer {where}." if where else "."),
        cause=f"At step {times.first_step} the weights held inf or nan before the forward pass"
        + (f", in {count_text(len(names), 'layer')}." if names else ".")
        + left_out_ending(case, times),
        action=_weights_action(case),
        evidence=Evidence("weight_finite", times.first_step, "false"),
    )


def _weights_action(case: Case) -> str:
    """What may have made weights not finite, of what the record leaves possible."""
    scaled = ", a step without the scaler or at a scale below 2^-126" * case.scale.has_scaler
    half = any(layer.keeps_float16 for layer in case.precision.layers.values())
    eps = ", an optimizer whose eps vanishes in fp16" * half
    return (
        "Find what made them so: an update far too large, gradients that were not finite"
        f"{scaled}{eps}."
    )


# One broken file or one bad row does not spoil so many batches one after the other.
EVERY_BATCH = 5

# What a skipped step does not undo.
_KEPT = "The running statistics of {} have stored it: evaluation returns nan from then on."


@rule("AMP209", "non-finite-input", Severity.ERROR)
def non_finite_input(case: Case) -> Iterator[RuleHit]:
    """An input of the model that is not finite."""
    times = case.numbers.bad_input
    if not times.count:
        return
    norms = sorted(case.precision.batch_norms)
    spoilt = _spoilt_weights(case)
    standing = FindingStatus.HEALS if spoilt else case.standing(times)
    goes_on = bool(norms) or case.returns(times)
    are_all = _bad_inputs_since(case, times)
    cure = (
        "Take one batch, any one, and look at it after each stage of the preprocessing: a "
        "normalisation that divides by zero, missing values."
        if are_all is not None
        else f"{_which_batches(times)}: missing values, or a division by zero."
    )
    if spoilt:
        cure += " The weights are not finite any more."
    elif norms:
        cure += f" Call reset_running_stats() on {list_text(norms)}, or load a checkpoint's."
    yield RuleHit(
        standing=FindingStatus.STANDS if case.evaluation_is_spoilt else standing,
        severity=Severity.WARNING
        if goes_on and not (case.evaluation_is_spoilt or standing.weighs)
        else None,
        at=times,
        comes_and_goes=are_all is None,
        ranks=None if case.lone_rank is None else (case.lone_rank,),
        summary=_input_summary(case, times, are_all),
        cause="An input of the model contained inf or nan."
        + (f" {_KEPT.format(list_text(norms))}" if norms else "")
        + left_out_ending(case, times),
        action=cure,
        if_healed=cure,  # the same batch comes again in the next epoch
        evidence=Evidence("input_finite", times.first_step, "false"),
    )


def _input_summary(case: Case, times: Times, are_all: str | None) -> str:
    alone = alone_text(case.lone_rank)
    if are_all is None:
        where = f"{alone}, " if alone else " "
        return f"The model's input was not finite{where}{case.times_text(times)}."
    steps = count_text(times.count, "step")
    return f"Every batch{are_all} is bad: the model's input is not finite in {steps}{alone}."


def _which_batches(times: Times) -> str:
    if times.count == 1:
        return f"Check the batch of step {times.first_step}"
    return f"Check the bad batches, the first one at step {times.first_step}"


def _bad_inputs_since(case: Case, times: Times) -> str | None:
    """Since when every batch's input is not finite, as text; None if some are, or they are few."""
    first, last = times.first_step, case.scale.last_step
    if first is None or last is None or times.last_step != last:
        return None
    if times.count != last - first + 1 or times.count < EVERY_BATCH:
        return None
    return "" if first == case.scale.first_step else f" since step {first:,}"


def _spoilt_weights(case: Case) -> bool:
    """Whether a non-finite input came first and then made the weights non-finite.

    The run cannot recover from that, even if the input is finite again at the end.
    """
    numbers = case.numbers
    came_first = not numbers.bad_loss.began_before(numbers.bad_input)
    return came_first and numbers.bad_input.began_before(numbers.bad_weights)


# A scaler that is not recorded skips a step now and then; one line in ten is more than any healthy
# one does.
_SKIPPED_SHARE = 0.1
# A loop that leaves out half of all steps, and more of them than chance explains, does not train.
_MOST_SHARE, _MOST_STEPS = 1 / 2, thresholds.NO_ACCIDENT_STEPS


@rule("AMP211", "gradients-not-finite", Severity.ERROR)
def gradients_not_finite(case: Case) -> Iterator[RuleHit]:
    """Gradients that are not finite in steps of which no skip is recorded."""
    course, weights = case.unskipped, case.numbers.bad_weights
    if not _may_be_told(case):
        return
    most = _most_left_out(case)
    times = course.bad.joined(course.unmoved_bad) if most else _unskipped(case)
    if not times.count or weights.began_before(times):
        return
    is_nan = times.first_step == course.nans.first_step
    value = "not finite" if most else "nan" if is_nan else "inf"
    stands, is_lost = case.stands(times), _is_loss_lost(case, times)
    spoils = weights.count > 0 or is_lost
    ending = f"{case.latest_text(times)}." if stands else ", none of them recent."
    if spoils:
        what = "weights are" if weights.count else "loss is"
        ending = f", and the {what} not finite any more."
    elif most:
        ending = ", and the loop leaves them out: most of its steps are lost."
    where = f"It began in the backward pass of {course.layer}, which received finite ones. "
    yield RuleHit(
        severity=Severity.ERROR if stands or spoils else Severity.WARNING,
        standing=FindingStatus.STANDS if stands or spoils or most else FindingStatus.HEALS,
        at=times,
        layer=course.layer,
        summary=f"The gradient norm is not finite in {count_text(times.count, 'step')} without a "
        f"recorded skip{ending}",
        cause=where * bool(course.layer)
        + f"At step {times.first_step} the gradient norm was {value}"
        + _aftermath(case, times),
        action=None
        if stands or spoils
        else f"Check the batch of step {times.first_step}, and look for an operation whose "
        "gradient is not finite at 0. Step only if torch.isfinite(norm).",
        evidence=Evidence("grad_norm", times.first_step, value),
    )


def _may_be_told(case: Case) -> bool:
    """Whether no scaler can have skipped the steps with non-finite gradients."""
    if case.has_live_scaler or (case.numbers.skipped_steps and not case.loop_tells_skips):
        return False
    # A scheduler that waits for accepted steps and saw none: a scaler skips them all.
    return not case.numbers.rates or case.numbers.any_rate


def _most_left_out(case: Case) -> bool:
    """Whether the loop leaves out most steps because their gradients are not finite."""
    times, last = case.unskipped.unmoved_bad, case.scale.last_step
    if times.first_step is None or last is None or not case.stands(times):
        return False
    return times.count >= max(_MOST_STEPS, _MOST_SHARE * (last - times.first_step + 1))


def _unskipped(case: Case) -> Times:
    """Steps with non-finite gradients that no unrecorded scaler may have skipped."""
    course, scale = case.unskipped, case.scale
    if case.observed.loop or scale.has_scaler:
        return course.bad
    if not course.found_good:  # in a log's first lines a scaler that is not printed may search
        is_search = scale.entries <= thresholds.LOSS_LINES and "loss" in case.numbers.told
        return Times() if is_search else course.bad
    if course.late_infs > _SKIPPED_SHARE * scale.entries:
        return course.bad
    nans = course.nans if course.nans.count > course.early_nans else Times()
    settled = course.bad.count - course.nans.count - course.unsettled.count
    # Whatever skipped the others will have skipped this one too; the lines after it are not written
    # yet.
    is_one_more = settled > 0 and course.unsettled.count <= thresholds.LOSS_LINES
    return nans if is_one_more else nans.joined(course.unsettled)


def _aftermath(case: Case, times: Times) -> str:
    """What weights and losses show after the last non-finite gradients, as part of a sentence."""
    if case.numbers.bad_weights.count:
        return ", and the weights were not finite after it."
    if not np.isfinite(_losses_after(case, times)).any():
        return "."
    return (
        "; the loss is finite after the last of them, so they did not reach the weights, or only "
        "the norm is wrong."
    )


def _is_loss_lost(case: Case, times: Times) -> bool:
    """Whether every loss after the last non-finite gradients is not finite either."""
    return case.numbers.any_bad_loss and not np.isfinite(_losses_after(case, times)).any()


def _losses_after(case: Case, times: Times) -> Floats:
    tail = case.rate.tail
    told = (tail.of("loss_bad") > 0) | np.isfinite(tail.of("loss"))
    return tail.of("loss")[told & (tail.of("step") > (times.last_step or 0))]
