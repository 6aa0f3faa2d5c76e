"""A log file as a stream of bytes: plain, gzip, bzip2, zstd, xz or standard input, UTF-8 or UTF-16.

Nothing is held but the chunk in hand. A file that breaks off (a truncated gzip) is read as far as
it goes, and `damage` says so. A pasted log is taken out of what it arrived in: a notebook, a mail's
quotes, a site's line numbers.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import html
import io
import json
import lzma
import os
import re
import sys
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from ampwatch.errors import LogError
from ampwatch.importers.named_numbers import FOREIGN_WORDS

CHUNK_BYTES = 4 << 20
SNIFF_BYTES = 64 << 10
STANDARD_INPUT = "-"

_GZIP, _BZIP2, _XZ, _ZSTD = b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd"
_ZIP = b"PK\x03\x04"
_BROKEN = (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError)


class LogFile:
    """An opened log file; `chunks()` yields its bytes once, from the beginning."""

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        self.damage: str | None = None
        self._raw = opened(self.path)
        self.size_bytes = _size(self._raw)
        head = _first_bytes(self._raw)
        self._stream = _inflated(self._raw, head)
        self.is_compressed = self._stream is not self._raw
        self._held = b""
        self._is_over = False
        if may_be_wrapped(self.head_text):
            self._unwrap()

    def __enter__(self) -> LogFile:
        return self

    def __exit__(self, *_: object) -> None:
        if self._raw is not sys.stdin.buffer:
            self._raw.close()

    @property
    def read_bytes(self) -> int:
        """How many bytes of the file itself have been read, for a progress bar."""
        try:
            return self._raw.tell()
        except (OSError, ValueError):
            return 0

    @property
    def head(self) -> bytes:
        """The file's first 64 kB, to recognise its format by; they are read again with the rest."""
        while len(self._held) < SNIFF_BYTES and not self._is_over:
            self._held += self._next(SNIFF_BYTES - len(self._held))
        return self._held

    @property
    def head_text(self) -> str:
        """The file's first 64 kB as text, whatever its encoding."""
        head = self.head
        decoder = _decoder_of(head)
        text = head.decode("utf-8", "replace") if decoder is None else decoder.decode(head)
        return text.lstrip("\ufeff")

    def read(self, size: int) -> bytes:
        """The file's next bytes, decompressed but not decoded; fewer only at its end."""
        while len(self._held) < size and not self._is_over:
            self._held += self._next(max(size - len(self._held), SNIFF_BYTES))
        taken, self._held = self._held[:size], self._held[size:]
        return taken

    def lines(self) -> Iterator[str]:
        """The file's lines of text, decompressed and decoded."""
        rest = ""
        for chunk in self.chunks():
            *whole, rest = (rest + chunk.decode("utf-8", "replace")).split("\n")
            yield from (line.rstrip("\r") for line in whole)
            if len(rest) > CHUNK_BYTES:
                rest = ""  # no table has such a line
        if rest:
            yield rest.rstrip("\r")

    def chunks(self) -> Iterator[bytes]:
        """The file's bytes as UTF-8, some MB at a time."""
        decoder: codecs.IncrementalDecoder | None = None
        is_first = True
        while data := self._held or self._next(CHUNK_BYTES):
            self._held = b""
            if is_first:
                is_first = False
                decoder = _decoder_of(data)
                if decoder is None:
                    refuse_binary(data, self.path)
            yield data if decoder is None else decoder.decode(data).encode("utf-8", "replace")

    def _unwrap(self) -> None:
        """Take a pasted log out of the notebook, the quotes or the line numbers around it."""
        whole = self.read(MOST_BYTES)
        decoder = _decoder_of(whole)
        text = whole.decode("utf-8", "replace") if decoder is None else decoder.decode(whole)
        inner = unwrapped(text.lstrip("\ufeff").replace("\r\n", "\n")) if self._is_over else None
        self._held = (whole + self._held) if inner is None else inner.encode("utf-8", "replace")

    def _next(self, size: int) -> bytes:
        data = self._read(size)
        self._is_over = not data
        return data

    def _read(self, size: int) -> bytes:
        try:
            return self._stream.read(size)
        except _BROKEN:
            self.damage = "The compressed file breaks off or is damaged: what follows is missing."
        except OSError as problem:
            if not self.is_compressed:
                raise LogError(_why(self.path, problem), path=self.path) from None
            self.damage = "The compressed file breaks off or is damaged: what follows is missing."
        return b""


