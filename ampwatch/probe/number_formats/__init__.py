"""The number format in which a layer multiplies. Below sixteen bits a library decides, not torch.

One file per library lists the attributes that it reads and the versions it was tested with. Nothing
here imports a library: modules and weights are inspected by their attributes. A layer's formats are
read at its first sample, and again only after a change.
"""

from __future__ import annotations

from typing import Any

import torch

from ampwatch.probe.models import Survey
from ampwatch.probe.number_formats import torchao, transformer_engine, unknown_library
from ampwatch.probe.number_formats.role_formats import (
    NONE,
    NumberFormat,
    RoleFormats,
    class_names,
)
from ampwatch.probe.number_formats.transformer_engine import DelayedRoom

__all__ = [
    "NONE", "DelayedRoom", "NumberFormat", "RoleFormats", "conversions_asked_for", "delayed_room",
    "formats_of", "inner_weight", "is_linear", "may_be_quantised", "scales_in_use",
]  # fmt: skip

_READERS = (torchao.read, transformer_engine.read, unknown_library.read)
_PLAIN_WEIGHTS = frozenset({torch.Tensor, torch.nn.Parameter, type(None)})
_WIDE = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})


def formats_of(module: Any, weight: Any) -> RoleFormats:
    """The formats of a layer's roles.

    `weight` is its matrix, if it has one; a bare parameter has no module.
    """
    if not may_be_quantised(module, weight):
        return NONE
    for read in _READERS:
        found = read(module, weight)
        if found is not None:
            return found
    return NONE


def may_be_quantised(module: Any, weight: Any) -> bool:
    """Whether there may be a format to read: torch's own layers and weights have none."""
    of_torch = module is None or type(module).__module__.startswith("torch.nn.modules.")
    plain = type(weight) in _PLAIN_WEIGHTS and (weight is None or weight.dtype in _WIDE)
    return not (of_torch and plain)


def conversions_asked_for(survey: Survey) -> list[str]:
    """The conversions that were called in this process and converted no layer.

    A call is not listed if any converted layer exists, for example in a teacher model, or existed
    in a model that was watched before in the same process.
    """
    asked = torchao.conversion_asked_for()
    if asked is None or _SEEN_CONVERTED:
        return []
    kinds = (layer.kind for layer in survey.layers)
    if any(torchao.CONVERTED in kind for kind in kinds) or torchao.has_converted_layers():
        _SEEN_CONVERTED.add(asked)
        return []
    return [asked]


_SEEN_CONVERTED: set[str] = set()  # by conversions of this process


def inner_weight(weight: Any) -> Any:
    """The plain tensor inside a weight; None if there is none."""
    if weight is None or type(weight) in _PLAIN_WEIGHTS:
        return weight
    inside = torchao.with_inner(weight)[-1]
    return inside if type(inside) in _PLAIN_WEIGHTS else None


def is_linear(module: Any) -> bool:
    """Whether a library's layer multiplies its input unchanged, as torch's Linear does."""
    return transformer_engine.LINEAR in class_names(module)


def delayed_room(module: Any, formats: RoleFormats) -> DelayedRoom | None:
    """The values that show whether a layer's delayed scales still fit, after its forward pass."""
    if not _is_delayed(formats):
        return None
    return transformer_engine.delayed_room(module)


def _is_delayed(formats: RoleFormats) -> bool:
    return formats.input is not None and formats.input.scaling == "delayed"


def scales_in_use(module: Any, formats: RoleFormats) -> dict[str, torch.Tensor]:
    """The scales that are not computed from the operands, by role; copies, because they change."""
    if not _is_delayed(formats):
        return {}
    return transformer_engine.scales_in_use(module)
