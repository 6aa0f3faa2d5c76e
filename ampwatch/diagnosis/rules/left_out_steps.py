"""AMP212 and AMP904: steps that the loop or a guard leaves out, and how other findings say so."""

from __future__ import annotations

from collections.abc import Iterator

from ampwatch.diagnosis.blocks import Times
from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.event_history import GuardHistory
from ampwatch.diagnosis.findings import Evidence, Severity
from ampwatch.diagnosis.rule import Seen, rule
from ampwatch.diagnosis.value_text import count_text, share_text

# Occasional bad batches cost one step in a hundred; more than that is wasted training. A single
# step is no warning, however short the record.
_OFTEN_SHARE, _ALONE = 0.01, 1
# With gradient accumulation, every second line or more has no update.
_PAUSES_SHARE = 1 / 3


@rule("AMP212", "loop-skips-steps", Severity.INFO)
def loop_skips_steps(case: Case) -> Iterator[Seen]:
    """Steps that the loop itself leaves out."""
    seen, steps = case.unskipped.left_out, case.numbers.steps
    unmoved = _unmoved(case)
    told = case.unskipped.skipped if case.loop_tells_skips else Times()
    times = seen.joined(unmoved).joined(told)
    if not times.count:
        return
    often = times.count > max(_ALONE, _OFTEN_SHARE * steps)
    yield Seen(
        severity=Severity.WARNING if often else Severity.INFO,
        at=times,
        summary=_summary(case, times),
        cause=f"In {count_text(times.count, 'step')} ({share_text(times.count, steps)}) "
        + " and ".join(_how(case, seen, unmoved, told))
        + ".",
        evidence=Evidence(
            "left_out", times.last_step, float(times.count), float(steps), "steps in all"
        ),
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


def _how(case: Case, seen: Times, unmoved: Times, told: Times) -> list[str]:
    """How it shows that the loop left steps out, as parts of a sentence."""
    how = []
    if seen.count:
        how.append("the values were not finite and the loop made no optimizer step")
    if unmoved.count:
        bad = case.unskipped.unmoved_bad.count
        why = f", the gradients not finite in {bad:,} of them" if bad else ""
        how.append(
            f"the update was exactly 0 with a learning rate above 0{why}, after steps that moved "
            "the weights"
        )
    if told.count:
        how.append("the record marks the step as skipped and has no loss scale")
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
def guard_acts(case: Case) -> Iterator[Seen]:
    """Actions of a guard, or those that a dry run would have taken."""
    seen = case.guard
    acted = seen.left_out.joined(seen.lowered).joined(seen.stopped)
    times = acted.joined(seen.would).joined(seen.capped)
    if not times.count:
        return
    steps = case.numbers.steps
    yield Seen(
        severity=_guard_severity(seen, steps),
        at=times,
        summary=_guard_summary(seen),
        cause=_guard_cause(seen, steps),
        action="Look at the batches of these steps: a rare bad one needs nothing else."
        if _guard_severity(seen, steps) is Severity.INFO
        else None,
        evidence=Evidence(
            "guard_actions", times.last_step, float(acted.count), float(steps), "steps in all"
        ),
    )


def _guard_severity(seen: GuardHistory, steps: int) -> Severity:
    if seen.stopped.count or (seen.standing and seen.left_out.count):
        return Severity.ERROR
    often = seen.left_out.count > max(_ALONE, _OFTEN_SHARE * steps)
    hides = seen.capped.count or seen.lowered.count or often
    return Severity.WARNING if hides and not seen.would.count else Severity.INFO


def _guard_summary(seen: GuardHistory) -> str:
    if seen.stopped.count:
        return f"The guard stopped the training at step {seen.stopped.last_step:,}."
    if seen.would.count:
        return f"A guard would have acted {count_text(seen.would.count, 'time')} (dry run)."
    parts = [f"left out {count_text(seen.left_out.count, 'step')}"] * bool(seen.left_out.count)
    parts += ["lowered the learning rate"] * bool(seen.lowered.count)
    parts = parts or ["was at its cap"]
    return f"The guard {' and '.join(parts)}."


def _guard_cause(seen: GuardHistory, steps: int) -> str:
    told = []
    if seen.left_out.count:
        share = share_text(seen.left_out.count, steps)
        told.append(
            f"In {count_text(seen.left_out.count, 'step')} ({share}) gradients were not finite, or "
            "gradients, loss, inputs or rate far above what is usual here; no weight moved in them."
        )
    if seen.would.count:
        told.append(
            "Gradients were not finite, or gradients, loss, inputs or rate far above what is usual "
            "here; the steps were taken."
        )
    if seen.standing:
        told.append("Steps that are not finite have become the rule: the training stands still.")
    if seen.capped.count:
        which = count_text(seen.capped.count, "more outlying step")
        what = "would have been" if seen.would.count else "were"
        told.append(f"At least {which} {what} taken, since the guard had acted as often as it may.")
    if seen.lowered.count:
        when = f"at step {seen.lowered.last_step:,}"
        told.append(f"A second one followed soon, and the rate was lowered for a while {when}.")
    if seen.out_of_work:
        told.append(seen.out_of_work)
    return " ".join(told) or "Outlying steps went on when it had acted as often as it may."
