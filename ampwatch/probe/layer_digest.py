"""From a `LayerCapture` to the cells of the layers' rows, on the courier's thread. Pure numpy.

What seldom changes about a layer is told once and again when it changes; the rest, each sample.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from ampwatch.probe import exponents
from ampwatch.probe.capture import LayerCapture, TensorCapture, VisitCapture
from ampwatch.probe.layer_flush import flushed_everywhere
from ampwatch.probe.layer_info import (
    INFO_COLUMNS,
    LayerInfo,
    parameter_info,
    says_the_same,
    visit_info,
    without_none,
)
from ampwatch.probe.models import Layer, Survey
from ampwatch.probe.tensors import is_mask, largest, magnitude
from ampwatch.rows import EXPONENT_BINS

Columns = dict[str, list[Any]]

# The half formats only: the others have room to spare.
LARGEST_VALUES = {"float16": exponents.FLOAT16_MAX, "bfloat16": float.fromhex("0x1.fep127")}
# What they give ends at 1 and may be float32; what they take is made by no layer, and can overflow.
_JUDGED_BY_INPUT = frozenset({"Softmax", "LogSoftmax", "Softmax2d"})
_NEVER_RAN = "never ran"
_PAST_HOOKS = "compiled, or not called as a module"
_NO_TENSORS = "no tensors in or out"


@dataclass(frozen=True, slots=True)
class LayerCells:
    """One layer's figures in one sampled step; named as the columns are."""

    layer: int
    input_amax: float | None = None
    input_finite: bool | None = None
    act_amax: float | None = None
    act_finite: bool | None = None
    out_grad_amax: float | None = None
    out_grad_finite: bool | None = None
    in_grad_amax: float | None = None
    in_grad_finite: bool | None = None
    weight_finite: bool | None = None
    weight_norm: float | None = None
    underflow_share: float | None = None
    exponents: list[int] | None = None
    log2_headroom: float | None = None
    scale_low: float | None = None
    scale_high: float | None = None


CELL_COLUMNS = tuple(LayerCells.__dataclass_fields__)


@dataclass(frozen=True, slots=True)
class LayerDigest:
    """A sampled step's layers: each one's figures, and what is new to tell of them."""

    step: int
    cells: Mapping[int, LayerCells]
    orders: Mapping[int, int]
    bad_in_grads: Mapping[int, frozenset[int]]  # tensors by identity: layers may share one
    own_making: frozenset[int]  # layers called again and again that spoilt their own later inputs
    changed: tuple[LayerInfo, ...]

    def rows(self) -> Columns:
        """The columns of `Table.LAYERS` that this room knows."""
        columns: Columns = {"step": [self.step] * len(self.cells)}
        for name in CELL_COLUMNS:
            columns[name] = [getattr(cells, name) for cells in self.cells.values()]
        return columns

    def info_rows(self) -> Columns:
        """The columns of `Table.LAYER_INFO` for what has changed."""
        columns: Columns = {"step": [self.step] * len(self.changed)}
        for name in INFO_COLUMNS:
            columns[name] = [getattr(info, name) for info in self.changed]
        return columns


@dataclass(slots=True)
class _Figures:
    """A tensor's values, read out of the pack."""

    capture: TensorCapture
    low: float
    high: float
    gradient_amax: float | None
    bins: exponents.Bins | None

    @property
    def amax(self) -> float:
        return magnitude(self.low, self.high)

    @property
    def is_mask(self) -> bool:
        return is_mask(self.low, self.high, requires_grad=self.capture.requires_grad)


