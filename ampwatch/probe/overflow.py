"""Names the culprit of each overflow from what the sampled steps have taught about the layers."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ampwatch.probe.culprit import Culprit, LayerState, StepState, find_culprit
from ampwatch.probe.layer_digest import LARGEST_VALUES, LayerCells, LayerDigest
from ampwatch.probe.layer_info import LayerInfo
from ampwatch.probe.models import Layer, Survey
from ampwatch.rows import DTYPES


class CulpritFinder:
    """Remembers each layer's order, formats and headroom; asked at an overflow."""

    def __init__(self, survey: Survey) -> None:
        self._survey = survey
        self._infos: dict[int, LayerInfo] = {}
        self._orders: dict[int, int] = {}
        self._act_headroom: dict[int, float] = {}
        self._grad_headroom: dict[int, float] = {}
        self._usually_not_finite: set[int] = set()

    def learn(self, digest: LayerDigest, scale: float | None, *, overflowed: bool) -> None:
        """Take in a sampled step; one that overflowed says nothing about what is usual.

        Of an overflowed step ask `find` first: it reports the headroom before.
        """
        self._update(digest)
        if overflowed:
            return
        for number, cells in digest.cells.items():
            if cells.log2_headroom is not None:
                self._act_headroom[number] = cells.log2_headroom
            if cells.scale_high is not None and scale:
                self._grad_headroom[number] = math.log2(cells.scale_high / scale)
        self._usually_not_finite = {n for n, c in digest.cells.items() if c.act_finite is False}

    def find(
        self,
        gradient_finite: Mapping[int, bool],
        *,
        loss_finite: bool | None,
        input_finite: bool | None,
        digest: LayerDigest | None,
        looked_inside: bool = True,
    ) -> Culprit | None:
        """The culprit of a step, from its parameters' gradients (by position) and its digest."""
        if digest is not None:
            self._update(digest)
        return find_culprit(
            StepState(
                layers=[
                    self._state(layer, gradient_finite, digest) for layer in self._survey.layers
                ],
                loss_finite=loss_finite,
                input_finite=input_finite,
                usually_not_finite=frozenset(self._usually_not_finite),
                looked_inside=looked_inside,
            )
        )

    def _update(self, digest: LayerDigest) -> None:
        self._infos.update((info.layer, info) for info in digest.changed)
        self._orders.update(digest.orders)

    def _state(
        self, layer: Layer, gradient_finite: Mapping[int, bool], digest: LayerDigest | None
    ) -> LayerState:
        number = layer.number
        info = self._infos.get(number)
        cells = (
            LayerCells(number) if digest is None else digest.cells.get(number, LayerCells(number))
        )
        known = [gradient_finite[at] for at in layer.parameters if at in gradient_finite]
        return LayerState(
            number=number,
            name=layer.name,
            parent=layer.parent,
            order=self._orders.get(number),
            weight_finite=cells.weight_finite,
            input_finite=cells.input_finite,
            act_finite=cells.act_finite,
            out_grad_finite=cells.out_grad_finite,
            in_grad_finite=cells.in_grad_finite,
            grad_finite=all(known) if known else None,
            bad_in_grads=frozenset()
            if digest is None
            else digest.bad_in_grads.get(number, frozenset()),
            own_making=digest is not None and number in digest.own_making,
            act_amax=cells.act_amax,
            in_grad_amax=cells.in_grad_amax,
            act_limit=None if info is None else _limit(info.output_dtype),
            grad_limit=None if info is None else _limit(info.out_grad_dtype),
            act_headroom=self._act_headroom.get(number),
            grad_headroom=self._grad_headroom.get(number),
        )


def _limit(dtype: int | None) -> float | None:
    """The largest value of a half format; None for wider ones, where limits do not bind."""
    return None if dtype is None else LARGEST_VALUES.get(DTYPES[dtype])
