"""A number format, and the formats of a layer's three roles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


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
        """As the columns show it: `float8_e4m3fn/tensorwise/dynamic`."""
        return "/".join(filter(None, (self.element, self.granularity, self.scaling, self.note)))


@dataclass(frozen=True, slots=True)
class RoleFormats:
    """The formats of a layer's input, its weight and the gradient at its output."""

    input: NumberFormat | None = None
    weight: NumberFormat | None = None
    grad: NumberFormat | None = None

    def __bool__(self) -> bool:
        """Whether any role is quantised."""
        return not (self.input is None and self.weight is None and self.grad is None)


NONE = RoleFormats()


def of_all_roles(one: NumberFormat) -> RoleFormats:
    """The same format for every role."""
    return RoleFormats(one, one, one)


def short_name(dtype: object) -> str:
    """A data type without torch's prefix."""
    return str(dtype).removeprefix("torch.")


def attributes(thing: Any) -> Mapping[str, Any]:
    """The attributes of a module, weight or recipe, read without running code of its class."""
    held: Mapping[str, Any] = getattr(thing, "__dict__", {})
    stored = {**held.get("_buffers", {}), **held.get("_parameters", {})}
    return {**stored, **held} if stored else held


def class_names(thing: Any) -> list[str]:
    """The names of an object's class and its base classes."""
    return [one.__name__ for one in type(thing).__mro__]
