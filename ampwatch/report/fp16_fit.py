"""Whether the layers of a run in bf16 or fp32 would fit fp16: their values, and their gradients.

The values need room below the largest number of fp16, 65,504. The gradients need a loss scale that
neither overflows nor loses small ones, by the same limits as the windows of a run in fp16.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ampwatch.diagnosis.layer_history import ROOT, innermost_layers
from ampwatch.diagnosis.rules.overflow import FP16_MAX
from ampwatch.diagnosis.value_text import count_text
from ampwatch.report.last_layer_values import Readable, last_known
from ampwatch.report.scale_windows import Window, loss_scale_at, range_text
from ampwatch.rows import EXPONENT_LOWEST

_SMALLEST, _SMALLEST_NORMAL = -24.0, -14.0  # powers of two
# As for a run in fp16: so large a share of a layer's gradients may be lost, and so large a share
# lost or subnormal; fewer values tell nothing.
LOST_SHARE, COARSE_SHARE, LEAST_VALUES = 0.05, 0.5, 64
_AMAX = ("input_amax", "act_amax")
_GRADIENTS = ("in_grad_amax", "out_grad_amax")
_COLUMNS = ("order", "input_dtype", "output_dtype", "rows", *_AMAX, *_GRADIENTS, "exponents")
_HALF = "bfloat16"


@dataclass(frozen=True, slots=True)
class Fp16Fit:
    """How a layer would fit fp16."""

    layer: str
    order: int
    amax: float  # the largest value that enters or leaves it
    low: float | None  # the power of two of the smallest usable loss scale, if it is known
    high: float | None  # of the largest one; None without gradients

    @property
    def headroom(self) -> float:
        """Octaves from the largest value to the largest number of fp16; below 0 none is left."""
        if not math.isfinite(self.amax):
            return -math.inf
        return math.log2(FP16_MAX / self.amax) if self.amax else math.inf

    @property
    def is_possible(self) -> bool:
        """Whether its values fit, and some loss scale suits its gradients."""
        return self.headroom >= 0 and not (self.window and self.window.is_empty)

    @property
    def window(self) -> Window | None:
        """The loss scales that would suit the layer."""
        return None if self.high is None else Window(self.layer, self.order, self.low, self.high)


def fp16_fits(run: Readable, step: int | None) -> list[Fp16Fit]:
    """How each layer that fp16 would change fits it, in forward order; none of a run in fp16.

    Those are the layers whose output is bf16; of a run in fp32 those that multiply matrices.
    """
    facts_of = last_known(run, _COLUMNS, step)
    outputs = {facts.get("output_dtype") for facts in facts_of.values()}
    if "float16" in outputs:
        return []
    octaves, inner = loss_scale_at(run, step) or 0.0, set(innermost_layers(facts_of))
    fits = (
        _fit(name, facts, octaves)
        for name, facts in facts_of.items()
        if name in inner - {"", ROOT}
        and (facts.get("output_dtype") == _HALF if _HALF in outputs else _multiplies(facts))
    )
    return sorted(filter(None, fits), key=lambda one: (one.order, one.layer))


def value_text(amax: float) -> str:
    """A layer's largest value, to three digits."""
    return f"{float(f'{amax:.3g}'):,.0f}" if amax >= 1000 else f"{amax:.3g}"


def fp16_sentence(fits: Sequence[Fp16Fit]) -> str:
    """Whether the run would fit fp16, and with which loss scales; else which layer would not."""
    if not fits:
        return ""
    worst = min(fits, key=lambda one: one.headroom)
    if worst.headroom < 0:
        others = sum(one.headroom < 0 for one in fits) - 1
        more = f" and {count_text(others, 'other layer')}" if others else ""
        return (
            f"fp16 would overflow in {worst.layer}{more}: {value_text(worst.amax)} is above 65,504."
        )
    windows = [one.window for one in fits if one.window]
    if not windows:
        return "All values would fit fp16."
    top = min(windows, key=lambda window: window.high)
    lows = [window for window in windows if window.low is not None]
    base = max(lows, key=lambda window: window.low or 0.0, default=None)
    common = Window("", 0, base.low if base else None, top.high)
    if common.is_empty and base is not None:
        return f"fp16 has no loss scale that suits both {base.layer} and {top.layer}."
    return f"The run would fit fp16, with a loss scale of {range_text(common)}."


def _multiplies(facts: Mapping[str, Any]) -> bool:
    """Whether a layer multiplies matrices; an embedding looks rows up by their numbers."""
    return bool(facts.get("rows")) and "float" in (facts.get("input_dtype") or "")


def _fit(layer: str, facts: Mapping[str, Any], octaves: float) -> Fp16Fit | None:
    values = list(_known(facts, _AMAX))
    if not values:
        return None
    gradient = max((g for g in _known(facts, _GRADIENTS) if math.isfinite(g)), default=0.0)
    high = math.log2(FP16_MAX / gradient) + octaves if gradient else None
    low = lowest_scale(facts.get("exponents") or ())
    amax = max(values, key=lambda value: value if math.isfinite(value) else math.inf)
    return Fp16Fit(
        layer, facts.get("order") or 0, amax, None if low is None else low + octaves, high
    )


def _known(facts: Mapping[str, Any], columns: Sequence[str]) -> Iterator[float]:
    return (facts[name] for name in columns if facts.get(name) is not None)


def lowest_scale(exponents: Sequence[int]) -> float | None:
    """The power of two of the lowest loss scale that keeps the gradients of this histogram.

    None where too few values were seen, or where they are smaller than its lowest octave.
    """
    counts = np.asarray(exponents, np.float64)[1:-1]  # without zeros, and what is not finite
    if counts.sum() < LEAST_VALUES:
        return None
    small, middle = (_quantile(counts, share) for share in (LOST_SHARE, COARSE_SHARE))
    if small is None or middle is None:
        return None
    return max(_SMALLEST - small, _SMALLEST_NORMAL - middle)


def _quantile(counts: np.ndarray[Any, np.dtype[np.float64]], share: float) -> float | None:
    """The power of two below which this share lies; None in the lowest octave, which is open."""
    below = np.concatenate(([0.0], counts.cumsum()))
    target = share * below[-1]
    at = int(np.searchsorted(below, target, side="right")) - 1
    if at == 0:
        return None
    return EXPONENT_LOWEST + at + float((target - below[at]) / counts[at])
