"""AMP904: what a guard did, and whether it hides a fault that stands."""

from __future__ import annotations

from collections.abc import Iterator

from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.findings import Evidence, Severity
from ampwatch.diagnosis.guard_history import GuardHistory
from ampwatch.diagnosis.rule import Seen, rule
from ampwatch.diagnosis.value_text import count_text, share_text

# One bad batch in a hundred is a matter of the data; a single step is none, however short the run.
_OFTEN_SHARE, _ALONE = 0.01, 1


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
        severity=_severity(seen, steps),
        at=times,
        summary=_summary(seen),
        cause=_cause(seen, steps),
        action="Look at the batches of these steps: a rare bad one needs nothing else."
        if _severity(seen, steps) is Severity.INFO
        else None,
        evidence=(
            Evidence(
                "guard_actions", times.last_step, float(acted.count), float(steps), "steps in all"
            ),
        ),
    )


def _severity(seen: GuardHistory, steps: int) -> Severity:
    if seen.stopped.count or (seen.standing and seen.left_out.count):
        return Severity.ERROR
    often = seen.left_out.count > max(_ALONE, _OFTEN_SHARE * steps)
    hides = seen.capped.count or seen.lowered.count or often
    return Severity.WARNING if hides and not seen.would.count else Severity.INFO


def _summary(seen: GuardHistory) -> str:
    if seen.stopped.count:
        return f"The guard stopped the training at step {seen.stopped.last_step:,}."
    if seen.would.count:
        return f"A guard would have acted {count_text(seen.would.count, 'time')} (dry run)."
    parts = [f"left out {count_text(seen.left_out.count, 'step')}"] * bool(seen.left_out.count)
    parts += ["lowered the learning rate"] * bool(seen.lowered.count)
    parts = parts or ["was at its cap"]
    return f"The guard {' and '.join(parts)}."


def _cause(seen: GuardHistory, steps: int) -> str:
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
