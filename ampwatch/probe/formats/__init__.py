"""Number formats below sixteen bits: what one is, which library uses which, what a cast loses.

Below sixteen bits a library decides in which format a layer multiplies, not torch: see
`library_formats`. `casts` samples the operands and counts what a cast to a format loses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


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
