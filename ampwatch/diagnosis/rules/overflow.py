"""AMP201 to AMP203, AMP205, AMP210: values that leave half precision, or soon will, and where."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ampwatch.diagnosis import thresholds
from ampwatch.diagnosis.blocks import Times
from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.column_arrays import median, median_of_known
from ampwatch.diagnosis.event_history import CulpritOverflows
from ampwatch.diagnosis.findings import FindingStatus, Severity
from ampwatch.diagnosis.layer_history import (
    LOW_HEADROOM_OCTAVES,
    ROOT,
    TREND_SAMPLES,
    AttentionScore,
    AttentionScoreHistory,
    LayerHistory,
)
from ampwatch.diagnosis.learning_rate.noise import rounding_unit
from ampwatch.diagnosis.rule import RuleHit, counted, rule
from ampwatch.diagnosis.rules.scale import DEFAULT_SCALE, raise_scale_text
from ampwatch.diagnosis.rules.training_loop import left_out_ending
from ampwatch.diagnosis.value_text import (
    Evidence,
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
        (
            "most often an operation without a result, such as the softmax of a row that a mask "
            f"hides whole. Or a number in it went beyond {FP16_MAX:.0f} before"
        ),
    ),
    "inf": ("overflows half precision", f"fp16 ends at {FP16_MAX:.0f}"),
}


@rule("AMP201", "gradient-underflow", Severity.WARNING)
def gradient_underflow(case: Case) -> Iterator[RuleHit]:
    """A layer that loses its small gradients to underflow in most of its samples."""
    layers = case.layers
    lost = layers.losing_layers()
    # A run that collapsed before its scale was established loses gradients because of that.
    if case.is_all_learnt or (case.scale.level is None and case.standing_fall is not None):
        return
    if not len(lost):
        yield from _flushed_norms(case)
        return
    worst, share = layers.loses_most(lost)
    name, last = layers.names[worst], int(layers.last_step[worst])
    total = int((layers.samples > 0).sum())
    are_all = "" if total == len(layers.names) else " with gradients other than 0"
    how_much = "all of them" if share == 1.0 else percent_text(share)
    yield RuleHit(
        first_step=int(layers.first_step[worst]),
        last_step=last,
        layer=name,
        summary=f"{len(lost)} of {count_text(total, 'layer')}{are_all} lose most of their "
        f"gradients to underflow; layer {name} loses {how_much}.",
        cause="Their gradients are smaller than the smallest normal fp16 number, 2^-14"
        f"{'' if case.observed.scale else ', and nothing scales the loss'}.",
        action=_keep_gradients(case),
        evidence=Evidence("underflow_share", last, share, thresholds.UNDERFLOW_SHARE, "threshold"),
    )


def _flushed_norms(case: Case) -> Iterator[RuleHit]:
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
    scaled = "nothing in this log scales the loss"
    if final is not None:
        scaled = f"the loss scale is {scale_text(final)}"
    yield RuleHit(
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
    if final is None:
        return None
    if final >= DEFAULT_SCALE:
        return (
            f"The loss scale is {scale_text(final)}, which is high already. Use bf16, whose range "
            "is wide enough, or run the layers that lose most in float32."
        )
    return f"The loss scale is {scale_text(final)}. {raise_scale_text(case)}"


# A gradient that overflows fp16 at this loss scale is above 10^12; more often it is inf or nan.
_TOO_LOW_TO_OVERFLOW = 2.0**-24
_AT_ANY_SCALE = ", and no loss scale helps: an operation makes it inf or nan"


@rule("AMP202", "backward-overflow", Severity.WARNING)
def backward_overflow(case: Case) -> Iterator[RuleHit]:
    """A layer that overflows again and again in the backward pass."""
    named = case.scale.culprits.layers
    if not named:
        return
    most = max(named.values(), key=lambda layer: layer.times.count)
    times = most.times
    if times.count < thresholds.BACKWARD_OVERFLOWS:
        return
    total, standing = sum(layer.times.count for layer in named.values()), case.standing(times)
    since = (times.last_step or 0) - (case.scale.first_accepted_step or 0)
    if total <= case.scale.scaler.skips_by_growth(since):
        return  # heavy-tailed gradients overflow anywhere below the scale that growth tries
    scale = case.final_scale
    stands = standing is FindingStatus.STANDS  # what lowers the scale now may be another trouble
    is_of_operation = stands and scale is not None and scale < _TOO_LOW_TO_OVERFLOW
    yield RuleHit(
        standing=standing,
        at=times,
        comes_and_goes=2 * times.count <= (times.last_step or 0) - (times.first_step or 0),
        layer=most.layer,
        ranks=tuple(sorted(most.ranks)),
        summary=f"Layer {most.layer} {_is_first(most)} to overflow in the backward pass, "
        f"{times.count} times{standing.ending}.",
        cause="The loss is finite; the gradient is not finite after it has passed this layer"
        f"{_AT_ANY_SCALE if is_of_operation else ''}.",
        action="Check the loss first: the gradient of sqrt, log, norm or a division is not finite "
        "at 0 (add an eps inside, compute it in float32). Then check this layer's gradient."
        if most.is_at_loss
        else "Look in this layer for sqrt, log, norm, a power or a division: their gradient is not "
        "finite at 0. Add an eps inside."
        if is_of_operation
        else "Check this layer's gradient; run the layer in float32, or normalise its input.",
        evidence=counted("overflows", times, total, "of all layers"),
    )


@rule("AMP203", "forward-overflow", Severity.ERROR)
def forward_overflow(case: Case) -> Iterator[RuleHit]:
    """A layer whose activations overflow in the forward pass."""
    named, unnamed = list(case.events.forward.values()), case.events.unnamed_forward
    if not named:
        if unnamed.count:
            yield _somewhere(case, unnamed)
        return
    first = min(named, key=lambda layer: layer.times.first_step or 0)
    times = functools.reduce(Times.joined, (layer.times for layer in named)).joined(unnamed)
    standing = case.standing(times)
    is_nan, some = 2 * first.nans > first.times.count, case.comes_and_goes(times)
    ending = f", {case.times_text(times)}" if some else standing.ending
    what, why = _OUTPUTS["nan" if is_nan else "inf"]
    yield RuleHit(
        standing=standing,
        comes_and_goes=some,
        first_step=_began(case, times),
        last_step=times.last_step,
        layer=first.layer,
        ranks=tuple(sorted(frozenset().union(*(layer.ranks for layer in named)))),
        summary=f"{_who(first)} {_is_first(first)} whose output {what}"
        f"{alone_text(case.lone_rank)}{ending}.",
        cause=f"Its inputs and weights are finite, its output is not: {why}, and the loss scale "
        f"cannot help in the forward pass.{left_out_ending(case, times)}",
        action=_nan_action(case, first) if is_nan else _forward_action(case, first),
        if_healed=_healed(case),
        evidence=(
            Evidence(
                "act_finite", first.times.first_step, "false", FP16_MAX, "largest number of fp16"
            ),
            counted("overflows", times),
        ),
    )


def _began(case: Case, times: Times) -> int | None:
    """The step at which the forward pass was first not finite, as the loss shows it.

    Layers are looked at from the step after the one that overflowed.
    """
    lost, layer_step = case.numbers.bad_loss_no_forward.first_step, times.first_step
    if lost is None or layer_step is None:
        return layer_step
    return lost if 0 < layer_step - lost <= thresholds.DELAY_STEPS else layer_step


def _somewhere(case: Case, times: Times) -> RuleHit:
    """A forward overflow that the loop caught, in a layer that no sample names."""
    standing = case.standing(times)
    return RuleHit(
        standing=standing,
        at=times,
        summary="The model's output is not finite"
        f" {steps_text(times.first_step, times.last_step)}{standing.ending}.",
        cause="The log does not show in which layer it began." + left_out_ending(case, times),
        action="Attach with layer_every=1 and run to that step again: the log then names the "
        "layer.",
        if_healed=_healed(case),
        evidence=Evidence("act_finite", times.first_step, "false"),
    )


def _nan_action(case: Case, first: CulpritOverflows) -> str:
    """What to do about outputs that are nan and not inf: most often nothing was too large.

    What the steps between had none of came with the batch.
    """
    if first.layer == ROOT and first.own_code is not None:
        return _forward_action(case, first)
    return (
        f"Look in {_who(first)[0].lower()}{_who(first)[1:]} for an operation without a result: "
        "a mask that hides a whole row of attention scores (an empty sequence), a division by "
        "zero, the root or the logarithm of a negative number; float32 cures none of these."
        + " Look at the batches of these steps, too."
        * case.comes_and_goes(first.times)
        + f" Only if there is none, run layer {first.layer} in float32: "
        f"`{_float32_call(case, first.layer)}`, once, after the model is created."
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
        f"The run had worked until then: first check {_grown(case)}. If nothing made the "
        f"activations grow, run layer {layer} in float32: {call} If the rerun then names another "
        "layer, do the same for that one."
    )


def _float32_call(case: Case, layer: str) -> str:
    """The call that runs a layer in float32; `models` is what was given to attach, if several."""
    started = case.events.started
    given = None if started is None else started.detail.get("models")
    models = given if isinstance(given, list) else []
    named = any(isinstance(model, dict) and model.get("prefix") for model in models)
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
    return "what was loaded or changed before"


def _is_first(named: CulpritOverflows) -> str:
    """How a finding says that a layer is the first to overflow: surely, or as far as recorded."""
    return "is, as far as the log shows, the first" if named.is_bound else "is the first"


# --- headroom below the limit of a format ---------------------------------------------------------


# Close to the limit: in most samples of a layer, and in at least this many.
LOW_HEADROOM_SAMPLES = 5
# Due to overflow within this many steps, if the last samples go on growing: over at least this many
# steps, by at least an octave in all, and hardly ever falling back.
HEADROOM_HORIZON_STEPS = 500
TREND_STEPS, TREND_OCTAVES, TREND_FALLING_SHARE = 100, 1.0, 0.8


@rule("AMP205", "low-headroom", Severity.WARNING)
def low_headroom(case: Case) -> Iterator[RuleHit]:
    """A layer with little headroom below the limit of its format, or due to lose it."""
    layers = case.layers
    at = _nearest(layers)
    summary, cause = ".", "Its largest activation stays that close in most samples."
    if at is None and (due := _due_to_overflow(layers)) is not None:
        at, left = due
        summary = f", and will pass it in about {left:.0f} steps."
        cause = f"Its largest activation has grown in its last {TREND_SAMPLES} samples."
    if at is None:
        return
    name, octaves = layers.names[at], float(layers.trend_values[at, -1])
    step = int(layers.trend_steps[at, -1])
    yield RuleHit(
        first_step=int(np.nanmin(layers.trend_steps[at])),
        last_step=step,
        layer=name,
        summary=f"The largest value of layer {name} is a factor of {2**octaves:.3g} below the "
        f"limit of half precision{summary}",
        cause=cause,
        evidence=Evidence("log2_headroom", step, octaves, LOW_HEADROOM_OCTAVES, "threshold"),
    )


def _nearest(layers: LayerHistory) -> int | None:
    """The layer with the least headroom, if it still is close to its format's limit."""
    close = (layers.headrooms >= LOW_HEADROOM_SAMPLES) & (2 * layers.near > layers.headrooms)
    last = np.where(close, layers.trend_values[:, -1], np.inf)
    close &= last <= LOW_HEADROOM_OCTAVES
    return int(np.argmin(last)) if close.any() else None


