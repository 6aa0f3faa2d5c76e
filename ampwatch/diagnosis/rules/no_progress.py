"""AMP309: a loss that has not fallen from the start."""

from __future__ import annotations

from collections.abc import Iterator

from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.findings import Severity, State
from ampwatch.diagnosis.outcome import REMEDIES, outcome_of
from ampwatch.diagnosis.rule import Seen, rule


@rule("AMP309", "no-progress", Severity.ERROR)
def no_progress(case: Case) -> Iterator[Seen]:
    """A loss that has not fallen from the start."""
    outcome = outcome_of(case)
    if outcome.state in {State.STANDS_STILL, State.HARDLY_FALLS}:
        yield Seen(
            severity=outcome.severity,
            action=REMEDIES.get(outcome.state),
            # A slow fall has no first step: whatever explains it may come later.
            first_step=outcome.since_step if outcome.state is State.STANDS_STILL else None,
            last_step=case.scale.last_step,
            summary=outcome.words,
            cause="This record does not show why.",
            evidence=outcome.evidence,
        )
