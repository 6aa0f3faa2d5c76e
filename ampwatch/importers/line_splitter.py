"""Splits a log's bytes into lines: normalises line ends, removes colours, cuts over-long lines.

One pass of a linear-time matcher (RE2, through Arrow) over a chunk finds the lines that contain an
anchor of any format; only those are read again. Of a line of 50 MB the first 64 kB are kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

MAX_LINE_BYTES = 64 << 10
_CURSOR = re.compile(rb"\x1b\[\d*[ABEF]")  # what follows is drawn on another line
_COLOUR = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True, slots=True)
class Lines:
    """Whole lines split from a log's bytes, and which of them contain an anchor."""

    data: bytes
    begins: npt.NDArray[np.int32]  # of each line, and one past the last
    candidates: list[int]

    def __len__(self) -> int:
        return len(self.begins) - 1

    def line(self, at: int) -> bytes:
        """One of the lines without its end; empty if there is no such line."""
        if not 0 <= at < len(self):
            return b""
        begin, end = int(self.begins[at]), int(self.begins[at + 1]) - 1
        return self.data[begin : min(end, begin + MAX_LINE_BYTES)]

    def count_filled(self, begin: int, end: int) -> int:
        """How many of these lines are not empty; at most eight are looked at."""
        some = range(begin, min(end, begin + 8))
        return sum(1 for at in some if self.line(at).strip())


class LineSplitter:
    """Splits a log's chunks of bytes into lines; an incomplete line waits for the next chunk."""

    def __init__(self, anchors: Iterable[str]) -> None:
        self._pattern = "|".join(re.escape(anchor).replace(r"\ ", " ") for anchor in anchors)
        self._rest = b""
        self._is_cut = False  # the rest is the beginning of a line too long to keep

    def feed(self, chunk: bytes) -> Lines:
        """The lines that this chunk of bytes completes."""
        end = max(chunk.rfind(b"\n"), chunk.rfind(b"\r"))
        if end < 0:
            self._keep(chunk)
            return self._found(b"")
        head, rest = chunk[: end + 1], chunk[end + 1 :]
        if self._is_cut:  # what is left of the long line is dropped
            stop = min((at for at in (head.find(b"\n"), head.find(b"\r")) if at >= 0), default=0)
            head = head[stop:]
        whole, self._rest, self._is_cut = self._rest + head, b"", False
        self._keep(rest)
        return self._found(whole)

    def finish(self) -> Lines:
        """The last line of the log, which has no line end."""
        rest, self._rest, self._is_cut = self._rest, b"", False
        return self._found(rest + b"\n" if rest else b"")

    def _keep(self, part: bytes) -> None:
        if len(self._rest) < MAX_LINE_BYTES:
            self._rest += part[: MAX_LINE_BYTES - len(self._rest)]
            self._is_cut = len(self._rest) >= MAX_LINE_BYTES

    def _found(self, data: bytes) -> Lines:
        data = _plain(data)
        ends = np.flatnonzero(np.frombuffer(data, np.uint8) == 10)
        begins = np.concatenate(([0], ends + 1)).astype(np.int32)
        if not len(ends):
            return Lines(data, begins, [])
        buffers = [None, pa.py_buffer(begins), pa.py_buffer(data)]
        lines = pa.Array.from_buffers(pa.binary(), len(ends), buffers)
        mask = pc.match_substring_regex(lines, self._pattern)
        bits = np.unpackbits(np.frombuffer(mask.buffers()[1], np.uint8), bitorder="little")
        at = np.flatnonzero(bits[mask.offset : mask.offset + len(mask)])
        return Lines(data, begins, at.tolist())


def _plain(data: bytes) -> bytes:
    """Normalise a chunk's line ends and remove colours; clean bytes stay as they are."""
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    if b"\x1b" in data:
        data = _COLOUR.sub(b"", _CURSOR.sub(b"\n", data))
    return data


def plain_lines(data: bytes) -> list[str]:
    """All lines of some bytes, as text; of a line that is too long, its beginning."""
    lines = _plain(data).split(b"\n")
    return [line[:MAX_LINE_BYTES].decode("utf-8", "replace") for line in lines]
