"""Reads W&B's offline `.wandb` files: finds and checks the records of LevelDB's log format."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

Places = npt.NDArray[np.int64]

_MAGIC = b":W&B"
_HEADER_BYTES, _BLOCK_BYTES, _RECORD_HEAD = 7, 32_768, 7
_FULL, _FIRST, _LAST = 1, 2, 4
_BROKEN = 0  # not a kind of piece: the block is damaged here
_PART_BLOCKS = 512
_MAX_RECORD_BYTES = 64 << 20


def looks_like_wandb(head: bytes) -> bool:
    """Whether a file begins as W&B's offline files do."""
    return head.startswith(_MAGIC)


@dataclass(frozen=True, slots=True)
class Part:
    """Records of a W&B file, or messages in them, and the bytes that contain them."""

    data: bytes
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]

    @classmethod
    def of(cls, records: Sequence[bytes]) -> Part:
        """W&B records, concatenated, and where each of them begins and ends."""
        ends = np.cumsum(np.array([len(record) for record in records], np.int64))
        return cls(b"".join(records), np.concatenate(([0], ends[:-1])).astype(np.int64), ends)

    def __iter__(self) -> Iterator[bytes]:
        for start, end in zip(self.starts.tolist(), self.ends.tolist(), strict=True):
            yield self.data[start:end]


def records(
    read: Callable[[int], bytes], say: Callable[[str], None] = lambda _: None
) -> Iterator[bytes]:
    """Every complete record of a W&B file."""
    return (record for part in parts(read, say) for record in part)


def parts(
    read: Callable[[int], bytes], say: Callable[[str], None] = lambda _: None
) -> Iterator[Part]:
    """The complete records of a W&B file, some MB at a time; a cut-off file ends at its last one.

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
    """The W&B records in one piece, and the joined ones, which are appended to the file's bytes."""
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
    """The start, length, kind and checksum of each piece of a record in a W&B file."""

    at: Places
    length: Places
    kind: Places
    crc: Places

    def where(self, kept: npt.NDArray[np.bool_]) -> _Pieces:
        return _Pieces(self.at[kept], self.length[kept], self.kind[kept], self.crc[kept])


def _sound_pieces(data: bytes, skipped: int) -> tuple[_Pieces, list[int]]:
    """The W&B file's undamaged pieces, up to the first damaged one of each block."""
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
    """The pieces of all blocks of a W&B file, and where a block holds one that is too long.

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
