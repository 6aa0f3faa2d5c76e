"""The operands of each layer's matrix product, sampled to tell what a narrow format does to them.

It examines linear layers whose operands are cast below sixteen bits, and those in fp16 or bf16, for
which it computes what a cast would do. In each sampled step the first call counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor, nn

from ampwatch.probe.library_formats import (
    DelayedRoom,
    delayed_room,
    formats_of,
    inner_weight,
    is_linear,
    is_of_torch,
    scales_in_use,
)
from ampwatch.probe.models import Survey
from ampwatch.probe.number_formats import (
    CastBatches,
    CastCounts,
    CastSample,
    Number,
    NumberFormat,
    RoleFormats,
    sample,
)
from ampwatch.probe.tensor_values import HALF, is_shard, measurable

Extremes = tuple[Tensor, Tensor]


class Noted(Protocol):
    """A tensor that was measured when a layer took or gave it."""

    reference: Any
    extremes: list[Tensor]
    cast: GradientCast | None


@dataclass(slots=True, eq=False)
class LayerCasts:
    """The samples of one layer's operands; its own formats."""

    formats: RoleFormats
    scales: dict[str, Tensor]  # in use, by role, where they do not follow from the operands
    scale_numbers: dict[str, Number]  # the scales, by role
    input: CastSample | None = None
    weight: CastSample | None = None
    grad: GradientCast | None = None
    room: DelayedRoom | None = None  # of delayed scales
    used: list[Number] = field(default_factory=list)  # of it: forward, then backward


@dataclass(slots=True, eq=False)
class GradientCast:
    """Samples the first gradient of one tensor."""

    batches: CastBatches
    form: NumberFormat | None
    scale: Tensor | None
    what_if: bool
    sample: CastSample | None = None

    def take(self, gradient: Tensor, found: Extremes) -> Tensor | None:
        """The backward pass has made this gradient; the sample's values, if one was taken now."""
        if self.sample is not None:
            return None
        self.sample = sample(gradient, found, self.form, self.scale, what_if=self.what_if)
        if self.sample is None:
            return None
        values = self.sample.values
        self.batches.add(self.sample)
        return values


class Operands:
    """The operands of one step."""

    def __init__(self, survey: Survey) -> None:
        self.batches = CastBatches()
        self.what_if = True
        self._survey = survey
        self._inputs: dict[tuple[int, int], CastSample | None] = {}  # by ids of tensor and format

    def begin(self, number: int, taken: Noted | None, *, half: bool) -> LayerCasts | None:
        """A layer is about to run: sample its operands; None if it is no product of interest."""
        layer = self._survey.layers[number]
        module = layer.module
        if module is None or not layer.leaf:
            return None
        weight = self._survey.matrix_of(layer)
        formats = formats_of(module, weight)
        linear = isinstance(module, nn.Linear) or is_linear(module)
        if not formats and not (self.what_if and linear and (half or _is_half(weight))):
            return None
        scales = scales_in_use(module, formats)
        numbers = {role: self.batches.add_number(scale) for role, scale in scales.items()}
        casts = LayerCasts(formats, scales, numbers)
        if taken is not None and linear:
            casts.input = self._input(taken, casts)
        casts.weight = self._weight(weight, casts)
        return casts

    def leave(self, number: int, casts: LayerCasts | None) -> LayerCasts | None:
        """The layer has run: delayed scales are as they were for this pass.

        A library may decide on its formats in the first pass, so they are asked for once more.
        """
        module = self._survey.layers[number].module
        if casts is None and not is_of_torch(module):
            casts = self.begin(number, None, half=False)
        if casts is None:
            return None
        casts.room = delayed_room(module, casts.formats)
        if casts.room is not None:
            casts.used.append(self.batches.add_number(casts.room.forward))
        return casts

    def end(self, every: Iterable[LayerCasts | None]) -> None:
        """The step is over, so the newest maxima of the operands' gradients are there."""
        for casts in every:
            if casts is not None and casts.room is not None:
                used = casts.room.backward()
                if used is not None:
                    casts.used.append(self.batches.add_number(used))
                casts.room = None

    def follow_gradient(self, casts: LayerCasts, given: Noted) -> None:
        """The layer gave this tensor: its gradient is the product's third operand."""
        if given.cast is None:
            form, scale = casts.formats.grad, casts.scales.get("grad")
            given.cast = GradientCast(self.batches, form, scale, self.what_if)
        casts.grad = given.cast

    def _input(self, taken: Noted, casts: LayerCasts) -> CastSample | None:
        """A tensor that several layers take is sampled once for each format."""
        form, scale = casts.formats.input, casts.scales.get("input")
        key = (id(taken), id(form))
        if key not in self._inputs or scale is not None:
            tensor = taken.reference()
            found = (taken.extremes[0], taken.extremes[1])
            self._inputs[key] = None if tensor is None else self._add(tensor, found, form, scale)
        return self._inputs[key]

    def _weight(self, weight: Any, casts: LayerCasts) -> CastSample | None:
        held = inner_weight(weight)
        if held is None or is_shard(weight) or not measurable(held):
            return None
        return self._add(held, None, casts.formats.weight, casts.scales.get("weight"))

    def _add(
        self,
        tensor: Tensor,
        found: Extremes | None,
        form: NumberFormat | None,
        scale: Tensor | None,
    ) -> CastSample | None:
        taken = sample(tensor, found, form, scale, what_if=self.what_if)
        if taken is not None:
            self.batches.add(taken)
        return taken


