"""AMP210: attention scores that grow towards the limit of half precision."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.findings import Evidence, Severity
from ampwatch.diagnosis.layer_history import AttentionScore, AttentionScoreHistory
from ampwatch.diagnosis.rule import Seen, rule

# Attention scores that grow: over thousands of steps, in a row of windows each higher than the one
# before, four times higher in all. The growth after a start slows down before that.
SCORE_WINDOWS = 4
SCORE_STEPS = 2000
SCORE_OCTAVES = 2.0


@rule("AMP210", "attention-logit-growth", Severity.WARNING)
def attention_logit_growth(case: Case) -> Iterator[Seen]:
    """Attention scores that have grown for long and will exceed the range of half precision."""
    drift = _first_due(case.scores)
    if drift is None:
        return
    name, course = drift.score.layer, case.scores
    first = int(course.first_steps.values[drift.begin])
    what = "The largest query times the largest key at" if drift.score.product else "The scores at"
    yield Seen(
        first_step=first,
        last_step=course.last_step,
        layer=name,
        summary=f"Attention scores at {name} have grown since step {first} and will exceed half "
        f"precision in about {drift.steps_left:,.0f} steps.",
        cause=f"{what} {name} have risen by {drift.octaves:.1f} octaves without a break; "
        f"{max(drift.left, 0.0):.1f} octaves remain below 65504.",
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


def _first_due(course: AttentionScoreHistory) -> _Drift | None:
    """The attention whose scores will exceed the format's range first; None if none will."""
    if not course.scores:
        return None
    levels = course.levels()
    known = ~np.isnan(levels).all(axis=0)
    if known.sum() < SCORE_WINDOWS:
        return None
    last = int(np.flatnonzero(known)[-1])
    with np.errstate(invalid="ignore"):
        falls = levels[:, :last] - levels[:, 1 : last + 1] > 0  # nan breaks the drift
    run = np.cumprod(falls[:, ::-1], axis=1).sum(axis=1).astype(np.int64)
    each = np.arange(len(levels))
    begin, middle = last - run, last - run // 2
    left, octaves = levels[:, last], levels[each, begin] - levels[:, last]
    with np.errstate(divide="ignore", invalid="ignore"):
        recent = (levels[each, middle] - left) / ((last - middle) * course.width)
        steps_left = np.maximum(left, 0.0) / recent
        lasted = run * course.width
        due = (run + 1 >= SCORE_WINDOWS) & (lasted >= SCORE_STEPS)
        due &= (octaves >= SCORE_OCTAVES) & (steps_left <= lasted)
    if not due.any():
        return None
    worst = int(np.argmin(np.where(due, steps_left, np.inf)))
    return _Drift(
        course.scores[worst],
        int(begin[worst]),
        float(octaves[worst]),
        float(left[worst]),
        float(steps_left[worst]),
    )
