"""In which precision layers run, folded, and what that costs.

Casts below 16 bits cut values off or flush them; rounding to half precision takes parts of updates.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from ampwatch.diagnosis.blocks import Block, BlockLayerRows
from ampwatch.diagnosis.column_arrays import Floats, Integers
from ampwatch.diagnosis.layer_history import MOST_LAYERS
from ampwatch.diagnosis.record import Event
from ampwatch.rows import EventKind

_HALF = ("float16", "bfloat16")


@dataclass(frozen=True, slots=True)
class LayerPrecision:
    """The data types of one layer, as its latest sample shows them."""

    flops: float | None  # of its matrix product, if it is one
    runs_half: bool  # or in less
    keeps_float16: bool  # trainable weights
    sides: tuple[int, ...] = ()  # of the matrices it multiplies, as far as they are known
    output_dtype: str = "float32"
    formats: tuple[str | None, ...] = (None, None, None)  # below 16 bits: input, weight, gradient
    kind: str = ""
    order: int = -1  # in the forward pass

    @property
    def is_quantised(self) -> bool:
        """Whether the layer casts an operand of its product below 16 bits."""
        return any(self.formats)


@dataclass(frozen=True, slots=True)
class PrecisionHistory:
    """The precision in which each layer runs and keeps its weights; `fold` makes a new one."""

    layers: dict[str, LayerPrecision] = field(default_factory=dict)
    sampled_steps: int = 0
    batch_norms: frozenset[str] = frozenset()  # that learn, and so keep running statistics

    def fold(self, block: Block) -> PrecisionHistory:
        """The history of precisions with one more block."""
        rows = block.layers
        if not len(rows):
            return self
        norms = self.batch_norms
        norms |= _batch_norms(rows) if len(norms) < MOST_LAYERS else frozenset()
        names, codes = rows.texts("output_dtype")
        cast = np.logical_or.reduce([rows.texts(name)[1] >= 0 for name in _FORMATS])
        places = np.flatnonzero((rows.layer >= 0) & ((codes >= 0) | cast))
        if not len(places):
            return replace(self, batch_norms=norms)
        half = rows.has_text("output_dtype", *_HALF)
        formats = [_texts_at(*rows.texts(name)) for name in _FORMATS]
        kind_of, order = _texts_at(*rows.texts("kind")), rows.numbers("order")
        keeps = rows.has_text("param_dtype", "float16") & (rows.flags("trainable") == 1)
        flops = rows.numbers("flops")
        latest = places[::-1][np.unique(rows.layer[places][::-1], return_index=True)[1]]
        layers = dict(self.layers)
        for at in latest.tolist():
            name = rows.names[rows.layer[at]]
            if name in layers or len(layers) < MOST_LAYERS:
                work = float(flops[at]) if flops[at] > 0 else None
                narrow = tuple(format_of(at) for format_of in formats)
                sides = _sides(rows, at) if work or any(narrow) else ()
                output = names[codes[at]] if codes[at] >= 0 else ""
                layers[name] = LayerPrecision(
                    flops=work,
                    runs_half=bool(half[at]) or any(narrow),
                    keeps_float16=bool(keeps[at]),
                    sides=sides,
                    output_dtype=output,
                    formats=narrow,
                    kind=kind_of(at) or "",
                    order=int(order[at]) if order[at] >= 0 else -1,
                )
        steps = self.sampled_steps + len(np.unique(rows.step[places]))
        return PrecisionHistory(layers, steps, norms)

    @property
    def products(self) -> dict[str, LayerPrecision]:
        """The layers that multiply matrices, and their precision."""
        return {name: one for name, one in self.layers.items() if one.flops is not None}


_FORMATS = ("input_format", "weight_format", "grad_format")


def _texts_at(names: Sequence[str], codes: Integers) -> Callable[[int], str | None]:
    """A function that gives the data type or kind of a layer's row; None where it is absent."""
    return lambda at: names[codes[at]] if codes[at] >= 0 else None


def _batch_norms(rows: BlockLayerRows) -> frozenset[str]:
    kinds, codes = rows.texts("kind")
    wanted = [n for n, kind in enumerate(kinds) if "BatchNorm" in kind]
    at = np.isin(codes, wanted) & (rows.flags("trainable") == 1) & (rows.layer >= 0)
    return frozenset(rows.names[layer] for layer in np.unique(rows.layer[at]))


def _sides(rows: BlockLayerRows, at: int) -> tuple[int, ...]:
    """The sides of a layer's matrix product, of which misaligned ones lose tensor cores.

    They are outputs, inputs and, of a plain layer, the rows of the batch. A convolution
    with one input channel a group is no matrix product for a GPU.
    """
    shape: list[int] = rows.value("weight_shape", at) or []
    if len(shape) < 2 or (len(shape) > 2 and shape[1] == 1):
        return ()
    count = rows.numbers("rows")[at]
    plain = len(shape) == 2 and count > 0
    return (*shape[:2], int(count)) if plain else tuple(shape[:2])


