"""The samples of each layer, folded: what they lose, who trains them, how attention scores grow.

A few numbers a layer, however many samples there were. Attention scores are seldom the output of a
layer: a query times a key is computed between the layers. They are read where a layer shows them:
in a module that gives the scores or takes their softmax, or else in the projections of query and
key, whose largest values together stand for the score (a score is at most sqrt(d) times their
product, and usually less). Only names tell which layers these are. Fused attention
(`nn.MultiheadAttention`) hides them and is not judged.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from ampwatch.diagnosis import thresholds
from ampwatch.diagnosis.blocks import Block, BlockLayerRows
from ampwatch.diagnosis.column_arrays import Floats, Integers, Mask
from ampwatch.diagnosis.doubling_windows import DoublingWindows

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
# A layer is without an optimizer or a gradient in so many samples at least.
_LEAST_SAMPLES = 2
# What the arrays hold of a new layer, where that is not 0.
_ABSENT = {"first_step": -1, "last_step": -1, "trend_steps": np.nan, "trend_values": np.nan}


@dataclass(frozen=True, slots=True)
class ScaleConflict:
    """Two layers (or one) that no loss scale suits: one needs more than the other tolerates."""

    step: int
    needs_layer: str
    needs: float
    tolerates_layer: str
    tolerates: float


def _no_counts() -> Integers:
    return np.zeros(0, np.int64)


def _no_trend() -> Floats:
    return np.zeros((0, TREND_SAMPLES))


@dataclass(frozen=True, slots=True)
class LayerHistory:
    """A few numbers about each layer's samples, one array entry a name; `fold` makes a new one."""

    names: tuple[str, ...] = ()
    numbers: dict[str, int] = field(default_factory=dict)
    samples: Integers = field(default_factory=_no_counts)  # judged, with a share
    losing: Integers = field(default_factory=_no_counts)
    share_sum: Floats = field(default_factory=lambda: np.zeros(0))  # of the losing samples
    first_step: Integers = field(default_factory=_no_counts)  # losing
    last_step: Integers = field(default_factory=_no_counts)
    weight_bad: Mask = field(default_factory=lambda: np.zeros(0, np.bool_))
    headrooms: Integers = field(default_factory=_no_counts)
    near: Integers = field(default_factory=_no_counts)
    trend_steps: Floats = field(default_factory=_no_trend)
    trend_values: Floats = field(default_factory=_no_trend)
    # Of layers that should learn: samples that an optimizer moves, has no weights of, or has the
    # weights of though no gradient reached them.
    moved: Integers = field(default_factory=_no_counts)
    unowned: Integers = field(default_factory=_no_counts)
    unreached: Integers = field(default_factory=_no_counts)
    frozen: Integers = field(default_factory=_no_counts)  # samples in which they were not to learn
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
        at, there = rows.entry, rows.has_entry
        good = layer >= 0
        bad = layer[good & (rows.flags("weight_finite") == 0)]
        if len(bad):
            weight_bad = grown.weight_bad.copy()
            weight_bad[bad] = True
            grown = replace(grown, weight_bad=weight_bad)
        if (block.columns["update_norm"] > 0).any():  # before it no optimizer is known
            grown = grown._with_training(layer, rows)
        good[~there] = False
        good[there] &= judged[at[there]]
        if not good.any():
            return grown
        step, layer = rows.step[good], layer[good]
        names = ("underflow_share", "log2_headroom", "scale_low", "scale_high")
        share, headroom, low, high = (rows.numbers(name)[good] for name in names)
        scale = block.columns["scale"][at[good]]
        few_bits = ~(low < np.where(scale > 0, scale, 1.0) * KEPT_TIMES)
        few_bits |= rows.numbers("grad_norm")[good] == 0  # of its weights, beside one of its output
        # A tail that is lost is normal: a layer needs a scale when it loses most.
        low = np.where(share >= thresholds.UNDERFLOW_SHARE, low, np.nan)
        grown = grown._with_shares(layer, step, share, few_bits)
        grown = grown._with_headrooms(layer, step, headroom)
        return grown._with_windows(layer, step, low, high)

    def loses_most(self, lost: Integers) -> tuple[int, float]:
        """The layer that loses most of its gradients, the innermost if nested, and what it loses.

        That is the mean share of the samples in which it loses most.
        """
        inner = set(innermost_layers([self.names[at] for at in lost]))
        shares = {at: self.share_sum[at] / self.losing[at] for at in lost.tolist()}
        most = max((at for at in shares if self.names[at] in inner), key=shares.__getitem__)
        return most, float(shares[most])

    def losing_layers(self) -> Integers:
        """The layers that lose most of their gradients in most of their samples."""
        enough = self.samples >= UNDERFLOW_SAMPLES
        return np.flatnonzero(enough & (2 * self.losing > self.samples))

    @property
    def trained(self) -> list[str]:
        """The layers that an optimizer had, with a gradient."""
        return [self.names[at] for at in np.flatnonzero(self.moved).tolist()]

    @property
    def without_optimizer(self) -> list[str]:
        """The innermost layers that no optimizer ever had, if it had others."""
        return self._never_trained(self.unowned)

    def was_frozen(self, name: str) -> bool:
        """Whether a layer was not to learn in some samples."""
        return bool(self.frozen[self.numbers[name]])

    @property
    def without_gradient(self) -> list[str]:
        """The layers that an optimizer has and no gradient ever reached, if it reached others."""
        return self._never_trained(self.unreached)

    def _never_trained(self, samples: Integers) -> list[str]:
        at = np.flatnonzero((samples >= _LEAST_SAMPLES) & (self.moved == 0))
        names = [self.names[n] for n in at.tolist()]
        return innermost_layers(names) if self.moved.any() else []

    def _with_names(self, names: tuple[str, ...]) -> LayerHistory:
        new = [n for n in names if n not in self.numbers][: MOST_LAYERS - len(self.names)]
        if not new:
            return self
        names_now = (*self.names, *new)
        grown: dict[str, Any] = {}
        for name in (one.name for one in fields(self)):
            if isinstance(old := getattr(self, name), np.ndarray):
                fresh = np.full((len(new), *old.shape[1:]), _ABSENT.get(name, 0), old.dtype)
                grown[name] = np.concatenate([old, fresh])
        numbers = {name: number for number, name in enumerate(names_now)}
        return replace(self, names=names_now, numbers=numbers, **grown)

    def _counts(self, layer: Integers, weights: Floats | None = None) -> Any:
        return np.bincount(layer, weights, minlength=len(self.names))

    def _with_training(self, layer: Integers, rows: BlockLayerRows) -> LayerHistory:
        """Count the samples of layers that should learn, by who trains them."""
        trainable = rows.flags("trainable")
        learns = (trainable == 1) & (layer >= 0)
        reached = (rows.flags("grad_finite") == 1) | (rows.flags("out_grad_finite") == 1)
        has_group = np.isfinite(rows.numbers("param_group"))
        return replace(
            self,
            moved=self.moved + self._counts(layer[learns & reached & has_group]),
            unowned=self.unowned + self._counts(layer[learns & reached & ~has_group]),
            unreached=self.unreached + self._counts(layer[learns & ~reached & has_group]),
            frozen=self.frozen + self._counts(layer[(trainable == 0) & (layer >= 0)]),
        )

    def _with_shares(
        self, layer: Integers, step: Integers, share: Floats, few_bits: Mask
    ) -> LayerHistory:
        has_share = ~np.isnan(share)
        layer, step, share = layer[has_share], step[has_share], share[has_share]
        first, last = self.first_step.copy(), self.last_step.copy()
        last[layer] = step
        lost = (share >= thresholds.UNDERFLOW_SHARE) & few_bits[has_share]
        losing, at = np.unique(layer[lost], return_index=True)
        first[losing] = np.where(first[losing] < 0, step[lost][at], first[losing])
        return replace(
            self,
            samples=self.samples + self._counts(layer),
            losing=self.losing + self._counts(layer[lost]),
            share_sum=self.share_sum + self._counts(layer[lost], share[lost]),
            first_step=first,
            last_step=last,
        )

    def _with_headrooms(self, layer: Integers, step: Integers, octaves: Floats) -> LayerHistory:
        is_finite = np.isfinite(octaves)
        layer, step, octaves = layer[is_finite], step[is_finite], octaves[is_finite]
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
        has_window = np.isfinite(low) | np.isfinite(high)
        if not has_window.any():
            return self
        low = np.where(np.isfinite(low), low, -np.inf)[has_window]
        high = np.where(np.isfinite(high), high, np.inf)[has_window]
        layer, step = layer[has_window], step[has_window]
        begin = np.flatnonzero(np.diff(step, prepend=step[0] - 1))
        tolerates, needs = np.minimum.reduceat(high, begin), np.maximum.reduceat(low, begin)
        bad = np.flatnonzero(needs > tolerates * 2.0**CONFLICT_OCTAVES).tolist()
        history = replace(
            self, window_steps=self.window_steps + len(begin), conflicts=self.conflicts + len(bad)
        )
        for at in sorted({*bad[:1], *bad[-1:]}):
            of_step = slice(begin[at], begin[at + 1] if at + 1 < len(begin) else None)
            needy = layer[of_step][np.argmax(low[of_step])]
            weak = layer[of_step][np.argmin(high[of_step])]
            conflict = ScaleConflict(
                int(step[begin[at]]), self.names[needy], float(needs[at]),
                self.names[weak], float(tolerates[at]),
            )  # fmt: skip
            first = history.first_conflict or conflict
            history = replace(history, first_conflict=first, last_conflict=conflict)
        return history


