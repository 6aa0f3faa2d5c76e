"""What a cast to a number format loses, and the operands of matrix products of which that is told.

The scales are computed as the libraries compute them, from the maximum of the whole tensor, of each
row or of each block. Magnitudes come as samples x width x rows: the blocks of a row stand upright.

A sample of whole blocks is copied on the tensor's own device, when a layer receives or returns the
tensor, and counted by tensor operations: on a device without waiting for it; for CPU tensors on the
courier's thread. So for a tensor that fits into the sample, the counts are exactly those of the
cast. Cut off: beyond the largest number by more than rounding. Flushed: not zero before, zero
after.

Examined are linear layers whose operands are cast below sixteen bits, and those in fp16 or bf16, of
which it is computed what a cast would do. In each sampled step the first call counts.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from ampwatch.probe.formats import ELEMENTS, Element, NumberFormat, RoleFormats
from ampwatch.probe.formats.library_formats import (
    DelayedRoom,
    delayed_room,
    formats_of,
    inner_weight,
    is_linear,
    is_of_torch,
    scales_in_use,
)
from ampwatch.probe.models import Survey
from ampwatch.probe.tensor_values import HALF, Pack, extremes, is_shard, measurable
from ampwatch.rows import WHAT_IF_FORMATS

BLOCK = 32  # MX scales so many values together, NVFP4 16 of them

# torchao's floor on a maximum.
_LEAST_MAXIMUM = 1e-12
_LEAST_SCALE = 2.0**-126
_EXPONENT_BITS = 0x7F80_0000
_FRACTION_BITS = 0x007F_FFFF
_MX_EVEN = 1 << 19  # half of the last place that E4M3 keeps, of a float32
_FLOAT8_SMALLEST_NORMAL = 2.0**-6  # what NVFP4's block scales may fall to
_FLOAT8_LARGEST = 448.0
_NVFP4_BLOCK = 16


# -- scales ----------------------------------------------------------------------------------------


def block_of(form: NumberFormat | None) -> int | None:
    """The length of a format's block along a row; None for other granularities."""
    if form is None or not form.granularity.startswith("block"):
        return None
    lines, _, length = form.granularity.removeprefix("block").rpartition("x")
    return int(length) if lines in {"", "1"} and length.isdigit() else None


def scaled_as(magnitudes: Tensor, amax: Tensor, form: NumberFormat, scale: Tensor | None) -> Tensor:
    """The magnitudes as the element's format sees them."""
    element = ELEMENTS[form.element]
    if scale is not None:
        return magnitudes * scale
    if form.element == "nvfp4":
        return _as_nvfp4(magnitudes, amax)
    if form.element.startswith("mx"):
        return _as_mx(magnitudes, element, block_of(form) or BLOCK, form.rounded_scales)
    top = amax
    if form.granularity == "rowwise":
        top = magnitudes.amax(-2, keepdim=True)
    elif (block := block_of(form)) is not None:
        blocks = _in_blocks(magnitudes, block)
        return (blocks * _scale(blocks.amax(-2, keepdim=True), element, form)).flatten(-3, -2)
    return magnitudes * _scale(top, element, form)


def _scale(top: Tensor, element: Element, form: NumberFormat) -> Tensor:
    """torchao's arithmetic: in float64, then float32, and down to a power of two where asked."""
    exact = element.largest / top.double().clamp(min=_LEAST_MAXIMUM)
    scale = exact.float()
    return _power_below(scale) if form.rounded_scales == "down" else scale


def _as_mx(magnitudes: Tensor, element: Element, block: int, rounding: str) -> Tensor:
    """Scales of whole powers of two for each block, as MX chooses them."""
    blocks = _in_blocks(magnitudes, block)
    top = blocks.amax(-2, keepdim=True)
    if rounding in {"", "up"}:
        scale = _power_above(top / element.largest)
    else:
        if rounding == "ceil":
            power = _power_above(top)
        elif rounding == "even":
            power = _power_below((top.view(torch.int32) + _MX_EVEN).view(torch.float32))
        else:
            power = _power_below(top)
        scale = power / 2.0 ** math.floor(math.log2(element.largest))
    # Of a block of zeros the scale would be zero.
    return (blocks / scale.clamp(min=_LEAST_SCALE)).flatten(-3, -2)