@dataclass(slots=True)
class LayerDigester:
    """Digests one sampled step after another; remembers what was told of each layer."""

    survey: Survey
    param_groups: Callable[[int], int | None] = lambda _position: None
    _told: dict[int, LayerInfo] = field(default_factory=dict)
    _ever_ran: set[int] = field(default_factory=set)

    def digest(
        self,
        capture: LayerCapture,
        values: Sequence[float],
        scale: float | None,
        step: int,
        scaled_loss: float | None = None,
    ) -> LayerDigest:
        """The step's figures; None where the loss scale of its gradients, or the loss, is unknown.

        `scaled_loss` is what its backward passes began with; of several the largest.
        """
        tensors = [_figures(tensor, values) for tensor in capture.tensors]
        visits = {visit.layer: visit for visit in capture.visits}
        flushed = _all_flushed(capture, tensors, scaled_loss)
        self._ever_ran.update(visits)
        cells = {}
        for layer in self.survey.layers:
            visit = visits.get(layer.number)
            weights = _weight_cells(layer, capture, values)
            seen = {} if visit is None else _visit_cells(visit, tensors, scale, flushed=flushed)
            if visit is not None and layer.kind in _JUDGED_BY_INPUT:
                seen["log2_headroom"] = _headroom(tensors[at] for at in visit.inputs)
            if weights or seen:
                cells[layer.number] = LayerCells(layer=layer.number, **weights, **seen)
        return LayerDigest(
            step=step,
            cells=cells,
            orders={visit.layer: visit.order for visit in capture.visits},
            bad_in_grads={visit.layer: _bad_gradients(visit, tensors) for visit in capture.visits},
            own_making=frozenset(v.layer for v in capture.visits if _is_own_making(v, tensors)),
            changed=self._changed(capture, visits, tensors),
        )

    def _changed(
        self,
        capture: LayerCapture,
        visits: Mapping[int, VisitCapture],
        tensors: Sequence[_Figures],
    ) -> tuple[LayerInfo, ...]:
        changed = []
        for layer in self.survey.layers:
            info = self._info(layer, capture, visits.get(layer.number), tensors)
            before = self._told.get(layer.number)
            if before is None or not says_the_same(before, info):
                self._told[layer.number] = info
                changed.append(info)
        return tuple(changed)

    def _info(
        self,
        layer: Layer,
        capture: LayerCapture,
        visit: VisitCapture | None,
        tensors: Sequence[_Figures],
    ) -> LayerInfo:
        known: dict[str, Any] = parameter_info(layer, self.survey, capture)
        before = self._told.get(layer.number)
        if visit is not None:
            grad_dtypes = (tensors[at].capture.grad_dtype for at in visit.outputs)
            known |= visit_info(layer, visit, grad_dtypes)
        elif before is not None and layer.number in self._ever_ran:
            known = {**without_none(asdict(before)), **without_none(known)}
        known |= {
            "layer": layer.number,
            "name": layer.name,
            "kind": layer.kind,
            "param_group": self.param_groups(layer.weights[0]) if layer.weights else None,
            "observed": self._observed(layer, capture, visit),
        }
        return LayerInfo(**known)

    def _observed(
        self, layer: Layer, capture: LayerCapture, visit: VisitCapture | None
    ) -> str | None:
        reason = capture.sealed.get(layer.number)
        if reason is not None or layer.is_bare:
            return reason
        if layer.number not in self._ever_ran:
            trained = any(position in capture.param_grad_dtypes for position in layer.weights)
            return _PAST_HOOKS if trained else _NEVER_RAN
        if visit is not None and visit.input_dtype is None and visit.output_dtype is None:
            return _NO_TENSORS
        return None


def _figures(tensor: TensorCapture, values: Sequence[float]) -> _Figures:
    gradients = [magnitude(values[at], values[at + 1]) for at in tensor.gradients_at]
    parts: list[exponents.Bins] = []
    if tensor.bits and tensor.grad_dtype is not None:
        parts.append(
            exponents.histogram((b.numpy().reshape(-1) for b in tensor.bits), tensor.grad_dtype)
        )
    parts += [
        exponents.histogram_of_counts(np.asarray(values[at : at + EXPONENT_BINS]))
        for at in tensor.counts_at
    ]
    return _Figures(
        capture=tensor,
        low=values[tensor.at],
        high=values[tensor.at + 1],
        gradient_amax=largest(gradients),
        bins=sum(parts[1:], parts[0]) if parts else None,
    )


# -- the figures of one sample ---------------------------------------------------------------------


def _weight_cells(layer: Layer, capture: LayerCapture, values: Sequence[float]) -> dict[str, Any]:
    known = [capture.weights[at] for at in layer.weights if at in capture.weights]
    if not known:
        return {}
    norms = [values[weight.norm_at] for weight in known]
    return {
        "weight_norm": math.hypot(*norms),
        "weight_finite": all(
            math.isfinite(norm if weight.amax_at is None else values[weight.amax_at])
            for weight, norm in zip(known, norms, strict=True)
        ),
    }


