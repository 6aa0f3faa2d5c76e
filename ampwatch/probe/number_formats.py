"""Number formats below sixteen bits: what one is, how it scales values, what a cast to it loses.

The scales are computed as the libraries compute them, from the maximum of the whole tensor, of each
row or of each block. Magnitudes come as samples x width x rows: the blocks of a row stand upright.

A sample of whole blocks is copied on the tensor's own device, when a layer receives or returns the
tensor, and counted by tensor operations: on a device without waiting for it; for CPU tensors on the
courier's thread. So for a tensor that fits into the sample, the counts are exactly those of the
cast. Cut off: beyond the largest number by more than rounding. Flushed: not zero before, zero
after.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ampwatch.probe.tensor_values import Pack, extremes
from ampwatch.rows import WHAT_IF_FORMATS

BLOCK = 32  # MX scales so many values together, NVFP4 16 of them

# torchao's floor on a maximum.
_LEAST_MAXIMUM = 1e-12
_LEAST_SCALE = 2.0**-126
_EXPONENT_BITS = 0x7F80_0000
_FRACTION_BITS = 0x007F_FFFF
_MX_EVEN = 1 << 19  # half of the last place that E4M3 keeps, of a float32


class Element(NamedTuple):
    """A format of eight bits or less."""

    largest: float
    cut_above: float  # half a spacing beyond the largest
    flushed_to: float  # half of the smallest, which rounds to zero


ELEMENTS = {
    "float8_e4m3fn": Element(448.0, 464.0, 2.0**-10),
    "float8_e5m2": Element(57344.0, 61440.0, 2.0**-17),
    "float8_e4m3fnuz": Element(240.0, 248.0, 2.0**-11),
    "float8_e5m2fnuz": Element(57344.0, 61440.0, 2.0**-18),
    "mxfp8_e4m3": Element(448.0, 464.0, 2.0**-10),
    "mxfp8_e5m2": Element(57344.0, 61440.0, 2.0**-17),
    "nvfp4": Element(6.0, 7.0, 0.25),
}
_FLOAT8_SMALLEST_NORMAL = 2.0**-6  # what NVFP4's block scales may fall to
_FLOAT8_LARGEST = 448.0
_NVFP4_BLOCK = 16


@dataclass(frozen=True, slots=True)
class NumberFormat:
    """The format of one operand of a matrix product, and how its scales are chosen."""

    element: str  # such as `float8_e4m3fn`, `mxfp8_e4m3`, `nvfp4`
    granularity: str  # how many values share a scale: `tensorwise`, `rowwise`, `block32`
    scaling: str = ""  # `dynamic`: from this tensor; `delayed`: from earlier ones
    note: str = ""  # other properties of the operand in the recipe
    rounded_scales: str = ""  # to a power of two: `down`, `up`, `floor`; not shown

    @property
    def text(self) -> str:
        """The format as the columns show it: `float8_e4m3fn/tensorwise/dynamic`."""
        return "/".join(filter(None, (self.element, self.granularity, self.scaling, self.note)))


@dataclass(frozen=True, slots=True)
class RoleFormats:
    """The formats of a layer's input, its weight and the gradient at its output."""

    input: NumberFormat | None = None
    weight: NumberFormat | None = None
    grad: NumberFormat | None = None

    def columns(self) -> dict[str, str | None]:
        """Each role's format by the name of its column."""
        roles = {"input": self.input, "weight": self.weight, "grad": self.grad}
        return {f"{role}_format": None if one is None else one.text for role, one in roles.items()}

    def __bool__(self) -> bool:
        """Whether any role is quantised."""
        return not (self.input is None and self.weight is None and self.grad is None)


NONE = RoleFormats()


def of_all_roles(one: NumberFormat) -> RoleFormats:
    """The same number format for every role."""
    return RoleFormats(one, one, one)


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
