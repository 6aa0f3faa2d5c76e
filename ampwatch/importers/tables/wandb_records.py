"""Reads the records in W&B's offline files: logged steps and settings, each a protocol buffer.

History records, the logged steps, are read by column: most of a run hold the same names, each with
a number as JSON. The first record of a kind shows the text between the numbers; in all others of
that kind the numbers are found by it. Any other record is read field by field.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from numpy.lib.stride_tricks import sliding_window_view

from ampwatch.importers.tables.cells import Block, Cells, of_arrow, of_values
from ampwatch.importers.tables.protobuf import Value, fields, spans, text, whole
from ampwatch.importers.tables.wandb_file import Part

HISTORY, CONFIG, RUN = 2, 5, 17
_CONFIG_OF_RUN = 4
_HISTORY_KEY = HISTORY << 3 | 2
_MOST_KINDS = 16
_ITEM, _JSON = 1, 16
_JSON_KEY = bytes([0x82, 0x01])
_ITEM_HEAD, _VALUE_HEAD = 2, len(_JSON_KEY) + 1  # a key, and a length of less than 128


def history_messages(part: Part, other: Callable[[int, bytes], None]) -> Part:
    """The history messages in W&B records; other content is passed to `other`."""
    content = np.frombuffer(part.data + bytes(3), np.uint8)
    head = sliding_window_view(content, 3)[part.starts].astype(np.int64)
    length = part.ends - part.starts
    # Almost all are one history message: a key, a length of one byte or of two, and it.
    short = (head[:, 1] < 0x80) & (head[:, 1] + 2 == length)
    long = (head[:, 1] >= 0x80) & (head[:, 2] < 0x80)
    long &= (head[:, 1] & 0x7F | head[:, 2] << 7) + 3 == length
    usual = (head[:, 0] == _HISTORY_KEY) & (short | long)
    found = [np.stack([part.starts + np.where(short, 2, 3), part.ends], axis=1)[usual]]
    number = [np.flatnonzero(usual)]
    for at in np.flatnonzero(~usual).tolist():
        for kind, value, begin, end in spans(part.data, int(part.starts[at]), int(part.ends[at])):
            if kind == HISTORY and isinstance(value, bytes):
                found.append(np.array([[begin, end]]))
                number.append(np.array([at]))
            elif isinstance(value, bytes):
                other(kind, value)
    order = np.argsort(np.concatenate(number), kind="stable")
    whole = np.concatenate(found)[order]
    return Part(part.data, whole[:, 0], whole[:, 1])


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


def settings_of_run(data: bytes) -> dict[str, Any]:
    """The settings that W&B's record of a run begins with."""
    found: dict[str, Any] = {}
    for number, value in fields(data):
        if number == _CONFIG_OF_RUN and isinstance(value, bytes):
            found.update(settings(value))
    return found


def settings(data: bytes) -> dict[str, Any]:
    """The names and values of W&B's record of settings."""
    found = {}
    for number, value in fields(data):
        if number == 1 and isinstance(value, bytes):
            name, item = named_value(value)
            if name and name != "_wandb":
                found[name] = item
    return found


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
    4: bool, 5: whole, 6: _double, 7: text, 8: _json, 16: _json,
}  # fmt: skip


def named_value(data: bytes) -> tuple[str, Any]:
    """The name and the value in a W&B item."""
    names: list[str] = []
    item: Any = None
    for number, value in fields(data):
        if number in (1, 2):
            names.append(text(value))
        elif number in _PLAIN:
            item = _PLAIN[number](value)
    return "/".join(name for name in names if name), item


@dataclass(frozen=True, slots=True)
class HistoryKind:
    """W&B history records of the same names in the same order: the bytes before each value."""

    keys: tuple[bytes, ...]
    names: tuple[str, ...]

    def values_in(self, part: Part, of: npt.NDArray[np.intp]) -> tuple[np.ndarray, np.ndarray]:
        """Which W&B records are of this kind, and where their values begin and end."""
        end, at = part.ends[of], part.starts[of].copy()
        fits = np.ones(len(of), np.bool_)
        places = np.zeros((len(of), len(self.keys), 2), np.int64)
        widest = _ITEM_HEAD + max(map(len, self.keys)) + _VALUE_HEAD
        content = np.frombuffer(part.data + bytes(widest), np.uint8)
        for number, key in enumerate(self.keys):
            width = _ITEM_HEAD + len(key) + _VALUE_HEAD
            found = sliding_window_view(content, width)[np.minimum(at, len(part.data))]
            fits &= (found[:, 0] == _ITEM << 3 | 2) & (found[:, -1] < 0x80)
            fits &= found[:, 1].astype(np.int64) == found[:, -1] + width - _ITEM_HEAD
            expected = np.frombuffer(key + _JSON_KEY, np.uint8)
            fits &= (found[:, _ITEM_HEAD:-1] == expected).all(axis=1)
            places[:, number, 0] = at + width
            at += width + found[:, -1].astype(np.int64)
            places[:, number, 1] = at
        fits &= at == end
        return fits, places[fits]


