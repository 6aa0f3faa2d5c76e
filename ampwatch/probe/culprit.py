"""Which layer an overflow comes from, by where finite values turn into values that are not.

A non-finite value spoils everything after it, and in the backward everything before it, so *which*
values are bad names no layer; the place where good turns bad does. The places are searched in this
order: weights (all else follows from them), the model's input, the forward, the loss, the backward.
With a finite loss the backward comes before the forward: an activation may be infinite on purpose
(a masked score). In a step that was not sampled the order of the parameters bounds the place; if
the loss is not finite even that says nothing, because then every gradient is bad.
"""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ampwatch.probe.layer_rows import LARGEST_VALUES, LayerFigures, LayerInfo, LayerStep
from ampwatch.probe.models import Layer, Survey
from ampwatch.probe.records import StepRecord
from ampwatch.rows import DTYPES

LOSS = "(loss)"


class Direction(str, enum.Enum):
    """Where values stopped being finite."""

    WEIGHTS = "weights"
    INPUT = "input"
    FORWARD = "forward"
    LOSS = "loss"
    BACKWARD = "backward"


@dataclass(frozen=True, slots=True)
class LayerState:
    """What one step knows of one layer; None is unknown."""

    number: int
    name: str
    parent: int | None = None
    order: int | None = None  # in forward; None: never ran as a module
    weight_finite: bool | None = None
    input_finite: bool | None = None
    act_finite: bool | None = None
    out_grad_finite: bool | None = None
    in_grad_finite: bool | None = None
    grad_finite: bool | None = None  # of its own parameters
    bad_in_grads: frozenset[int] = frozenset()  # which input tensors' gradients are not finite
    own_making: bool = False  # called again and again: its bad inputs came after its bad outputs
    act_amax: float | None = None
    in_grad_amax: float | None = None
    act_limit: float | None = None  # the largest value of its output's format
    grad_limit: float | None = None
    act_headroom: float | None = None  # octaves, when last seen finite
    grad_headroom: float | None = None


@dataclass(frozen=True, slots=True)
class StepState:
    """What one step knows of its values."""

    layers: Sequence[LayerState]
    loss_finite: bool | None = None
    input_finite: bool | None = None
    usually_not_finite: frozenset[int] = field(default_factory=frozenset)  # outputs, by intention
    looked_inside: bool = True  # else only what enters and leaves a model is known


@dataclass(frozen=True, slots=True)
class Culprit:
    """The answer: exactly one layer, or a bound, `between` the layers where good turned bad."""

    direction: Direction
    layer: str | None
    exact: bool
    between: tuple[str | None, str | None] = (None, None)  # in forward order
    value: float | None = None
    limit: float | None = None
    headroom_before: float | None = None  # octaves

    def detail(self) -> dict[str, Any]:
        """For the overflow event's JSON: what JSON cannot say as a number is text."""
        values = {
            "direction": self.direction.value,
            "layer": self.layer,
            "exact": self.exact,
            "from": self.between[0],
            "to": self.between[1],
            "value": _number(self.value),
            "limit": self.limit,
            "headroom_before": _number(self.headroom_before),
        }
        return {name: value for name, value in values.items() if value is not None}


def find_culprit(step: StepState) -> Culprit | None:
    """Who is to blame for a step's overflow; None where nothing can be known."""
    chain = _Chain(step)
    for look in _LOOKS[step.loss_finite]:
        culprit = look(chain)
        if culprit is not None:
            return culprit
    return None


class _Chain:
    """A step's layers in forward order, with their containment."""

    def __init__(self, step: StepState) -> None:
        self.step = step
        self._by_number = {layer.number: layer for layer in step.layers}
        self.layers = sorted(step.layers, key=self.place)
        self.ran = [layer for layer in self.layers if layer.order is not None]

    def place(self, layer: LayerState) -> tuple[int, int]:
        """A layer that never ran as a module (a bare parameter) stands where its owner does."""
        owner: LayerState | None = layer
        while owner is not None and owner.order is None:
            owner = None if owner.parent is None else self._by_number.get(owner.parent)
        return (-1 if owner is None or owner.order is None else owner.order, layer.number)

    def innermost(self, layers: Iterable[LayerState]) -> list[LayerState]:
        """Of these layers those that contain no other of them."""
        chosen = list(layers)
        around: set[int] = set()
        for layer in chosen:
            around.update(self._containers(layer))
        return [layer for layer in chosen if layer.number not in around]

    def around_own_code(self, container: LayerState) -> tuple[str | None, str | None]:
        """Of a container that made bad values itself, the layers inside that it did it between."""
        inside = self.inside(container)
        bad = _first(inside, lambda la: la.input_finite is False and not la.own_making)
        if bad is None:
            return (None, None)
        before = itertools.takewhile(lambda la: la is not bad, inside)
        good = [la.name for la in before if la.act_finite and la.input_finite is not False]
        return (good[-1], bad.name) if good else (None, None)

    def inside(self, container: LayerState) -> list[LayerState]:
        """The layers in it that ran, in forward order."""
        return [layer for layer in self.ran if container.number in self._containers(layer)]

    def _containers(self, layer: LayerState) -> Iterable[int]:
        parent = layer.parent
        while parent is not None:
            yield parent
            container = self._by_number.get(parent)
            parent = None if container is None else container.parent


