"""torchao: the layers and weights that its training conversions create.

Tested with 0.18, emulated on a CPU: `Float8Linear` with the recipes tensorwise, rowwise and
rowwise_with_gw_hp, weights for MXFP8 training, quantised weights of MX and NVFP4. The layer for
NVFP4 training, the one for blocks of 128 and weights under FSDP2 need a GPU: not tested yet.
"""

from __future__ import annotations

import gc
import sys
from dataclasses import replace
from typing import Any

import torch

from ampwatch.probe.number_formats.role_formats import (
    NumberFormat,
    RoleFormats,
    attributes,
    class_names,
    of_all_roles,
    short_name,
)

VERSIONS_TRIED = ("0.18",)

# `Float8Linear.config`, a Float8LinearConfig: a cast each for input, weight and output gradient.
LINEAR_CONFIG = "config"
CAST_OF_ROLE = {
    "input": "cast_config_input",
    "weight": "cast_config_weight",
    "grad": "cast_config_grad_output",
}
GRADIENT_FOR_WEIGHT = "cast_config_grad_output_for_grad_weight"
POWERS_OF_TWO = "round_scales_to_power_of_2"
GRANULARITIES = {"tensorwise": "tensorwise", "axiswise": "rowwise"}
# `MXFP8Linear`, or the `config` of a weight of class MXFP8TrainingWeightWrapperTensor.
MX_SCALES = "scale_calculation_mode"
MX_WIDE_GRADIENT = "wgrad_with_hp"
MX_BLOCK = 32
# The `config` of a weight of class Float8TrainingWeightWrapperTensor holds a Float8LinearConfig.
WRAPPED_LINEAR_CONFIG = "_float8_linear_config"
# Layers that are known by their class and by one attribute.
NVFP4_LINEAR = ("NVFP4Linear", "_rht_sign_vector")
BLOCKWISE_LINEAR = ("Float8BlockwiseLinear", "block_size")
# Weights that are quantised already: of class MXTensor or NVFP4Tensor.
QUANTISED_ELEMENT, QUANTISED_BLOCK = "elem_dtype", "block_size"
NVFP4_TENSOR = "NVFP4Tensor"
# The tensor inside a weight that FSDP2 has sharded, or that casts itself when it is gathered.
INNER_TENSORS = ("_local_tensor", "_data", "_tensor")
# Imported by `convert_to_float8_training` itself and by nothing else: the sign that it was called.
CONVERSION_RAN = "torchao.float8._inductor_patch"
CONVERSION = "torchao's convert_to_float8_training"
CONVERTED = "Float8Linear"  # the class of what it makes, which FSDP2 prefixes

WIDE_WEIGHT_GRADIENT = "wide-weight-gradient"  # its product is computed in high precision


def read(module: Any, weight: Any) -> RoleFormats | None:
    """What torchao has made of this layer; None if nothing."""
    held = attributes(module)
    if hasattr(held.get(LINEAR_CONFIG), CAST_OF_ROLE["input"]):
        return _float8(held[LINEAR_CONFIG])
    if MX_SCALES in held and MX_WIDE_GRADIENT in held:
        return _mx(held[MX_SCALES], wide=held[MX_WIDE_GRADIENT])
    if NVFP4_LINEAR[1] in held and NVFP4_LINEAR[0] in class_names(module):
        return of_all_roles(NumberFormat("nvfp4", "block16"))
    if BLOCKWISE_LINEAR[1] in held and BLOCKWISE_LINEAR[0] in class_names(module):
        return _blockwise(held[BLOCKWISE_LINEAR[1]])
    return _of_weight(weight)


def conversion_asked_for() -> str | None:
    """The conversion that this process has called, whether or not it converted a layer."""
    return CONVERSION if CONVERSION_RAN in sys.modules else None


def has_converted_layers() -> bool:
    """Whether there is such a layer anywhere in the process; looks at every object once."""
    return any(
        CONVERTED in kind.__name__ and isinstance(kind, type) and issubclass(kind, torch.nn.Module)
        for kind in {type(one) for one in gc.get_objects()}
    )


