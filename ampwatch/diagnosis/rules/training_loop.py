"""AMP212, AMP401 to AMP404, AMP407 to AMP409, AMP411 to AMP413, AMP417, AMP904: what the loop does.

Of AMP401, 403, 404, 409 and 412 the probe records the first as a `misuse` event with the finding's
code and its numbers. A rule of these is only the wording of the event.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ampwatch.diagnosis import thresholds
from ampwatch.diagnosis.blocks import Times
from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.event_history import GuardHistory
from ampwatch.diagnosis.findings import Severity
from ampwatch.diagnosis.gradient_history import STARVED
from ampwatch.diagnosis.layer_history import innermost_layers
from ampwatch.diagnosis.record import Event
from ampwatch.diagnosis.rule import Rule, RuleHit, counted, rule
from ampwatch.diagnosis.rules.gradients import is_without_gradients
from ampwatch.diagnosis.rules.run_endings import is_about_dtypes
from ampwatch.diagnosis.value_text import Evidence, count_text, list_text, scale_text, share_text

# --- mistakes in the loop, and in who scales the loss ---------------------------------------------


def _misuse(case: Case, code: str, summary: str, cause: str, **more: Any) -> Iterator[RuleHit]:
    """What a rule says of the mistake that the probe recorded under its code."""
    event = case.events.misuse.get(code)
    if event is not None:
        yield RuleHit(summary, cause, first_step=event.step, ranks=(event.rank,), **more)


def _always_worded(code: str, name: str, summary: str, cause: str) -> Rule:
    """The rule of a mistake whose event has no numbers: its words are always the same."""
    return Rule(code, name, Severity.ERROR, lambda case: _misuse(case, code, summary, cause))


CLIP_BEFORE_UNSCALE = _always_worded(
    "AMP401",
    "clip-before-unscale",
    "Gradients were clipped or changed before they were unscaled.",
    "The gradients changed between backward() and unscale_(), where they are still "
    "multiplied by the loss scale. A limit for clipping is far too small there.",
)
STEP_BYPASSES_SCALER = _always_worded(
    "AMP404",
    "step-bypasses-scaler",
    "optimizer.step() was called directly, not through the scaler.",
    "The loss is scaled, so an overflow is not skipped but gets into the weights; without "
    "scaler.unscale_(optimizer) the update used gradients multiplied by the scale, too.",
)


@rule("AMP403", "update-inside-accumulation", Severity.ERROR)
def update_inside_accumulation(case: Case) -> Iterator[RuleHit]:
    """A scale that changes while gradients are accumulated."""
    numbers, evidence = _mixed_scales(case.events.misuse.get("AMP403"))
    return _misuse(
        case,
        "AMP403",
        "scaler.update() is called inside a gradient accumulation.",
        f"It ran while gradients were waiting for their optimizer's step.{numbers}",
        evidence=evidence,
    )


def _mixed_scales(event: Event | None) -> tuple[str, tuple[Evidence, ...]]:
    """What an update() inside an accumulation mixed up: which scales, as text and evidence."""
    if event is None:
        return "", ()
    if event.detail.get("raised"):
        return " torch raised an error, because no optimizer had unscaled or used them.", ()
    recorded, updates = event.detail.get("scales"), event.detail.get("updates")
    if not isinstance(updates, int) or not isinstance(recorded, list):
        return "", ()
    scales = [float(scale) for scale in recorded if isinstance(scale, (int, float))]
    different = [scale_text(scale) for scale in dict.fromkeys(scales)]
    text = f" In step {event.step} it had been called {count_text(updates, 'time')} before the "
    text += f"optimizer's step; the backward passes ran at a scale of {list_text(different)}."
    if event.detail.get("unscaled"):
        text += " unscale_ ran each time, so the first gradients were divided more than once."
    last, first = (scales[-1], scales[0]) if scales else (None, None)
    return text, (Evidence("scale", event.step, last, first, "in the first backward pass"),)


@rule("AMP409", "backward-under-autocast", Severity.WARNING)
def backward_under_autocast(case: Case) -> Iterator[RuleHit]:
    """A backward pass under autocast: information, unless its dtype error ended the training."""
    messages = (str(event.detail.get("message", "")) for event in case.events.fatal)
    return _misuse(
        case,
        "AMP409",
        "backward() runs inside the autocast block.",
        "Autocast was still on when the backward pass began.",
        severity=None if any(map(is_about_dtypes, messages)) else Severity.INFO,
    )


@rule("AMP412", "grads-not-cleared", Severity.ERROR)
def grads_not_cleared(case: Case) -> Iterator[RuleHit]:
    """Gradients that are not cleared between steps."""
    return _misuse(
        case,
        "AMP412",
        f"The gradients are not cleared between steps{_inf_in_grad(case)}.",
        "The gradients of the previous step were still in .grad when the next backward pass "
        "began, and were used again; an overflow stays there for ever.",
    )


def _inf_in_grad(case: Case) -> str:
    """Since when an inf has stayed in gradients that are not cleared: every step is skipped."""
    scale, ending = case.scale, case.scale.ending
    since = None
    if case.is_searching and scale.search.skips >= thresholds.SPIKE_SKIPS:
        since = scale.first_step or 0
    elif ending and ending.last == scale.steps - 1 and ending.streak >= thresholds.SPIKE_SKIPS:
        since = ending.last_step - ending.streak + 1
    return "" if since is None else f": an inf has been left in .grad since step {since:,}"


# One step without an update may be the end of the loop; two are a mistake.
MISSING_UPDATES = 2


@rule("AMP402", "update-missing", Severity.ERROR)
def update_missing(case: Case) -> Iterator[RuleHit]:
    """Steps of a scaler without scaler.update()."""
    numbers = case.numbers
    raised = numbers.second_steps.joined(numbers.second_unscales)
    times = numbers.missing_updates.joined(raised)
    if times.count < MISSING_UPDATES and not raised.count:
        return
    unscaled = times.count == numbers.second_unscales.count
    yield RuleHit(
        standing=case.recurrence(times),
        at=times,
        summary="scaler.update() is missing.",
        cause="unscale_() ran again after another backward pass, with no update in between."
        if unscaled
        else f"In {count_text(times.count, 'step')} the optimizer stepped and no update "
        "followed before the next iteration.",
        evidence=Evidence("update_seen", times.first_step, "false"),
    )


@rule("AMP408", "fp16-without-scaler", Severity.WARNING)
def fp16_without_scaler(case: Case) -> Iterator[RuleHit]:
    """Half precision without a scaler."""
    scale = case.scale
    if scale.has_scaler or "float16" not in case.numbers.autocast_dtypes:
        return
    yield RuleHit(
        at=scale,
        summary="The model runs in fp16 and nothing scales the loss.",
        cause="Autocast is on with float16, and no step of the log has a loss scale.",
        evidence=Evidence("autocast_dtype", scale.first_step, "float16"),
    )


@rule("AMP407", "scaler-with-bf16", Severity.INFO)
def scaler_with_bf16(case: Case) -> Iterator[RuleHit]:
    """A scaler in a run in bf16, which needs none."""
    if not case.scale.has_scaler or case.numbers.autocast_dtypes != {"bfloat16"}:
        return
    yield RuleHit(
        at=case.scale,
        summary="The model runs in bf16, which needs no loss scale.",
        cause="Autocast is on with bfloat16, whose range is float32's.",
        evidence=Evidence("autocast_dtype", case.scale.first_step, "bfloat16"),
    )


# --- steps that the loop or a guard leaves out ----------------------------------------------------


# Occasional bad batches cost one step in a hundred; more than that is wasted training. A single
# step is no warning, however short the record.
_OFTEN_SHARE, _ALONE = 0.01, 1
# With gradient accumulation, every second line or more has no update.
_PAUSES_SHARE = 1 / 3


@rule("AMP212", "loop-skips-steps", Severity.INFO)
def loop_skips_steps(case: Case) -> Iterator[RuleHit]:
    """Steps that the loop itself leaves out."""
    left_out, steps = case.unskipped.left_out, case.numbers.steps
    unmoved = _unmoved(case)
    marked = case.unskipped.skipped if case.loop_tells_skips else Times()
    times = left_out.joined(unmoved).joined(marked)
    if not times.count:
        return
    often = times.count > max(_ALONE, _OFTEN_SHARE * steps)
    yield RuleHit(
        severity=Severity.WARNING if often else Severity.INFO,
        standing=case.recurrence(times),
        at=times,
        summary=_summary(case, times),
        cause=f"In {count_text(times.count, 'step')} ({share_text(times.count, steps)}) "
        + " and ".join(_how(case, left_out, unmoved, marked))
        + ".",
        evidence=counted("left_out", times, steps, "steps in all"),
    )


def _unmoved(case: Case) -> Times:
    """Steps that the loop left out without saying so: no weight moved, though others did.

    If they are many and their gradients are finite, they belong to gradient accumulation. A line
    search that has converged finds no better weights, and leaves them.
    """
    course = case.unskipped
    if case.rate.setup.inner_updates and not course.unmoved_bad.count:
        return Times()
    rare = course.unmoved.count < _PAUSES_SHARE * (course.moved + course.unmoved.count)
    own = rare or 2 * course.unmoved_bad.count > course.unmoved.count
    return course.unmoved if own and not case.has_live_scaler else Times()


def _how(case: Case, left_out: Times, unmoved: Times, marked: Times) -> list[str]:
    """How it shows that the loop left steps out, as parts of a sentence."""
    how = []
    if left_out.count:
        how.append("the values were not finite and the loop made no optimizer step")
    if unmoved.count:
        bad = case.unskipped.unmoved_bad.count
        why = f", the gradients not finite in {bad:,} of them" if bad else ""
        how.append(
            f"the update was exactly 0 with a learning rate above 0{why}, after steps that moved "
            "the weights"
        )
    if marked.count:
        how.append("the log marks the step as skipped and has no loss scale")
    return how


def _summary(case: Case, left_out: Times) -> str:
    running = case.unskipped.left_out_last
    if case.loop_stopped and running.count == 1:
        return f"The training loop stopped at step {running.first_step:,}."
    if running.count > 1:
        return f"The training loop leaves out every step from step {running.first_step:,} on."
    return f"The training loop itself left out {count_text(left_out.count, 'step')}."


def left_out_ending(case: Case, times: Times, what: str = "the forward pass") -> str:
    """The sentence that the loop left out the last steps; empty if it went on."""
    running = case.unskipped.left_out_last
    first, last = running.first_step, times.last_step
    if first is None or last is None or last < first:
        return ""
    if case.loop_stopped and running.count == 1:
        return (
            f" The training loop stopped at step {first:,}: {what} was not finite and no step "
            "followed."
        )
    since = f"From step {first:,} to its end the training loop made"
    if not case.loop_stopped:
        since = f"Since step {first:,} the training loop has made"
    steps = count_text(running.count, "step")
    return f" {since} no step: {what} was not finite in {steps} in a row."


@rule("AMP904", "guard-acts", Severity.INFO)
def guard_acts(case: Case) -> Iterator[RuleHit]:
    """Actions of a guard, or those that a dry run would have taken."""
    guard = case.guard
    acted = guard.left_out.joined(guard.lowered).joined(guard.stopped)
    times = acted.joined(guard.would).joined(guard.capped)
    if not times.count:
        return
    steps = case.numbers.steps
    yield RuleHit(
        severity=_guard_severity(guard, steps),
        standing=case.recurrence(times),
        at=times,
        summary=_guard_summary(guard),
        cause=_guard_cause(guard, steps),
        action="Look at the batches of these steps: a rare bad one needs nothing else."
        if _guard_severity(guard, steps) is Severity.INFO
        else None,
        evidence=Evidence(
            "guard_actions", times.last_step, float(acted.count), float(steps), "steps in all"
        ),
    )


def _guard_severity(guard: GuardHistory, steps: int) -> Severity:
    if guard.stopped.count or (guard.standing and guard.left_out.count):
        return Severity.ERROR
    often = guard.left_out.count > max(_ALONE, _OFTEN_SHARE * steps)
    hides = guard.capped.count or guard.lowered.count or often
    return Severity.WARNING if hides and not guard.would.count else Severity.INFO


def _guard_summary(guard: GuardHistory) -> str:
    if guard.stopped.count:
        return f"The guard stopped the training at step {guard.stopped.last_step:,}."
    if guard.would.count:
        return f"A guard would have acted {count_text(guard.would.count, 'time')} (dry run)."
    parts = [f"left out {count_text(guard.left_out.count, 'step')}"] * bool(guard.left_out.count)
    parts += ["lowered the learning rate"] * bool(guard.lowered.count)
    parts = parts or ["was at its cap"]
    return f"The guard {' and '.join(parts)}."


def _guard_cause(guard: GuardHistory, steps: int) -> str:
    sentences = []
    if guard.left_out.count:
        share = share_text(guard.left_out.count, steps)
        sentences.append(
            f"In {count_text(guard.left_out.count, 'step')} ({share}) gradients were not finite, "
            "or gradients, loss, inputs or learning rate far above what is usual here; no weight "
            "moved in them."
        )
    if guard.would.count:
        sentences.append(
            "Gradients were not finite, or gradients, loss, inputs or learning rate far above "
            "what is usual here; the steps were taken."
        )
    if guard.standing:
        sentences.append(
            "Steps that are not finite have become the rule: the training stands still."
        )
    if guard.capped.count:
        which = count_text(guard.capped.count, "more outlying step")
        what = "would have been" if guard.would.count else "were"
        sentences.append(
            f"At least {which} {what} taken, since the guard had acted as often as it may."
        )
    if guard.lowered.count:
        when = f"at step {guard.lowered.last_step:,}"
        sentences.append(
            f"A second one followed soon, and the learning rate was lowered for a while {when}."
        )
    if guard.out_of_work:
        sentences.append(guard.out_of_work)
    return " ".join(sentences) or "Outlying steps went on when it had acted as often as it may."


# --- schedules, and updates that do not follow the gradients --------------------------------------


# A scheduler that also advances on skipped steps does so every time; one change of the rate that
# coincides with a skip is chance. From this many skips, and nearly all of them.
DRIFT_SKIPS = 3
DRIFT_SHARE = 0.9
# Steps that one optimizer skipped and another did not: growth alone causes a few.
SHARED_SKIPS = 3
# Accepted steps that moved nothing: at a tiny rate an update may round to nothing now and then.
SILENT_STEPS = thresholds.NO_ACCIDENT_STEPS
# A warm-up may begin at a rate of zero, for a few steps. More steps are reported; many more, as a
# warning.
STILL_STEPS, STILL_LONG_STEPS = 100, 1000
SILENT_SHARE = 0.5


@rule("AMP411", "scheduler-on-skipped-step", Severity.INFO)
def scheduler_on_skipped_step(case: Case) -> Iterator[RuleHit]:
    """A schedule that advances on skipped steps too."""
    loop = case.loop
    moved = loop.moved_on_skips
    if moved.count < DRIFT_SKIPS or moved.count < DRIFT_SHARE * loop.skips:
        return
    yield RuleHit(
        at=moved,
        summary=f"The scheduler advanced on {count_text(moved.count, 'skipped step')}.",
        cause=f"Of {count_text(loop.skips, 'skip')} whose learning rate is recorded, "
        f"{moved.count:,} were followed by a different learning rate; the schedule is that far "
        "ahead of the updates.",
        evidence=counted("lr_moved", moved, loop.skips, "skips"),
    )


@rule("AMP413", "shared-scaler", Severity.WARNING)
def shared_scaler(case: Case) -> Iterator[RuleHit]:
    """A scaler shared by several optimizers, of which one's overflows lower the scale for all."""
    part = case.loop.skipped_in_part
    if case.is_searching or part.count < SHARED_SKIPS:
        return
    grown = case.scale.steps / case.scale.scaler.growth_interval
    allowed = case.scale.startup_skips + thresholds.STORM_FREE_SKIPS + grown
    if part.count <= allowed:
        return
    yield RuleHit(
        standing=case.standing(part),
        at=part,
        summary="One optimizer's overflows lower the loss scale of the others.",
        cause=f"In {count_text(part.count, 'step')} one optimizer skipped and another did not; "
        "the scale fell for both.",
        evidence=counted("skipped_apart", part, allowed, "explained by growth"),
    )