def _due_to_overflow(layers: LayerHistory) -> tuple[int, float] | None:
    """The layer whose headroom will be used up first, and in how many steps."""
    steps, values = layers.trend_steps, layers.trend_values
    with np.errstate(all="ignore"):  # nan where a layer has fewer samples
        span, lost = steps[:, -1] - steps[:, 0], values[:, 0] - values[:, -1]
        falling = (np.diff(values, axis=1) < 0).mean(axis=1) >= TREND_FALLING_SHARE
        left = np.maximum(values[:, -1], 0.0) * span / lost
        due = falling & (span >= TREND_STEPS) & (lost >= TREND_OCTAVES)
        # No further than the samples themselves show: what begins at zero (LoRA) grows fast, far
        # below.
        due &= (left <= HEADROOM_HORIZON_STEPS) & (values[:, -1] <= lost)
    if not due.any():
        return None
    first = int(np.argmin(np.where(due, left, np.inf)))
    return first, float(left[first])


# --- attention scores -----------------------------------------------------------------------------


# Attention scores that grow: over thousands of steps, in a row of windows each higher than the one
# before, four times higher in all. The growth after a start slows down before that.
SCORE_WINDOWS = 4
SCORE_STEPS = 2000
SCORE_OCTAVES = 2.0


@rule("AMP210", "attention-logit-growth", Severity.WARNING)
def attention_logit_growth(case: Case) -> Iterator[RuleHit]:
    """Attention scores that have grown for long and will exceed the range of half precision."""
    drift = _due_to_exceed(case.scores)
    if drift is None:
        return
    name, course = drift.score.layer, case.scores
    first = int(course.first_steps.values[drift.begin])
    what = "The largest query times the largest key at" if drift.score.product else "The scores at"
    yield RuleHit(
        first_step=first,
        last_step=course.last_step,
        layer=name,
        summary=f"Attention scores at {name} have grown since step {first} and will exceed half "
        f"precision in about {drift.steps_left:,.0f} steps.",
        cause=f"{what} {name} have risen {2**drift.octaves:.3g} times without a break; a "
        f"factor of {2 ** max(drift.left, 0.0):.3g} remains below 65504.",
        action="Normalise queries and keys, or compute their product and its softmax in float32: "
        "multiply q.float() by k.float() within torch.autocast(device_type, enabled=False).",
        evidence=Evidence(
            "log2_headroom", course.last_step, drift.left, drift.left + drift.octaves, "at first"
        ),
    )


