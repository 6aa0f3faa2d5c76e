"""AMP304 and AMP410: gradients that keep growing, and gradients that are zero or not there.

Of a growing norm the last four fifths of the record are tested first, then shorter and shorter
endings, because a late rise does not show in the parts before it. An ending is also compared with
the steps just before it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ampwatch.diagnosis import thresholds
from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.column_arrays import Integers, median_of_known
from ampwatch.diagnosis.event_history import NO_GRADIENTS, NO_GRAPH
from ampwatch.diagnosis.findings import Severity, State
from ampwatch.diagnosis.learning_rate import RateRows, constants
from ampwatch.diagnosis.outcome import REMEDIES, outcome_of
from ampwatch.diagnosis.rule import RuleHit, rule
from ampwatch.diagnosis.rules.scale import raise_scale_text
from ampwatch.diagnosis.value_text import Evidence, count_text, scale_text

# --- no gradients ---------------------------------------------------------------------------------


# Gradients that are all exactly zero: one batch may give none, so many batches in a row do not. In
# a log: five lines, if the loss does not change either.
ZERO_STEPS, ZERO_LINES = thresholds.NO_ACCIDENT_STEPS, 5


@rule("AMP410", "no-gradients", Severity.ERROR)
def no_gradients(case: Case) -> Iterator[RuleHit]:
    """Parameters without gradients, a loss without a graph, or gradients that are all zero."""
    raised = next((text for text in _REFUSALS if text in case.events.raised), None)
    if raised is not None:
        yield _refused(case, raised)
    elif _are_frozen(case):
        yield RuleHit(
            at=case.scale,
            summary="No parameter has a gradient: every observed layer is frozen.",
            cause="No step has a gradient norm, no update moved a weight, and no layer's weights "
            "have requires_grad.",
            action="Set requires_grad on the parameters to train, and pass them to the optimizer.",
            evidence=Evidence("update_norm", case.scale.last_step, 0.0),
        )
    elif is_without_gradients(case):
        yield _without_gradients(case)
    elif _are_zero(case):
        yield _zeros(case)


def is_without_gradients(case: Case) -> bool:
    """Whether the optimizer's parameters never had a gradient, so that no step moved a weight."""
    loop, columns = case.loop, case.numbers.told
    steps_on_nothing = case.numbers.any_rate and "grad_norm" not in columns and not loop.updates
    return case.observed.loop and steps_on_nothing and loop.unmoved >= ZERO_STEPS


def _without_gradients(case: Case) -> RuleHit:
    count = count_text(case.loop.unmoved, "step")
    return RuleHit(
        at=case.scale,
        summary="Steps are taken and the weights do not move: the optimizer's parameters have no "
        "gradients.",
        cause=f"In all {count} the update was exactly zero, and no gradient was there: the "
        "optimizer has parameters of another model, or of one that was replaced.",
        action="Make the optimizer after the last change to the model, from that model's own "
        "parameters().",
        evidence=Evidence("update_norm", case.scale.last_step, 0.0),
    )


# torch's words: what they mean, and what to do.
_REFUSALS = {
    NO_GRAPH: (
        "The loss does not depend on any trainable parameter.",
        "Check requires_grad, detach(), no_grad() and checkpoint(..., use_reentrant=False).",
    ),
    NO_GRADIENTS: (
        "The optimizer's parameters have no gradients.",
        "Check the optimizer's parameters, requires_grad, and where zero_grad() is called.",
    ),
}


def _refused(case: Case, text: str) -> RuleHit:
    event, (summary, action) = case.events.raised[text], _REFUSALS[text]
    return RuleHit(
        first_step=event.step,
        last_step=event.step,
        ranks=(event.rank,),
        summary=summary,
        cause=f"{event.exception}: {text}.",
        action=action,
        evidence=Evidence("exception", event.step, event.exception),
    )


def _are_zero(case: Case) -> bool:
    """Whether the record ends with more zero gradients than chance explains."""
    zeros = case.zeros
    if case.observed.loop:
        return zeros.run.times.count >= ZERO_STEPS
    return zeros.run.times.count >= ZERO_LINES and zeros.is_constant


