"""A few numbers about the samples of each layer, folded, however many samples there were."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ampwatch.diagnosis import thresholds
from ampwatch.diagnosis.blocks import Block
from ampwatch.diagnosis.column_arrays import Floats, Integers, Mask

# A layer loses its gradients in most of its sampled steps, and in at least this many of them.
UNDERFLOW_SAMPLES = 3
# A subnormal number is not lost: ten octaves hold ten bits down to one. Where a scale so many times
# higher suits, the values that are seen are off by a twentieth of their norm at most.
KEPT_TIMES = 2.0**8
# An activation within two octaves of 65504 overflows at the next spike: gradients and activations
# of healthy runs vary by that much from batch to batch.
LOW_HEADROOM_OCTAVES = 2.0
# The last samples of a layer's activations, of which a trend is made.
TREND_SAMPLES = 8
# Two layers' windows of scales miss each other by this much.
CONFLICT_OCTAVES = 1.0

# Beyond this many names the later ones are not judged; the largest models have a tenth of it.
MOST_LAYERS = 65_536


@dataclass(frozen=True, slots=True)
class ScaleConflict:
    """Two layers (or one) that no loss scale suits: one needs more than the other tolerates."""

    step: int
    needs_layer: str
    needs: float
    tolerates_layer: str
    tolerates: float


@dataclass(frozen=True, slots=True)
class LayerHistory:
    """A few numbers about each layer's samples, one array entry a name; `fold` makes a new one."""

    names: tuple[str, ...] = ()
    numbers: dict[str, int] = field(default_factory=dict)
    samples: Integers = field(default_factory=lambda: np.zeros(0, np.int64))  # judged, with a share
    losing: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    share_sum: Floats = field(default_factory=lambda: np.zeros(0))
    first_step: Integers = field(default_factory=lambda: np.zeros(0, np.int64))  # losing
    last_step: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    weight_bad: Mask = field(default_factory=lambda: np.zeros(0, np.bool_))
    headrooms: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    near: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    trend_steps: Floats = field(default_factory=lambda: np.zeros((0, TREND_SAMPLES)))
    trend_values: Floats = field(default_factory=lambda: np.zeros((0, TREND_SAMPLES)))
    window_steps: int = 0  # judged steps with scale windows
    conflicts: int = 0
    first_conflict: ScaleConflict | None = None
    last_conflict: ScaleConflict | None = None

    def fold(self, block: Block, judged: Mask) -> LayerHistory:
        """Add a block's layer samples; `judged` marks accepted steps at an established scale."""
        rows = block.layers
        if not len(rows):
            return self
        grown = self._with_names(rows.names)
        codes = np.array([*(grown.numbers.get(name, -1) for name in rows.names), -1])
        layer = codes[rows.layer]  # the last where the row names none
        at, there = block.layer_entries
        good = layer >= 0
        bad = layer[good & (rows.flags["weight_finite"] == 0)]
        if len(bad):
            weight_bad = grown.weight_bad.copy()
            weight_bad[bad] = True
            grown = replace(grown, weight_bad=weight_bad)
        good[~there] = False
        good[there] &= judged[at[there]]
        if not good.any():
            return grown
        step, layer = rows.step[good], layer[good]
        names = ("underflow_share", "log2_headroom", "scale_low", "scale_high")
        share, headroom, low, high = (rows.numbers[name][good] for name in names)
        scale = block.columns["scale"][at[good]]
        few_bits = ~(low < np.where(scale > 0, scale, 1.0) * KEPT_TIMES)
        # A tail that is lost is normal: a layer needs a scale when it loses most.
        low = np.where(share >= thresholds.UNDERFLOW_SHARE, low, np.nan)
        grown = grown._with_shares(layer, step, share, few_bits)
        grown = grown._with_headrooms(layer, step, headroom)
        return grown._with_windows(layer, step, low, high)

    def loses_most(self, lost: Integers) -> tuple[int, float]:
        """The layer that loses most of its gradients, the innermost if nested; its mean share."""
        inner = set(innermost_layers([self.names[at] for at in lost]))
        shares = {at: self.share_sum[at] / self.samples[at] for at in lost.tolist()}
        most = max((at for at in shares if self.names[at] in inner), key=shares.__getitem__)
        return most, float(shares[most])

    def losing_layers(self) -> Integers:
        """The layers that lose most of their gradients in most of their samples."""
        enough = self.samples >= UNDERFLOW_SAMPLES
        return np.flatnonzero(enough & (2 * self.losing > self.samples))

    def _with_names(self, names: tuple[str, ...]) -> LayerHistory:
        new = [n for n in names if n not in self.numbers][: MOST_LAYERS - len(self.names)]
        if not new:
            return self
        known = (*self.names, *new)
        grown: dict[str, Any] = {}
        for name, absent in _ABSENT.items():
            old = getattr(self, name)
            fresh = np.full((len(new), *old.shape[1:]), absent, old.dtype)
            grown[name] = np.concatenate([old, fresh])
        numbers = {name: number for number, name in enumerate(known)}
        return replace(self, names=known, numbers=numbers, **grown)

    def _counts(self, layer: Integers, weights: Floats | None = None) -> Any:
        return np.bincount(layer, weights, minlength=len(self.names))

    def _with_shares(
        self, layer: Integers, step: Integers, share: Floats, few_bits: Mask
    ) -> LayerHistory:
        told = ~np.isnan(share)
        layer, step, share = layer[told], step[told], share[told]
        first, last = self.first_step.copy(), self.last_step.copy()
        last[layer] = step
        lost = (share >= thresholds.UNDERFLOW_SHARE) & few_bits[told]
        losing, at = np.unique(layer[lost], return_index=True)
        first[losing] = np.where(first[losing] < 0, step[lost][at], first[losing])
        return replace(
            self,
            samples=self.samples + self._counts(layer),
            losing=self.losing + self._counts(layer[lost]),
            share_sum=self.share_sum + self._counts(layer, share),
            first_step=first,
            last_step=last,
        )

    def _with_headrooms(self, layer: Integers, step: Integers, octaves: Floats) -> LayerHistory:
        told = np.isfinite(octaves)
        layer, step, octaves = layer[told], step[told], octaves[told]
        order = np.argsort(layer, kind="stable")
        ends = np.searchsorted(layer[order], layer[order], side="right")
        age = ends - 1 - np.arange(len(order))  # 0 is the latest of its layer
        steps, values = self.trend_steps.copy(), self.trend_values.copy()
        for one in reversed(range(TREND_SAMPLES)):
            at = order[age == one]
            for kept, new in ((steps, step), (values, octaves)):
                kept[layer[at]] = np.column_stack([kept[layer[at], 1:], new[at]])
        return replace(
            self,
            headrooms=self.headrooms + self._counts(layer),
            near=self.near + self._counts(layer[octaves <= LOW_HEADROOM_OCTAVES]),
            trend_steps=steps,
            trend_values=values,
        )

    def _with_windows(
        self, layer: Integers, step: Integers, low: Floats, high: Floats
    ) -> LayerHistory:
        told = np.isfinite(low) | np.isfinite(high)
        if not told.any():
            return self
        low = np.where(np.isfinite(low), low, -np.inf)[told]
        high = np.where(np.isfinite(high), high, np.inf)[told]
        layer, step = layer[told], step[told]
        begin = np.flatnonzero(np.diff(step, prepend=step[0] - 1))
        tolerates, needs = np.minimum.reduceat(high, begin), np.maximum.reduceat(low, begin)
        bad = np.flatnonzero(needs > tolerates * 2.0**CONFLICT_OCTAVES).tolist()

        def conflict(i: int) -> ScaleConflict:
            part = slice(begin[i], begin[i + 1] if i + 1 < len(begin) else None)
            needy, weak = layer[part][np.argmax(low[part])], layer[part][np.argmin(high[part])]
            return ScaleConflict(
                int(step[begin[i]]),
                self.names[needy],
                float(needs[i]),
                self.names[weak],
                float(tolerates[i]),
            )

        return replace(
            self,
            window_steps=self.window_steps + len(begin),
            conflicts=self.conflicts + len(bad),
            first_conflict=self.first_conflict or (conflict(bad[0]) if bad else None),
            last_conflict=conflict(bad[-1]) if bad else self.last_conflict,
        )


# What a new layer's entry holds.
_ABSENT = {
    "samples": 0, "losing": 0, "share_sum": 0.0, "first_step": -1, "last_step": -1,
    "weight_bad": False, "headrooms": 0, "near": 0, "trend_steps": np.nan, "trend_values": np.nan,
}  # fmt: skip


ROOT = "(root)"  # what the one model's own layer is called; several have names of their own


def innermost_layers(names: Collection[str]) -> list[str]:
    """The names of layers that hold none of the other layers named."""
    holders = {ROOT} if set(names) - {ROOT} else set()
    for name in names:
        parts = name.split(".")
        holders |= {".".join(parts[:count]) for count in range(1, len(parts))}
    return [name for name in names if name not in holders]
