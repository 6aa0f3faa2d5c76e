"""AMP208: layers that no loss scale suits together."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ampwatch.diagnosis import thresholds
from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.findings import Evidence, Severity
from ampwatch.diagnosis.rule import Seen, rule
from ampwatch.diagnosis.value_text import count_text, scale_text

# Scale windows that do not overlap in most of at least so many judged samples.
CONFLICT_SAMPLES = 5


@rule("AMP208", "no-scale-fits", Severity.WARNING)
def no_scale_fits(case: Case) -> Iterator[Seen]:
    """Layers whose loss scales conflict: one scale that suits them all does not exist."""
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
        evidence=Evidence("scale_low", last.step, last.needs, last.tolerates, "largest usable"),
    )


def _lost_at_the_ceiling(case: Case) -> Iterator[Seen]:
    """A layer in conflict with the rest: it loses gradients at the highest usable scale."""
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
        evidence=Evidence("underflow_share", last, share, thresholds.UNDERFLOW_SHARE, "threshold"),
    )


def _power(scale: float) -> str:
    return scale_text(2.0 ** round(math.log2(scale))) if scale > 0 else scale_text(scale)