def _zeros(case: Case) -> RuleHit:
    zeros, run = case.zeros, case.zeros.run
    began_so = not (zeros.gave or zeros.earlier)
    since = "from the first step on" if began_so else f"since step {run.times.first_step:,}"
    beginning = f"Every gradient is exactly zero {since}:"
    evidence = [Evidence("grad_norm", run.times.last_step, 0.0)]
    if zeros.is_learnt:
        return RuleHit(
            severity=Severity.INFO,
            at=run.times,
            summary=f"{beginning} nothing is left to learn.",
            cause=f"The loss has come down to {run.highest_loss:.3g} or less, and these batches "
            "give no gradient any more.",
            action="Nothing to do, if that is the loss you wanted.",
            evidence=tuple(evidence),
        )
    cause, action = _reason(case)
    evidence.append(Evidence("loss_peak", run.times.first_step, run.highest_loss))
    evidence.append(Evidence("scale", run.times.last_step, case.final_scale))
    return RuleHit(
        severity=Severity.WARNING if zeros.is_lossless or not case.observed.loop else None,
        at=run.times,
        summary=f"{beginning} nothing is learnt.",
        cause=cause,
        action=action,
        evidence=tuple(evidence),
    )


def _reason(case: Case) -> tuple[str, str]:
    """Why there are no gradients, as far as the record shows, and what to do."""
    zeros, run = case.zeros, case.zeros.run
    if run.cleared:
        return (
            "They were not zero after the backward pass, but are when the optimizer steps.",
            "Call zero_grad() before backward() or after step(), and do not clip to 0.",
        )
    if zeros.is_underflow:
        return _underflowed(case)
    if zeros.is_lossless:
        cause = "The loss is exactly 0 in every one of these steps: it is multiplied by 0 (a "
        cause += (
            "weight, a mask that removes everything, advantages that are all equal), or a margin "
        )
        return cause + "is always met.", "Check whether a factor or a mask makes the loss zero."
    if run.highest_loss < run.lowest_loss:
        cause = "The loss is not in the log."
    elif zeros.is_constant and run.times.count > 1:
        cause = f"The loss is {run.highest_loss:.4g} in every one of these steps, to the last bit: "
        cause += "it is clamped, or the output is saturated or does not depend on the input."
    else:
        cause = f"The loss is not zero ({run.lowest_loss:.3g} to {run.highest_loss:.3g}) and varies"
        cause += (
            " with the batches: the path from it to the weights is cut, or its derivative is 0."
        )
    looks = "Look for detach(), .item(), round(), argmax() and clamp() between output and loss"
    dead = (
        "; the model has learnt before, so look for dead units (a ReLU after a large update) as "
        "well."
    )
    return cause, looks + (dead if zeros.has_died else ".")


def _underflowed(case: Case) -> tuple[str, str]:
    run, scale = case.zeros.run, case.final_scale
    at = "nothing scales the loss" if scale is None else f"the scale is {scale_text(scale)}"
    cause = (
        f"They are lost in half precision, completely in {run.lost:,} of "
        f"{count_text(run.samples, 'sample')} "
    )
    cause += f"of layers: {at}, and the loss is {run.highest_loss:.3g} or less."
    if scale is None:
        return cause, "Use torch.amp.GradScaler, or bf16; do not divide the loss by large numbers."
    if case.standing_fall is not None:
        return cause, "Fix the cause of the scale's fall first."
    return cause, f"Raise the loss scale. {raise_scale_text(case)}"


def _are_frozen(case: Case) -> bool:
    """Whether there are no gradients because all observed weights are frozen."""
    zeros = case.zeros
    untold = not (case.numbers.norms or zeros.gave or zeros.earlier or zeros.run.times.count)
    still = case.loop.unmoved >= ZERO_STEPS and not case.loop.updates
    return untold and still and zeros.frozen and not zeros.learning


# --- a norm that keeps rising ---------------------------------------------------------------------


# Endings of the record, each about two thirds of the one before, so that one of them begins where
# the rise does: in a shorter one too few points are left to tell it from noise.
ENDINGS = (thresholds.DRIFT_PART, 0.55, 0.4, 0.3, 0.2, 0.1)
# ... which end this far above everything within twice their length before: norms that vary with the
# rate or the data come back to where they were.
BEYOND_BEFORE = 2.0


