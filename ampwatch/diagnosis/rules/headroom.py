"""AMP205 and AMP208: layers close to their format's limit, and layers that no loss scale suits."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from ampwatch.diagnosis import policy
from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.findings import Evidence, Severity
from ampwatch.diagnosis.layer_history import LOW_HEADROOM_OCTAVES, TREND_SAMPLES, LayerHistory
from ampwatch.diagnosis.rule import RATE, Page, Seen, Ties, rule
from ampwatch.diagnosis.words import count_text, scale_text

# Close to the limit: in most samples of a layer, and in at least this many.
LOW_HEADROOM_SAMPLES = 5
# Due to overflow within this many steps, if the last samples go on growing: over at least this many
# steps, by at least an octave in all, and hardly ever falling back.
HEADROOM_HORIZON_STEPS = 500
TREND_STEPS, TREND_OCTAVES, TREND_FALLING_SHARE = 100, 1.0, 0.8
# Scale windows that do not overlap in most of at least so many judged samples.
CONFLICT_SAMPLES = 5


@rule(
    "AMP205",
    "low-headroom",
    Severity.WARNING,
    Page(
        meaning="A layer's activations stay close to the limit of half precision, or will soon "
        "reach it if they go on growing. The next spike overflows in the forward pass, where "
        "no loss scale helps.",
        looks=f"The largest activation within {LOW_HEADROOM_OCTAVES:.0f} octaves of 65504 in "
        f"most of {LOW_HEADROOM_SAMPLES} samples or more, or growing so fast in its last "
        f"{TREND_SAMPLES} samples that it passes 65504 within {HEADROOM_HORIZON_STEPS} steps.",
        not_to_confuse="AMP203, where the overflow has happened. Gradients near the limit: the "
        "loss scale takes care of those.",
        do="Normalise what enters the layer, shrink its initial weights, run it in float32, or "
        "use bf16, whose range is float32's. If it grows, look at the learning rate.",
        example="a feed-forward layer whose largest output doubles every 100 steps, now 16,000.",
    ),
    Ties(explained_by=("AMP210",)),
)
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
        evidence=(Evidence("log2_headroom", step, octaves, LOW_HEADROOM_OCTAVES, "threshold"),),
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


@rule(
    "AMP208",
    "no-scale-fits",
    Severity.WARNING,
    Page(
        meaning="No loss scale suits all layers: one loses its gradients to underflow below a "
        "scale at which another already overflows.",
        looks="A layer loses most of its gradients, and the lowest scale that would keep them "
        "is above the highest that another layer (or itself) tolerates, in most of "
        f"{CONFLICT_SAMPLES} samples or more; or it loses them at the highest scale that "
        "does not overflow.",
        not_to_confuse="AMP201, where a higher scale would help.",
        do="Run one of the two layers in float32, rescale its loss or its output, or use bf16.",
        example="an embedding that needs 2^20 beside a head that tolerates 2^14.",
    ),
    Ties(explained_by=RATE, cures=("float32", "bfloat16")),
)
def no_scale_fits(case: Case) -> Iterator[Seen]:
    """Layers whose windows of usable loss scales do not overlap."""
    layers = case.layers
    first, last = layers.first_conflict, layers.last_conflict
    often = 2 * layers.conflicts > layers.window_steps >= CONFLICT_SAMPLES
    if first is None or last is None or not often:
        yield from _lost_at_the_ceiling(case)
        return
    pair = last.needs_layer != last.tolerates_layer
    yield Seen(
        first_step=first.step,
        last_step=last.step,
        layer=last.needs_layer,
        summary=f"No loss scale suits layer {last.needs_layer}"
        + (
            f" and layer {last.tolerates_layer} at once."
            if pair
            else ": its gradients span too wide a range."
        ),
        cause=f"Layer {last.needs_layer} needs {_power(last.needs)} or more, "
        f"{f'layer {last.tolerates_layer}' if pair else 'and'} tolerates "
        f"{_power(last.tolerates)} at most, in {layers.conflicts} of "
        f"{count_text(layers.window_steps, 'sample')}.",
        action=f"Run layer {last.tolerates_layer} in float32, or use bf16.",
        evidence=(Evidence("scale_low", last.step, last.needs, last.tolerates, "largest usable"),),
    )


def _lost_at_the_ceiling(case: Case) -> Iterator[Seen]:
    """A layer that loses its gradients at the highest scale that does not overflow."""
    layers, scale = case.layers, case.scale
    lost = layers.losing_layers()
    capped = case.teeth.episodes > 0 or scale.startup_skips > 0
    if not len(lost) or not capped or case.is_searching or case.standing_fall is not None:
        return
    worst, share = layers.loses_most(lost)
    name, final = layers.names[worst], scale_text(case.final_scale)
    last = int(layers.last_step[worst])
    yield Seen(
        first_step=int(layers.first_step[worst]),
        last_step=last,
        layer=name,
        summary=f"No loss scale suits {name} and the rest: at {final} it still loses gradients.",
        cause="A higher scale overflows, as the skips show, and at this one most of its gradients "
        "are below half precision's smallest normal number.",
        evidence=(Evidence("underflow_share", last, share, policy.UNDERFLOW_SHARE, "threshold"),),
    )


def _power(scale: float) -> str:
    return scale_text(2.0 ** round(math.log2(scale))) if scale > 0 else scale_text(scale)
