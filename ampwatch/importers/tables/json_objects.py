"""Reads JSON files: one object per line, a list of objects, or the Trainer's `trainer_state.json`.

Arrow reads the lines by columns. If they are not all objects whose names keep their types, that
part of the file is read line by line.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ampwatch.importers.log_file import CHUNK_BYTES
from ampwatch.importers.tables.cells import Block, of_values

_MOST_DEPTH = 6


def object_of(line: str) -> dict[str, Any] | None:
    """A line's JSON object, with inner names joined by `/`; None if it is not an object."""
    text = line.strip().rstrip(",")
    if not text.startswith("{"):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return flat(value) if isinstance(value, dict) else None


def flat(value: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object with its inner names joined by `/`."""
    return dict(_flat(value, "", _MOST_DEPTH))


def _flat(value: Mapping[str, Any], before: str, depth: int) -> Iterator[tuple[str, Any]]:
    for name, item in value.items():
        if isinstance(item, dict) and depth:
            yield from _flat(item, f"{before}{name}/", depth - 1)
        else:
            yield f"{before}{name}", item


def _objects_of(text: str) -> Iterator[dict[str, Any]]:
    """The whole objects of a list that was cut off or damaged."""
    decoder = json.JSONDecoder()
    at = text.find("{")
    while at >= 0:
        try:
            found, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            found, end = None, at + 1
        if isinstance(found, dict):
            yield found
        at = text.find("{", end)


def looks_listed(text: str) -> bool:
    """Whether a file begins like a JSON list of objects."""
    return re.match(r'\s*\[\s*\{\s*"', text) is not None


def listed(text: str, name: str = "") -> list[dict[str, Any]] | None:
    """The rows of a JSON list of objects, by itself or under a name, or of its beginning."""
    try:
        value = json.loads(text)
        if name:
            value = value.get(name) if isinstance(value, dict) else None
    except (ValueError, RecursionError):
        value = list(_objects_of(text[text.find(f'"{name}"') if name else 0 :])) or None
    if not isinstance(value, list):
        return None
    return [flat(row) for row in value if isinstance(row, dict)]


# --- by columns ----------------------------------------------------------------------------------


def blocks(chunks: Iterable[bytes]) -> Iterator[Block]:
    """The JSON objects of all lines, by block; other lines are left out."""
    for part in _whole_lines(chunks):
        yield block(part)


def block(part: bytes) -> Block:
    """Whole lines of JSON objects as a block, read by columns if Arrow can."""
    valid = part if part.isascii() else part.decode("utf-8", "replace").encode()
    rows = _by_columns(valid)
    return by_lines(valid) if rows is None else rows


def by_lines(part: bytes) -> Block:
    """Whole lines of JSON objects as a block, read line by line."""
    lines = part.decode("utf-8", "replace").split("\n")
    return block_of([found for line in lines if (found := object_of(line)) is not None])


def block_of(rows: Sequence[Mapping[str, Any]]) -> Block:
    """Rows that are JSON objects, as a block."""
    names = dict.fromkeys(name for row in rows for name in row)
    return Block(len(rows), {name: of_values([row.get(name) for row in rows]) for name in names})


def _by_columns(part: bytes) -> Block | None:
    from pyarrow import json as arrow_json

    reading = arrow_json.ReadOptions(use_threads=False, block_size=len(part) + 1)
    try:
        table = arrow_json.read_json(io.BytesIO(part), read_options=reading)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    if table.num_rows != _count_filled(part):
        return None  # an object over several lines, or several in one
    columns: dict[str, pa.Array] = {}
    for name in table.column_names:
        column = table.column(name).combine_chunks()
        for inner, values in _leaves(column, name, _MOST_DEPTH):
            if inner in columns:
                return None  # the later one counts, where a line has both
            columns[inner] = values
    return Block(table.num_rows, columns)


def _count_filled(part: bytes) -> int:
    count = part.count(b"\n")
    if b"\n\n" in part or b"\r" in part or part[:1] == b"\n":
        count = sum(1 for line in part.split(b"\n") if line.strip())
    return count


def _leaves(column: pa.Array, name: str, depth: int) -> Iterator[tuple[str, pa.Array]]:
    if not pa.types.is_struct(column.type) or not depth:
        yield name, column
        return
    for at, inner in enumerate(column.type):
        yield from _leaves(pc.struct_field(column, [at]), f"{name}/{inner.name}", depth - 1)


def _whole_lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for chunk in chunks:
        rest += chunk
        end = rest.rfind(b"\n") + 1
        if end:
            yield rest[:end]
        rest = rest[end:]
        if len(rest) > 4 * CHUNK_BYTES:
            rest = b""  # no table has such a line
    if rest:
        yield rest if rest.endswith(b"\n") else rest + b"\n"