# A layer is judged by its last samples, so that what begins late is seen and what is over is not.
LAST_SAMPLES = 8
ROLES = ("input", "weight", "grad")


@dataclass(frozen=True, slots=True)
class CastSamples:
    """The last samples of what casts did to one operand of a layer, the oldest first."""

    steps: tuple[int, ...] = ()
    cut: tuple[float, ...] = ()  # shares
    flushed: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class CastScales:
    """The delayed scales of one layer's casts in one step: the least and the largest of all ranks.

    They are nan where a role has none.
    """

    step: int
    least: tuple[float, ...]
    largest: tuple[float, ...]

    def with_rank(self, values: Sequence[float]) -> CastScales:
        """The delayed scales of a layer's casts in a step, with those of one more rank."""
        least, largest = np.fmin(self.least, values), np.fmax(self.largest, values)
        return CastScales(self.step, tuple(least.tolist()), tuple(largest.tolist()))


# A layer and a role, or _STALENESS; of each of the last sampled steps its number and its shares.
_Key: TypeAlias = "tuple[str, str]"
_Samples: TypeAlias = "tuple[tuple[Any, ...], ...]"
_STALENESS = "amax"


@dataclass(frozen=True, slots=True)
class CastHistory:
    """The last samples of casts below 16 bits, by layer and operand; `fold` makes a new one."""

    samples: Mapping[_Key, _Samples] = field(default_factory=dict)
    scales: Mapping[str, tuple[CastScales, ...]] = field(default_factory=dict)  # by layer
    resumed_at: int | None = None  # where the last attempt went on from a checkpoint
    after_resume: Mapping[str, CastScales] = field(default_factory=dict)  # each layer's first

    @property
    def operands(self) -> dict[_Key, CastSamples]:
        """The last samples of what casts did to each layer's operands, by layer and role."""
        return {
            key: CastSamples(*zip(*rows, strict=True))
            for key, rows in self.samples.items()
            if key[1] != _STALENESS
        }

    @property
    def staleness(self) -> dict[str, tuple[tuple[int, ...], tuple[float, ...]]]:
        """The steps and values of the last samples of how stale each layer's scales are."""
        return {
            layer: (tuple(step for step, _ in rows), tuple(value for _, value in rows))
            for (layer, role), rows in self.samples.items()
            if role == _STALENESS
        }

    def fold(self, block: Block) -> CastHistory:
        """The history of casts with one more block."""
        rows, history = block.layers, self._before(block) if block.restart else self
        for role in ROLES:
            cut = rows.numbers(f"{role}_saturated_share")
            history = history._with_samples(rows, role, rows.numbers(f"{role}_flushed_share"), cut)
        history = history._with_samples(rows, _STALENESS, rows.numbers("amax_staleness"))
        for step in map(_resumed_at, block.events):
            if step is not None and step != history.resumed_at:
                history = replace(history, resumed_at=step, after_resume={})
        if not all(np.isnan(rows.numbers(f"{role}_scale")).all() for role in ROLES):
            history = history._with_scales(rows)
        return history

    def _before(self, block: Block) -> CastHistory:
        """What of the cast samples remains when an attempt begins anew from an earlier step."""
        first = int(block.step.min()) if len(block.step) else 0
        samples = {
            key: earlier
            for key, known in self.samples.items()
            if (earlier := tuple(row for row in known if row[0] < first))
        }
        scales = {
            name: before
            for name, held in self.scales.items()
            if (before := tuple(one for one in held if one.step < first))
        }
        return CastHistory(samples, scales)

    def _with_samples(
        self, rows: BlockLayerRows, role: str, values: Floats, *others: Floats
    ) -> CastHistory:
        """The history with the rows of one role that have a value; `others` go before it."""
        if np.isnan(values).all():
            return self
        samples = dict(self.samples)
        for name, at in _last_of_each(rows, values):
            key = (name, role)
            if key in samples or len(samples) < len(ROLES) * MOST_LAYERS:
                columns = (rows.step[at], *(column[at] for column in (*others, values)))
                new = zip(*(column.tolist() for column in columns), strict=True)
                samples[key] = _worst_of_each_step([*samples.get(key, ()), *new])
        return replace(self, samples=samples)

    def _with_scales(self, rows: BlockLayerRows) -> CastHistory:
        scales, after_resume = dict(self.scales), dict(self.after_resume)
        values = np.stack([rows.numbers(f"{role}_scale") for role in ROLES])
        places = np.flatnonzero(~np.isnan(values).all(axis=0) & (rows.layer >= 0))
        for at in places[np.argsort(rows.step[places], kind="stable")].tolist():
            name, step = rows.names[rows.layer[at]], int(rows.step[at])
            samples = scales.get(name, ())
            if name not in scales and len(scales) >= MOST_LAYERS:
                continue
            cast = tuple(values[:, at].tolist())
            if samples and samples[-1].step == step:
                samples = (*samples[:-1], samples[-1].with_rank(cast))
            else:
                samples = (*samples, CastScales(step, cast, cast))[-LAST_SAMPLES:]
            scales[name] = samples
            first = after_resume.get(name)
            is_first = self.resumed_at is not None and step >= self.resumed_at and (
                first is None or first.step == step
            )  # fmt: skip
            if is_first:
                after_resume[name] = samples[-1]
        return replace(self, scales=scales, after_resume=after_resume)


