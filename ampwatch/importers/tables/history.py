"""W&B's history records by column.

Most records of a run hold the same names, each with a number as JSON. The first one of a kind tells
what stands between the numbers; in all others of it the numbers are where that ends. What is of no
kind is read by its fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from numpy.lib.stride_tricks import sliding_window_view

from ampwatch.importers.tables.cells import Block, Cells, of_arrow, of_values
from ampwatch.importers.tables.protobuf import spans
from ampwatch.importers.tables.wandb_file import Part, histories, history_row, item_of

_MOST_KINDS = 16
_ITEM, _JSON = 1, 16
_JSON_KEY = bytes([0x82, 0x01])
_ITEM_HEAD, _VALUE_HEAD = 2, len(_JSON_KEY) + 1  # a key, and a length of less than 128


@dataclass(frozen=True, slots=True)
class Kind:
    """Records of the same names in the same order: what stands before each value."""

    keys: tuple[bytes, ...]
    names: tuple[str, ...]

    def values_in(self, part: Part, of: npt.NDArray[np.intp]) -> tuple[np.ndarray, np.ndarray]:
        """Which of these records are of this kind, and where their values begin and end."""
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


def blocks(parts: Iterable[Part], other: Callable[[int, bytes], None]) -> Iterator[Block]:
    """The rows of history records, part by part; other records are handed to `other`."""
    kinds: list[Kind] = []
    for part in parts:
        messages = histories(part, other)
        if len(messages.starts):
            yield block(messages, kinds)


def block(part: Part, kinds: list[Kind]) -> Block:
    """The rows of these messages; kinds that are met for the first time join the others."""
    count = len(part.starts)
    columns: dict[str, Cells] = {}

    def put(name: str, rows: Sequence[int] | npt.NDArray[np.intp], cells: Cells) -> None:
        whole = columns.setdefault(name, Cells.absent(count))
        whole.values[rows], whole.told[rows] = cells.values, cells.told

    rest, tried = np.argsort(part.starts, kind="stable"), 0  # as they stand in the bytes
    others: list[int] = []
    while len(rest):
        if tried == len(kinds):
            first = int(rest[0])
            made = kind_of(part.data[part.starts[first] : part.ends[first]])
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


def kind_of(data: bytes) -> Kind | None:
    """The kind of a record that holds nothing but names and short values."""
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
        names.append(item_of(value)[0])
    if not names or len(set(names)) < len(names):
        return None
    return Kind(tuple(keys), tuple(names))


def _numbers(data: bytes, places: npt.NDArray[np.int64]) -> Iterator[Cells]:
    """The values at these places, a row a record, by column."""
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
