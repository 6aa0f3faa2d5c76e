"""Transformer Engine: layers whose products run in a recipe of `fp8_autocast`.

Written from the source of version 2.20 and tested with stand-ins that mirror it. The library itself
needs a GPU and was not run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ampwatch.probe.number_formats.role_formats import (
    NONE,
    NumberFormat,
    RoleFormats,
    attributes,
    class_names,
    of_all_roles,
)

VERSIONS_READ = ("2.20",)

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
ROUNDED = "use_power_2_scales"


def read(module: Any, _weight: Any) -> RoleFormats | None:
    """The formats of the layer's last forward pass; None if it is no layer of this library."""
    held = attributes(module)
    meta = held.get(META)
    if not isinstance(meta, dict) or RUNS_IN_FP8 not in held:
        return None
    recipe = meta.get(RECIPE)
    if not held[RUNS_IN_FP8] or recipe is None:
        return NONE  # outside of fp8_autocast: nothing is quantised
    made = _of_recipe(recipe)
    backward = getattr(recipe, BACKWARD, None)
    return made if backward is None else RoleFormats(made.input, made.weight)


def scales_in_use(module: Any) -> dict[str, Any]:
    """The delayed scales of a layer with one product, by role, as they are now."""
    held = attributes(module)
    meta = held.get(META, {})
    found: dict[str, Any] = {}
    if meta.get(PRODUCTS) != 1:
        return found
    places = {FORWARD_SCALES: _FORWARD_ROLES, BACKWARD_SCALES: _BACKWARD_ROLES}
    for name, roles in places.items():
        scale = getattr(meta.get(name), SCALE, None)
        if scale is not None and len(scale) >= len(roles):
            found |= {role: scale[at].detach().clone() for at, role in enumerate(roles)}
    return found


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


def delayed_room(module: Any) -> DelayedRoom | None:
    """The values for a layer with delayed scales, after its forward pass."""
    meta = attributes(module).get(META, {})
    if not hasattr(meta.get(FORWARD_SCALES), MAXIMA):
        return None
    with torch.no_grad():
        return DelayedRoom(meta)


def _of_recipe(recipe: Any) -> RoleFormats:
    kinds = class_names(recipe)
    forward, backward = _elements(recipe)
    if "DelayedScaling" in kinds:
        return _of_tensors(forward, backward, "delayed", "")
    if "Float8CurrentScaling" in kinds:
        rounded = "down" if getattr(recipe, ROUNDED, False) else ""
        return _of_tensors(forward, backward, "dynamic", rounded)
    if "MXFP8BlockScaling" in kinds:
        first = NumberFormat(f"mxfp8_{forward[7:11]}", "block32", rounded_scales="up")
        last = NumberFormat(f"mxfp8_{backward[7:11]}", "block32", rounded_scales="up")
        return RoleFormats(first, first, last)
    if "Float8BlockScaling" in kinds:
        line = NumberFormat(forward, "block1x128", "dynamic")
        return RoleFormats(
            line,
            NumberFormat(forward, "block128x128", "dynamic"),
            NumberFormat(backward, "block1x128", "dynamic"),
        )
    if "NVFP4BlockScaling" in kinds:
        line = NumberFormat("nvfp4", "block16")
        square = (
            line if getattr(recipe, LINE_WEIGHTS, False) else NumberFormat("nvfp4", "block16x16")
        )
        return RoleFormats(line, square, line)
    return of_all_roles(NumberFormat("fp8", "custom", note=kinds[0]))


def _of_tensors(forward: str, backward: str, scaling: str, rounded: str) -> RoleFormats:
    first = NumberFormat(forward, "tensorwise", scaling, rounded_scales=rounded)
    last = NumberFormat(backward, "tensorwise", scaling, rounded_scales=rounded)
    return RoleFormats(first, first, last)


def _elements(recipe: Any) -> tuple[str, str]:
    """The elements of the forward and of the backward pass."""
    name = str(getattr(getattr(recipe, ELEMENTS, None), "name", "HYBRID"))
    e4m3, e5m2 = "float8_e4m3fn", "float8_e5m2"
    return {"E4M3": (e4m3, e4m3), "E5M2": (e5m2, e5m2)}.get(name, (e4m3, e5m2))
