"""Reads W&B's offline `.wandb` files: logged steps and settings, each a protocol buffer.

The file is LevelDB's log: blocks of 32 kB, a record in one piece or in several. Most history
records, the logged steps, hold the same names, each with a number as JSON: the first of them gives
a pattern that finds the numbers in all others. Any other record is read field by field.
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ampwatch.importers.tables.cells import Block, Cells, of_arrow, of_values
from ampwatch.importers.tables.protobuf import Value, fields, spans, text, whole

_MAGIC = b":W&B"
_HEADER_BYTES, _BLOCK_BYTES = 7, 32_768
_PIECE = struct.Struct("<IHB")  # checksum, length, kind
_FULL, _FIRST, _LAST = 1, 2, 4
_MAX_RECORD_BYTES = 64 << 20
HISTORY, CONFIG, RUN = 2, 5, 17
_CONFIG_OF_RUN = 4
_BLOCK_ROWS = 65_536
_MOST_KINDS = 16
_ITEM, _JSON = 1, 16
_JSON_KEY = bytes([0x82, 0x01])
_HISTORY_HEAD = rb"\x12[\x80-\xff]?[\x00-\x7f]"
_NUMBER = rb'("?[-+.\w]{1,100}"?)'  # holds no byte of a key, so its length need not be read


def looks_like_wandb(head: bytes) -> bool:
    """Whether a file begins as W&B's offline files do."""
    return head.startswith(_MAGIC)


def records(
    read: Callable[[int], bytes], say: Callable[[str], None] = lambda _: None
) -> Iterator[bytes]:
    """Every complete record of a W&B file; a cut-off file ends at its last one.

    A damaged piece costs its record and the rest of its block, because its length may be the
    damage; `say` is called once.
    """
    begun: list[bytes] | None = None  # the pieces of a record that goes on
    damaged, at = 0, _HEADER_BYTES
    while block := read(_BLOCK_BYTES):
        while at + _PIECE.size <= len(block):
            checksum, length, kind = _PIECE.unpack_from(block, at)
            begin, at = at + _PIECE.size, at + _PIECE.size + length
            if at > len(block) and len(block) < _BLOCK_BYTES:
                break  # the file is cut off here
            if not (checksum or length or kind):
                break  # zeros fill the block up
            if at > len(block) or zlib.crc32(block[begin - 1 : at]) != checksum:
                damaged, begun = damaged + 1, None
                break
            piece = block[begin:at]
            if kind == _FULL:
                begun = None
                yield piece
                continue
            begun = [piece] if kind == _FIRST else None if begun is None else [*begun, piece]
            if begun is not None and kind == _LAST:
                yield b"".join(begun)
                begun = None
            elif begun is not None and sum(map(len, begun)) > _MAX_RECORD_BYTES:
                return
        at = 0
    if damaged:
        say(
            f"{damaged} blocks of the file are damaged; from the damage on their contents are "
            "left out."
        )


# --- settings -------------------------------------------------------------------------------------


def settings_of_run(data: bytes) -> dict[str, Any]:
    """The settings that W&B's record of a run begins with."""
    found: dict[str, Any] = {}
    for number, value in fields(data):
        if number == _CONFIG_OF_RUN and isinstance(value, bytes):
            found.update(settings(value))
    return found


def settings(data: bytes) -> dict[str, Any]:
    """The names and values of W&B's record of settings."""
    items = [named_value(value) for number, value in fields(data) if number == 1]
    return {name: item for name, item in items if name and name != "_wandb"}


def _json(value: Value) -> Any:
    try:
        return json.loads(text(value))
    except (ValueError, RecursionError):
        return None


def _double(value: Value) -> float | None:
    whole_double = isinstance(value, bytes) and len(value) == 8
    return float(struct.unpack("<d", value)[0]) if whole_double else None  # type: ignore[arg-type]


# Older files hold each value as JSON, newer ones by its kind.
_PLAIN: dict[int, Callable[[Value], Any]] = {
    4: bool, 5: whole, 6: _double, 7: text, 8: _json, _JSON: _json,
}  # fmt: skip


def named_value(data: Value) -> tuple[str, Any]:
    """The name and the value in a W&B item."""
    names: list[str] = []
    item: Any = None
    for number, value in fields(data if isinstance(data, bytes) else b""):
        if number in (1, 2):
            names.append(text(value))
        elif number in _PLAIN:
            item = _PLAIN[number](value)
    return "/".join(name for name in names if name), item


