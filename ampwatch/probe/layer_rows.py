"""The rows of layers: what a sampled step says of each, what seldom changes, and what is written.

A sampled step is one row for each layer. What seldom changes about a layer is written when it is
first seen, and again when it changes. Gradient norms, their finiteness and the update ratios are
known for every step; they wait here for 64 steps, and are written for a sampled step, or for all
that wait when one of them overflowed. All of it is made on the courier's thread.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ampwatch.probe import exponent_histogram as histograms
from ampwatch.probe.expert_load import expert_columns
from ampwatch.probe.formats import NONE, RoleFormats
from ampwatch.probe.formats.casts import cast_columns
from ampwatch.probe.formats.library_formats import formats_of
from ampwatch.probe.layer_observer import MeasuredTensor, SampledLayers, Visit
from ampwatch.probe.models import Layer, Survey
from ampwatch.probe.optimizers import ratios_by_layer
from ampwatch.probe.records import StepRecord, Turn
from ampwatch.probe.tensor_values import dtype_name, largest, parameter_shape
from ampwatch.probe.weight_updates import Move
from ampwatch.rows import DTYPE_NUMBERS

Columns = dict[str, list[Any]]

# The half formats only: the others have room to spare.
LARGEST_VALUES = {"float16": histograms.FLOAT16_MAX, "bfloat16": float.fromhex("0x1.fep127")}
# Their outputs are at most 1; their inputs are scores that no layer outputs, and can overflow.
_JUDGED_BY_INPUT = frozenset({"Softmax", "LogSoftmax", "Softmax2d"})


class LayerFigures:
    """One sampled step: a row for each layer that ran or whose weights were measured."""

    def __init__(self, sampled: SampledLayers, columns: Columns) -> None:
        self.sampled = sampled
        self.columns = columns  # of `Table.LAYERS`
        self._places = {number: place for place, number in enumerate(columns["layer"])}

    def row(self, layer: int) -> dict[str, Any]:
        """One layer's figures by column; empty if it has none."""
        place = self._places.get(layer)
        if place is None:
            return {}
        return {name: values[place] for name, values in self.columns.items()}

    def add_output(self, layer: int, amax: float | None, *, finite: bool) -> None:
        """Add what is known of a layer's output in a step that was not sampled."""
        place = self._places.get(layer)
        if place is None:
            place = self._places[layer] = len(self._places)
            for values in self.columns.values():
                values.append(None)
            self.columns["layer"][place] = layer
        if self.columns["act_finite"][place] is None:
            self.columns["act_finite"][place] = finite
            if amax is not None:
                self.columns["act_amax"][place] = amax

    def bad_in_grads(self, layer: int) -> frozenset[int]:
        """The input tensors whose gradients are not finite, by identity: layers may share one."""
        visit = self.sampled.visits.get(layer)
        inputs = visit.inputs if visit else ()
        known = ((id(seen), seen.gradient_amax) for seen in inputs)
        return frozenset(at for at, amax in known if amax is not None and not math.isfinite(amax))

    def is_own_making(self, layer: int) -> bool:
        """Whether one call gave values that are not finite before any call took some."""
        visit = self.sampled.visits.get(layer)
        if visit is None:
            return False
        took = _first_bad_call(visit.inputs, visit.calls)
        gave = _first_bad_call(visit.outputs, visit.calls)
        return took is not None and gave is not None and gave < took


def figures_of(
    sampled: SampledLayers,
    layers: Iterable[Layer],
    values: Sequence[float],
    scale: float | None,
    scaled_loss: float | None = None,
) -> LayerFigures:
    """The figures of a sampled step's layers, from the values of its pack.

    `scale` is the loss scale of its gradients, `scaled_loss` what its backward passes began with
    (of several the largest); figures that need one of them are None where it is unknown.
    """
    for seen in sampled.tensors:
        seen.read(values)
    weights = _measured_weights(sampled, layers, values)
    chosen = [
        layer for layer in layers if layer.number in weights or layer.number in sampled.visits
    ]
    visits = [sampled.visits.get(layer.number) or _NOT_VISITED for layer in chosen]
    inputs = [_without_masks(visit.inputs) for visit in visits]
    outputs = [_without_masks(visit.outputs) for visit in visits]
    norms = [weights.get(layer.number, (None, None)) for layer in chosen]
    columns = {
        "layer": [layer.number for layer in chosen],
        **_amax_and_finite("input", inputs, _AMAX),
        **_amax_and_finite("act", outputs, _AMAX),
        **_amax_and_finite("out_grad", outputs, _GRADIENT_AMAX),
        **_amax_and_finite("in_grad", inputs, _GRADIENT_AMAX),
        "weight_norm": [norm for norm, _ in norms],
        "weight_finite": [finite for _, finite in norms],
        "log2_headroom": [
            _headroom(visit.inputs if layer.kind in _JUDGED_BY_INPUT else given)
            for layer, visit, given in zip(chosen, visits, outputs, strict=True)
        ],
        **cast_columns([visit.casts for visit in visits], values),
        **_gradient_columns(inputs, outputs, scale, flushed=_all_flushed(sampled, scaled_loss)),
    }
    return LayerFigures(sampled, columns)