def _of_weight(weight: Any) -> RoleFormats | None:
    for tensor in with_inner(weight):
        held = attributes(tensor)
        config = held.get("config")
        wrapped = getattr(config, WRAPPED_LINEAR_CONFIG, None)
        if wrapped is not None:
            return _float8(wrapped)
        if hasattr(config, MX_SCALES):
            return _mx(getattr(config, MX_SCALES), wide=getattr(config, MX_WIDE_GRADIENT, False))
        if QUANTISED_BLOCK in held and NVFP4_TENSOR in class_names(tensor):
            return RoleFormats(weight=NumberFormat("nvfp4", f"block{held[QUANTISED_BLOCK]}"))
        if QUANTISED_BLOCK in held and QUANTISED_ELEMENT in held:
            element = _mx_element(held[QUANTISED_ELEMENT])
            return RoleFormats(weight=NumberFormat(element, f"block{held[QUANTISED_BLOCK]}"))
    return None


def with_inner(weight: Any) -> list[Any]:
    """A weight, and the tensors nested inside it."""
    found: list[Any] = []
    while weight is not None and len(found) <= len(INNER_TENSORS):
        found.append(weight)
        # A DTensor keeps its part in a slot.
        inside = (getattr(weight, name, None) for name in INNER_TENSORS)
        weight = next((one for one in inside if hasattr(one, "dtype")), None)
    return found


def _float8(config: Any) -> RoleFormats | None:
    """What a Float8LinearConfig says; it is frozen, and one serves many layers at every sample."""
    known = _READ.get(id(config))
    if known is None:
        if len(_READ) >= _MOST_CONFIGS:
            _READ.clear()
        known = _READ[id(config)] = config, _of_config(config)
    return known[1]


_MOST_CONFIGS = 64
_READ: dict[int, tuple[Any, RoleFormats | None]] = {}  # by id; kept alive, for ids are used again


def _of_config(config: Any) -> RoleFormats | None:
    made = {role: _cast(getattr(config, name, None)) for role, name in CAST_OF_ROLE.items()}
    rounded = "down" if getattr(config, POWERS_OF_TWO, False) else ""
    wide = _cast(getattr(config, GRADIENT_FOR_WEIGHT, None)) is None
    formats = {}
    for role, cast in made.items():
        if cast is not None:
            note = WIDE_WEIGHT_GRADIENT if role == "grad" and wide else ""
            formats[role] = NumberFormat(*cast, note=note, rounded_scales=rounded)
    return RoleFormats(**formats) if formats else None


def _cast(cast: Any) -> tuple[str, str, str] | None:
    """Element, granularity and scaling of one operand; None if it is not cast."""
    scaling = str(getattr(getattr(cast, "scaling_type", None), "value", ""))
    if cast is None or scaling == "disabled":
        return None
    given = str(getattr(getattr(cast, "scaling_granularity", None), "value", ""))
    granularity = GRANULARITIES.get(given, given)
    return short_name(getattr(cast, "target_dtype", "float8")), granularity, scaling


def _mx(scales: Any, *, wide: Any) -> RoleFormats:
    mode = str(getattr(scales, "value", ""))
    rounding = {"rceil": "up"}.get(mode, mode)
    operand = NumberFormat("mxfp8_e4m3", f"block{MX_BLOCK}", rounded_scales=rounding)
    note = WIDE_WEIGHT_GRADIENT if wide else ""
    return RoleFormats(operand, operand, replace(operand, note=note))


def _mx_element(dtype: Any) -> str:
    name = short_name(dtype)
    known = {"float8_e4m3fn": "mxfp8_e4m3", "float8_e5m2": "mxfp8_e5m2"}
    return known.get(name, "mxfp4" if "float4" in name else f"mx_{name}")


def _blockwise(size: Any) -> RoleFormats:
    line = NumberFormat("float8_e4m3fn", f"block1x{size}", "dynamic")
    square = NumberFormat("float8_e4m3fn", f"block{size}x{size}", "dynamic")
    return RoleFormats(line, square, line)
