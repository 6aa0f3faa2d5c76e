"""Which layers' rows are written, and when: at each sampled step, and around each overflow.

Gradient norms, their finiteness and the update ratios are known for every step; they wait here for
64 steps, and are written for a sampled step, or for all that wait when one of them overflowed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ampwatch.probe.models import Survey
from ampwatch.probe.optimizer_state import ratios_by_layer
from ampwatch.probe.records import StepRecord, Turn
from ampwatch.probe.tensor_values import largest
from ampwatch.probe.weight_updates import Move

RING_STEPS = 64
Columns = dict[str, list[Any]]
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
    shown = values.astype(object)
    shown[~known] = None
    return list(shown)


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
            seen = [known.local_finite[at] for at in judged if at in known.local_finite]
            if not all(seen):
                known.layer_local_finite[layer.number] = False
            elif judged and len(seen) == len(judged):
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
