"""How the attention's scores grow over the whole record, folded: sixteen windows, however long.

Scores are seldom a layer's output: a query times a key is made between the layers. So they are read
where a layer shows them: a module that gives the scores or takes their softmax, or else the query's
and the key's projections, whose largest values together stand for it (a score is at most sqrt(d)
times their product, and mostly less). Which layers those are only their names tell; fused attention
(`nn.MultiheadAttention`) hides them, and is not judged.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field, replace

import numpy as np

from ampwatch.diagnosis.blocks import Block
from ampwatch.diagnosis.signals import Floats, Integers, Mask

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
class Score:
    """Where one attention's scores are read: two layers, or twice the same, or one alone."""

    layer: str  # that a finding names
    parts: tuple[int, ...]  # in `ScoreCourse.names`
    product: bool  # of two maxima, and not the scores themselves


@dataclass(frozen=True, slots=True)
class ScoreCourse:
    """Mean headroom in octaves of each such layer, by window; `fold` makes a new one."""

    names: tuple[str, ...] = ()
    scores: tuple[Score, ...] = ()
    width: int = FIRST_WIDTH
    sums: Floats = field(default_factory=lambda: np.zeros((0, WINDOWS)))
    counts: Integers = field(default_factory=lambda: np.zeros((0, WINDOWS), np.int64))
    first_steps: Integers = field(default_factory=lambda: np.full(WINDOWS, -1, np.int64))
    last_step: int = -1

    def fold(self, block: Block, judged: Mask) -> ScoreCourse:
        """The course with a block; `judged` entries are accepted and at an established scale."""
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
        return grown._with_values(layer[keep], block, at[keep], headroom[keep])

    def levels(self) -> Floats:
        """Headroom of each of `scores` by window; nan where a window has none."""
        with np.errstate(invalid="ignore"):
            means = self.sums / np.where(self.counts > 0, self.counts, np.nan)
        made = [
            means[list(score.parts)].sum(axis=0) - FORMAT_OCTAVES * (len(score.parts) - 1)
            for score in self.scores
        ]
        return np.array(made).reshape(len(made), WINDOWS)

    def _with_names(self, seen: tuple[str, ...]) -> ScoreCourse:
        known = set(self.names)
        new = [name for name in seen if name not in known][: MOST_LAYERS - len(self.names)]
        if not new:
            return self
        names, wide = (*self.names, *new), np.zeros((len(new), WINDOWS))
        return replace(
            self,
            names=names,
            scores=scores_of(names),
            sums=np.concatenate([self.sums, wide]),
            counts=np.concatenate([self.counts, wide.astype(np.int64)]),
        )

    def _with_values(
        self, layer: Integers, block: Block, at: Integers, headroom: Floats
    ) -> ScoreCourse:
        wide = self._wide_enough(block.start + int(at.max()))
        window = (block.start + at) // wide.width
        cell = layer * WINDOWS + window
        shape, size = wide.sums.shape, wide.sums.size
        firsts = wide.first_steps.copy()
        fresh, where = np.unique(window, return_index=True)
        unseen = firsts[fresh] < 0
        firsts[fresh[unseen]] = block.step[at[where[unseen]]]
        return replace(
            wide,
            sums=wide.sums + np.bincount(cell, headroom, minlength=size).reshape(shape),
            counts=wide.counts + np.bincount(cell, minlength=size).reshape(shape),
            first_steps=firsts,
            last_step=int(block.step[at[-1]]),
        )

    def _wide_enough(self, position: int) -> ScoreCourse:
        """Windows that reach this entry: pairs become one as often as it takes."""
        made = self
        while position >= WINDOWS * made.width:
            pairs = made.first_steps.reshape(-1, 2)
            firsts = np.where(pairs[:, 0] >= 0, pairs[:, 0], pairs[:, 1])
            made = replace(
                made,
                width=2 * made.width,
                sums=_paired(made.sums),
                counts=_paired(made.counts),
                first_steps=np.concatenate([firsts, np.full(WINDOWS // 2, -1, np.int64)]),
            )
        return made


def _paired(values: np.ndarray) -> np.ndarray:
    halves = values.reshape(len(values), -1, 2).sum(axis=2)
    return np.concatenate([halves, np.zeros_like(halves)], axis=1)


@functools.lru_cache(maxsize=16)  # the same names come with every block
def _attention_among(names: tuple[str, ...]) -> tuple[int, ...]:
    return tuple(number for number, name in enumerate(names) if is_attention(name))


def is_attention(name: str) -> bool:
    """Whether a layer of this name shows scores, or makes them with another."""
    last = _last_part(name)
    if _SCORES.search(last) or _BOTH.match(last):
        return _ATTENTION.search(name.lower()) is not None
    return bool(_QUERY.match(last) or _KEY.match(last))


def scores_of(names: tuple[str, ...]) -> tuple[Score, ...]:
    """Every attention that these layers show; its scores themselves where they are there."""
    at = {name: number for number, name in enumerate(names)}
    shown = {_around(name) for name in names if _SCORES.search(_last_part(name))}
    keys = {_around(name): at[name] for name in names if _KEY.match(_last_part(name))}
    made = []
    for name in names:
        last, around = _last_part(name), _around(name)
        if _SCORES.search(last):
            made.append(Score(name, (at[name],), product=False))
        elif around in shown:
            continue
        elif _BOTH.match(last):
            made.append(Score(name, (at[name], at[name]), product=True))
        elif _QUERY.match(last) and around in keys:
            made.append(Score(name, (at[name], keys[around]), product=True))
    return tuple(made)


def _last_part(name: str) -> str:
    return name.rpartition(".")[2].lower()


def _around(name: str) -> str:
    return name.rpartition(".")[0]