def _weights(chain: _Chain) -> Culprit | None:
    bad = _first(chain.layers, lambda layer: layer.weight_finite is False)
    return None if bad is None else Culprit(Direction.WEIGHTS, bad.name, exact=True)


def _input(chain: _Chain) -> Culprit | None:
    return Culprit(Direction.INPUT, None, exact=True) if chain.step.input_finite is False else None


def _forward(chain: _Chain) -> Culprit | None:
    """The first innermost module that made bad values from good ones."""
    judged = [layer for layer in chain.ran if layer.number not in chain.step.usually_not_finite]
    makers = chain.innermost(
        layer
        for layer in judged
        if layer.act_finite is False and (layer.input_finite is not False or layer.own_making)
    )
    if makers and (chain.step.looked_inside or not chain.inside(makers[0])):
        return _forward_at(makers[0], exact=True, between=chain.around_own_code(makers[0]))
    if makers:
        good = [layer.name for layer in chain.inside(makers[0]) if layer.act_finite]
        between = (good[-1] if good else None, makers[0].name)
        return Culprit(Direction.FORWARD, None, exact=False, between=between)
    bad = _first(judged, lambda layer: False in (layer.act_finite, layer.input_finite))
    if bad is None:
        return None
    # Something between the modules did it, and nothing that we watch lies around it.
    before = itertools.takewhile(lambda layer: layer is not bad, chain.ran)
    good = [layer.name for layer in before if layer.act_finite]
    between = (good[-1] if good else None, bad.name)
    return _forward_at(bad, exact=False, between=between)


def _forward_at(
    layer: LayerState, *, exact: bool, between: tuple[str | None, str | None]
) -> Culprit:
    return Culprit(
        Direction.FORWARD,
        layer.name,
        exact=exact,
        between=between,
        value=layer.act_amax,
        limit=layer.act_limit,
        headroom_before=layer.act_headroom,
    )


def _loss(chain: _Chain) -> Culprit | None:
    """The culprit is the loss: it is not finite while all outputs of the model are."""
    layers = [layer for layer in chain.ran if layer.act_finite is not None]
    if not layers:
        return None
    whole = any(layer.parent is None for layer in layers)
    return Culprit(Direction.LOSS, None, exact=whole, between=(layers[-1].name, LOSS))


def _backward(chain: _Chain) -> Culprit | None:
    """The innermost module nearest the loss that made bad gradients from good ones."""
    makers = chain.innermost(
        layer
        for layer in chain.ran
        if layer.out_grad_finite is True
        and False in (layer.in_grad_finite, _own_gradient(chain, layer))
    )
    if not makers:
        return None
    nearest = makers[-1]
    # The gradient of a tensor that several modules took is one sum: any of them may have spoilt it.
    sharing = [layer for layer in makers if layer.bad_in_grads & nearest.bad_in_grads]
    exact = len(sharing) <= 1 or _own_gradient(chain, nearest) is False
    return Culprit(
        Direction.BACKWARD,
        nearest.name,
        exact=exact,
        between=(None, None) if exact else (sharing[0].name, nearest.name),
        value=nearest.in_grad_amax if nearest.in_grad_finite is False else math.inf,
        limit=nearest.grad_limit,
        headroom_before=nearest.grad_headroom,
    )


def _own_gradient(chain: _Chain, layer: LayerState) -> bool | None:
    """Finiteness of its parameters' gradients, bare ones among them."""
    bare = (p.grad_finite for p in chain.layers if p.parent == layer.number and p.order is None)
    states = [finite for finite in (layer.grad_finite, *bare) if finite is not None]
    return all(states) if states else None


def _parameter_bound(chain: _Chain) -> Culprit | None:
    """Between the last layer in forward order with a bad gradient and the next with a good one."""
    layers = [layer for layer in chain.layers if layer.grad_finite is not None]
    bad = [at for at, layer in enumerate(layers) if not layer.grad_finite]
    if not bad:
        return None
    last = layers[bad[-1]]
    after = layers[bad[-1] + 1].name if bad[-1] + 1 < len(layers) else LOSS
    return Culprit(
        Direction.BACKWARD,
        last.name,
        exact=False,
        between=(last.name, after),
        limit=last.grad_limit,
        headroom_before=last.grad_headroom,
    )


def _first(layers: Iterable[LayerState], test: Callable[[LayerState], bool]) -> LayerState | None:
    return next((layer for layer in layers if test(layer)), None)


# By what is known of the loss. One that is not finite makes every gradient bad: then none is asked.
_LOOKS: dict[bool | None, tuple[Callable[[_Chain], Culprit | None], ...]] = {
    False: (_weights, _input, _forward, _loss),
    True: (_weights, _input, _backward, _parameter_bound, _forward),
    None: (_weights, _input, _forward, _backward),
}


def _number(value: float | None) -> float | str | None:
    return value if value is None or math.isfinite(value) else str(value)


