"""AMP212: steps that the loop itself leaves out, and how other findings mention them."""

from __future__ import annotations

from collections.abc import Iterator

from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.findings import Evidence, Severity
from ampwatch.diagnosis.rule import Seen, rule
from ampwatch.diagnosis.times import Times
from ampwatch.diagnosis.value_text import count_text, share_text

# Occasional bad batches cost one step in a hundred; more than that is wasted training. A single
# step is no warning, however short the record.
_WARNING_SHARE, _ALONE = 0.01, 1
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
    often = times.count > max(_ALONE, _WARNING_SHARE * steps)
    yield Seen(
        severity=Severity.WARNING if often else Severity.INFO,
        at=times,
        summary=_summary(case, times),
        cause=f"In {count_text(times.count, 'step')} ({share_text(times.count, steps)}) "
        + " and ".join(_how(case, seen, unmoved, told))
        + ".",
        evidence=(
            Evidence("left_out", times.last_step, float(times.count), float(steps), "steps in all"),
        ),
    )


def _unmoved(case: Case) -> Times:
    """Steps that the loop left out without saying so: no weight moved, though others did.

    If they are many and their gradients are finite, they belong to gradient accumulation.
    """
    course = case.unskipped
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
