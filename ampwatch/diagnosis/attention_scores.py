"""How the scores of each attention grow over the whole record, folded into sixteen windows.

Scores are seldom the output of a layer: a query times a key is computed between the layers. They
are read where a layer shows them: in a module that gives the scores or takes their softmax, or
else in the projections of query and key, whose largest values together stand for the score (a
score is at most sqrt(d) times their product, and usually less). Only names tell which layers these
are. Fused attention (`nn.MultiheadAttention`) hides them and is not judged.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, replace

import numpy as np

from ampwatch.diagnosis.blocks import Block
from ampwatch.diagnosis.column_arrays import Floats, Mask
from ampwatch.diagnosis.doubling_windows import DoublingWindows

WINDOWS = 16
FIRST_WIDTH = 64  # entries
MOST_LAYERS = 4096
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
        known = {name: number for number, name in enumerate(grown.names)}
        codes[list(ours)] = [known.get(rows.names[n], -1) for n in ours]
        layer, headroom = codes[rows.layer], rows.numbers["log2_headroom"]
        at, there = block.layer_entries
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
        made = [
            means[:, list(score.parts)].sum(axis=1) - FORMAT_OCTAVES * (len(score.parts) - 1)
            for score in self.scores
        ]
        return np.array(made).reshape(len(made), WINDOWS)

    def _with_names(self, seen: tuple[str, ...]) -> AttentionScoreHistory:
        known = set(self.names)
        new = [name for name in seen if name not in known][: MOST_LAYERS - len(self.names)]
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
    shown = {_around(name) for name in names if _SCORES.search(_last_part(name))}
    keys = {_around(name): at[name] for name in names if _KEY.match(_last_part(name))}
    made = []
    for name in names:
        last, around = _last_part(name), _around(name)
        if _SCORES.search(last):
            made.append(AttentionScore(name, (at[name],), product=False))
        elif around in shown:
            continue
        elif _BOTH.match(last):
            made.append(AttentionScore(name, (at[name], at[name]), product=True))
        elif _QUERY.match(last) and around in keys:
            made.append(AttentionScore(name, (at[name], keys[around]), product=True))
    return tuple(made)


def _last_part(name: str) -> str:
    return name.rpartition(".")[2].lower()


def _around(name: str) -> str:
    return name.rpartition(".")[0]
