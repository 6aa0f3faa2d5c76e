"""AMP306: trouble that began with a change, and what a restart itself changed."""

from __future__ import annotations

from collections.abc import Iterator

from ampwatch.diagnosis import thresholds
from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.findings import Evidence, Severity
from ampwatch.diagnosis.record import Event
from ampwatch.diagnosis.rule import Seen, rule
from ampwatch.diagnosis.rules.loss import rise_that_stands
from ampwatch.diagnosis.rules.rate import how_to_change_rate
from ampwatch.diagnosis.value_text import count_text
from ampwatch.rows import EventKind


@rule("AMP306", "jump-at-event", Severity.WARNING)
def jump_at_event(case: Case) -> Iterator[Seen]:
    """Trouble that began right after something was changed."""
    onset, rise = case.judgement.onset, rise_that_stands(case)
    if (lost := harmful_restart(case)) is not None:
        yield lost
        return
    if onset is not None:
        began, sign = onset.step, onset.sign.value
    elif rise is not None:
        began, sign = rise.first_step, "the loss was above its recent band"
    else:
        return
    start = case.scale.first_step or 0
    near = [
        (step, what)
        for step, what in _changes(case)
        if start < step and 0 <= began - step <= thresholds.JUMP_STEPS
    ]
    if near:
        step, what = max(near)
        yield Seen(
            first_step=step,
            last_step=began,
            summary=f"The trouble began {count_text(began - step, 'step')} after {what}.",
            cause=f"From step {began} {sign}; at step {step} {what}.",
            action=_back(case, step),
            evidence=Evidence("onset", began, float(began), float(step), "step of the change"),
        )


def _back(case: Case, step: int) -> str | None:
    """What to do if the change before the trouble was a leap of the rate; else None."""
    leapt = case.rate_advice.leapt_at_step
    is_this = leapt is not None and abs(step - leapt) <= 1  # an event may come a step early
    return how_to_change_rate(case.rate_advice) if is_this else None


def _changes(case: Case) -> Iterator[tuple[int, str]]:
    """When something was changed before the trouble, and what; stairs of a warm-up do not count."""
    leaps = case.leaps
    for event in case.events.changes:
        if event.kind != EventKind.LR_CHANGED.value or not leaps.is_climb(event.step):
            yield event.step, _said(event)
    for leap in filter(leaps.is_settled, leaps.leaps):  # of records without events
        yield leap.step, f"the rate went from {leap.before:.3g} to {leap.after:.3g}"


def _said(event: Event) -> str:
    before, after = (event.detail.get(end) for end in ("from", "to"))
    known = isinstance(before, (int, float)) and isinstance(after, (int, float))
    way = f"went from {before:,.6g} to {after:,.6g}" if known else "changed"
    group = event.detail.get("group")
    return {
        "state-loaded": "a state was loaded",
        "optimizer-replaced": "the optimizer was replaced",
        "scaler-replaced": "the scaler was replaced",
        "batch-size-changed": f"the batch size {way}",
        "lr-changed": f"the rate of group {group} {way}" if group else f"the rate {way}",
    }[event.kind]


_NORMS = {"update": "the updates", "grad_norm": "the gradient norm"}


def harmful_restart(case: Case) -> Seen | None:
    """A loss that jumps right after a restart, together with updates or gradients.

    A warning even if the run recovers: the next restart will do the same.
    """
    first, last, jumps = case.restarts.first, case.restarts.last, case.restarts.jumps
    if first is None or last is None:
        return None
    before, after = last.loss
    norm = f", {_NORMS[last.norm]} {last.times:.1f} times as large" if last.norm else ""
    times = f"At {count_text(jumps.count, 'restart')}" if jumps.count > 1 else "At the restart"
    where = f"before step {first.step}" if first.is_seam else f"at step {first.step}"
    summary = f"{times} {where} the loss jumped from {before:.3g} to {after:.3g}."
    cause = f"It stayed there for tens of steps{norm}: the run did not continue as it "
    cause += "was. Usually the optimizer's state was not loaded."
    action = "Save optimizer.state_dict() with each checkpoint and load it on resume. If that is "
    action += "not possible, warm the rate up."
    if last.rates is not None:
        summary = f"Since the restart {where} the loss went from {before:.3g} to {after:.3g}."
        cause = f"The rate rose from {last.rates[0]:.3g} to {last.rates[1]:.3g} there, and at the "
        cause += f"record's end the loss has not come back{norm}: the schedule started over."
        action = "Load the scheduler's state with that checkpoint."
    return Seen(
        severity=Severity.WARNING,
        first_step=first.step,
        last_step=last.step,
        summary=summary,
        cause=cause,
        action=action,
        evidence=Evidence("loss", last.step, after, before, "before"),
    )
