"""Unknown libraries: the format of weights that are stored in a float8 data type.

Tested with layers that store such a weight next to its scales, as several libraries do.
"""

from __future__ import annotations

from typing import Any

from ampwatch.probe.number_formats.role_formats import (
    NumberFormat,
    RoleFormats,
    attributes,
    short_name,
)

# Attributes in which layers keep their weight's scales, and tensors their own.
SCALES_OF_LAYER = ("weight_scale_inv", "weight_scale", "scale_inv", "scale")
SCALES_OF_TENSOR = ("_scale_inv", "_scale", "scale_inv", "scale")
HELD_IN_TENSOR = ("_data", "qdata", "_fp8_data", "_rowwise_data")


def read(module: Any, weight: Any) -> RoleFormats | None:
    """The format in which the weight is stored; the format of the product is unknown."""
    if weight is None:
        return None
    held, scale = _stored(module, weight)
    element = short_name(held.dtype)
    if not element.startswith(("float8", "float4")):
        return None
    return RoleFormats(weight=NumberFormat(element, _granularity(held, scale)))


def _stored(module: Any, weight: Any) -> tuple[Any, Any]:
    """The tensor with the numbers, and the tensor with their scales, if there is one."""
    inside = attributes(weight)
    held = next((inside[n] for n in HELD_IN_TENSOR if hasattr(inside.get(n), "dtype")), weight)
    at, names = (attributes(module), SCALES_OF_LAYER)
    if held is not weight:
        at, names = inside, SCALES_OF_TENSOR
    return held, next((at[name] for name in names if hasattr(at.get(name), "shape")), None)


def _granularity(held: Any, scale: Any) -> str:
    """How many values share a scale, from the shapes of both."""
    if scale is None:
        return "unscaled"
    values, scales = tuple(held.shape), tuple(scale.shape)
    while len(scales) > len(values) and scales[-1] == 1:
        scales = scales[:-1]
    if not scales or set(scales) == {1}:
        return "tensorwise"
    if scales in {values[:1], (*values[:1], 1)}:
        return "rowwise"
    if len(values) != 2 or len(scales) != 2:
        return "blocks"
    down, along = (-(-size // max(1, count)) for size, count in zip(values, scales, strict=True))
    return f"block{along}" if down == 1 else f"block{down}x{along}"
