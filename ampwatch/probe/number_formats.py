"""Number formats below sixteen bits: what one is, and how it scales values before a cast.

The scales are computed as the libraries compute them. Magnitudes come as samples x width x rows:
the blocks of a row stand upright.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

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
