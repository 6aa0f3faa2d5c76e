"""Reads CSV files: of any tool, Lightning's CSVLogger, W&B exports.

Arrow reads them by columns. A row with fewer cells than the header is filled up, one with more is
left out. If quotes do not pair, each line is read separately, so that a stray quote costs one line.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from ampwatch.importers.log_file import CHUNK_BYTES
from ampwatch.importers.row_writer import STEP_COLUMNS
from ampwatch.importers.tables.cells import Block, joined, of_values
from ampwatch.importers.tables.column_names import (
    recognised,
    says_nothing,
    speaks_of_training,
    tells_training,
)
from ampwatch.metric_names import is_metric

_DECIMAL_COMMA = re.compile(r"\s*[-+]?(?:0|[1-9]\d*),(?!\d{3}\s*$)\d+(?:[eE][-+]?\d+)?\s*")
_COUNTS = ("nan", "inf")  # as a column's name: how many there were
_OF_COLUMN = re.compile(r"CSV column #(\d+)")
_GROUPS_OF_ZERO = re.compile(r"\s*[-+]?0,\d+\s*")


def looks_delimited(first: str) -> bool:
    """Whether a first line is the header of a CSV file that has columns of ours."""
    header = split(first)
    if len(header) < 2 or any(_is_number(cell) and cell.lower() not in _COUNTS for cell in header):
        return False
    names = recognised(header, {}, "")
    known = {name for name in names if name in STEP_COLUMNS or is_metric(name)}
    is_sure = known - {"loss"} or speaks_of_training(header)
    return tells_training(names) and bool(is_sure or all(map(says_nothing, header)))


def split(line: str) -> list[str]:
    """The cells of a CSV header, split by the separator that gives the most of them."""
    return [cell.strip() for cell in _cells(line, mark_of(line))]


def _cells(line: str, mark: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=mark), [])
    except csv.Error:
        return []


def names_mark(line: str) -> bool:
    """Whether a line before the CSV header names the separator for a spreadsheet."""
    return re.fullmatch(r'"?sep=."?', line.strip()) is not None


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def mark_of(line: str) -> str:
    """The separator of a CSV header."""
    return max(",;\t", key=lambda mark: len(_cells(line, mark)))


def runs_of(header: Sequence[str]) -> dict[str, list[str]]:
    """The columns of each run in a W&B export of several as CSV; empty for any other file."""
    runs: dict[str, list[str]] = {}
    if any(name.endswith("__MIN") for name in header):
        for name in header:
            run, mark, column = name.partition(" - ")
            if mark and not column.endswith(("__MIN", "__MAX")):
                runs.setdefault(run, []).append(name)
    return runs


def source_of(header: Sequence[str], names: Mapping[str, str], path: str) -> str:
    """The tool that wrote a CSV file, by its column names."""
    if any(name in {"_step", "_runtime", "_timestamp"} or "__MIN" in name for name in header):
        return "wandb"
    lightning = {"epoch", "step"} <= set(header) and path.endswith("metrics.csv")
    own = names.keys() & {"scale", "scale_after", "skipped"}
    return "lightning" if lightning and not own else "csv"


# --- the rows ------------------------------------------------------------------------------------


@dataclass(slots=True)
class CsvReader:
    """Reads a CSV file's bytes after its header, some MB at a time, only the wanted columns."""

    header: Sequence[str]
    mark: str
    wanted: Iterable[str]  # the header's own names
    say: Callable[[str], None]
    has_decimal_comma: bool = False
    _places: dict[str, int] = field(init=False)
    _texts: set[str] = field(default_factory=set)  # columns in which some cells are not numbers
    _too_long: int = 0
    _stray: int = 0

    def __post_init__(self) -> None:
        last = {name: at for at, name in enumerate(self.header)}  # of two equal names the last
        self._places = {name: last[name] for name in dict.fromkeys(self.wanted)}

    def blocks(self, chunks: Iterable[bytes], above: int = 1) -> Iterator[Block]:
        """The CSV file's rows, which begin after so many lines."""
        for _ in range(above):
            chunks = _without_first_line(chunks)
        for part in whole_records(chunks):
            if not part.strip():
                continue
            text = part.replace(b",", b".") if self.has_decimal_comma else part
            yield self.block(text)
        if self._too_long:
            self.say(f"{self._too_long} rows have more cells than the header and are left out.")
        if self._stray:
            self.say(f"The quotes do not pair in {self._stray} parts of the file.")

    def block(self, part: bytes) -> Block:
        """Whole CSV records as a block, read by columns if Arrow can."""
        valid = part if part.isascii() else part.decode("utf-8", "replace").encode()
        if _is_paired(valid, self.mark):
            return self._by_columns(valid)
        self._stray += 1
        return self.by_lines(valid)

    def by_lines(self, part: bytes) -> Block:
        """Whole CSV records as a block, read line by line."""
        rows = []
        for line in part.decode("utf-8", "replace").split("\n"):
            cells = _cells(line, self.mark)
            if len(cells) > len(self.header):
                self._too_long += 1
            elif cells:
                rows.append(cells)
        columns = {
            name: pa.array([row[at] if at < len(row) else None for row in rows], pa.string())
            for name, at in self._places.items()
        }
        return Block(len(rows), columns)

    def _by_columns(self, part: bytes) -> Block:
        """All CSV columns as numbers, except those with cells that Arrow cannot read."""
        while True:
            odd: list[tuple[int, str]] = []
            try:
                table = self._read(part, odd)
                break
            except pa.ArrowInvalid as problem:
                named = _OF_COLUMN.search(str(problem))
                column = named[1] if named else ""
                if column in self._texts:
                    return self.by_lines(part)
                self._texts.update([column] if column else map(str, self._places.values()))
        columns = {name: table.column(str(at)) for name, at in self._places.items()}
        return self._with_short_rows(Block(table.num_rows, columns), odd)

    def _read(self, part: bytes, odd: list[tuple[int, str]]) -> pa.Table:
        """The wanted CSV columns, named by their indices; rows of another length go to `odd`."""
        from pyarrow import csv as arrow_csv

        def keep(row: arrow_csv.InvalidRow) -> str:
            odd.append((row.number, row.text))
            return "skip"

        names = [str(at) for at in range(len(self.header))]
        wanted = [str(at) for at in dict.fromkeys(self._places.values())]
        types = {at: pa.string() if at in self._texts else pa.float64() for at in wanted}
        return arrow_csv.read_csv(
            io.BytesIO(part),
            arrow_csv.ReadOptions(
                use_threads=False, block_size=len(part) + 1, column_names=names
            ),
            arrow_csv.ParseOptions(
                delimiter=self.mark, newlines_in_values=b'"' in part, invalid_row_handler=keep
            ),
            arrow_csv.ConvertOptions(
                check_utf8=False, column_types=types, null_values=[""], include_columns=wanted
            ),
        )  # fmt: skip

    def _with_short_rows(self, block: Block, odd: Sequence[tuple[int, str]]) -> Block:
        """The block with those CSV rows inserted that have fewer cells than the header."""
        if not odd:
            return block
        short = []
        for number, text in odd:
            cells = next(csv.reader(io.StringIO(text, newline=""), delimiter=self.mark), [])
            if len(cells) <= len(self.header):
                short.append((number, cells))
            else:
                self._too_long += 1
        whole = np.ones(block.count + len(odd), np.bool_)
        whole[[number - 1 for number, _ in odd]] = False
        places = np.concatenate((np.flatnonzero(whole), [number - 1 for number, _ in short]))
        order = np.argsort(places, kind="stable")
        columns = {}
        for name, at in self._places.items():
            more = of_values([cells[at] if at < len(cells) else None for _, cells in short])
            columns[name] = joined([block.cells(name), more]).at(order)
        return Block(len(places), columns)


