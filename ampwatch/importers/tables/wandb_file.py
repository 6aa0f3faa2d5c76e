"""W&B's offline `.wandb` files: LevelDB's log of records, each a protocol buffer.

History records are read by column: most records of a run hold the same names, each with a number as
JSON. The first record of a kind shows the text between the numbers; in all others of that kind the
numbers are found by it. Any other record is read field by field.
"""

from __future__ import annotations

import json
import struct
import zlib
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

Places = npt.NDArray[np.int64]

_MAGIC = b":W&B"
_HEADER_BYTES, _BLOCK_BYTES, _RECORD_HEAD = 7, 32_768, 7
_FULL, _FIRST, _LAST = 1, 2, 4
_BROKEN = 0  # not a kind of piece: the block is damaged here
_PART_BLOCKS = 512
_MAX_RECORD_BYTES = 64 << 20
HISTORY, CONFIG, RUN = 2, 5, 17
_CONFIG_OF_RUN = 4
_HISTORY_KEY = HISTORY << 3 | 2


def looks_like_wandb(head: bytes) -> bool:
    """Whether a file begins as W&B's do."""
    return head.startswith(_MAGIC)


@dataclass(frozen=True, slots=True)
class Part:
    """Records, or messages, and the bytes that contain them."""

    data: bytes
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]

    @classmethod
    def of(cls, records: Sequence[bytes]) -> Part:
        """These records, concatenated."""
        ends = np.cumsum(np.array([len(record) for record in records], np.int64))
        return cls(b"".join(records), np.concatenate(([0], ends[:-1])).astype(np.int64), ends)

    def __iter__(self) -> Iterator[bytes]:
        for start, end in zip(self.starts.tolist(), self.ends.tolist(), strict=True):
            yield self.data[start:end]


def records(
    read: Callable[[int], bytes], say: Callable[[str], None] = lambda _: None
) -> Iterator[bytes]:
    """Every complete record."""
    return (record for part in parts(read, say) for record in part)


def parts(
    read: Callable[[int], bytes], say: Callable[[str], None] = lambda _: None
) -> Iterator[Part]:
    """The complete records, some MB at a time; a truncated file ends at its last complete one.

    A damaged piece costs its record and the rest of its block, because its length may be the
    damage; `say` is called once.
    """
    begun: list[bytes] | None = None  # the pieces of a record that goes on in the next block
    damaged, skipped = 0, _HEADER_BYTES
    while data := read(_PART_BLOCKS * _BLOCK_BYTES):
        pieces, broken = _sound_pieces(data, skipped)
        damaged, skipped = damaged + len(broken), 0
        is_whole = pieces.kind == _FULL
        rest = [(at, _BROKEN, 0) for at in broken] + list(
            zip(
                *(c[~is_whole].tolist() for c in (pieces.at, pieces.kind, pieces.length)),
                strict=True,
            )
        )
        starts = pieces.at[is_whole]
        joined, passed = [], 0
        for at, kind, length in sorted(rest):
            before = int(np.searchsorted(starts, at))
            begun = None if before > passed or kind == _BROKEN else begun
            passed = before
            begun = [] if kind == _FIRST else begun
            if begun is None:
                continue
            begun.append(data[at : at + length])
            if kind == _LAST:
                joined.append((at, b"".join(begun)))
                begun = None
            elif sum(map(len, begun)) > _MAX_RECORD_BYTES:
                return
        begun = None if len(starts) > passed else begun
        yield _in_order(data, starts, starts + pieces.length[is_whole], joined)
    if damaged:
        say(
            f"{damaged} blocks of the file are damaged; from the damage on their contents are "
            "left out."
        )


def _in_order(data: bytes, starts: Places, ends: Places, joined: list[tuple[int, bytes]]) -> Part:
    """The records in one piece, and the joined ones, which are appended to the file's bytes."""
    if not joined:
        return Part(data, starts, ends)
    more = Part.of([record for _, record in joined])
    order = np.argsort(np.concatenate((starts, [at for at, _ in joined])), kind="stable")
    return Part(
        data + more.data,
        np.concatenate((starts, more.starts + len(data)))[order],
        np.concatenate((ends, more.ends + len(data)))[order],
    )


@dataclass(frozen=True, slots=True)
class _Pieces:
    """The start, length, kind and checksum of each piece."""

    at: Places
    length: Places
    kind: Places
    crc: Places

    def where(self, kept: npt.NDArray[np.bool_]) -> _Pieces:
        return _Pieces(self.at[kept], self.length[kept], self.kind[kept], self.crc[kept])


