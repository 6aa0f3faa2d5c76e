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
from itertools import pairwise
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
            self._held += self._read(SNIFF_BYTES - len(self._held))
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
            self._held += self._read(max(size - len(self._held), SNIFF_BYTES))
        taken, self._held = self._held[:size], self._held[size:]
        return taken

    def text(self) -> str:
        """The whole file's text, decompressed and decoded."""
        return b"".join(self.chunks()).decode("utf-8", "replace")

    def chunks(self) -> Iterator[bytes]:
        """The file's bytes as UTF-8, some MB at a time."""
        decoder: codecs.IncrementalDecoder | None = None
        is_first = True
        while data := self._held or self._read(CHUNK_BYTES):
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

    def _read(self, size: int) -> bytes:
        data = b""
        try:
            data = self._stream.read(size)
        except (*_BROKEN, OSError) as problem:
            if isinstance(problem, OSError) and not self.is_compressed:
                raise LogError(_why(self.path, problem), path=self.path) from None
            self.damage = "The compressed file breaks off or is damaged: what follows is missing."
        self._is_over = not data
        return data


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
    plain = _without_strings(text if inner is None else inner)
    plain = _of_one_rank(_without_tags(_without_line_numbers(_without_quotes(plain))))
    return None if plain == text else plain


def may_be_wrapped(head: str) -> bool:
    """Whether a log's first lines look as if something were around them."""
    lines = _first_lines(head)
    is_notebook = head.lstrip().startswith("{") and '"cells"' in head
    return (
        is_notebook
        or _OF_CELL in head
        or "<td" in head
        or _offset_of_numbers(lines) is not None
        or _form_of_ranks(lines) is not None
        or any(_shares(lines, test) for test in (_STRING.fullmatch, _QUOTE.match))
    )


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
    strings = [match[1] for line in lines if (match := _STRING.fullmatch(line))]
    return "".join(map(_unescaped, strings))


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
    matches = [(at, match) for at, line in enumerate(lines) if (match := _NUMBERED.match(line))]
    filled = sum(1 for line in lines if line.strip())
    if len(matches) < max(_LEAST_LINES, _SHARE * filled):
        return None
    offsets = {int(match[1]) - at for at, match in matches}
    if len(offsets) != 1:
        return None
    kinds = {re.sub(r"\d+", "0", lines[at][match.end() :])[:48] for at, match in matches}
    lengths = {len(lines[at][match.end() :].split()) for at, match in matches}
    return offsets.pop() if len(kinds) > 1 and len(lengths) > 1 else None


def _numbered(line: str, number: int) -> re.Match[str] | None:
    match = _NUMBERED.match(line)
    return match if match and int(match[1]) == number else None


# --- a rank's mark before each of its lines -------------------------------------------------------

# What mpirun, torchrun, Ray, kubectl and pdsh print before a line, whatever else is in the log.
_SURE_RANK = re.compile(
    r"\s*(?:\[\d+,\d+\]<std(?:out|err)>|(?:\d{1,3}\.){3}\d+(?=: )|\[?pod/[^\s\]]+\]?|"
    r"\[(?:rank|default|trainer|worker)[ _:-]?\d+(?:\|\d+)?\](?=:)|"
    r"\((?:[A-Za-z][\w.()]* )?pid=\d+(?:, ip=[\d.]+)?\)):? ?"
)
# What a counter may look like as well: `0: ` of srun, `worker-2: `, `trainer_1  | `.
_RANK = re.compile(r"\s*[\[(]?(?:[A-Za-z][\w.-]*?[ #-]?)?\d{1,5}[\])]?(?:: ?| +\| )(?=[\s\[]*\w)")
_COUNTER = re.compile(r"(?i)epoch|step|iter|batch")
_NO_RANK = re.compile(rf"(?i){_COUNTER.pattern}|episode|fold|trial|seed|layer|block|loss")
_NO_WORDS = re.compile(r"(?i)\b(?:nan|inf)\b|\d[\d.]*e[-+]?\d+|[\W\d_]+")
_KIND = 120


def _of_one_rank(text: str) -> str:
    """A text without the marks of ranks; what several print alike is left of the first of them."""
    form = _form_of_ranks(_first_lines(text))
    if form is None:
        return text
    parted = [_parted(line, form) for line in text.split("\n")]
    first: dict[str, str] = {}
    for mark, rest in parted:
        kind = _kind(rest)
        if mark and _order(mark) < _order(first.setdefault(kind, mark)):
            first[kind] = mark
    return "\n".join(rest for mark, rest in parted if not mark or first[_kind(rest)] == mark)


def _form_of_ranks(lines: Sequence[str]) -> re.Pattern[str] | None:
    """What stands before each rank's lines; None in a log in which no ranks are marked.

    A mark that could be a counter comes again and again, before lines that count by themselves.
    """
    if sum(1 for line in lines if _SURE_RANK.match(line)) >= _LEAST_LINES:
        return _SURE_RANK
    if not _shares(lines, _RANK.match):
        return None
    parted = [(mark, rest) for mark, rest in (_parted(line, _RANK) for line in lines) if mark]
    counting = {mark for mark, rest in parted if _COUNTER.search(rest)}
    known, returns = {parted[0][0]}, 0
    for (before, _), (mark, _) in pairwise(parted):
        returns += mark != before and mark in known
        known.add(mark)
    is_rank = len(known) > 1 and returns >= len(known) and len(counting) > len(known) / 2
    return _RANK if is_rank and not any(map(_NO_RANK.search, known)) else None


def _parted(line: str, form: re.Pattern[str]) -> tuple[str, str]:
    """The mark before a line, empty if there is none, and the rest of the line."""
    match = form.match(line)
    if match is None:
        return "", line
    return match[0].strip().replace("<stderr>", "<stdout>"), line[match.end() :]


def _order(mark: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", mark)]


def _kind(line: str) -> str:
    """The beginning of a line's words, without its numbers."""
    return _NO_WORDS.sub(" ", line[: 2 * _KIND])[:_KIND]


def _first_lines(text: str) -> list[str]:
    return text.split("\n", _MOST_LINES)[:_MOST_LINES]


def _shares(lines: Sequence[str], test: Any) -> bool:
    """Whether nearly all lines that say something pass a test."""
    filled = [line for line in lines if line.strip()]
    passing = sum(1 for line in filled if test(line))
    return len(filled) >= _LEAST_LINES and passing >= _SHARE * len(filled)