def _is_half(weight: Any) -> bool:
    return isinstance(weight, Tensor) and weight.dtype in HALF


# -- as columns, on the courier's thread -----------------------------------------------------------

_ROLES = ("input", "weight", "grad")
_FIGURES = ("saturated_share", "flushed_share", "spread", "what_if")


def cast_columns(layers: Sequence[LayerCasts | None], values: Sequence[float]) -> dict[str, Any]:
    """What was counted of each layer's operands, as columns; nothing where no layer has any."""
    if not any(one is not None for one in layers):
        return {}
    columns: dict[str, list[Any]] = {
        f"{role}_{figure}": [] for role in _ROLES for figure in _FIGURES
    }
    columns["amax_staleness"] = [None if one is None else _staleness(one, values) for one in layers]
    for role in _ROLES:
        columns[f"{role}_scale"] = [_scale(one, role, values) for one in layers]
    for one in layers:
        for role in _ROLES:
            figures = _figures(None if one is None else _sample(one, role), values)
            for figure, value in zip(_FIGURES, figures, strict=True):
                columns[f"{role}_{figure}"].append(value)
    return columns


def _sample(casts: LayerCasts, role: str) -> CastSample | None:
    if role == "grad":
        return None if casts.grad is None else casts.grad.sample
    return casts.input if role == "input" else casts.weight


def _figures(taken: CastSample | None, values: Sequence[float]) -> tuple[Any, ...]:
    """Shares, spread and what if of an operand's cast; None where they are not known."""
    counts = None if taken is None or taken.at < 0 else taken.counts(values)
    if taken is None or counts is None or not counts.nonzero:
        return (None,) * len(_FIGURES)
    spread = counts.spread_sum / counts.blocks
    what_if = [_share(lost, counts) for lost in counts.what_if] if taken.what_if else None
    return _share(counts.cut, counts), _share(counts.flushed, counts), spread, what_if


def _staleness(casts: LayerCasts, values: Sequence[float]) -> float | None:
    """The worst of both passes; inf where a maximum was not finite.

    A library's newest maximum may be that of other ranks: an operand's own counts as well.
    """
    used = [values[number.at] for number in casts.used if number.at >= 0]
    own = (_sample(casts, role) for role in _ROLES)
    used += [value for one in own if one is not None and (value := one.used(values)) is not None]
    if not used:
        return None
    return max(used) if all(map(math.isfinite, used)) else math.inf


def _scale(casts: LayerCasts | None, role: str, values: Sequence[float]) -> float | None:
    number = None if casts is None else casts.scale_numbers.get(role)
    return None if number is None or number.at < 0 else values[number.at]


def _share(count: float, counts: CastCounts) -> float | None:
    return None if count != count else count / counts.nonzero