def _as_nvfp4(magnitudes: Tensor, amax: Tensor) -> Tensor:
    """Block scales in E4M3 under one scale of the tensor."""
    outer = amax / (_FLOAT8_LARGEST * ELEMENTS["nvfp4"].largest)
    outer = outer.clamp(min=_LEAST_SCALE).unsqueeze(-1)
    blocks = _in_blocks(magnitudes, _NVFP4_BLOCK)
    wanted = blocks.amax(-2, keepdim=True) / ELEMENTS["nvfp4"].largest / outer
    stored = wanted.clamp(_FLOAT8_SMALLEST_NORMAL, _FLOAT8_LARGEST).to(torch.float8_e4m3fn)
    return (blocks * ((1.0 / outer) / stored.float())).flatten(-3, -2)


def _in_blocks(magnitudes: Tensor, block: int) -> Tensor:
    """Upright rows cut into blocks."""
    samples, _, rows = magnitudes.shape
    return magnitudes.view(samples, -1, block, rows)


def _power_below(values: Tensor) -> Tensor:
    """The power of two at or below each positive value."""
    return (values.view(torch.int32) & _EXPONENT_BITS).view(torch.float32)


def _power_above(values: Tensor) -> Tensor:
    """The power of two at or above each positive value; 0 of 0."""
    return ((values.view(torch.int32) + _FRACTION_BITS) & _EXPONENT_BITS).view(torch.float32)


# -- what a cast loses -----------------------------------------------------------------------------

# Below the size from which torch's CPU operations use several threads (32,768), for those are the
# training's.
SAMPLE_LIMIT = 32_000


def _what_if(text: str) -> NumberFormat:
    element, granularity = text.split("/")
    return NumberFormat(element, granularity, rounded_scales="up")


WHAT_IF = tuple(map(_what_if, WHAT_IF_FORMATS))
_COUNTS = 7 + len(WHAT_IF)  # of `counts_of`
# Samples on a device that are counted together: one kernel costs as much for many as for one.
_TOGETHER = 8


@dataclass(slots=True, eq=False)
class CastSample:
    """Some blocks of a tensor, as magnitudes, and the data needed to cast them."""

    values: Tensor | None  # rows of whole blocks; None once they are counted
    extremes: tuple[Tensor, Tensor] | None  # of the whole tensor; None: these are all of it
    form: NumberFormat | None  # what it is really cast to
    scale: Tensor | None  # in use, where it does not follow from the tensor
    what_if: bool  # whether other formats are of interest
    at: int = -1  # of its counts, in the step's pack

    def counts(self, values: Sequence[float]) -> CastCounts | None:
        """What the cast would do to the sample's values; None if the tensor was not finite."""
        amax, _, *counts = values[self.at : self.at + _COUNTS]
        if not math.isfinite(amax):
            return None
        nonzero, cut, flushed, spread, blocks, *what_if = counts
        return CastCounts(nonzero, cut, flushed, spread, blocks, tuple(what_if))

    def used(self, values: Sequence[float]) -> float | None:
        """The maximum times a scale that is not computed from it, over the largest number."""
        if self.scale is None or self.form is None or self.at < 0:
            return None
        return values[self.at + 1]


class CastCounts(NamedTuple):
    """The counts of one sample, or of several together."""

    nonzero: float
    cut: float
    flushed: float
    spread_sum: float  # octaves from mean to maximum, over blocks
    blocks: float
    what_if: tuple[float, ...]  # flushed, by format


# -- a sample, on the training thread --------------------------------------------------------------


def sample(
    tensor: Tensor,
    found: tuple[Tensor, Tensor] | None,
    form: NumberFormat | None,
    scale: Tensor | None = None,
    *,
    what_if: bool = True,
) -> CastSample | None:
    """Blocks spread over the tensor, copied; None if it has no blocks or its rows are too long.

    `found` are its extremes, where they have been measured.
    """
    if not tensor.ndim:
        return None
    known, width = _known_and_width(form, tensor.shape[-1], has_scale=scale is not None)
    if not width or not tensor.numel():
        return None
    if tensor.requires_grad:
        tensor = tensor.detach()
    rows = _rows(tensor, width)
    if found is None and rows.numel() < tensor.numel():
        found = extremes(tensor)
    return CastSample(rows.abs(), found, known, scale, what_if)


@functools.lru_cache(maxsize=1024)  # asked of every operand, and there are but a few answers
def _known_and_width(
    form: NumberFormat | None, line: int, *, has_scale: bool
) -> tuple[NumberFormat | None, int]:
    """The format, if its shares can be counted; how many neighbours are sampled together, or 0."""
    known = form if _is_countable(form, has_scale=has_scale) else None
    if known is not None and known.granularity == "rowwise":
        return known, line if line <= SAMPLE_LIMIT else 0
    wanted = block_of(known) or BLOCK
    if line % wanted == 0:
        return known, max(wanted, BLOCK) if line % BLOCK == 0 else wanted
    return known, line if line <= SAMPLE_LIMIT else 0


