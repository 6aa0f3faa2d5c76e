"""A part of AMP306: what a restart itself changed, whether or not the run recovered."""

from __future__ import annotations

from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.findings import Evidence, Severity
from ampwatch.diagnosis.registry import Seen
from ampwatch.diagnosis.words import count_text

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
        action = "Restart from that checkpoint with the scheduler's state loaded."
    return Seen(
        severity=Severity.WARNING,
        first_step=first.step,
        last_step=last.step,
        summary=summary,
        cause=cause,
        action=action,
        evidence=(Evidence("loss", last.step, after, before, "before"),),
    )
