"""Which signals a verdict is based on, and whether they are enough to call a run healthy.

Each signal has tests that need a certain length. If a record is too short for all of them, nothing
was tested that could have shown trouble. A line of another program's log represents a stretch of
the run, so a few lines can be enough; the first sentence says how few.
"""

from __future__ import annotations

import numpy as np

from ampwatch.diagnosis import thresholds
from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.findings import Outcome, Severity, State
from ampwatch.diagnosis.learning_rate import constants
from ampwatch.diagnosis.learning_rate.advice import Action, Advice
from ampwatch.diagnosis.value_text import count_text

# With fewer kinds of signals than this the first sentence names them: a reader of "healthy" should
# know that only the loss was recorded.
_SIGNALS_ENOUGH = 3
FEWEST_LINES = 5  # of a log: fewer losses show neither health nor trouble


def _signals(case: Case) -> tuple[str, ...]:
    """The signals that the record holds, in words, on which a verdict is based."""
    told, updates = case.numbers.told, case.rate.head.of("update_norm")
    seen = {
        "the loss": "loss" in told,
        "the loss scale": case.scale.has_scaler,
        "the gradient norm": "grad_norm" in told,
        "the updates": bool(np.isfinite(updates).any()),
        "the layers": case.numbers.sees_forward,
        "the layers' casts": bool(case.casts.operands or case.casts.staleness),
    }
    return tuple(words for words, there in seen.items() if there)


def is_long_enough(case: Case) -> bool:
    """Whether at least one signal has enough steps for the shortest test of it."""
    rows = case.rate.head
    losses, norms = (int(np.isfinite(rows.of(name)).sum()) for name in ("loss", "grad_norm"))
    scales = case.rate.accepted if case.scale.has_scaler else 0
    return (
        losses >= constants.NO_LEARNING_STEPS
        or scales >= thresholds.STORM_WINDOW_STEPS
        or norms >= thresholds.DRIFT_ROWS
    )


def is_too_short(case: Case, outcome: Outcome) -> bool:
    """Whether a record ended before it had enough steps or lines to judge anything."""
    if case.observed.loop:
        return not is_long_enough(case)
    has_loss, few = "loss" in case.numbers.told, case.scale.entries < FEWEST_LINES
    little = outcome.state is State.TOO_LITTLE or (few and outcome.severity is Severity.INFO)
    return has_loss and little and not case.scale.has_scaler


def little_seen(case: Case) -> str | None:
    """The sentence that says how little the record holds to judge by; None if it is enough."""
    if case.is_searching or case.is_one_line:
        return None
    signals = _signals(case)
    by = " and ".join(signals) or "skipped steps"
    little = len(signals) < _SIGNALS_ENOUGH
    if not is_long_enough(case):
        length = count_text(case.scale.entries, "step" if case.observed.loop else "line")
        only = f"; {by} only" if little else ""
        return f"No problems found in {length}, too few to judge the learning rate{only}."
    return f"No problems found, judged by {by} only." if little else None


def unsure_advice(advice: Advice, case: Case) -> Advice:
    """The advice for a run with too few steps to judge its rate: no evidence is no proof."""
    if advice.action not in {Action.KEEP, Action.NOT_THE_CAUSE}:
        return advice
    steps = count_text(case.scale.entries, "step")
    because = f"{steps} are too few to judge the rate; they show nothing against it."
    return Advice(Action.UNKNOWN, because, current=advice.current)