# --- logged steps ---------------------------------------------------------------------------------


@dataclass(slots=True)
class HistoryKind:
    """W&B history records of the same names in the same order, and the values of some of them."""

    pattern: re.Pattern[bytes]
    names: Sequence[str]
    rows: list[int] = field(default_factory=list)
    values: list[tuple[bytes, ...]] = field(default_factory=list)

    def columns(self) -> Iterator[tuple[str, list[int], Cells]]:
        """The values found since the last call by name, with their rows."""
        rows, values, self.rows, self.values = self.rows, self.values, [], []
        for name, texts in zip(self.names, zip(*values, strict=True), strict=False):
            yield name, rows, of_arrow(pc.utf8_trim(pa.array(texts, pa.string()), '"'))


def history_blocks(found: Iterator[bytes], other: Callable[[int, bytes], None]) -> Iterator[Block]:
    """The rows of W&B history records; the content of other records is passed to `other`."""
    kinds: list[HistoryKind] = []
    while part := list(islice(found, _BLOCK_ROWS)):
        block = history_block(part, kinds, other)
        if block.count:
            yield block


def history_block(
    records: Iterable[bytes], kinds: list[HistoryKind], other: Callable[[int, bytes], None]
) -> Block:
    """The rows of W&B records; kinds that are met for the first time join `kinds`."""
    row, rest = 0, dict[int, dict[str, Any]]()
    for record in records:
        for kind in kinds:
            if match := kind.pattern.fullmatch(record):
                kind.rows.append(row)
                kind.values.append(match.groups())
                row += 1
                break
        else:
            for message in _history_messages(record, other):
                rest[row] = history_row(message)
                row += 1
                if len(kinds) < _MOST_KINDS and (learned := history_kind_of(message)):
                    kinds.append(learned)
    columns: dict[str, Cells] = {}

    def put(name: str, rows: Sequence[int], cells: Cells) -> None:
        column = columns.setdefault(name, Cells.absent(row))
        column.values[rows], column.present[rows] = cells.values, cells.present

    for kind in kinds:
        for name, rows, cells in kind.columns():
            put(name, rows, cells)
    for name in dict.fromkeys(name for found in rest.values() for name in found):
        held = {at: found[name] for at, found in rest.items() if name in found}
        put(name, list(held), of_values(list(held.values())))
    return Block(row, columns)


def _history_messages(record: bytes, other: Callable[[int, bytes], None]) -> Iterator[bytes]:
    """The history in a record that is of no known kind; what else it holds goes to `other`."""
    for number, value in fields(record):
        if number == HISTORY and isinstance(value, bytes):
            yield value
        elif isinstance(value, bytes):
            other(number, value)


def history_kind_of(message: bytes) -> HistoryKind | None:
    """The kind of a W&B history record that holds nothing but names and short numbers."""
    pieces, names = [], []
    for number, value, _, _ in spans(message, 0, len(message)):
        inner = list(spans(value, 0, len(value))) if isinstance(value, bytes) else []
        numbers = [part[0] for part in inner]
        if number != _ITEM or numbers[-1:] != [_JSON] or not {*numbers[:-1]} <= {1, 2}:
            return None
        assert isinstance(value, bytes)
        key = value[: inner[-1][2] - len(_JSON_KEY) - 1]
        pieces.append(b"\x0a." + re.escape(key + _JSON_KEY) + b"." + _NUMBER)
        names.append(named_value(value)[0])
    if not names or len(set(names)) < len(names):
        return None
    kind = HistoryKind(re.compile(_HISTORY_HEAD + b"".join(pieces), re.DOTALL), names)
    return kind if kind.pattern.fullmatch(b"\x12\0" + message) else None


def history_row(data: bytes) -> dict[str, Any]:
    """The names and values of one step that W&B logged."""
    row: dict[str, Any] = {}
    for number, value in fields(data):
        if number == 1 and isinstance(value, bytes):
            name, item = named_value(value)
            row[name] = item
        elif number == 2 and isinstance(value, bytes):
            row.setdefault("_step", next((whole(v) for n, v in fields(value) if n == 1), 0))
    return row
