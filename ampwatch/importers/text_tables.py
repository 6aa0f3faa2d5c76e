"""Tables within a text log: a line of names, and rows of as many cells under it.

Notebooks, Chainer, fastai, DeepXDE and YOLO print such tables, with tabs, bars or blanks between
the cells. A row is turned into a line of names and numbers, which is read like any other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ampwatch.importers.format import NUMBER
from ampwatch.importers.tables.column_names import column_in_text
from ampwatch.metric_names import Metric, metric_of

_SEPARATORS = (r"\t+", r" *\| *", r" {2,}|\t", r"\s+", r" *, *")
_TAIL = re.compile(r":? +\d{1,3}%\|.*$")  # a progress bar behind a row
_RULE = re.compile(r"[-=+|:\s]*")
_CELL = re.compile(
    rf"(?:{NUMBER})(?:[%a-zA-Z]{{0,3}}|/\d+)|\d+:[\d:]+|\[(?: *{NUMBER} *,?)*\]|-+|None|\w{{0,3}}"
)
_VALUE = re.compile(NUMBER)
_NAME = re.compile(r"[A-Za-z][\w .:/()@%-]{0,40}")
_AROUND = " |\t#%"  # a header may be a comment
_ROWS_LOOKED_AT = 6
_LEAST_ROWS, _MOST_NAMES, _LEAST_BARE = 2, 40, 5
_LOSSES = frozenset({Metric.LOSS, Metric.PER_UNIT, Metric.VALIDATION})


@dataclass(frozen=True, slots=True)
class TextTable:
    """The names of a table's columns, and what stands between its cells."""

    names: tuple[str, ...]
    separator: re.Pattern[str]

    def line_of(self, line: str) -> str | None:
        """A row as names and numbers; None for a line that is no row of this table."""
        cells = _cells(_TAIL.sub("", line), self.separator)
        if len(cells) != len(self.names) or not _is_row(cells):
            return None
        told = ((name, _number_of(cell)) for name, cell in zip(self.names, cells, strict=True))
        return ", ".join(f"{name}={value}" for name, value in told if value is not None)


def tables_in(lines: Sequence[str]) -> list[TextTable]:
    """The tables of a training among a log's lines, each header once."""
    found: dict[tuple[str, ...], TextTable] = {}
    for at, line in enumerate(lines):
        if len(line) > 400 or _NAME.match(line.strip(_AROUND)) is None:
            continue
        following = [row for row in lines[at + 1 : at + 1 + _ROWS_LOOKED_AT] if _is_filled(row)]
        for table in _readings(line):
            rows = sum(1 for row in following if table.line_of(row))
            least = _LEAST_ROWS if _tells_step(table.names) else _ROWS_LOOKED_AT
            if rows and rows >= min(least, max(len(following), least - _LEAST_ROWS)):
                found.setdefault(table.names, table)
                break
    return list(found.values())


def bare_columns(lines: Sequence[str]) -> list[TextTable]:
    """The columns of a log of losses without any name: a step, if one counts, a loss, others."""
    filled = [line for line in lines if _is_filled(line)]
    for separator in map(re.compile, (r"\s*[,;]\s*", r"\s+")):
        rows = [_cells(line, separator) for line in filled]
        count = len(rows[0]) if rows else 0
        if len(rows) < _LEAST_BARE or not 1 <= count <= 8 or {*map(len, rows)} != {count}:
            continue
        if not all(_VALUE.fullmatch(cell) for row in rows for cell in row):
            continue
        has_step = count > 1 and all(row[0].isdecimal() for row in rows)
        others = tuple(f"loss_{at}" for at in range(1, count - has_step))
        names = ("step", "loss", *others) if has_step else ("loss", *others)
        return [TextTable(names, separator)]
    return []


def _readings(line: str) -> Iterator[TextTable]:
    """The tables whose header a line may be, by what may stand between its cells."""
    for separator in map(re.compile, _SEPARATORS):
        names = _cells(line.strip(_AROUND), separator)
        if 1 <= len(names) <= _MOST_NAMES and all(map(_NAME.fullmatch, names)):
            plain = tuple(re.sub(r"[^\w/@.-]+", "_", name).strip("_") for name in names)
            if _tells_loss(plain):
                yield TextTable(plain, separator)


def _tells_loss(names: Sequence[str]) -> bool:
    """Whether a table with these columns is of a training."""
    return any(
        (column_in_text(name) or ("",))[0] == "loss" or metric_of(name) in _LOSSES for name in names
    )


def _tells_step(names: Sequence[str]) -> bool:
    """Whether one of these columns counts."""
    return any(
        (column_in_text(name) or ("",))[0] == "step" or name.lower() in {"epoch", "epochs", "ep"}
        for name in names
    )


def _is_filled(line: str) -> bool:
    return bool(line.strip()) and _RULE.fullmatch(line) is None


def _cells(line: str, separator: re.Pattern[str]) -> list[str]:
    """A line's cells; bars at its ends are no cells, an empty cell between tabs is one."""
    return [cell.strip() for cell in separator.split(line.strip(" |\t\r\n"))]


def _is_row(cells: Sequence[str]) -> bool:
    """Whether cells are those of a row: nearly all are numbers, the first is one."""
    return bool(re.match(r"\d", cells[0])) and all(map(_CELL.fullmatch, cells))


def _number_of(cell: str) -> str | None:
    """A cell's number, the sum of a list of losses; None for a time, a dash or a word."""
    if cell.startswith("["):
        parts = [float(part) for part in _VALUE.findall(cell)]
        return repr(sum(parts)) if parts else None
    whole = re.fullmatch(rf"({NUMBER})(?:%|/\d+)?", cell)
    return None if whole is None else whole[0].rstrip("%")
