"""What seldom changes about a layer: told when it is first seen, and again when it changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ampwatch.probe.capture import LayerCapture, VisitCapture
from ampwatch.probe.models import Layer, Survey
from ampwatch.probe.tensors import dtype_name
from ampwatch.rows import DTYPE_NUMBERS, SCHEMAS, Table

INFO_COLUMNS = [name for name in SCHEMAS[Table.LAYER_INFO].names if name != "step"]


@dataclass(frozen=True, slots=True)
class LayerInfo:
    """What seldom changes; named as the columns are, data types by their number."""

    layer: int
    name: str
    order: int | None = None
    kind: str = ""
    trainable: bool | None = None
    param_group: int | None = None
    weight_shape: list[int] | None = None
    rows: int | None = None
    flops: float | None = None
    observed: str | None = None
    input_dtype: int | None = None
    param_dtype: int | None = None
    output_dtype: int | None = None
    param_grad_dtype: int | None = None
    out_grad_dtype: int | None = None
    autocast: bool | None = None


def parameter_info(layer: Layer, survey: Survey, capture: LayerCapture) -> dict[str, Any]:
    """What its parameters tell of the layer."""
    held = [survey.parameters[position] for position in layer.weights]
    if not held:
        return {}
    # A lazy parameter has no shape before the first forward.
    shaped = [parameter for parameter in held if not hasattr(parameter, "materialize")]
    matrix = next((parameter for parameter in shaped if parameter.ndim >= 2), None)
    weight = matrix if matrix is not None else next(iter(shaped), None)
    grad_dtypes = [capture.param_grad_dtypes.get(position) for position in layer.weights]
    return {
        "trainable": any(parameter.requires_grad for parameter in held),
        "weight_shape": None if weight is None else list(weight.shape),
        "param_dtype": _number(dtype_name(held[0].dtype)),
        "param_grad_dtype": _number(next((d for d in grad_dtypes if d is not None), None)),
    }


def visit_info(
    layer: Layer, visit: VisitCapture, grad_dtypes: Iterable[str | None]
) -> dict[str, Any]:
    """What a visit tells of the layer; the data types of the gradients at its outputs too."""
    product, multiplier = None, layer.multiplier
    if multiplier is not None and visit.output_shape is not None:
        product = multiplier.product(visit.input_shapes, visit.output_shape)
    return {
        "order": visit.order,
        "rows": None if product is None else product.rows,
        "flops": None if product is None else product.flops,
        "input_dtype": _number(visit.input_dtype),
        "output_dtype": _number(visit.output_dtype),
        "out_grad_dtype": _number(next((d for d in grad_dtypes if d is not None), None)),
        "autocast": visit.autocast,
    }


def _number(dtype: str | None) -> int | None:
    return None if dtype is None else DTYPE_NUMBERS.get(dtype, DTYPE_NUMBERS["other"])


def without_none(known: Mapping[str, Any]) -> dict[str, Any]:
    """What is known."""
    return {name: value for name, value in known.items() if value is not None}


def says_the_same(before: LayerInfo, now: LayerInfo) -> bool:
    """Whether nothing worth a row has changed.

    Sequences of varying length would tell every layer anew at every sample: rows and operations
    count as changed when they have doubled or halved.
    """
    for name in INFO_COLUMNS:
        old, new = getattr(before, name), getattr(now, name)
        if name in {"rows", "flops"} and old and new and 0.5 < new / old < 2.0:
            continue
        if old != new:
            return False
    return True
