"""CSV: of any tool, of Lightning's CSVLogger, exported by W&B."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ampwatch.importers.tables.names import Names, recognised, tells_training

MAX_FIELD_BYTES = 1 << 20


def looks_delimited(first: str) -> bool:
    """Whether a first line is a table's header that has columns of ours."""
    header = split(first)
    if len(header) < 2 or any(_is_number(cell) for cell in header):
        return False
    return tells_training(recognised(header, {}, ""))


def split(line: str) -> list[str]:
    """A header's cells, by the separator that gives the most of them."""
    return [cell.strip() for cell in max((_cells(line, mark) for mark in ",;\t"), key=len)]


def _cells(line: str, mark: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=mark), [])
    except csv.Error:
        return []


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def rows(lines: Iterable[str], header: Sequence[str], mark: str) -> Iterator[Mapping[str, str]]:
    """Each line's cells by name; a line that is none of the table is left out."""
    reader = csv.reader(lines, delimiter=mark)
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error:
            continue
        if cells and len(cells) <= len(header):
            yield dict(zip(header, cells, strict=False))


def mark_of(line: str) -> str:
    """The separator of a header."""
    return max(",;\t", key=lambda mark: len(_cells(line, mark)))


def runs_of(header: Sequence[str]) -> dict[str, list[str]]:
    """The columns of each run that W&B has exported into one table; none of any other table."""
    found: dict[str, list[str]] = {}
    if any(name.endswith("__MIN") for name in header):
        for name in header:
            run, mark, column = name.partition(" - ")
            if mark and not column.endswith(("__MIN", "__MAX")):
                found.setdefault(run, []).append(name)
    return found


def source_of(header: Sequence[str], names: Names, path: str) -> str:
    """Who wrote the table, by its names."""
    if any(name in {"_step", "_runtime", "_timestamp"} or "__MIN" in name for name in header):
        return "wandb"
    lightning = {"epoch", "step"} <= set(header) and path.endswith("metrics.csv")
    own = names.of.keys() & {"scale", "scale_after", "skipped"}
    return "lightning" if lightning and not own else "csv"