def history_blocks(parts: Iterable[Part], other: Callable[[int, bytes], None]) -> Iterator[Block]:
    """The rows of W&B history records, part by part; other records are passed to `other`."""
    kinds: list[HistoryKind] = []
    for part in parts:
        messages = history_messages(part, other)
        if len(messages.starts):
            yield history_block(messages, kinds)


def history_block(part: Part, kinds: list[HistoryKind]) -> Block:
    """The rows of W&B history messages; kinds that are met for the first time join `kinds`."""
    count = len(part.starts)
    columns: dict[str, Cells] = {}

    def put(name: str, rows: Sequence[int] | npt.NDArray[np.intp], cells: Cells) -> None:
        whole = columns.setdefault(name, Cells.absent(count))
        whole.values[rows], whole.present[rows] = cells.values, cells.present

    rest, tried = np.argsort(part.starts, kind="stable"), 0  # in the order of the file
    others: list[int] = []
    while len(rest):
        if tried == len(kinds):
            first = int(rest[0])
            made = history_kind_of(part.data[part.starts[first] : part.ends[first]])
            if made is None or len(kinds) == _MOST_KINDS:
                others.append(first)
                rest = rest[1:]
                continue
            kinds.append(made)
        kind, tried = kinds[tried], tried + 1
        fits, places = kind.values_in(part, rest)
        if len(places):
            for name, cells in zip(kind.names, _numbers(part.data, places), strict=True):
                put(name, rest[fits], cells)
        rest = rest[~fits]
    read = [history_row(part.data[part.starts[at] : part.ends[at]]) for at in others]
    for name in dict.fromkeys(name for row in read for name in row):
        held = [(at, row[name]) for at, row in zip(others, read, strict=True) if name in row]
        put(name, [at for at, _ in held], of_values([value for _, value in held]))
    return Block(count, columns)


def history_kind_of(data: bytes) -> HistoryKind | None:
    """The kind of a W&B history record that holds nothing but names and short values."""
    keys, names = [], []
    for number, value, _, _ in spans(data, 0, len(data)):
        if number != _ITEM or not isinstance(value, bytes) or len(value) > 127:
            return None
        inner = list(spans(value, 0, len(value)))
        if not inner or inner[-1][0] != _JSON or any(n not in (1, 2) for n, *_ in inner[:-1]):
            return None
        if not inner[-1][1].isascii():  # type: ignore[union-attr]
            return None
        keys.append(value[: inner[-1][2] - _VALUE_HEAD])
        names.append(named_value(value)[0])
    if not names or len(set(names)) < len(names):
        return None
    return HistoryKind(tuple(keys), tuple(names))


def _numbers(data: bytes, places: npt.NDArray[np.int64]) -> Iterator[Cells]:
    """The values at these places of W&B records, by column."""
    marks = np.zeros(len(data) + 1, np.int8)
    marks[places[:, :, 0].ravel()] = 1
    marks[places[:, :, 1].ravel()] -= 1
    inside = np.cumsum(marks[:-1], dtype=np.int8).view(np.bool_)
    held = np.frombuffer(data, np.uint8)[inside]
    told = np.where(held < 0x80, held, np.uint8(ord("?"))).tobytes()  # no number, and no UTF-8
    lengths = (places[:, :, 1] - places[:, :, 0]).ravel()
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(told)]
    texts = pa.Array.from_buffers(pa.string(), len(lengths), buffers)
    if b'"' in told:
        texts = pc.utf8_trim(texts, '"')
    cells = of_arrow(texts)
    for number in range(places.shape[1]):
        yield cells.at(slice(number, None, places.shape[1]))