def _resumed_at(event: Event) -> int | None:
    """The step at which training resumed, after which casts may have lost their scales; or None."""
    if event.kind != EventKind.STARTED.value:
        return None
    start = event.detail.get("start_step")
    step = start if isinstance(start, int) else event.step
    return step if step > 0 else None


def _worst_of_each_step(rows: Iterable[tuple[Any, ...]]) -> _Samples:
    """The last cast samples by step, the largest value of all ranks in each."""
    worst: dict[int, tuple[float, ...]] = {}
    for step, *values in rows:
        pairs = zip(worst.get(step, values), values, strict=True)
        worst[step] = tuple(float(np.fmax(one, other)) for one, other in pairs)
    return tuple((step, *worst[step]) for step in sorted(worst))[-LAST_SAMPLES:]


def _last_of_each(rows: BlockLayerRows, values: Floats) -> Iterator[tuple[str, Integers]]:
    """Each layer with cast samples in a block, and the rows of its last few, in order of steps."""
    places = np.flatnonzero(~np.isnan(values) & (rows.layer >= 0))
    if not len(places):
        return
    order = places[np.lexsort((rows.step[places], rows.layer[places]))]
    layers, begin = np.unique(rows.layer[order], return_index=True)
    for layer, part in zip(layers.tolist(), np.split(order, begin[1:]), strict=True):
        steps = np.unique(rows.step[part])[-LAST_SAMPLES:]
        yield rows.names[layer], part[rows.step[part] >= steps[0]]


# Kahan sums and float32 masters keep what rounding loses, but give nothing back before the updates
# add up to a spacing or two of the weights: until then all optimizers look alike.
SETTLED_SPACINGS = 2.0
# Beyond so many, every second sample is dropped.
_MOST_SAMPLES = 256


@dataclass(frozen=True, slots=True)
class RoundingSample:
    """How much of its update one sampled step lost to rounding."""

    step: int
    unmoved_share: float
    asked_share: float
    update_kept_share: float


@dataclass(frozen=True, slots=True)
class RoundingHistory:
    """The samples of what rounding left of updates; `fold` makes a new one."""

    samples: tuple[RoundingSample, ...] = ()
    seen: int = 0
    every: int = 1  # one of so many samples is kept
    spacings: float = 0.0  # that a typical weight was asked to move so far
    last_step: int | None = None

    def fold(self, block: Block) -> RoundingHistory:
        """The history of rounding with one more block."""
        # After a restart, masters and sums may have been made from the weights again.
        history = replace(self, spacings=0.0, last_step=None) if block.restart else self
        figures = np.array([block.columns[name] for name in _COLUMNS])
        for at in np.isfinite(figures).all(axis=0).nonzero()[0].tolist():
            history = history._with(RoundingSample(int(block.step[at]), *figures[:, at].tolist()))
        return history

    def _with(self, sample: RoundingSample) -> RoundingHistory:
        gap = 1 if self.last_step is None else max(1, sample.step - self.last_step)
        spacings = self.spacings + gap * sample.asked_share
        history = replace(self, spacings=spacings, last_step=sample.step)
        if spacings < SETTLED_SPACINGS:
            return history
        samples = self.samples if self.seen % self.every else (*self.samples, sample)
        every = self.every
        if len(samples) > _MOST_SAMPLES:
            samples, every = samples[::2], 2 * every
        return replace(history, samples=samples, seen=self.seen + 1, every=every)


_COLUMNS = ("unmoved_share", "asked_share", "update_kept_share")


@dataclass(frozen=True, slots=True)
class KeptUpdates:
    """How much of their updates the weights kept after rounding, over some samples."""

    share: float
    error: float  # of that mean

    @classmethod
    def of(cls, samples: Sequence[RoundingSample]) -> KeptUpdates:
        """The mean that rounding kept over these samples (two at least), and its error."""
        shares = [sample.update_kept_share for sample in samples]
        return cls(statistics.fmean(shares), statistics.stdev(shares) / math.sqrt(len(shares)))
