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
# A cell that begins as a number is one, however it is written; others have nothing to say.
_CELL = re.compile(
    r"[-+]?[\d.][\w.,:/+%-]*|\[[^\]]*\]|-+|(?i:[-+]?(?:nan|inf|infinity)|none|null|n/a)|\w{0,3}"
)
_VALUE = re.compile(NUMBER)
_NAME = re.compile(r"[A-Za-z][\w .:/()@%-]{0,40}")
# Names of what differs from run to run: a row without a step is then a training of its own.
_OF_RUNS = re.compile(r"(?i)(?<![a-z])(?:trial|seed|fold|experiment|model|run|params?)(?![a-z])")
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
        told = zip(self.names, map(_plain_cell, cells), strict=True)
        return ", ".join(f"{name}={cell}" for name, cell in told)


def tables_in(lines: Sequence[str]) -> list[TextTable]:
    """The tables of a training among a log's lines, each header once."""
    tables: dict[tuple[str, ...], TextTable] = {}
    for at, line in enumerate(lines):
        if len(line) > 400 or _NAME.match(line.strip(_AROUND)) is None:
            continue
        head, height = _whole_head(lines, at)
        begin = at + height
        following = [row for row in lines[begin : begin + _ROWS_LOOKED_AT] if _is_filled(row)]
        for table in _readings(head):
            rows = sum(1 for row in following if table.line_of(row))
            least = _LEAST_ROWS if _tells_step(table.names) else _ROWS_LOOKED_AT
            if rows and rows >= min(least, max(len(following), least - _LEAST_ROWS)):
                tables.setdefault(table.names, table)
                break
    return list(tables.values())


def _whole_head(lines: Sequence[str], at: int) -> tuple[str, int]:
    """A header, of which each name may go on in the line below, and how many lines it has."""
    head, below = lines[at], lines[at + 1] if at + 1 < len(lines) else ""
    cells = [line.strip().strip("|").split("|") for line in (head, below)]
    is_alike = head.lstrip()[:1] == "|" == below.lstrip()[:1] and len(cells[0]) == len(cells[1])
    if not is_alike or re.search(r"\d|--", below) or not all(map(str.strip, cells[0])):
        return head, 1
    return "|".join(f"{name.strip()} {more.strip()}" for name, more in zip(*cells, strict=True)), 2


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
            if _tells_loss(plain) and (_tells_step(plain) or not _is_of_runs(plain)):
                yield TextTable(plain, separator)


def _tells_loss(names: Sequence[str]) -> bool:
    """Whether a table with these columns is of a training."""
    return any(
        (column_in_text(name) or ("",))[0] == "loss" or metric_of(name) in _LOSSES for name in names
    )


def _is_of_runs(names: Sequence[str]) -> bool:
    """Whether one of these columns names a training of several."""
    return any(map(_OF_RUNS.search, names))


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
    """Whether cells are those of a row: most are numbers, the first is one."""
    are_numbers = sum(1 for cell in cells if _CELL.fullmatch(cell))
    return bool(re.match(r"\d", cells[0])) and are_numbers > len(cells) / 2


def _plain_cell(cell: str) -> str:
    """A cell as it stands, of a list of losses their sum; of two numbers nobody knows which."""
    if re.search(r"\d +\d", cell):
        return ""
    parts = [float(part) for part in _VALUE.findall(cell)] if cell.startswith("[") else []
    return repr(sum(parts)) if parts else cell