def _is_countable(form: NumberFormat | None, *, has_scale: bool) -> bool:
    """Whether we know how the format scales: squares of blocks and unknown recipes we do not."""
    if form is None or form.element not in ELEMENTS:
        return False
    if form.scaling == "delayed":
        return has_scale
    return form.granularity in {"tensorwise", "rowwise"} or block_of(form) is not None


def _rows(tensor: Tensor, width: int) -> Tensor:
    """Not more than a sample of it, as rows of this width; a view where that is possible."""
    if tensor.numel() <= SAMPLE_LIMIT:
        return tensor.reshape(-1, width)
    if not tensor.is_contiguous():
        tensor = _fewer(tensor, width)
    rows = tensor.reshape(-1, width)
    step = -(-len(rows) // max(1, SAMPLE_LIMIT // width))
    if step > 1:
        across = max(1, tensor.shape[-1] // width)  # else always the same columns
        while math.gcd(step, across) != 1:
            step += 1
        rows = rows[::step]
    return rows


def _fewer(tensor: Tensor, width: int) -> Tensor:
    """Evenly spaced rows of a tensor that cannot be viewed as rows."""
    for axis, size in enumerate(tensor.shape[:-1]):
        step = min(size, -(-tensor.numel() // max(SAMPLE_LIMIT, width)))
        if step > 1:
            tensor = tensor[(slice(None),) * axis + (slice(None, None, step),)]
    return tensor


@dataclass(slots=True, eq=False)
class Number:
    """A number on its way into the step's pack."""

    value: Tensor
    at: int = -1


class CastBatches:
    """The samples of one step; those on a device are counted there, several at a time."""

    def __init__(self) -> None:
        self._on_host: list[CastSample] = []  # counted by the courier, one by one on one thread
        self._waiting: dict[object, list[CastSample]] = {}  # those that can be counted together
        self._counted: list[tuple[list[CastSample], Tensor]] = []
        self._numbers: list[Number] = []

    def add(self, one: CastSample) -> None:
        """Add a sample of a cast; those on a device are counted soon, to free its memory."""
        values = one.values
        if values is None:
            return
        if self._is_on_host(values):
            self._on_host.append(one)
            return
        kind = (one.form, one.scale is None, one.what_if, one.extremes is None)
        alike = (kind, values.shape, values.dtype, values.device)
        waiting = self._waiting.setdefault(alike, [])
        waiting.append(one)
        if len(waiting) == _TOGETHER:
            self._counted.append((waiting, counts_of(waiting)))
            del self._waiting[alike]

    def add_number(self, value: Tensor) -> Number:
        """Add a number that is already computed, on its device."""
        number = Number(value)
        self._numbers.append(number)
        return number

    def _is_on_host(self, values: Tensor) -> bool:
        return values.is_cpu

    def put(self, pack: Pack) -> None:
        """Count what waits of the casts, and put all counts into the step's pack."""
        for part in (*self._waiting.values(), *([one] for one in self._on_host)):
            self._counted.append((part, counts_of(part)))
        for part, counts in self._counted:
            at = pack.put(counts)
            for number, one in enumerate(part):
                one.at = at + number * _COUNTS
        for known in self._numbers:
            known.at = pack.put(known.value)
        self._on_host, self._waiting, self._counted, self._numbers = [], {}, [], []


# -- counts, where the samples are -----------------------------------------------------------------


def counts_of(samples: Sequence[CastSample]) -> Tensor:
    """The counts of samples of one shape and format, one row each; releases the samples."""
    given = [one.values for one in samples]
    rows = torch.stack([values for values in given if values is not None])
    # Blocks stand upright: then a scale a block is one vector, and all runs ten times as fast.
    magnitudes = rows.transpose(-1, -2).contiguous().float()
    top = magnitudes.amax(-2)
    measured = [one.extremes for one in samples if one.extremes is not None]
    maxima = [torch.maximum(-low, high) for low, high in measured]
    amax = (torch.stack(maxima).float() if maxima else top.amax(-1)).view(-1, 1, 1)
    zeros, width = _at_most(magnitudes, 0.0), magnitudes.shape[-2]
    every = float(magnitudes[0].numel())
    is_told = top > 0
    octaves = _log2((top / magnitudes.mean(-2)).nan_to_num(1.0))  # of a block of zeros none
    unknown = torch.full_like(zeros, math.nan)
    cut = flushed = used = unknown
    form = samples[0].form
    if form is not None:
        scales = [one.scale for one in samples if one.scale is not None]
        scale = torch.stack(scales).float().view(-1, 1, 1) if scales else None
        scaled, element = scaled_as(magnitudes, amax, form, scale), ELEMENTS[form.element]
        cut = every - _at_most(scaled, element.cut_above)
        flushed = _at_most(scaled, element.flushed_to) - zeros
        used = unknown if scale is None else (amax * scale).view(-1) / element.largest
    columns = [amax.view(-1), used, every - zeros, cut, flushed, octaves.sum(-1), is_told.sum(-1)]
    for other in WHAT_IF:
        if samples[0].what_if and _fits(other, width):
            scaled = scaled_as(magnitudes, amax, other, None)
            columns.append(_at_most(scaled, ELEMENTS[other.element].flushed_to) - zeros)
        else:
            columns.append(unknown)
    for one in samples:
        one.values = None
    return torch.stack([column.float() for column in columns], dim=-1)


def _log2(values: Tensor) -> Tensor:
    """log2; on a CPU by numpy, because torch's uses MKL threads that would block training."""
    if values.is_cpu:
        return torch.from_numpy(np.log2(values.numpy()))
    return torch.log2(values)


def _at_most(values: Tensor, limit: float) -> Tensor:
    """How many values of each sample are at most this; numpy is five times faster."""
    if values.is_cpu:
        counts = [np.count_nonzero(one <= limit) for one in values.numpy()]
        return torch.tensor(counts, dtype=torch.float32)
    return (values <= limit).flatten(1).sum(-1).float()


def _fits(form: NumberFormat, width: int) -> bool:
    """Whether rows of this width consist of the format's blocks."""
    block = block_of(form)
    return block is None or width % block == 0


# -- the operands of a step ------------------------------------------------------------------------


Extremes = tuple[Tensor, Tensor]


class TensorOfLayer(Protocol):
    """A tensor that was measured when a layer took or gave it."""

    reference: Any
    extremes: list[Tensor]
    cast: GradientCast | None


@dataclass(slots=True, eq=False)
class LayerCasts:
    """The samples of one layer's operands; its own formats."""

    formats: RoleFormats
    scales: dict[str, Tensor]  # in use, by role, where they do not follow from the operands
    scale_numbers: dict[str, Number]  # the scales, by role
    input: CastSample | None = None
    weight: CastSample | None = None
    grad: GradientCast | None = None
    room: DelayedRoom | None = None  # of delayed scales
    used: list[Number] = field(default_factory=list)  # of it: forward, then backward


@dataclass(slots=True, eq=False)
class GradientCast:
    """Samples the first gradient of one tensor."""

    batches: CastBatches
    form: NumberFormat | None
    scale: Tensor | None
    what_if: bool
    sample: CastSample | None = None

    def take(self, gradient: Tensor, found: Extremes) -> Tensor | None:
        """The backward pass has made this gradient; the sample's values, if one was taken now."""
        if self.sample is not None:
            return None
        self.sample = sample(gradient, found, self.form, self.scale, what_if=self.what_if)
        if self.sample is None:
            return None
        values = self.sample.values
        self.batches.add(self.sample)
        return values


class Operands:
    """The operands of one step."""

    def __init__(self, survey: Survey) -> None:
        self.batches = CastBatches()
        self.what_if = True
        self._survey = survey
        self._inputs: dict[tuple[int, int], CastSample | None] = {}  # by ids of tensor and format

    def begin(self, number: int, taken: TensorOfLayer | None, *, half: bool) -> LayerCasts | None:
        """A layer is about to run: sample its operands; None if it is no product of interest."""
        layer = self._survey.layers[number]
        module = layer.module
        if module is None or not layer.leaf:
            return None
        weight = self._survey.matrix_of(layer)
        formats = formats_of(module, weight)
        linear = isinstance(module, nn.Linear) or is_linear(module)
        if not formats and not (self.what_if and linear and (half or _is_half(weight))):
            return None
        scales = scales_in_use(module, formats)
        numbers = {role: self.batches.add_number(scale) for role, scale in scales.items()}
        casts = LayerCasts(formats, scales, numbers)
        if taken is not None and linear:
            casts.input = self._input(taken, casts)
        casts.weight = self._weight(weight, casts)
        return casts

    def leave(self, number: int, casts: LayerCasts | None) -> LayerCasts | None:
        """The layer has run: delayed scales are as they were for this pass.

        A library may decide on its formats in the first pass, so they are asked for once more.
        """
        module = self._survey.layers[number].module
        if casts is None and not is_of_torch(module):
            casts = self.begin(number, None, half=False)
        if casts is None:
            return None
        casts.room = delayed_room(module, casts.formats)
        if casts.room is not None:
            casts.used.append(self.batches.add_number(casts.room.forward))
        return casts

    def end(self, every: Iterable[LayerCasts | None]) -> None:
        """The step is over, so the newest maxima of the operands' gradients are there."""
        for casts in every:
            if casts is not None and casts.room is not None:
                used = casts.room.backward()
                if used is not None:
                    casts.used.append(self.batches.add_number(used))
                casts.room = None

    def follow_gradient(self, casts: LayerCasts, given: TensorOfLayer) -> None:
        """The layer gave this tensor: its gradient is the product's third operand."""
        if given.cast is None:
            form, scale = casts.formats.grad, casts.scales.get("grad")
            given.cast = GradientCast(self.batches, form, scale, self.what_if)
        casts.grad = given.cast

    def _input(self, taken: TensorOfLayer, casts: LayerCasts) -> CastSample | None:
        """A tensor that several layers take is sampled once for each format."""
        form, scale = casts.formats.input, casts.scales.get("input")
        key = (id(taken), id(form))
        if key not in self._inputs or scale is not None:
            tensor = taken.reference()
            found = (taken.extremes[0], taken.extremes[1])
            self._inputs[key] = None if tensor is None else self._add(tensor, found, form, scale)
        return self._inputs[key]

    def _weight(self, weight: Any, casts: LayerCasts) -> CastSample | None:
        held = inner_weight(weight)
        if held is None or is_shard(weight) or not measurable(held):
            return None
        return self._add(held, None, casts.formats.weight, casts.scales.get("weight"))

    def _add(
        self,
        tensor: Tensor,
        found: Extremes | None,
        form: NumberFormat | None,
        scale: Tensor | None,
    ) -> CastSample | None:
        taken = sample(tensor, found, form, scale, what_if=self.what_if)
        if taken is not None:
            self.batches.add(taken)
        return taken


def _is_half(weight: Any) -> bool:
    return isinstance(weight, Tensor) and weight.dtype in HALF


# -- as columns, on the courier's thread -----------------------------------------------------------

_ROLES = ("input", "weight", "grad")
_FIGURES = ("saturated_share", "flushed_share", "spread", "what_if")


def cast_columns(layers: Sequence[LayerCasts | None], values: Sequence[float]) -> dict[str, Any]:
    """What was counted of each layer's operands, as columns; nothing where no layer has any."""
    if not any(one is not None for one in layers):
        return {}
    columns: dict[str, list[Any]] = {
        f"{role}_{figure}": [] for role in _ROLES for figure in _FIGURES
    }
    columns["amax_staleness"] = [None if one is None else _staleness(one, values) for one in layers]
    for role in _ROLES:
        columns[f"{role}_scale"] = [_scale_in_use(one, role, values) for one in layers]
    for one in layers:
        for role in _ROLES:
            figures = _figures(None if one is None else _sample(one, role), values)
            for figure, value in zip(_FIGURES, figures, strict=True):
                columns[f"{role}_{figure}"].append(value)
    return columns


def _sample(casts: LayerCasts, role: str) -> CastSample | None:
    if role == "grad":
        return None if casts.grad is None else casts.grad.sample
    return casts.input if role == "input" else casts.weight


def _figures(taken: CastSample | None, values: Sequence[float]) -> tuple[Any, ...]:
    """Shares, spread and what if of an operand's cast; None where they are not known."""
    counts = None if taken is None or taken.at < 0 else taken.counts(values)
    if taken is None or counts is None or not counts.nonzero:
        return (None,) * len(_FIGURES)
    spread = counts.spread_sum / counts.blocks
    what_if = [_share(lost, counts) for lost in counts.what_if] if taken.what_if else None
    return _share(counts.cut, counts), _share(counts.flushed, counts), spread, what_if


def _staleness(casts: LayerCasts, values: Sequence[float]) -> float | None:
    """The worst of both passes; inf where a maximum was not finite.

    A library's newest maximum may be that of other ranks: an operand's own counts as well.
    """
    used = [values[number.at] for number in casts.used if number.at >= 0]
    own = (_sample(casts, role) for role in _ROLES)
    used += [value for one in own if one is not None and (value := one.used(values)) is not None]
    if not used:
        return None
    return max(used) if all(map(math.isfinite, used)) else math.inf


def _scale_in_use(casts: LayerCasts | None, role: str, values: Sequence[float]) -> float | None:
    number = None if casts is None else casts.scale_numbers.get(role)
    return None if number is None or number.at < 0 else values[number.at]


def _share(count: float, counts: CastCounts) -> float | None:
    return None if count != count else count / counts.nonzero