_KEEP_IN_FLOAT32 = (
    "Keep the weights in float32, and compute in 16 bits under autocast: an update that is small "
    "beside a 16-bit weight is rounded away."
)


@rule("AMP417", "silent-skip", Severity.ERROR)
def silent_skip(case: Case) -> Iterator[RuleHit]:
    """Accepted steps whose updates do not move the weights, or steps skipped in silence."""
    if _is_skipped_in_silence(case):
        yield _skipped_in_silence(case)
        return
    if _stands_still(case):
        yield _without_a_rate(case)
        return
    if is_without_gradients(case):
        return  # AMP410
    if _is_most(case, case.loop.starved):
        yield _starved(case)
        return
    cut_off = _without_optimizer(case) or _most_without_gradient(case)
    if cut_off is not None:
        yield cut_off
        return
    still = case.loop.still
    if not _is_most(case, still) or case.has_converged:
        return
    yield RuleHit(
        at=still,
        summary="Steps are taken and the weights do not move.",
        cause=f"In {share_text(still.count, case.loop.pushed)} of the accepted steps with a "
        "gradient and a learning rate above zero the update was exactly zero.",
        action=None if case.rounding.last_step is None else _KEEP_IN_FLOAT32,
        evidence=Evidence("update_norm", still.last_step, 0.0),
    )


