"""The number format in which a layer multiplies. Below sixteen bits a library decides, not torch.

Each library has a part that lists the attributes that it reads and the versions it was tested with.
Nothing here imports a library: modules and weights are inspected by their attributes. A layer's
formats are read at its first sample, and again only after a change.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from ampwatch.probe.formats import NONE, NumberFormat, RoleFormats, of_all_roles
from ampwatch.probe.models import Survey
from ampwatch.probe.tensor_values import dtype_name

# -- torchao ---------------------------------------------------------------------------------------
#
# The layers and weights that its training conversions create. Tested with 0.18, emulated on a CPU:
# `Float8Linear` with the recipes tensorwise, rowwise and rowwise_with_gw_hp, weights for MXFP8
# training, quantised weights of MX and NVFP4. The layer for NVFP4 training, the one for blocks of
# 128 and weights under FSDP2 need a GPU: not tested yet.

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


def of_torchao(module: Any, weight: Any) -> RoleFormats | None:
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
    """A weight, and the tensors that its library has nested inside it."""
    modules: list[Any] = []
    while weight is not None and len(modules) <= len(INNER_TENSORS):
        modules.append(weight)
        # A DTensor keeps its part in a slot.
        inside = (getattr(weight, name, None) for name in INNER_TENSORS)
        weight = next((one for one in inside if hasattr(one, "dtype")), None)
    return modules


def _float8(config: Any) -> RoleFormats | None:
    """What a Float8LinearConfig says; it is frozen, and one serves many layers at every sample."""
    entry = _READ.get(id(config))
    if entry is None:
        if len(_READ) >= _MOST_CONFIGS:
            _READ.clear()
        entry = _READ[id(config)] = config, _of_config(config)
    return entry[1]


_MOST_CONFIGS = 64
_READ: dict[int, tuple[Any, RoleFormats | None]] = {}  # by id; kept alive, for ids are used again


def _of_config(config: Any) -> RoleFormats | None:
    casts = {role: _cast(getattr(config, name, None)) for role, name in CAST_OF_ROLE.items()}
    rounded = "down" if getattr(config, POWERS_OF_TWO, False) else ""
    wide = _cast(getattr(config, GRADIENT_FOR_WEIGHT, None)) is None
    formats = {}
    for role, cast in casts.items():
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
    return dtype_name(getattr(cast, "target_dtype", "float8")), granularity, scaling


def _mx(scales: Any, *, wide: Any) -> RoleFormats:
    mode = str(getattr(scales, "value", ""))
    rounding = {"rceil": "up"}.get(mode, mode)
    operand = NumberFormat("mxfp8_e4m3", f"block{MX_BLOCK}", rounded_scales=rounding)
    note = WIDE_WEIGHT_GRADIENT if wide else ""
    return RoleFormats(operand, operand, replace(operand, note=note))


def _mx_element(dtype: Any) -> str:
    name = dtype_name(dtype)
    names = {"float8_e4m3fn": "mxfp8_e4m3", "float8_e5m2": "mxfp8_e5m2"}
    return names.get(name, "mxfp4" if "float4" in name else f"mx_{name}")


def _blockwise(size: Any) -> RoleFormats:
    line = NumberFormat("float8_e4m3fn", f"block1x{size}", "dynamic")
    square = NumberFormat("float8_e4m3fn", f"block{size}x{size}", "dynamic")
    return RoleFormats(line, square, line)


# -- Transformer Engine ----------------------------------------------------------------------------
#
# Layers whose products run in a recipe of `fp8_autocast`. Written from the source of version 2.20
# and tested with stand-ins that mirror it. The library itself needs a GPU and was not run.

LINEAR = "Linear"  # the class that multiplies what it is given; others normalise it first
# Of a module: set in each forward pass, from the autocast around it.
RUNS_IN_FP8 = "fp8"
META = "fp8_meta"  # a dict; under `recipe` a Recipe, under the next two the scales
RECIPE = "recipe"
FORWARD_SCALES, BACKWARD_SCALES = "scaling_fwd", "scaling_bwd"
PRODUCTS = "num_gemms"
SCALE, MAXIMA = "scale", "amax_history"  # of either; the newest maxima stand in row 0
_FORWARD_ROLES, _BACKWARD_ROLES = ("input", "weight"), ("grad",)  # of a layer with one product
# Of a recipe, beside the name of its class.
ELEMENTS = "fp8_format"  # an enum: E4M3, E5M2 or HYBRID, which is E4M3 forward and E5M2 backward
BACKWARD = "backward_override"  # None: the backward pass is quantised too
LINE_WEIGHTS = "disable_2d_quantization"  # of NVFP4: blocks of 16 and not of 16 x 16
SQUARE_WEIGHTS = "enable_2d_quantization"  # of MXFP8: blocks of 32 x 32 and not of 32
ROUNDED = "use_power_2_scales"
EXACT_SCALES = "use_f32_scales"  # of blocks of 128; else powers of two
# Of blocks of 128, and what it is otherwise: 2 for 128 x 128.
BLOCK_SIDES = (
    ("x_block_scaling_dim", 1),
    ("w_block_scaling_dim", 2),
    ("grad_block_scaling_dim", 1),
)


def of_transformer_engine(module: Any, _weight: Any) -> RoleFormats | None:
    """The formats of the layer's last forward pass; None if it is no layer of this library."""
    held = attributes(module)
    meta = held.get(META)
    if not isinstance(meta, dict) or RUNS_IN_FP8 not in held:
        return None
    recipe = meta.get(RECIPE)
    if not held[RUNS_IN_FP8] or recipe is None:
        return NONE  # outside of fp8_autocast: nothing is quantised
    formats = _of_recipe(recipe)
    backward = getattr(recipe, BACKWARD, None)
    return formats if backward is None else RoleFormats(formats.input, formats.weight)


