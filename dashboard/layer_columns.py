"""What stands beside the heat map, a row a layer: its data types, and a view of it at one step."""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow.compute as pc
from html_text import short_dtype
from numpy.typing import NDArray
from open_runs import RunSnapshot

from ampwatch.report.format_losses import formats_text
from ampwatch.report.painter.message import Arrays
from ampwatch.rows import Table

_TAIL_ROWS = 20_000  # tell every layer's data types
_PARTS = ("input", "param", "output", "out_grad")
_DTYPES = (
    *(f"{part}_dtype" for part in _PARTS),
    "autocast", "input_format", "weight_format", "grad_format",
)  # fmt: skip
_SHARE_DIGITS = 2  # of a bar's length; the text beside it has its own

Columns = tuple[dict[str, Any], Arrays]


def last_dtypes(run: RunSnapshot) -> dict[str, dict[str, Any]]:
    """The data types and number formats of each layer as they were last seen."""
    rows = run.last_rows(Table.LAYERS, ("layer", *_DTYPES), _TAIL_ROWS)
    coded = pc.dictionary_encode(pc.cast(rows.column("layer"), "string")).combine_chunks()
    codes = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    _, from_end = np.unique(codes[::-1], return_index=True)
    last = rows.take(len(codes) - 1 - from_end)
    return {row["layer"] or "": row for row in last.to_pylist()}


def type_columns(names: Sequence[str], facts: Mapping[str, Mapping[str, Any]]) -> Columns:
    """The data types of each layer, for the heat map's message: what occurs, and each one's number.

    With them the formats in which a layer multiplies, and whether autocast is off.
    """
    kinds, number = _numbered([_types_of(facts.get(name, {})) for name in names])
    return {"types": kinds}, {"type": number}


def _types_of(facts: Mapping[str, Any]) -> dict[str, Any]:
    types = [short_dtype(facts.get(f"{part}_dtype") or "") for part in _PARTS]
    is_off = facts.get("autocast") is False
    return {"types": types, "recipe": formats_text(facts), "isOff": is_off}


def view_columns(names: Sequence[str], header: Mapping[str, Any] | None) -> Columns:
    """The view of all layers as the heat map's message holds it; `header` is of all its layers."""
    if header is None:
        return {"beside": None}, {}
    rows = {row["layer"]: row for row in header["rows"]}
    shown: dict[str, Any] = {
        name: header[name] for name in ("component", "view", "title", "step", "note")
    }
    shown["more"] = header.get("more", "")
    if header["component"] == "windows":
        ends = {
            end: np.array([_number(rows.get(name, {}).get(end)) for name in names])
            for end in ("low", "high")
        }
        faults = [at for at, name in enumerate(names) if rows.get(name, {}).get("isFault")]
        return {"beside": {**shown, "scale": header["scale"], "faults": faults}}, ends
    columns = header["columns"]
    none = [None] * len(columns)
    cells = [cell for name in names for cell in rows.get(name, {"cells": none})["cells"]]
    kinds, number = _numbered([cell and _rounded(cell) for cell in cells])
    losses = {"columns": columns, "kinds": kinds, "isDiverging": header["isDiverging"]}
    return {"beside": {**shown, **losses}}, {"cell": number}


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _rounded(cell: Mapping[str, Any]) -> dict[str, Any]:
    shares = {name: round(cell[name], _SHARE_DIGITS) for name in ("flushed", "cut")}
    return {**cell, **shares}


def _numbered(values: Sequence[Any]) -> tuple[list[Any], NDArray[np.int32]]:
    """The different values, and each one's number among them: of thousands few differ."""
    numbers: dict[Hashable, int] = {}
    found = [numbers.setdefault(json.dumps(value), len(numbers)) for value in values]
    return [json.loads(str(text)) for text in numbers], np.array(found, np.int32)