def _is_skipped_in_silence(case: Case) -> bool:
    """Whether the optimizer skips most steps, up to the end, and no loss scale shows it."""
    times = case.unskipped.skipped
    least = max(SILENT_STEPS, SILENT_SHARE * case.numbers.steps)
    silent = case.observed.loop and not case.scale.has_scaler
    return silent and times.count >= least and case.stands(times)


def _skipped_in_silence(case: Case) -> RuleHit:
    times, steps = case.unskipped.skipped, case.numbers.steps
    return RuleHit(
        at=times,
        summary="The optimizer skips the steps, and the weights do not move.",
        cause=f"In {count_text(times.count, 'step')} ({share_text(times.count, steps)}) the "
        "gradients were not finite, and the optimizer left the step out. There is no loss scale "
        "that falls; the loss, the learning rate and the step count go on.",
        action="Find the layer whose gradients are not finite, and change it. A smaller learning "
        "rate does not help: no step is taken.",
        evidence=counted("skipped", times, steps, "steps in all"),
    )


def _without_optimizer(case: Case) -> RuleHit | None:
    """Layers that have gradients, and whose weights no optimizer was given."""
    names = case.layers.without_optimizer
    if not names:
        return None
    # Who trains a head alone may well leave the gradients of all other layers on; who switches them
    # on later wants them to learn.
    is_meant = len(names) > len(case.layers.trained)
    is_meant &= not any(map(case.layers.was_frozen, names))
    is_single = len(names) == 1
    return RuleHit(
        severity=Severity.INFO if is_meant else Severity.WARNING,
        at=case.scale,
        layer=names[0],
        summary=f"No optimizer has the weights of {'layer' if is_single else 'layers'} "
        f"{list_text(names)}: {'it has' if is_single else 'they have'} gradients and never "
        f"{'moves' if is_single else 'move'}.",
        cause="These weights have gradients, and belong to no parameter group of an optimizer.",
        action="Make the optimizer after the last change to the model, or give it these parameters "
        "with add_param_group(). If they are to stay as they are, set requires_grad to False.",
        evidence=Evidence("layers_without_optimizer", case.scale.last_step, float(len(names))),
    )