@dataclass(frozen=True, slots=True)
class _Drift:
    """How far one attention's scores have risen, and when they reach the format's end."""

    score: AttentionScore
    begin: int  # the window
    octaves: float  # risen since
    left: float  # below the format's end
    steps_left: float


def _due_to_exceed(course: AttentionScoreHistory) -> _Drift | None:
    """The attention whose scores will exceed the format's range first; None if none will."""
    if not course.scores:
        return None
    levels = course.levels()
    entries = np.flatnonzero(~np.isnan(levels).all(axis=0))
    if len(entries) < SCORE_WINDOWS:
        return None
    until = levels[:, : entries[-1] + 1].tolist()
    pairs = zip(course.scores, until, strict=True)
    drifts = [_drift(score, left, course.width) for score, left in pairs]
    due = [drift for drift in drifts if drift is not None]
    return min(due, key=lambda drift: drift.steps_left, default=None)


def _drift(score: AttentionScore, left: Sequence[float], width: int) -> _Drift | None:
    """How far one attention's scores rose, by the octaves left in each window; None if not due."""
    begin = last = len(left) - 1
    while begin and left[begin - 1] > left[begin]:  # nan breaks the drift
        begin -= 1
    run, octaves = last - begin, left[begin] - left[last]
    if run + 1 < SCORE_WINDOWS or run * width < SCORE_STEPS or octaves < SCORE_OCTAVES:
        return None
    middle = last - run // 2
    pace = (left[middle] - left[last]) / ((last - middle) * width)
    steps_left = max(left[last], 0.0) / pace
    is_due = steps_left <= run * width
    return _Drift(score, begin, octaves, left[last], steps_left) if is_due else None