def decimal_comma(head: str, mark: str) -> bool:
    """Whether a CSV file writes numbers as `0,5`: only if another character separates cells."""
    if mark == ",":
        return False
    lines = head.splitlines()[1:-1]  # the last may be cut off
    cells = (cell for line in lines for cell in _cells(line, mark))
    return any(_DECIMAL_COMMA.fullmatch(c) or _GROUPS_OF_ZERO.fullmatch(c) for c in cells)


def _without_first_line(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """A CSV file's bytes after the first line that is not empty."""
    rest = iter(chunks)
    begin = b""
    for chunk in rest:
        begin = (begin + chunk).lstrip(b"\xef\xbb\xbf \t\r\n")
        header, end, more = begin.partition(b"\n")
        if not end and b"\r" in header:
            header, end, more = begin.partition(b"\r")
        if end:
            yield more
            break
    yield from rest


def whole_records(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """A CSV file's bytes, cut where a record ends: at a line end outside quotes."""
    rest = b""
    for chunk in chunks:
        rest += chunk
        held = rest[-1:] if rest.endswith(b"\r") else b""  # its line feed may follow
        data = rest[: len(rest) - len(held)].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        end = _last_end(data)
        if not end and len(data) > 2 * CHUNK_BYTES:  # quotes that never pair
            end = data.rfind(b"\n") + 1
        if end:
            yield data[:end]
        rest = data[end:] + held
        if len(rest) > 4 * CHUNK_BYTES:
            rest = b""  # no table has such a line
    rest = rest.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    if rest:
        yield rest if rest.endswith(b"\n") else rest + b"\n"


def _last_end(data: bytes) -> int:
    """Where the last complete CSV record ends."""
    if b'"' not in data:
        return data.rfind(b"\n") + 1
    content = np.frombuffer(data, np.uint8)
    quotes, ends = np.flatnonzero(content == ord('"')), np.flatnonzero(content == ord("\n"))
    outside = ends[np.searchsorted(quotes, ends) % 2 == 0]
    return int(outside[-1]) + 1 if len(outside) else 0


def _is_paired(part: bytes, mark: str) -> bool:
    """Whether each quote begins a CSV cell, ends one, or is one of two that mean one."""
    if b'"' not in part:
        return True
    content = np.frombuffer(b"\n" + part + b"\n", np.uint8)
    quotes = np.flatnonzero(content == ord('"'))
    if len(quotes) % 2:
        return False
    edges = np.frombuffer(b'\n"' + mark.encode(), np.uint8)
    begins, ends = content[quotes[::2] - 1], content[quotes[1::2] + 1]
    return bool(np.isin(begins, edges).all() and np.isin(ends, edges).all())