@rule("AMP304", "gradient-norm-drift", Severity.WARNING)
def gradient_norm_drift(case: Case) -> Iterator[RuleHit]:
    """A gradient norm that keeps rising."""
    few = case.rate.rows < thresholds.DRIFT_ROWS
    endings = () if few or case.is_all_learnt else ENDINGS
    drift = next((rise for part in endings if (rise := _drift(case, part))), None)
    if drift is None:
        return
    began, first, last = drift
    end = _norm_at_the_end(case)
    last, step = end if end is not None else (last, case.scale.last_step)
    outcome = outcome_of(case)
    yield RuleHit(
        first_step=began,
        last_step=case.scale.last_step,
        summary=f"The gradient norm has grown {last / first:.0f}-fold.",
        cause=f"It was about {first:.3g} until step {began}, and has risen since, to {last:.3g} "
        f"at step {step}.",
        action=REMEDIES[outcome.state] if outcome.state in _WITH_THE_LOSS else None,
        evidence=Evidence("grad_norm", step, last, first, f"until step {began:,}, about"),
    )


_WITH_THE_LOSS = frozenset((State.WITHOUT_END, State.WIDER))  # which says what to bound


def _norm_at_the_end(case: Case) -> tuple[float, int] | None:
    """The norm of the last rows' middle value, and the step where it stands."""
    tail = case.rate.tail
    end = tail.where(np.isfinite(tail.of("grad_norm"))).part(-constants.FINAL_STEPS)
    if not len(end):
        return None
    at = int(np.argsort(end.of("grad_norm"))[len(end) // 2])
    return float(end.of("grad_norm")[at]), int(end.of("step")[at])


def _drift(case: Case, part: float) -> tuple[int, float, float] | None:
    """Until which step the norm stood at its level, which, and that of the record's last part."""
    rows, total = case.rate.points, case.rate.rows
    begin = (1.0 - part) * total
    is_early = begin * _steps_a_row(case) < thresholds.DRIFT_EARLY_STEPS
    if part != thresholds.DRIFT_PART and is_early:
        return None
    late = rows.start >= begin
    windows = np.array_split(np.flatnonzero(late), thresholds.DRIFT_WINDOWS)
    first = last = _median(rows.rows, windows[0])
    for at in windows[1:]:
        before, last = last, _median(rows.rows, at)
        if not before < last:  # nor if one is unknown
            return None
    if last < thresholds.DRIFT_FACTOR * first:
        return None
    if part == thresholds.DRIFT_PART:
        # A norm that is still far below its start came down before it climbed.
        start = _median(rows.rows, np.flatnonzero(~late))
        came_down = last < start / thresholds.DRIFT_FACTOR
        if came_down or _is_early_learning(case, windows):
            return None
    elif not _is_beyond(case, part, last):
        return None
    norm, step = rows.rows.of("grad_norm")[late], rows.rows.of("step")[late]
    return int(step[np.flatnonzero(norm <= first)[-1]]), first, last


def _is_beyond(case: Case, part: float, last: float) -> bool:
    """Whether the norm drifted above everything in twice the stretch before."""
    points, total = case.rate.points, case.rate.rows
    since = (1.0 - 3 * part) * total
    before = np.flatnonzero((points.start >= since) & (points.start < (1.0 - part) * total))
    parts = np.array_split(before, 2 * thresholds.DRIFT_WINDOWS)
    medians = [value for at in parts if np.isfinite(value := _median(points.rows, at))]
    return bool(medians) and last >= BEYOND_BEFORE * max(medians)


def _is_early_learning(case: Case, windows: list[Integers]) -> bool:
    """Whether the norm's drift is harmless: the run is young and its last losses the lowest."""
    if case.rate.accepted * _steps_a_row(case) >= thresholds.DRIFT_EARLY_STEPS:
        return False
    loss = case.rate.points.rows.of("loss")
    medians = [median_of_known(loss[at]) for at in windows]
    finite = [value for value in medians if np.isfinite(value)]
    return len(finite) > 1 and finite[-1] <= thresholds.DRIFT_LOSS * min(finite[:-1])


def _steps_a_row(case: Case) -> float:
    """For the norm's drift, how many steps a row stands for; programs print one in ten or fewer."""
    return 1.0 if case.observed.every_step else max(10.0, case.scale.steps / case.scale.entries)


def _median(rows: RateRows, at: Integers) -> float:
    return median_of_known(rows.of("grad_norm")[at])