def _most_without_gradient(case: Case) -> RuleHit | None:
    """More layers that no gradient reaches than layers that learn: a part of it is cut off."""
    names, learning = case.layers.without_gradient, case.layers.trained
    if len(names) <= len(innermost_layers(learning)):  # a few may be for another task
        return None
    return RuleHit(
        severity=Severity.WARNING,
        at=case.scale,
        summary=f"No gradient reaches {count_text(len(names), 'layer')} of "
        f"{len(names) + len(learning)} that should learn: {list_text(names)}.",
        cause="An optimizer has their weights, and in no sampled step did they have a gradient: "
        "the graph is cut between them and the loss.",
        action="If activations are checkpointed, call checkpoint(..., use_reentrant=False), or "
        "model.enable_input_require_grads(). Look for detach(), .data and torch.no_grad() between "
        "these layers and the loss.",
        evidence=Evidence("layers_without_gradient", case.scale.last_step, float(len(names))),
    )


def _is_most(case: Case, times: Times) -> bool:
    """Whether these were most of the steps that should have moved the weights, up to the end."""
    least = max(SILENT_STEPS, SILENT_SHARE * case.loop.pushed)
    return times.count >= least and case.stands(times)


def _starved(case: Case) -> RuleHit:
    loop = case.loop
    starved = loop.starved
    if 2 * loop.divided_twice > starved.count:
        cause = "exactly the gradient divided by the loss scale once more"
        action = "Remove that division: scaler.unscale_ or scaler.step has done it already."
    else:
        cause = f"{loop.starved_share:.1g} of it in the last one"
        action = (
            "Check what changes the gradients between scaler.unscale_ and the optimizer's step: "
            "a max_norm far too small, or a division."
        )
    return RuleHit(
        at=starved,
        summary="Steps are taken and the weights hardly move: the gradients are lost before the "
        "optimizer.",
        cause=f"In {share_text(starved.count, loop.pushed)} of the accepted steps the optimizer "
        f"received almost nothing of a finite gradient: {cause}.",
        action=action,
        evidence=Evidence(
                "grad_norm_applied / grad_norm", starved.last_step, loop.starved_share,
                STARVED[0][0], "threshold",
            ),
    )  # fmt: skip


def _stands_still(case: Case) -> bool:
    """Whether no update moved the weights because the schedule's rate was always zero."""
    if case.numbers.any_rate or case.loop.updates:
        return False
    return min(case.numbers.rates, case.loop.unmoved) > STILL_STEPS


def _without_a_rate(case: Case) -> RuleHit:
    scale, long = case.scale, case.loop.unmoved > STILL_LONG_STEPS
    return RuleHit(
        severity=Severity.WARNING if long else Severity.INFO,
        at=scale,
        summary="The learning rate is zero in every step, and the weights do not move.",
        cause=f"In {count_text(case.numbers.rates, 'step')} neither the learning rate nor any "
        "update was above zero.",
        action="Check which learning rate the scheduler sets, and whether scheduler.step() is "
        "ever called.",
        evidence=Evidence("lr", scale.last_step, 0.0),
    )