ROOT = "(root)"  # what the one model's own layer is called; several have names of their own


def innermost_layers(names: Collection[str]) -> list[str]:
    """The names of layers that hold none of the other layers named."""
    holders = {ROOT} if set(names) - {ROOT} else set()
    for name in names:
        parts = name.split(".")
        holders |= {".".join(parts[:count]) for count in range(1, len(parts))}
    return [name for name in names if name not in holders]


WINDOWS = 16
FIRST_WIDTH = 64  # entries
_MOST_ATTENTIONS = 4096
FORMAT_OCTAVES = float(np.log2(65504.0))

_SCORES = re.compile(r"(softmax|scores?|logits|qk)$")
_ATTENTION = re.compile(r"att(n|ention|end)|mha")
_PROJECTION = r"(?:to_|w|lin_|linear_|proj_)?{}(?:_?(?:proj|projection|lin|linear|layer))?$"
_QUERY = re.compile(_PROJECTION.format("(?:q|query)"))
_KEY = re.compile(_PROJECTION.format("(?:k|key)"))
_BOTH = re.compile(_PROJECTION.format("(?:qkv|qk|query_key_value|c_attn|in)"))


@dataclass(frozen=True, slots=True)
class AttentionScore:
    """Where the scores of one attention module are read: in one layer, or as the product of two."""

    layer: str  # that a finding names
    parts: tuple[int, ...]  # in `ScoreHistory.names`
    product: bool  # of two maxima, and not the scores themselves


