"""What seldom changes about a layer: written when it is first seen, and again when it changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from ampwatch.probe.models import Layer, Survey
from ampwatch.probe.number_formats import NONE, RoleFormats, formats_of
from ampwatch.probe.sampled_layers import SampledLayers, Visit
from ampwatch.probe.tensors import dtype_name, parameter_shape
from ampwatch.rows import DTYPE_NUMBERS, SCHEMAS, Table

INFO_COLUMNS = [name for name in SCHEMAS[Table.LAYER_INFO].names if name != "step"]

_NEVER_RAN = "never ran"
_PAST_HOOKS = "compiled, or not called as a module"
_NO_TENSORS = "no tensors in or out"


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
    input_format: str | None = None
    weight_format: str | None = None
    grad_format: str | None = None


class LayerInfos:
    """What was written last of each layer; `group_of` gives a parameter's optimizer group."""

    def __init__(self, survey: Survey, group_of: Callable[[int], int | None]) -> None:
        self.written: dict[int, LayerInfo] = {}
        self._survey = survey
        self._group_of = group_of
        self._ever_ran: set[int] = set()
        self._sources: dict[int, tuple[Any, ...]] = {}  # what each info was made from last

    def changed(self, sampled: SampledLayers) -> list[LayerInfo]:
        """The infos that this sample makes worth a row."""
        self._ever_ran.update(sampled.visits)
        changed = []
        for layer in self._survey.layers:
            source = self._source(layer, sampled)
            if source == self._sources.get(layer.number):
                continue
            self._sources[layer.number] = source
            info = self._info(layer, sampled)
            before = self.written.get(layer.number)
            if before is None or not says_the_same(before, info):
                self.written[layer.number] = info
                changed.append(info)
        return changed

    def _source(self, layer: Layer, sampled: SampledLayers) -> tuple[Any, ...]:
        """All that an info is made from; comparing this is much cheaper than making the info.

        A module's own numbers (its stride, its heads) are taken not to change.
        """
        number, visit = layer.number, sampled.visits.get(layer.number)
        held = [(at, self._survey.parameters[at]) for at in layer.weights]
        return (
            type(layer.module),
            sampled.sealed.get(number),
            number in self._ever_ran,
            [
                (type(p), p.requires_grad, p.dtype, parameter_shape(p), sampled.grad_dtypes.get(at))
                for at, p in held
            ],
            self._group(layer),
            self._formats(layer),
            visit
            and (
                visit.order,
                visit.autocast,
                visit.input_dtype,
                visit.input_shapes,
                visit.output_dtype,
                visit.output_shape,
                _gradient_dtype(visit),
            ),
        )

    def _info(self, layer: Layer, sampled: SampledLayers) -> LayerInfo:
        visit = sampled.visits.get(layer.number)
        known = self._parameter_info(layer, sampled)
        before = self.written.get(layer.number)
        if visit is not None:
            known |= _visit_info(layer, visit)
        elif before is not None and layer.number in self._ever_ran:
            known = {**_without_none(asdict(before)), **_without_none(known)}
        known |= {
            "layer": layer.number,
            "name": layer.name,
            "kind": layer.kind,
            "param_group": self._group(layer),
            "observed": self._observed(layer, sampled),
            **_format_columns(self._formats(layer)),
        }
        return LayerInfo(**known)

    def _formats(self, layer: Layer) -> RoleFormats:
        """In which formats the layer multiplies."""
        if not (layer.leaf or layer.is_bare):
            return NONE
        held = [self._survey.parameters[at] for at in layer.weights]
        matrix = next((one for one in held if len(parameter_shape(one) or ()) >= 2), None)
        return formats_of(None if layer.is_bare else layer.module, matrix)

    def _group(self, layer: Layer) -> int | None:
        return self._group_of(layer.weights[0]) if layer.weights else None

    def _parameter_info(self, layer: Layer, sampled: SampledLayers) -> dict[str, Any]:
        held = [self._survey.parameters[at] for at in layer.weights]
        if not held:
            return {}
        shapes = [shape for parameter in held if (shape := parameter_shape(parameter)) is not None]
        matrix = next((shape for shape in shapes if len(shape) >= 2), None)
        weight = matrix if matrix is not None else next(iter(shapes), None)
        grad_dtypes = (sampled.grad_dtypes.get(at) for at in layer.weights)
        return {
            "trainable": any(parameter.requires_grad for parameter in held),
            "weight_shape": None if weight is None else list(weight),
            "param_dtype": _number(held[0].dtype),
            "param_grad_dtype": _number(_first(grad_dtypes)),
        }

    def _observed(self, layer: Layer, sampled: SampledLayers) -> str | None:
        """Why the layer was not seen inside; None if it was."""
        reason = sampled.sealed.get(layer.number)
        if reason is not None or layer.is_bare:
            return reason
        if layer.number not in self._ever_ran:
            trained = any(position in sampled.grad_dtypes for position in layer.weights)
            return _PAST_HOOKS if trained else _NEVER_RAN
        visit = sampled.visits.get(layer.number)
        if visit is not None and visit.input_dtype is None and visit.output_dtype is None:
            return _NO_TENSORS
        return None


def info_columns(step: int, infos: list[LayerInfo]) -> dict[str, list[Any]]:
    """The columns of `Table.LAYER_INFO`."""
    columns: dict[str, list[Any]] = {"step": [step] * len(infos)}
    for name in INFO_COLUMNS:
        columns[name] = [getattr(info, name) for info in infos]
    return columns


def _visit_info(layer: Layer, visit: Visit) -> dict[str, Any]:
    product, multiplier = None, layer.multiplier
    if multiplier is not None and visit.output_shape is not None:
        product = multiplier.product(visit.input_shapes, visit.output_shape)
    return {
        "order": visit.order,
        "rows": None if product is None else product.rows,
        "flops": None if product is None else product.flops,
        "input_dtype": _number(visit.input_dtype),
        "output_dtype": _number(visit.output_dtype),
        "out_grad_dtype": _number(_gradient_dtype(visit)),
        "autocast": visit.autocast,
    }


def _format_columns(formats: RoleFormats) -> dict[str, str | None]:
    roles = {"input": formats.input, "weight": formats.weight, "grad": formats.grad}
    return {f"{role}_format": None if one is None else one.text for role, one in roles.items()}


def _gradient_dtype(visit: Visit) -> torch.dtype | None:
    """Of the first gradient at its outputs."""
    return _first(seen.grad_dtype for seen in visit.outputs)


def _first(dtypes: Iterable[torch.dtype | None]) -> torch.dtype | None:
    return next((dtype for dtype in dtypes if dtype is not None), None)


def _number(dtype: torch.dtype | None) -> int | None:
    return None if dtype is None else DTYPE_NUMBERS.get(dtype_name(dtype), DTYPE_NUMBERS["other"])


def _without_none(known: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in known.items() if value is not None}


def says_the_same(before: LayerInfo, now: LayerInfo) -> bool:
    """Whether nothing worth a row has changed.

    With sequences of varying length every sample would write every layer again: rows and operations
    count as changed when they have doubled or halved.
    """
    for name in INFO_COLUMNS:
        old, new = getattr(before, name), getattr(now, name)
        if name in {"rows", "flops"} and old and new and 0.5 < new / old < 2.0:
            continue
        if old != new:
            return False
    return True