# -- what sampled steps have taught about the layers -----------------------------------------------

# Columns of a sampled step that a `LayerState` has too.
_SAMPLED = (
    "weight_finite", "input_finite", "act_finite", "out_grad_finite", "in_grad_finite", "act_amax",
    "in_grad_amax",
)  # fmt: skip


class CulpritFinder:
    """Remembers each layer's order and headroom; asked at an overflow."""

    def __init__(self, survey: Survey, infos: Mapping[int, LayerInfo]) -> None:
        self._survey = survey
        self._infos = infos  # what was last written of each layer
        self._orders: dict[int, int] = {}
        self._act_headroom: dict[int, float] = {}
        self._grad_headroom: dict[int, float] = {}
        self._usually_not_finite: set[int] = set()

    def learn(self, figures: LayerFigures, scale: float | None, *, overflowed: bool) -> None:
        """Take in a sampled step; one that overflowed says nothing about what is usual.

        Of an overflowed step ask `find` first: it reports the headroom before.
        """
        self._learn_order(figures)
        if overflowed:
            return
        layers = figures.columns["layer"]
        for layer, headroom in zip(layers, figures.columns["log2_headroom"], strict=True):
            if headroom is not None:
                self._act_headroom[layer] = headroom
        for layer, highest in zip(layers, figures.columns["scale_high"], strict=True):
            if highest is not None and scale:
                self._grad_headroom[layer] = math.log2(highest / scale)
        act_finite = zip(layers, figures.columns["act_finite"], strict=True)
        self._usually_not_finite = {layer for layer, finite in act_finite if finite is False}

    def find(
        self,
        gradient_finite: Mapping[int, bool],
        *,
        loss_finite: bool | None,
        input_finite: bool | None,
        figures: LayerFigures | None,
        looked_inside: bool = True,
    ) -> Culprit | None:
        """The culprit of a step, from its parameters' gradients (by position) and its figures."""
        if figures is not None:
            self._learn_order(figures)
        return find_culprit(
            StepState(
                layers=[
                    self._state(layer, gradient_finite, figures) for layer in self._survey.layers
                ],
                loss_finite=loss_finite,
                input_finite=input_finite,
                usually_not_finite=frozenset(self._usually_not_finite),
                looked_inside=looked_inside,
            )
        )

    def _learn_order(self, figures: LayerFigures) -> None:
        visits = figures.sampled.visits.items()
        self._orders.update((layer, visit.order) for layer, visit in visits)

    def _state(
        self, layer: Layer, gradient_finite: Mapping[int, bool], figures: LayerFigures | None
    ) -> LayerState:
        number = layer.number
        info = self._infos.get(number)
        states = [gradient_finite[at] for at in layer.parameters if at in gradient_finite]
        sampled: dict[str, Any] = {}
        if figures is not None:
            row = figures.row(number)
            sampled = {name: row.get(name) for name in _SAMPLED}
            sampled["bad_in_grads"] = figures.bad_in_grads(number)
            sampled["own_making"] = figures.is_own_making(number)
        return LayerState(
            number=number,
            name=layer.name,
            parent=layer.parent,
            order=self._orders.get(number),
            grad_finite=all(states) if states else None,
            act_limit=None if info is None else _limit(info.output_dtype),
            grad_limit=None if info is None else _limit(info.out_grad_dtype),
            act_headroom=self._act_headroom.get(number),
            grad_headroom=self._grad_headroom.get(number),
            **sampled,
        )


def _limit(dtype: int | None) -> float | None:
    """The largest value of a half format; None for wider ones, where limits do not bind."""
    return None if dtype is None else LARGEST_VALUES.get(DTYPES[dtype])


# -- whether it came from this rank's own backward, or with the gradients of the others ------------


@dataclass(frozen=True, slots=True)
class OwnBackward:
    """What one overflowed step knows of this rank's own gradients; None is unknown."""

    finite: bool | None
    exact: bool  # every gradient was seen before the ranks were joined
    parameter_finite: Mapping[int, bool]  # to look for a culprit among

    def detail(self) -> dict[str, Any]:
        """This rank's own part, for the overflow event."""
        return {} if self.finite is None else {"own_finite": self.finite, "own_exact": self.exact}


def own_backward(record: StepRecord, known: LayerStep, *, loss_finite: bool | None) -> OwnBackward:
    """What this rank's loss, parameters and first layer say of its own part in the overflow."""
    joined, own = known.parameter_finite, known.local_finite
    if record.local is None:
        return OwnBackward(finite=None, exact=False, parameter_finite=joined)
    exact = bool(joined) and joined.keys() <= own.keys()
    reached = record.local.first_finite(record.pack)
    if loss_finite is False or reached is False or not all(own.values()):
        return OwnBackward(finite=False, exact=exact, parameter_finite={**joined, **own})
    if exact:
        return OwnBackward(finite=True, exact=True, parameter_finite=own)
    # Bad gradients that did not come through here name none of this rank's layers.
    return OwnBackward(finite=reached, exact=False, parameter_finite=own if reached else joined)