def refuse_binary(head: bytes, path: str) -> None:
    """Raise LogError if a log file's first bytes are not text."""
    part = head[:SNIFF_BYTES]
    if head.startswith(_ZIP):
        raise LogError(
            f"{path} is a zip archive: unpack it and pass the log that it contains.", path=path
        )
    odd = sum(part.count(byte) for byte in _CONTROLS)
    if len(part) and odd > _ODD_SHARE * len(part):
        raise LogError(
            f"{path} is neither text nor a known kind of file: pass the log that the trainer "
            "printed, or a CSV, JSON lines, TensorBoard or .wandb file.",
            path=path,
        )


# Control bytes that text does not have: a tenth of random data, half of a file of zeros.
_ODD_SHARE = 0.05
_CONTROLS = [bytes([code]) for code in range(32) if code not in (7, 8, 9, 10, 12, 13, 27)]


def opened(path: str) -> BinaryIO:
    """Open a log file, or standard input; raises LogError with a sentence."""
    if path == STANDARD_INPUT:
        return sys.stdin.buffer
    if Path(path).is_dir():
        raise LogError(f"{path} is a folder without a run: pass a log file.", path=path)
    try:
        return Path(path).open("rb")
    except OSError as problem:
        raise LogError(_why(path, problem), path=path) from None


def _why(path: str, problem: OSError) -> str:
    return f"{path} cannot be read: {problem.strerror or problem}."


def _size(raw: BinaryIO) -> int:
    try:
        return os.fstat(raw.fileno()).st_size
    except (OSError, ValueError):
        return 0


def _first_bytes(raw: BinaryIO) -> bytes:
    return raw.peek(8)[:8] if isinstance(raw, io.BufferedReader) else b""


def _inflated(raw: BinaryIO, head: bytes) -> BinaryIO:
    if head.startswith(_GZIP):
        return gzip.GzipFile(fileobj=raw)  # type: ignore[return-value]
    if head.startswith(_BZIP2):
        return bz2.BZ2File(raw)  # type: ignore[return-value]
    if head.startswith(_XZ):
        return lzma.LZMAFile(raw)  # type: ignore[return-value]
    if head.startswith(_ZSTD):
        import pyarrow as pa

        stream: BinaryIO = pa.CompressedInputStream(pa.PythonFile(raw, "r"), "zstd")
        return stream
    return raw


