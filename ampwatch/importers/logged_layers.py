"""Collects what a log prints of layers, one figure a line, into rows of the layers table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ampwatch.importers.row_writer import LAYER_COLUMNS, RowWriter
from ampwatch.importers.statements import LayerStats

# The largest number of the formats that a delayed scale is known of, and the column of the maximum.
_LARGEST = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}
_MAXIMA = {"input": "input_amax", "grad": "out_grad_amax"}


@dataclass(slots=True)
class _Layer:
    """What the lines about one step print of a layer."""

    values: dict[str, float] = field(default_factory=dict)
    scales: dict[str, float] = field(default_factory=dict)


class LoggedLayers:
    """Collects a step's layer figures from a log; they become rows when another step begins."""

    def __init__(self, writer: RowWriter) -> None:
        self._writer = writer
        self._numbers: dict[str, int] = {}
        self._formats: dict[str, dict[str, str]] = {}
        self._changed: set[str] = set()
        self._layers: dict[str, _Layer] = {}
        self.step: int | None = None

    def take(self, told: LayerStats) -> None:
        """Add a line's figures of a layer; a figure printed before is not replaced."""
        if told.step != self.step:
            self.settle()
            self.step = told.step
        if told.layer not in self._numbers:
            self._numbers[told.layer] = len(self._numbers)
            self._changed.add(told.layer)
        self._note_formats(told.layer, told.formats)
        layer = self._layers.setdefault(told.layer, _Layer())
        for name, value in told.values.items():
            layer.values.setdefault(name, value)
        layer.scales.update(told.scales)

    def _note_formats(self, layer: str, formats: Mapping[str, str]) -> None:
        """Note the number formats that the log names for a layer; the more detailed name wins."""
        known = self._formats.setdefault(layer, {})
        for column, text in formats.items():
            if text.count("/") > known.get(column, "").count("/") or column not in known:
                known[column] = text
                self._changed.add(layer)

    def tell_again(self) -> None:
        """Write the facts of all layers again, because the log begins a new attempt."""
        self._changed.update(self._numbers)

    @property
    def count(self) -> int:
        """How many layers the log has named."""
        return len(self._numbers)

    def settle(self) -> None:
        """Write the rows of all layers for the step in hand."""
        step, layers = self.step, self._layers
        self.step, self._layers = None, {}
        if step is None:
            return
        for name in sorted(self._changed, key=self._numbers.__getitem__):
            fact = {"step": step, "layer": self._numbers[name], "name": name}
            self._writer.add_layer_fact({**fact, **self._formats[name]})
        self._changed.clear()
        for name, layer in layers.items():
            self._writer.add_layer(self._row(step, name, layer))

    def _row(self, step: int, name: str, layer: _Layer) -> dict[str, Any]:
        values = {key: value for key, value in layer.values.items() if key in LAYER_COLUMNS}
        stale = [
            _staleness(self._formats[name].get(f"{role}_format", ""), layer, role)
            for role in layer.scales
        ]
        known = [value for value in stale if value is not None]
        row: dict[str, Any] = {"step": step, "layer": self._numbers[name], **values}
        for role, column in (("input", "input_amax"), ("out_grad", "out_grad_amax")):
            if column in values:
                row[f"{role}_finite"] = math.isfinite(values[column])
        return {**row, "amax_staleness": max(known)} if known else row


def _staleness(form: str, layer: _Layer, role: str) -> float | None:
    """A logged layer's newest maximum times the scale in use, over the format's largest number."""
    largest = _LARGEST.get(form.partition("/")[0])
    amax = layer.values.get(_MAXIMA.get(role, f"{role}_amax"))
    if largest is None or amax is None or not form.endswith("/delayed"):
        return None
    return amax * layer.scales[role] / largest if math.isfinite(amax) else math.inf