_NOT_VISITED = Visit(-1)

Figure = Callable[[MeasuredTensor], float | None]
_AMAX: Figure = attrgetter("amax")
_GRADIENT_AMAX: Figure = attrgetter("gradient_amax")


def _measured_weights(
    sampled: SampledLayers, layers: Iterable[Layer], values: Sequence[float]
) -> dict[int, tuple[float, bool]]:
    """Norm and finiteness of each layer's weights, by the layer's number."""
    if sampled.weights is None:
        return {}
    norm_at, amax_at = sampled.weights.norm_at, sampled.weights.amax_at
    found = {}
    for layer in layers:
        places = [at for at in layer.weights if at in norm_at]
        if places:
            norms = [values[norm_at[at]] for at in places]
            finite = all(math.isfinite(values[amax_at.get(at, norm_at[at])]) for at in places)
            found[layer.number] = math.hypot(*norms), finite
    return found


def _without_masks(tensors: list[MeasuredTensor]) -> list[MeasuredTensor]:
    return [seen for seen in tensors if not seen.is_mask]


def _amax_and_finite(name: str, tensors: list[list[MeasuredTensor]], which: Figure) -> Columns:
    amax = [_largest(of_layer, which) for of_layer in tensors]
    finite = [None if value is None else math.isfinite(value) for value in amax]
    return {f"{name}_amax": amax, f"{name}_finite": finite}


def _largest(tensors: Sequence[MeasuredTensor], which: Figure) -> float | None:
    """The largest of a figure over some tensors; a layer has seldom more than one."""
    if len(tensors) == 1:
        return which(tensors[0])
    return largest([value for value in map(which, tensors) if value is not None])


def _headroom(activations: Iterable[MeasuredTensor]) -> float | None:
    """Octaves between the largest activation and the end of its format; the least of several."""
    room = [
        math.log2(limit / seen.amax)
        for seen in activations
        if (limit := LARGEST_VALUES.get(dtype_name(seen.dtype))) and 0.0 < seen.amax < math.inf
    ]
    return min(room, default=None)


def _gradient_columns(
    inputs: list[list[MeasuredTensor]],
    outputs: list[list[MeasuredTensor]],
    scale: float | None,
    *,
    flushed: bool,
) -> Columns:
    """What half precision did to the gradients at each layer's output, and which scales fit."""
    count = len(outputs)
    names = ("exponents", "underflow_share", "scale_low", "scale_high")
    columns: Columns = {name: [None] * count for name in names}
    sampled = [[t for t in given if t.bins is not None] for given in outputs]
    places = [place for place, tensors in enumerate(sampled) if tensors]
    if not places:
        return columns
    bins = np.array([_all_bins(sampled[place]) for place in places])
    lists = [counts if any(counts) else None for counts in bins.tolist()]
    _fill(columns["exponents"], places, lists)
    is_half = [all(t.grad_dtype is torch.float16 for t in sampled[place]) for place in places]
    places = [place for place, half in zip(places, is_half, strict=True) if half]
    bins = bins[is_half]
    shares = [1.0] * len(places) if flushed else histograms.underflow_shares(bins)
    _fill(columns["underflow_share"], places, shares)
    if scale is not None:
        _fill(columns["scale_low"], places, histograms.lowest_scales(bins, scale))
        around = (inputs[place] + outputs[place] for place in places)
        _fill(columns["scale_high"], places, (_highest_scale(near, scale) for near in around))
    return columns


def _fill(column: list[Any], places: list[int], values: Iterable[Any]) -> None:
    for place, value in zip(places, values, strict=True):
        column[place] = value


def _all_bins(tensors: Iterable[Any]) -> Any:
    """The histogram of all their gradients; a tensor that was given twice counts once."""
    first, *others = dict.fromkeys(tensors)
    return sum((seen.bins for seen in others), first.bins)