def _visit_cells(
    visit: VisitCapture, tensors: Sequence[_Figures], scale: float | None, *, flushed: bool
) -> dict[str, Any]:
    inputs = [tensors[at] for at in visit.inputs if not tensors[at].is_mask]
    outputs = [tensors[at] for at in visit.outputs if not tensors[at].is_mask]
    cells = {
        **_amax_and_finite("input", (tensor.amax for tensor in inputs)),
        **_amax_and_finite("act", (tensor.amax for tensor in outputs)),
        **_amax_and_finite("out_grad", _gradient_maxima(outputs)),
        **_amax_and_finite("in_grad", _gradient_maxima(inputs)),
        "log2_headroom": _headroom(outputs),
    }
    bins = [t.bins for t in _once(outputs) if t.bins is not None]
    if bins:
        total = exponents.combined(bins)
        cells["exponents"] = exponents.shown(total)
        if all(t.capture.grad_dtype == "float16" for t in outputs if t.bins is not None):
            cells |= _half_gradients(total, inputs + outputs, scale)
            if flushed:
                cells["underflow_share"] = 1.0
    return cells


def _all_flushed(
    capture: LayerCapture, tensors: Sequence[_Figures], scaled_loss: float | None
) -> bool:
    """Whether every half gradient of the step was flushed to zero."""
    known = [
        (t.capture.grad_dtype, t.gradient_amax) for t in tensors if t.gradient_amax is not None
    ]
    half = [
        visit
        for visit in capture.visits
        if any(tensors[at].capture.grad_dtype == "float16" for at in visit.outputs)
    ]
    last = max(half, key=lambda visit: visit.order, default=None)
    outputs = 0 if last is None else math.prod(last.output_shape or ())
    return flushed_everywhere(known, outputs, scaled_loss)


def _half_gradients(
    bins: exponents.Bins, around: Sequence[_Figures], scale: float | None
) -> dict[str, Any]:
    """What float16 did to the gradients at this layer, and the scales it could live with."""
    share = exponents.underflow_share(bins)
    if scale is None:
        return {"underflow_share": share}
    amax = largest([
        tensor.gradient_amax
        for tensor in around
        if tensor.gradient_amax is not None and tensor.capture.grad_dtype == "float16"
    ])  # fmt: skip
    return {
        "underflow_share": share,
        "scale_low": exponents.lowest_scale(bins, scale),
        "scale_high": exponents.highest_scale(amax, scale),
    }


def _amax_and_finite(name: str, maxima: Iterable[float | None]) -> dict[str, Any]:
    amax = largest([value for value in maxima if value is not None])
    if amax is None:
        return {}
    return {f"{name}_amax": amax, f"{name}_finite": math.isfinite(amax)}


def _bad_gradients(visit: VisitCapture, tensors: Sequence[_Figures]) -> frozenset[int]:
    maxima = ((at, tensors[at].gradient_amax) for at in visit.inputs)
    return frozenset(at for at, amax in maxima if amax is not None and not math.isfinite(amax))


def _is_own_making(visit: VisitCapture, tensors: Sequence[_Figures]) -> bool:
    """Whether one call gave values that are not finite before any call took some."""
    took = _first_bad_call(visit.inputs, visit.calls, tensors)
    gave = _first_bad_call(visit.outputs, visit.calls, tensors)
    return took is not None and gave is not None and gave < took


def _first_bad_call(noted: Sequence[int], calls: int, tensors: Sequence[_Figures]) -> int | None:
    """The first call with a value that is not finite, where all calls noted equally many."""
    if not calls or len(noted) % calls:
        return None
    bad = (at for at, tensor in enumerate(noted) if not math.isfinite(tensors[tensor].amax))
    first = next(bad, None)
    return None if first is None else first * calls // len(noted)


def _gradient_maxima(tensors: Iterable[_Figures]) -> list[float | None]:
    return [tensor.gradient_amax for tensor in tensors]


def _headroom(activations: Iterable[_Figures]) -> float | None:
    """Octaves between the largest activation and the end of its format; the least of several."""
    room = [
        math.log2(LARGEST_VALUES[tensor.capture.dtype] / tensor.amax)
        for tensor in activations
        if tensor.capture.dtype in LARGEST_VALUES and 0.0 < tensor.amax < math.inf
    ]
    return min(room, default=None)


def _once(tensors: Iterable[_Figures]) -> list[_Figures]:
    return list({id(tensor): tensor for tensor in tensors}.values())