def _decoder_of(head: bytes) -> codecs.IncrementalDecoder | None:
    """The decoder for a file that begins with these bytes; None for UTF-8 and its subsets."""
    for mark, name in ((codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16")):
        if head.startswith(mark):
            return codecs.getincrementaldecoder(name)("replace")
    part = head[:SNIFF_BYTES]
    for first, name in ((1, "utf-16-le"), (0, "utf-16-be")):
        zeros = part[first::2].count(0)
        if len(part) > 16 and zeros > 0.4 * len(part) and not part[1 - first :: 2].count(0):
            return codecs.getincrementaldecoder(name)("replace")
    return _decoder_of_words(part)


def _decoder_of_words(part: bytes) -> codecs.IncrementalDecoder | None:
    """The decoder in which a log's first words are known; None for UTF-8 and where none is."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(part)
    except UnicodeDecodeError:
        for name in ("gb18030", "shift_jis", "cp949", "cp1251"):
            if any(word in part.decode(name, "ignore") for word in FOREIGN_WORDS):
                return codecs.getincrementaldecoder(name)("replace")
    return None


# --- what a pasted log arrives in -----------------------------------------------------------------

# Takes a pasted log out of what it arrived in: a notebook, a mail's quotes, a site's line numbers.
#
# Only a text that is wrapped as a whole is unwrapped, and only one that a person would paste or
# save: a log that is written by a program is never touched.

MOST_BYTES = 64 << 20
_MOST_LINES = 400  # looked at to know a wrapping
_SHARE = 0.8
_LEAST_LINES = 3
_QUOTE = re.compile(r"(?m)^(?:> ?)+")
_NUMBERED = re.compile(r"[ \t]*(\d{1,7})(?:[.:|)]| ?\||[ \t])[ \t]?")
_STRING = re.compile(r'\s*(?:"text": \[\s*)?"((?:[^"\\]|\\.)*)"\s*,?\s*\]?\s*')
_OF_CELL = '"output_type": "'
_ROW, _CELL = re.compile(r"(?is)<tr\b.*?</tr>"), re.compile(r"(?is)<t[hd]\b[^>]*>(.*?)</t[hd]>")
_TAG = re.compile(r"<[^>]{0,200}>")


def unwrapped(text: str) -> str | None:
    """A pasted log's own text; None if nothing is around it."""
    inner = _of_notebook(text)
    before = text if inner is None else inner
    plain = _without_strings(before)
    plain = _without_quotes(plain)
    plain = _without_line_numbers(plain)
    plain = _without_tags(plain)
    return None if plain == text else plain


def may_be_wrapped(head: str) -> bool:
    """Whether a log's first lines look as if something were around them."""
    lines = _first_lines(head)
    is_notebook = head.lstrip().startswith("{") and '"cells"' in head
    found = (
        is_notebook
        or _OF_CELL in head
        or _shares(lines, _STRING.fullmatch)
        or _shares(lines, _QUOTE.match)
    )
    return bool(found or _offset_of_numbers(lines) is not None or "<td" in head)


# --- notebooks ------------------------------------------------------------------------------------


def _of_notebook(text: str) -> str | None:
    """The printed text of a notebook's cells; None for any other text."""
    if not text.lstrip().startswith("{") or '"cells"' not in text:
        return None
    try:
        notebook = json.loads(text)
    except (ValueError, RecursionError):
        return None
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    outputs = [part for cell in cells or () for part in _outputs_of(cell)]
    return "\n".join(outputs) if outputs else None


def _outputs_of(cell: Any) -> Iterator[str]:
    """What a cell of a notebook printed, its tables as lines."""
    outputs = cell.get("outputs") if isinstance(cell, dict) else None
    for output in outputs if isinstance(outputs, list) else ():
        if not isinstance(output, dict):
            continue
        data = output.get("data")
        rich = data if isinstance(data, dict) else {}
        for told in (output.get("text"), rich.get("text/html") or rich.get("text/plain")):
            if isinstance(told, str | list):
                yield told if isinstance(told, str) else "".join(map(str, told))


def _without_strings(text: str) -> str:
    """A piece of a notebook's file: each line is a string with its line end."""
    lines = text.split("\n")
    if _OF_CELL not in text and not _shares(lines[:_MOST_LINES], _STRING.fullmatch):
        return text
    found = [match[1] for line in lines if (match := _STRING.fullmatch(line))]
    return "".join(map(_unescaped, found))


def _unescaped(text: str) -> str:
    try:
        return str(json.loads(f'"{text}"'))
    except ValueError:
        return text


def _without_tags(text: str) -> str:
    """A text whose tables of a web page are lines with tabs."""
    if "<td" not in text:
        return text

    def line_of(row: re.Match[str]) -> str:
        cells = [html.unescape(_TAG.sub("", cell)).strip() for cell in _CELL.findall(row[0])]
        return "\n" + "\t".join(cells) + "\n"

    return _TAG.sub("", _ROW.sub(line_of, text))


# --- around each line -----------------------------------------------------------------------------


def _without_quotes(text: str) -> str:
    return _QUOTE.sub("", text) if _shares(_first_lines(text), _QUOTE.match) else text


def _without_line_numbers(text: str) -> str:
    """A text without the numbers that a site printed before its lines, whatever they say."""
    offset = _offset_of_numbers(_first_lines(text))
    if offset is None:
        return text
    return "\n".join(
        line[match.end() :] if (match := _numbered(line, at + offset)) else line
        for at, line in enumerate(text.split("\n"))
    )


def _offset_of_numbers(lines: Sequence[str]) -> int | None:
    """The number of the first line, if lines of different kinds are numbered one by one."""
    told = [(at, match) for at, line in enumerate(lines) if (match := _NUMBERED.match(line))]
    filled = sum(1 for line in lines if line.strip())
    if len(told) < max(_LEAST_LINES, _SHARE * filled):
        return None
    offsets = {int(match[1]) - at for at, match in told}
    if len(offsets) != 1:
        return None
    kinds = {re.sub(r"\d+", "0", lines[at][match.end() :])[:48] for at, match in told}
    lengths = {len(lines[at][match.end() :].split()) for at, match in told}
    return offsets.pop() if len(kinds) > 1 and len(lengths) > 1 else None


def _numbered(line: str, number: int) -> re.Match[str] | None:
    match = _NUMBERED.match(line)
    return match if match and int(match[1]) == number else None


def _first_lines(text: str) -> list[str]:
    return text.split("\n", _MOST_LINES)[:_MOST_LINES]


def _shares(lines: Sequence[str], test: Any) -> bool:
    """Whether nearly all lines that say something pass a test."""
    filled = [line for line in lines if line.strip()]
    return len(filled) >= _LEAST_LINES and sum(1 for line in filled if test(line)) >= _SHARE * len(
        filled
    )