def _highest_scale(around: Iterable[MeasuredTensor], scale: float) -> float | None:
    halves = [seen for seen in around if seen.grad_dtype is torch.float16]
    return histograms.highest_scale(_largest(halves, _GRADIENT_AMAX), scale)


def _all_flushed(sampled: SampledLayers, scaled_loss: float | None) -> bool:
    """Whether every half gradient of the step was flushed to zero."""
    pairs = [
        (seen.grad_dtype, seen.gradient_amax)
        for seen in sampled.tensors
        if seen.gradient_amax is not None
    ]
    half = [
        visit
        for visit in sampled.visits.values()
        if any(seen.grad_dtype is torch.float16 for seen in visit.outputs)
    ]
    last = max(half, key=lambda visit: visit.order, default=None)
    outputs = 0 if last is None else math.prod(last.output_shape or ())
    return histograms.flushed_everywhere(pairs, outputs, scaled_loss)


def _first_bad_call(noted: Sequence[MeasuredTensor], calls: int) -> int | None:
    """The first call with a value that is not finite, where all calls noted equally many."""
    if not calls or len(noted) % calls:
        return None
    bad = (at for at, seen in enumerate(noted) if not math.isfinite(seen.amax))
    first = next(bad, None)
    return None if first is None else first * calls // len(noted)


# -- what seldom changes ---------------------------------------------------------------------------


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
    expert_tokens: list[int] | None = None
    expert_most: float | None = None
    expert_entropy: float | None = None
    experts_idle: int | None = None


INFO_COLUMNS = [field.name for field in fields(LayerInfo)]


class LayerInfos:
    """What was written last of each layer; `group_of` gives a parameter's optimizer group."""

    def __init__(self, survey: Survey, group_of: Callable[[int], int | None]) -> None:
        self.written: dict[int, LayerInfo] = {}
        self._survey = survey
        self._group_of = group_of
        self._ever_ran: set[int] = set()
        self._sources: dict[int, tuple[Any, ...]] = {}  # what each info was made from last

    def changed(self, sampled: SampledLayers) -> list[LayerInfo]:
        """The infos of layers that this sample makes worth a row."""
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

    def with_routers(
        self, changed: list[LayerInfo], sampled: SampledLayers, values: Sequence[float]
    ) -> list[LayerInfo]:
        """The infos with those of the routers that this sample saw, which have each a row of it."""
        routers = {}
        for number, visit in sampled.visits.items():
            if visit.expert_tokens_at is not None and number in self.written:
                load = expert_columns(values[visit.expert_tokens_at])
                routers[number] = replace(self.written[number], **load)
        return [*(one for one in changed if one.layer not in routers), *routers.values()]

    def _source(self, layer: Layer, sampled: SampledLayers) -> tuple[Any, ...]:
        """All that an info is made from; comparing this is much cheaper than making the info.

        A module's own numbers (its stride, its heads) are taken not to change.
        """
        number, visit = layer.number, sampled.visits.get(layer.number)
        held = zip(layer.weights, self._survey.held_by(layer), strict=True)
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
        info = self._parameter_info(layer, sampled)
        before = self.written.get(layer.number)
        if visit is not None:
            info |= _visit_info(layer, visit)
        elif before is not None and layer.number in self._ever_ran:
            info = {**_without_none(asdict(before)), **_without_none(info)}
        info |= {
            "layer": layer.number,
            "name": layer.name,
            "kind": layer.kind,
            "param_group": self._group(layer),
            "observed": self._observed(layer, sampled),
            **self._formats(layer).columns(),
        }
        return LayerInfo(**info)

    def _formats(self, layer: Layer) -> RoleFormats:
        """In which formats the layer multiplies."""
        if not (layer.leaf or layer.is_bare):
            return NONE
        module = None if layer.is_bare else layer.module
        return formats_of(module, self._survey.matrix_of(layer))

    def _group(self, layer: Layer) -> int | None:
        return self._group_of(layer.weights[0]) if layer.weights else None

    def _parameter_info(self, layer: Layer, sampled: SampledLayers) -> dict[str, Any]:
        held = self._survey.held_by(layer)
        if not held:
            return {}
        matrix = self._survey.matrix_of(layer)
        shapes = map(parameter_shape, held if matrix is None else [matrix])
        weight = next((shape for shape in shapes if shape is not None), None)
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
            return "compiled, or not called as a module" if trained else "never ran"
        visit = sampled.visits.get(layer.number)
        if visit is not None and visit.input_dtype is None and visit.output_dtype is None:
            return "no tensors in or out"
        return None