_NO_SUMS = DoublingWindows.empty(np.add, WINDOWS, 0, width=FIRST_WIDTH)
_NO_STEPS = DoublingWindows.empty(np.fmin, WINDOWS, width=FIRST_WIDTH)


@dataclass(frozen=True, slots=True)
class AttentionScoreHistory:
    """Each attention's mean headroom in octaves, by window of the run; `fold` makes a new one."""

    names: tuple[str, ...] = ()
    scores: tuple[AttentionScore, ...] = ()
    sums: DoublingWindows = _NO_SUMS
    counts: DoublingWindows = _NO_SUMS
    first_steps: DoublingWindows = _NO_STEPS
    last_step: int = -1

    def fold(self, block: Block, judged: Mask) -> AttentionScoreHistory:
        """Add a block; `judged` marks its accepted steps at an established scale."""
        rows = block.layers
        ours = _attention_among(rows.names)
        if not ours or not len(block):
            return self
        grown = self._with_names(tuple(rows.names[n] for n in ours))
        codes = np.full(len(rows.names) + 1, -1)
        numbers = {name: number for number, name in enumerate(grown.names)}
        codes[list(ours)] = [numbers.get(rows.names[n], -1) for n in ours]
        layer, headroom = codes[rows.layer], rows.numbers("log2_headroom")
        at, there = rows.entry, rows.has_entry
        keep = np.flatnonzero((layer >= 0) & there & np.isfinite(headroom))
        keep = keep[judged[at[keep]]]
        if not len(keep):
            return grown
        position, layer, headroom = block.start + at[keep], layer[keep], headroom[keep]
        return replace(
            grown,
            sums=grown.sums.with_entries(position, headroom, layer),
            counts=grown.counts.with_entries(position, np.ones(len(keep)), layer),
            first_steps=grown.first_steps.with_entries(position, block.step[at[keep]]),
            last_step=int(block.step[at[keep[-1]]]),
        )

    @property
    def width(self) -> int:
        """How many steps of the run one window of scores holds."""
        return self.sums.width

    def levels(self) -> Floats:
        """The mean headroom of each attention's scores in each window; nan for an empty window."""
        with np.errstate(invalid="ignore"):
            counts = self.counts.values
            means = self.sums.values / np.where(counts > 0, counts, np.nan)
        levels = [
            means[:, list(score.parts)].sum(axis=1) - FORMAT_OCTAVES * (len(score.parts) - 1)
            for score in self.scores
        ]
        return np.array(levels).reshape(len(levels), WINDOWS)

    def _with_names(self, seen: tuple[str, ...]) -> AttentionScoreHistory:
        before = set(self.names)
        new = [name for name in seen if name not in before][: _MOST_ATTENTIONS - len(self.names)]
        if not new:
            return self
        names = (*self.names, *new)
        return replace(
            self,
            names=names,
            scores=scores_of(names),
            sums=self.sums.with_columns(len(new)),
            counts=self.counts.with_columns(len(new)),
        )


