"""Writes the rows that an import makes to the store, in batches; collects those of layers first."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from ampwatch import codec
from ampwatch.importers.statements import LayerStats
from ampwatch.importers.tables.cells import Cells
from ampwatch.rows import SCHEMAS, EventKind, Table

_BATCH_ROWS = 32_768
_FLAGS = frozenset({"update_seen", "found_inf", "skipped", "stepped", "input_finite"})
STEP_COLUMNS = frozenset(SCHEMAS[Table.STEPS].names) - {"lrs", "lr_bases", "max_update_layer"}
LAYER_COLUMNS = frozenset(SCHEMAS[Table.LAYERS].names)

Row = dict[str, Any]


class RowSink(Protocol):
    """Where the row writer puts full batches: one rank of a run's folder."""

    def append(self, batch: codec.Batch, /) -> object:
        """Append a full batch."""


class RowWriter:
    """Collects imported steps, layers and events into batches and writes them in order."""

    def __init__(self, sink: RowSink) -> None:
        self._sink = sink
        self._rows: list[Row] = []
        self._pieces: list[pa.RecordBatch] = []  # older than those rows
        self._piece_rows = 0
        self._extras: list[tuple[np.ndarray, str, np.ndarray]] = []
        self._extra_rows = 0
        self._layers: list[Row] = []
        self._layer_facts: list[Row] = []
        self.count = 0

    def add(self, row: Row) -> None:
        """Add the row of one step to the batch."""
        self._rows.append(row)
        self.count += 1
        if len(self._rows) >= _BATCH_ROWS:
            self.flush()

    def add_columns(self, columns: Mapping[str, np.ndarray | Cells]) -> None:
        """Add the rows of many steps to the batch, by column."""
        step = columns["step"]
        count = len(step.values if isinstance(step, Cells) else step)
        self._close_rows()
        self._add_piece(columns, count)
        self.count += count
        if self._piece_rows >= _BATCH_ROWS:
            self.flush()

    def add_metric(self, step: np.ndarray, name: str, values: np.ndarray) -> None:
        """Add a metric for which the steps table has no column, at these steps."""
        if len(step):
            self._extras.append((step, name, values))
            self._extra_rows += len(step)
        if self._extra_rows >= _BATCH_ROWS:
            self.flush()

    def add_layer(self, row: Row) -> None:
        """Add the row of one layer at one step."""
        self._layers.append(row)
        if len(self._layers) >= _BATCH_ROWS:
            self.flush()

    def add_layer_fact(self, row: Row) -> None:
        """Add a row that says what a layer is, from a step on."""
        self._layer_facts.append(row)

    def add_event(self, kind: EventKind, step: int | None, detail: Mapping[str, Any]) -> None:
        """Write an event; a `started` event begins the attempt of all rows after it."""
        self.flush()
        text = json.dumps(detail, allow_nan=False, default=str)
        columns: dict[str, list[Any]]
        columns = {"step": [step], "time_ns": [None], "kind": [kind.value], "detail": [text]}
        self._sink.append(codec.encode(Table.EVENTS, columns))

    def flush(self) -> None:
        """Write all rows collected so far as batches."""
        self._close_rows()
        pieces, self._pieces, self._piece_rows = self._pieces, [], 0
        if pieces:
            whole = pa.Table.from_batches(pieces).combine_chunks()
            for batch in whole.to_batches(max_chunksize=_BATCH_ROWS):
                self._sink.append(codec.encode_batch(Table.STEPS, batch))
        extras, self._extras, self._extra_rows = self._extras, [], 0
        if extras:
            steps, names, values = zip(*extras, strict=True)
            step, value = np.concatenate(steps), np.concatenate(values)
            name = np.repeat(np.array(names, dtype=object), [len(one) for one in steps])
            order = np.argsort(step, kind="stable")
            for begin in range(0, len(step), _BATCH_ROWS):
                at = order[begin : begin + _BATCH_ROWS]
                long = {"step": step[at], "name": name[at].tolist(), "value": value[at]}
                self._sink.append(codec.encode(Table.EXTRAS, long))
        facts, self._layer_facts = self._layer_facts, []
        layers, self._layers = self._layers, []
        self._write_rows(Table.LAYER_INFO, facts)
        self._write_rows(Table.LAYERS, layers)

    def _write_rows(self, table: Table, rows: Sequence[Row]) -> None:
        if rows:
            names = sorted(set().union(*rows))
            columns = {name: [row.get(name) for row in rows] for name in names}
            self._sink.append(codec.encode(table, columns))

    def _close_rows(self) -> None:
        rows, self._rows = self._rows, []
        if rows:
            names = sorted(set().union(*rows))
            self._add_piece({name: _column(rows, name) for name in names}, len(rows))

    def _add_piece(
        self, columns: Mapping[str, Sequence[Any] | np.ndarray | Cells], count: int
    ) -> None:
        schema = SCHEMAS[Table.STEPS]
        with np.errstate(all="ignore"):  # a float64 beyond float32 is inf
            arrays = [
                _arrow(columns[field.name], field.type)
                if field.name in columns
                else pa.nulls(count, field.type)
                for field in schema
            ]
        self._pieces.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
        self._piece_rows += count


def _arrow(column: Sequence[Any] | np.ndarray | Cells, kind: pa.DataType) -> pa.Array:
    if not isinstance(column, Cells):
        return codec.column(column, kind)
    values = column.values
    if column.present.all():
        return codec.column(values if values.dtype != object else list(values), kind)
    filled = codec.column(np.where(column.present, values, 0.0), kind)
    validity = pa.py_buffer(np.packbits(column.present, bitorder="little"))
    return pa.Array.from_buffers(kind, len(values), [validity, filled.buffers()[1]])


def _column(rows: Sequence[Row], name: str) -> list[Any]:
    values = [row.get(name) for row in rows]
    if name in _FLAGS:
        return [None if value is None else bool(value) for value in values]
    if str(SCHEMAS[Table.STEPS].field(name).type).startswith("int"):
        numbers = (v if v is not None and math.isfinite(v) else None for v in values)
        return [None if value is None else int(value) for value in numbers]
    return values


# --- layers ---------------------------------------------------------------------------------------

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