def _sound_pieces(data: bytes, skipped: int) -> tuple[_Pieces, list[int]]:
    """The undamaged pieces, up to the first damaged one of each block."""
    pieces, broken = _pieces(data, skipped)
    view = memoryview(data)
    spans = zip(pieces.at.tolist(), pieces.length.tolist(), pieces.crc.tolist(), strict=True)
    sound = np.array([zlib.crc32(view[at - 1 : at + length]) == crc for at, length, crc in spans])
    bad = sorted([*broken, *pieces.at[~sound.astype(np.bool_)].tolist()])
    if not bad:
        return pieces, []
    first: dict[int, int] = {}
    for at in bad:
        first.setdefault((at - 1) // _BLOCK_BYTES, at)
    until = np.array(
        [first.get(block, len(data)) for block in range(len(data) // _BLOCK_BYTES + 1)]
    )
    return pieces.where(pieces.at < until[(pieces.at - 1) // _BLOCK_BYTES]), list(first.values())


def _pieces(data: bytes, skipped: int) -> tuple[_Pieces, list[int]]:
    """The pieces of all blocks, and where a block holds one that is too long.

    Each piece shows where the next one of its block is, so all blocks are read in parallel.
    """
    content = np.frombuffer(data, np.uint8)
    blocks = np.arange(-(-len(data) // _BLOCK_BYTES))
    at, ends = blocks * _BLOCK_BYTES, np.minimum((blocks + 1) * _BLOCK_BYTES, len(data))
    at[:1] += skipped
    found, broken = [np.zeros((0, 4), np.int64)], []
    while len(blocks := blocks[at[blocks] + _RECORD_HEAD <= ends[blocks]]):
        heads = sliding_window_view(content, _RECORD_HEAD)[at[blocks]].astype(np.int64)
        length, begin = heads[:, 4] | heads[:, 5] << 8, at[blocks] + _RECORD_HEAD
        filled = heads.any(axis=1)  # zeros fill a block up
        fits = begin + length <= ends[blocks]
        is_whole = ends[blocks] % _BLOCK_BYTES == 0  # else the file is cut off in it
        broken += begin[filled & ~fits & is_whole].tolist()
        good = filled & fits
        crc = heads[:, :4] @ (1 << 8 * np.arange(4))
        found.append(np.stack([begin, length, heads[:, 6], crc], axis=1)[good])
        blocks = blocks[good]
        at[blocks] = (begin + length)[good]
    whole = np.concatenate(found)
    return _Pieces(*whole[np.argsort(whole[:, 0])].T), broken


def histories(part: Part, other: Callable[[int, bytes], None]) -> Part:
    """The history messages of these records; other content is passed to `other`."""
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
    """The names and values of one logged step."""
    row: dict[str, Any] = {}
    for number, value in fields(data):
        if number == 1 and isinstance(value, bytes):
            name, item = item_of(value)
            row[name] = item
        elif number == 2 and isinstance(value, bytes):
            row.setdefault("_step", next((whole(v) for n, v in fields(value) if n == 1), 0))
    return row


def settings_of_run(data: bytes) -> dict[str, Any]:
    """The configuration that a run's own record begins with."""
    found: dict[str, Any] = {}
    for number, value in fields(data):
        if number == _CONFIG_OF_RUN and isinstance(value, bytes):
            found.update(settings(value))
    return found


def settings(data: bytes) -> dict[str, Any]:
    """The names and values of a configuration record."""
    found = {}
    for number, value in fields(data):
        if number == 1 and isinstance(value, bytes):
            name, item = item_of(value)
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


def item_of(data: bytes) -> tuple[str, Any]:
    """A named value."""
    names: list[str] = []
    item: Any = None
    for number, value in fields(data):
        if number in (1, 2):
            names.append(text(value))
        elif number in _PLAIN:
            item = _PLAIN[number](value)
    return "/".join(name for name in names if name), item


# --- history records by column --------------------------------------------------------------------


_MOST_KINDS = 16
_ITEM, _JSON = 1, 16
_JSON_KEY = bytes([0x82, 0x01])
_ITEM_HEAD, _VALUE_HEAD = 2, len(_JSON_KEY) + 1  # a key, and a length of less than 128


@dataclass(frozen=True, slots=True)
class Kind:
    """Records of the same names in the same order: the bytes before each value."""

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
        whole.values[rows], whole.present[rows] = cells.values, cells.present

    rest, tried = np.argsort(part.starts, kind="stable"), 0  # in the order of the file
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