def info_columns(step: int, infos: list[LayerInfo]) -> dict[str, list[Any]]:
    """The columns of `Table.LAYER_INFO`."""
    columns = {name: [getattr(info, name) for info in infos] for name in INFO_COLUMNS}
    return {"step": [step] * len(infos), **columns}


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


def _gradient_dtype(visit: Visit) -> torch.dtype | None:
    """The data type of the first gradient at a layer's outputs."""
    return _first(seen.grad_dtype for seen in visit.outputs)


def _first(dtypes: Iterable[torch.dtype | None]) -> torch.dtype | None:
    return next((dtype for dtype in dtypes if dtype is not None), None)


def _number(dtype: torch.dtype | None) -> int | None:
    return None if dtype is None else DTYPE_NUMBERS.get(dtype_name(dtype), DTYPE_NUMBERS["other"])


def _without_none(known: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in known.items() if value is not None}


def says_the_same(before: LayerInfo, now: LayerInfo) -> bool:
    """Whether nothing worth a row has changed about the layer.

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


# -- which rows are written, and when --------------------------------------------------------------


RING_STEPS = 64
EVERY_STEP = (
    "grad_norm", "grad_amax", "grad_finite", "grad_finite_local", "update_ratio", "moment_ratio",
)  # fmt: skip


class LayerStep:
    """What one step knows of every layer without looking inside it."""

    def __init__(self, step: int, layer_count: int) -> None:
        self.step = step
        self.seen = np.zeros(layer_count, np.bool_)  # has gradients at all
        self.norm_known = np.zeros(layer_count, np.bool_)  # and all of them are here
        self.grad_norm = np.zeros(layer_count)
        self.amax_known = np.zeros(layer_count, np.bool_)
        self.grad_amax = np.full(layer_count, np.nan)
        self.finite_known = np.zeros(layer_count, np.bool_)
        self.grad_finite = np.ones(layer_count, np.bool_)
        self.update_ratio = np.full(layer_count, np.nan)  # nan: absent
        self.parameter_finite: dict[int, bool] = {}  # of parameters whose gradients were judged
        self.local_finite: dict[int, bool] = {}  # of this rank's own, before ranks were joined
        self.first_layer: int | None = None
        self.first_amax: float | None = None  # of its output
        self.layer_local_finite: dict[int, bool] = {}
        self.moment_ratio: dict[int, float] = {}  # on sampled steps, where known

    def columns(self, layers: NDArray[np.int64]) -> Columns:
        """What the step knows of these layers, as columns; absent as None."""
        numbers = layers.tolist()
        ratio = self.update_ratio[layers]
        return {
            "grad_norm": _where(self.norm_known[layers], self.grad_norm[layers]),
            "grad_amax": _where(self.amax_known[layers], self.grad_amax[layers]),
            "grad_finite": _where(self.finite_known[layers], self.grad_finite[layers]),
            "grad_finite_local": list(map(self.layer_local_finite.get, numbers)),
            "update_ratio": _where(~np.isnan(ratio), ratio),
            "moment_ratio": list(map(self.moment_ratio.get, numbers)),
        }


def _where(known: NDArray[np.bool_], values: NDArray[Any]) -> list[Any]:
    """The values as Python's own, None where they are not known."""
    cells = values.astype(object)
    cells[~known] = None
    return list(cells)


@dataclass(slots=True)
class _Waiting:
    """A step that may be asked for, as it came."""

    record: StepRecord
    moves: list[Move]
    written: bool = False


