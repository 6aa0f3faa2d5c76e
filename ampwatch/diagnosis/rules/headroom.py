"""AMP205: layers close to the limit of their format."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.findings import Evidence, Severity
from ampwatch.diagnosis.layer_history import LOW_HEADROOM_OCTAVES, TREND_SAMPLES, LayerHistory
from ampwatch.diagnosis.rule import Seen, rule

# Close to the limit: in most samples of a layer, and in at least this many.
LOW_HEADROOM_SAMPLES = 5
# Due to overflow within this many steps, if the last samples go on growing: over at least this many
# steps, by at least an octave in all, and hardly ever falling back.
HEADROOM_HORIZON_STEPS = 500
TREND_STEPS, TREND_OCTAVES, TREND_FALLING_SHARE = 100, 1.0, 0.8


@rule("AMP205", "low-headroom", Severity.WARNING)
def low_headroom(case: Case) -> Iterator[Seen]:
    """A layer with little headroom below the limit of its format, or due to lose it."""
    layers = case.layers
    at = _nearest(layers)
    summary, cause = ".", "Its largest activation stays that close in most samples."
    if at is None and (due := _first_due(layers)) is not None:
        at, left = due
        summary = f", and will pass it in about {left:.0f} steps."
        cause = f"Its largest activation has grown in its last {TREND_SAMPLES} samples."
    if at is None:
        return
    name, octaves = layers.names[at], float(layers.trend_values[at, -1])
    step = int(layers.trend_steps[at, -1])
    yield Seen(
        first_step=int(np.nanmin(layers.trend_steps[at])),
        last_step=step,
        layer=name,
        summary=f"Layer {name} has {octaves:.1f} octaves left below the limit of half precision"
        f"{summary}",
        cause=cause,
        evidence=Evidence("log2_headroom", step, octaves, LOW_HEADROOM_OCTAVES, "threshold"),
    )


def _nearest(layers: LayerHistory) -> int | None:
    """The layer with the least headroom, if it still is close to its format's limit."""
    close = (layers.headrooms >= LOW_HEADROOM_SAMPLES) & (2 * layers.near > layers.headrooms)
    last = np.where(close, layers.trend_values[:, -1], np.inf)
    close &= last <= LOW_HEADROOM_OCTAVES
    return int(np.argmin(last)) if close.any() else None


def _first_due(layers: LayerHistory) -> tuple[int, float] | None:
    """The layer whose headroom will be used up first, and in how many steps."""
    steps, values = layers.trend_steps, layers.trend_values
    with np.errstate(all="ignore"):  # nan where a layer has fewer samples
        span, lost = steps[:, -1] - steps[:, 0], values[:, 0] - values[:, -1]
        falling = (np.diff(values, axis=1) < 0).mean(axis=1) >= TREND_FALLING_SHARE
        left = np.maximum(values[:, -1], 0.0) * span / lost
        due = falling & (span >= TREND_STEPS) & (lost >= TREND_OCTAVES)
        # No further than the samples themselves show: what begins at zero (LoRA) grows fast, far
        # below.
        due &= (left <= HEADROOM_HORIZON_STEPS) & (values[:, -1] <= lost)
    if not due.any():
        return None
    first = int(np.argmin(np.where(due, left, np.inf)))
    return first, float(left[first])