class DelayedRoom:
    """A layer's newest maxima relative to what its scales in use can hold.

    Created after a forward pass of the layer, before the end of the autocast updates the scales.
    Until then row 0 holds the newest maxima; afterwards it is zero and the last row holds them.
    """

    def __init__(self, meta: Mapping[str, Any]) -> None:
        scales = meta[FORWARD_SCALES]
        largest = getattr(meta[RECIPE], ELEMENTS).value
        self.forward = (getattr(scales, MAXIMA)[0] * getattr(scales, SCALE)).amax() / largest[0]
        self._after = meta.get(BACKWARD_SCALES)
        self._scale = None if self._after is None else getattr(self._after, SCALE).clone()
        self._largest = largest[1]

    def backward(self) -> torch.Tensor | None:
        """The same for the gradients, after the backward pass."""
        if self._after is None or self._scale is None:
            return None
        maxima = getattr(self._after, MAXIMA)
        newest = torch.where(maxima[0] != 0, maxima[0], maxima[-1])
        room: torch.Tensor = (newest * self._scale).amax() / self._largest
        return room


def _of_recipe(recipe: Any) -> RoleFormats:
    kinds = class_names(recipe)
    forward, backward = _elements(recipe)
    sides: Sequence[str] = ("tensorwise",) * 3
    scaling, rounded = "dynamic", ""
    if "DelayedScaling" in kinds:
        scaling = "delayed"
    elif "Float8CurrentScaling" in kinds:
        rounded = "down" if getattr(recipe, ROUNDED, False) else ""
    elif "MXFP8BlockScaling" in kinds:
        forward, backward = f"mxfp8_{forward[7:11]}", f"mxfp8_{backward[7:11]}"
        square = "block32x32" if getattr(recipe, SQUARE_WEIGHTS, False) else "block32"
        sides, scaling, rounded = ("block32", square, "block32"), "", "up"
    elif "Float8BlockScaling" in kinds:
        rounded = "" if getattr(recipe, EXACT_SCALES, False) else "down"
        is_square = (getattr(recipe, name, usual) == 2 for name, usual in BLOCK_SIDES)
        sides = tuple("block128x128" if square else "block1x128" for square in is_square)
    elif "NVFP4BlockScaling" in kinds:
        square = "block16" if getattr(recipe, LINE_WEIGHTS, False) else "block16x16"
        forward = backward = "nvfp4"
        sides, scaling = ("block16", square, "block16"), ""
    else:
        return of_all_roles(NumberFormat("fp8", "custom", note=kinds[0]))
    return RoleFormats(
        *(
            NumberFormat(element, side, scaling, rounded_scales=rounded)
            for element, side in zip((forward, forward, backward), sides, strict=True)
        )
    )


def _elements(recipe: Any) -> tuple[str, str]:
    """The elements of the forward and of the backward pass."""
    name = str(getattr(getattr(recipe, ELEMENTS, None), "name", "HYBRID"))
    e4m3, e5m2 = "float8_e4m3fn", "float8_e5m2"
    return {"E4M3": (e4m3, e4m3), "E5M2": (e5m2, e5m2)}.get(name, (e4m3, e5m2))


# -- unknown libraries -----------------------------------------------------------------------------
#
# The format of weights that are stored in a float8 data type. Tested with layers that store such a
# weight next to its scales, as several libraries do.