class LayerLog:
    """Keeps the waiting steps; their layers' figures are computed only when they are written."""

    def __init__(self, survey: Survey) -> None:
        self._survey = survey
        self._count = len(survey.layers)
        self._ring: deque[_Waiting] = deque(maxlen=RING_STEPS)

    def take(self, record: StepRecord, moved: Mapping[int, Move]) -> None:
        """Remember a step: its layers may be asked for."""
        moves = [moved[id(turn)] for turn in record.turns if id(turn) in moved]
        self._ring.append(_Waiting(record, moves))

    def last(self) -> LayerStep:
        """What the step taken last knows of each layer; it counts as written."""
        self._ring[-1].written = True
        return self._worked_out(self._ring[-1])

    def around_overflow(self) -> list[LayerStep]:
        """The waiting steps whose layers no row shows yet."""
        unseen = [waiting for waiting in self._ring if not waiting.written]
        for waiting in unseen:
            waiting.written = True
        return [self._worked_out(waiting) for waiting in unseen]

    def _worked_out(self, waiting: _Waiting) -> LayerStep:
        record = waiting.record
        known = LayerStep(record.step, self._count)
        if record.first_layer_at:
            known.first_layer = record.first_layer
            known.first_amax = largest([record.pack.values[at] for at in record.first_layer_at])
        if record.local is not None:
            known.local_finite = record.local.finite(record.pack)
        for turn in record.turns:
            self._add_norms(record, turn, known)
        known.grad_norm = np.sqrt(known.grad_norm)
        self._add_local(known, record)
        for move in waiting.moves:
            known.update_ratio[move.layers] = move.ratios
        for turn in record.turns:
            if self._count and turn.state is not None and turn.has_moved(record.pack.values):
                layers = self._survey.layers_of(turn.positions)
                known.moment_ratio |= ratios_by_layer(turn.state, record.pack.values, layers)
        return known

    def _add_local(self, known: LayerStep, record: StepRecord) -> None:
        """Each layer's own gradients: bad if any is, good if all that were joined are known to be.

        On steps that were not armed, what reached the first layer tells of it: bad stays bad.
        """
        if record.local is None:
            return
        for layer in self._survey.layers:
            judged = [at for at in layer.parameters if at in known.parameter_finite]
            states = [known.local_finite[at] for at in judged if at in known.local_finite]
            if not all(states):
                known.layer_local_finite[layer.number] = False
            elif judged and len(states) == len(judged):
                known.layer_local_finite[layer.number] = True
        reached = record.local.first_finite(record.pack)
        if reached is False and known.first_layer is not None:
            known.layer_local_finite[known.first_layer] = False

    def _add_norms(self, record: StepRecord, turn: Turn, known: LayerStep) -> None:
        norms = turn.norms or turn.applied
        if norms is None or not self._count:
            return
        values = record.pack.values
        positions = np.asarray(turn.positions, np.int64)
        if norms.present is not None:
            positions = positions[list(norms.present)]
        ours = positions >= 0
        layers = self._survey.parameter_layers[positions[ours]]
        scale = 1.0 if not norms.scaled or record.scale is None else record.scale
        parts = np.array(values[norms.at : norms.at + norms.count]) / scale
        finite = np.isfinite(parts)
        judged = finite.copy()
        if norms.amax_at is not None:
            amax = np.array(values[norms.amax_at : norms.amax_at + norms.count])
            finite, judged = np.isfinite(amax), np.ones(len(amax), np.bool_)
            known.grad_amax[layers] = 0.0
            np.maximum.at(known.grad_amax, layers, amax[ours] / scale)  # nan wins
            known.amax_known[layers] = True
        elif turn.found_inf(values) is False:
            finite, judged = np.ones(len(parts), np.bool_), np.ones(len(parts), np.bool_)
        known.seen[layers] = True
        known.norm_known[layers] = not norms.sharded
        np.add.at(known.grad_norm, layers, parts[ours] ** 2)
        np.logical_and.at(known.grad_finite, layers, finite[ours])
        known.finite_known[layers] = True
        known.finite_known[layers[~judged[ours]]] = False
        at = positions[ours & judged].tolist()
        known.parameter_finite.update(zip(at, finite[ours & judged].tolist(), strict=True))


def rows_of(steps: Iterable[LayerStep]) -> Columns:
    """The narrow rows of layers, of steps that were not looked into."""
    columns: Columns = {name: [] for name in ("step", "layer", "act_amax", *EVERY_STEP)}
    for known in steps:
        wanted = known.seen | ~np.isnan(known.update_ratio)
        if known.first_layer is not None:
            wanted[known.first_layer] = True
        layers = np.flatnonzero(wanted)
        numbers = layers.tolist()
        columns["step"] += [known.step] * len(numbers)
        columns["layer"] += numbers
        columns["act_amax"] += [
            known.first_amax if layer == known.first_layer else None for layer in numbers
        ]
        for name, values in known.columns(layers).items():
            columns[name] += values
    return columns


def merged(columns: Columns, known: LayerStep) -> Columns:
    """A sampled step's own columns, with what every step measures added; layers of both."""
    sampled = set(columns["layer"])
    more = [layer for layer in np.flatnonzero(known.seen).tolist() if layer not in sampled]
    padded = {name: [*values, *[None] * len(more)] for name, values in columns.items()}
    padded["layer"] = layers = [*columns["layer"], *more]
    padded["step"] = [known.step] * len(layers)
    return padded | known.columns(np.array(layers, np.int64))