@functools.lru_cache(maxsize=16)  # the same names come with every block
def _attention_among(names: tuple[str, ...]) -> tuple[int, ...]:
    return tuple(number for number, name in enumerate(names) if is_attention(name))


def is_attention(name: str) -> bool:
    """Whether a layer, by its name, holds attention scores, or a query or key that makes them."""
    last = _last_part(name)
    if _SCORES.search(last) or _BOTH.match(last):
        return _ATTENTION.search(name.lower()) is not None
    return bool(_QUERY.match(last) or _KEY.match(last))


def scores_of(names: tuple[str, ...]) -> tuple[AttentionScore, ...]:
    """The attention scores that can be read from layers of these names."""
    at = {name: number for number, name in enumerate(names)}
    scored = {_around(name) for name in names if _SCORES.search(_last_part(name))}
    keys = {_around(name): at[name] for name in names if _KEY.match(_last_part(name))}
    scores = []
    for name in names:
        last, around = _last_part(name), _around(name)
        if _SCORES.search(last):
            scores.append(AttentionScore(name, (at[name],), product=False))
        elif around in scored:
            continue
        elif _BOTH.match(last):
            scores.append(AttentionScore(name, (at[name], at[name]), product=True))
        elif _QUERY.match(last) and around in keys:
            scores.append(AttentionScore(name, (at[name], keys[around]), product=True))
    return tuple(scores)


def _last_part(name: str) -> str:
    return name.rpartition(".")[2].lower()


def _around(name: str) -> str:
    return name.rpartition(".")[0]
