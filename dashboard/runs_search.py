"""The fields of the search in the runs table; `ampwatch.search` is its language.

sweep verdict:failing -tag:bad model:"big net" rate>0.01 age<2d
"""

from __future__ import annotations

import time
from collections.abc import Callable

from runs_columns import RunRow

from ampwatch import search
from ampwatch.errors import SearchError
from ampwatch.search import Search

__all__ = ["FIELDS", "Search", "SearchError", "parse_search", "text_of_row"]

_TEXTS: dict[str, Callable[[RunRow], str]] = {
    "verdict": lambda row: row.entry.words if row.entry else "",
    "finding": lambda row: row.entry.finding if row.entry else "",
    "model": lambda row: row.entry.model if row.entry else "",
    "run": lambda row: f"{row.choice.title} {row.choice.name}",
    "tag": lambda row: " ".join(row.choice.run.tags),
    "note": lambda row: row.choice.run.note,
    "source": lambda row: row.choice.run.source,
    "host": lambda row: row.choice.run.host,
    "state": lambda row: row.state,
}
_NUMBERS: dict[str, Callable[[RunRow], float | None]] = {
    "rate": lambda row: row.entry.highest_rate if row.entry else None,
    "scale": lambda row: row.entry.final_scale if row.entry else None,
    "skipped": lambda row: row.entry.skipped if row.entry else None,
    "steps": lambda row: row.entry.steps if row.entry else None,
    "step": lambda row: row.entry.last_step if row.entry else None,
    "ranks": lambda row: len(row.choice.ranks),
    "age": lambda row: (time.time_ns() - row.choice.last_time_ns) / 1e9,
}
_OF_ENTRIES = {"", "verdict", "finding", "model", "rate", "scale", "skipped", "steps", "step"}


def parse_search(text: str) -> Search[RunRow]:
    """The conditions in the text typed to search the runs table; SearchError if not understood."""
    return search.search_for(text, FIELDS)


def text_of_row(row: RunRow) -> str:
    """All text of a row of the runs table, in which the search looks for words."""
    parts = (_TEXTS[name](row) for name in ("run", "verdict", "finding", "model", "tag", "note"))
    return " ".join([*parts, row.choice.run.source, row.state])


FIELDS = search.Fields(
    _TEXTS, _NUMBERS, text_of_row, whole=frozenset({"tag"}), judged=frozenset(_OF_ENTRIES)
)