# Attributes in which layers keep their weight's scales, and tensors their own.
SCALES_OF_LAYER = ("weight_scale_inv", "weight_scale", "scale_inv", "scale")
SCALES_OF_TENSOR = ("_scale_inv", "_scale", "scale_inv", "scale")
HELD_IN_TENSOR = ("_data", "qdata", "_fp8_data", "_rowwise_data")


def of_stored_weight(module: Any, weight: Any) -> RoleFormats | None:
    """The format in which the weight is stored; the format of the product is unknown."""
    if weight is None:
        return None
    held, scale = _stored(module, weight)
    element = dtype_name(held.dtype)
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


# -- any layer -------------------------------------------------------------------------------------

_READERS = (of_torchao, of_transformer_engine, of_stored_weight)
_PLAIN_WEIGHTS = frozenset({torch.Tensor, torch.nn.Parameter, type(None)})
_WIDE = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})


def formats_of(module: Any, weight: Any) -> RoleFormats:
    """The number formats of a layer's roles.

    `weight` is its matrix, if it has one; a bare parameter has no module.
    """
    if not may_be_quantised(module, weight):
        return NONE
    for read in _READERS:
        formats = read(module, weight)
        if formats is not None:
            return formats
    return NONE


def may_be_quantised(module: Any, weight: Any) -> bool:
    """Whether there is anything to read: torch's own layers and weights hold no formats."""
    plain = type(weight) in _PLAIN_WEIGHTS and (weight is None or weight.dtype in _WIDE)
    return not (is_of_torch(module) and plain)


def is_of_torch(module: Any) -> bool:
    """Whether a module is one of torch's own layers."""
    return module is None or type(module).__module__.startswith("torch.nn.modules.")


def conversions_asked_for(survey: Survey) -> list[str]:
    """The conversions that were called in this process and converted no layer.

    A call is not listed if any converted layer exists, for example in a teacher model, or existed
    in a model that was watched before in the same process.
    """
    asked = conversion_asked_for()
    if asked is None or _SEEN_CONVERTED:
        return []
    kinds = (layer.kind for layer in survey.layers)
    if any(CONVERTED in kind for kind in kinds) or has_converted_layers():
        _SEEN_CONVERTED.add(asked)
        return []
    return [asked]


_SEEN_CONVERTED: set[str] = set()  # by conversions of this process


def inner_weight(weight: Any) -> Any:
    """The plain tensor inside a weight; None if there is none."""
    if weight is None or type(weight) in _PLAIN_WEIGHTS:
        return weight
    inside = with_inner(weight)[-1]
    return inside if type(inside) in _PLAIN_WEIGHTS else None


def is_linear(module: Any) -> bool:
    """Whether a library's layer multiplies its input unchanged, as torch's Linear does."""
    return LINEAR in class_names(module)


def delayed_room(module: Any, formats: RoleFormats) -> DelayedRoom | None:
    """The values that show whether a layer's delayed scales still fit, after its forward pass."""
    meta = attributes(module).get(META, {}) if _is_delayed(formats) else {}
    if not hasattr(meta.get(FORWARD_SCALES), MAXIMA):
        return None
    with torch.no_grad():
        return DelayedRoom(meta)


def _is_delayed(formats: RoleFormats) -> bool:
    return formats.input is not None and formats.input.scaling == "delayed"


def scales_in_use(module: Any, formats: RoleFormats) -> dict[str, torch.Tensor]:
    """The scales that are not computed from the operands, by role; copies, because they change."""
    scales: dict[str, torch.Tensor] = {}
    meta = attributes(module).get(META, {}) if _is_delayed(formats) else {}
    if meta.get(PRODUCTS) != 1:
        return scales
    places = {FORWARD_SCALES: _FORWARD_ROLES, BACKWARD_SCALES: _BACKWARD_ROLES}
    for name, roles in places.items():
        scale = getattr(meta.get(name), SCALE, None)
        if scale is not None and len(scale) >= len(roles):
            scales |= {role: scale[at].detach().clone() for at, role in enumerate(roles)}
    return scales


# -- reading attributes ----------------------------------------------------------------------------


def attributes(thing: Any) -> Mapping[str, Any]:
    """The attributes of a module, weight or recipe, read without running code of its class."""
    held: Mapping[str, Any] = getattr(thing, "__dict__", {})
    stored = {**held.get("_buffers", {}), **held.get("_parameters", {})}
    return {**stored, **held} if stored else held


def class_names(thing: Any) -> list[str]:
    """The names of an object's class and its base classes."""
    return [one.__name__ for one in type(thing).__mro__]
