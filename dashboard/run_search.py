"""What is typed into the search of runs: words, fields, comparisons.

    sweep verdict:failing -tag:bad model:"big net" rate>0.01 age<2d

Each part must hold; one behind "-" must not. A word is looked for in all that a row says.
"""

from __future__ import annotations

import operator
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from run_rows import RunRow

from ampwatch.errors import AmpwatchError

_PART = re.compile(r'(-?)(?:([a-z]+)(:|<=|>=|<|>|=))?("[^"]*"|\S+)')
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge, "=": operator.eq,
}  # fmt: skip
_SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86400}
_AMOUNT = re.compile(r"(.+?)(s|min|h|d|%)?")

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
FIELDS = (*_TEXTS, *_NUMBERS)
_OF_ENTRIES = {"verdict", "finding", "model", "rate", "scale", "skipped", "steps", "step"}


class SearchError(AmpwatchError):
    """What was typed cannot be understood; the message says why."""


@dataclass(frozen=True, slots=True)
class Part:
    """One condition."""

    holds: Callable[[RunRow], bool]
    is_not: bool = False
    needs_entry: bool = False  # it asks for what only a diagnosis tells


@dataclass(frozen=True, slots=True)
class Search:
    """All conditions."""

    parts: tuple[Part, ...] = ()

    @property
    def needs_entries(self) -> bool:
        """Whether runs must have been judged to be found."""
        return any(part.needs_entry for part in self.parts)

    def finds(self, row: RunRow) -> bool:
        """Whether a row is what is looked for."""
        return all(part.holds(row) != part.is_not for part in self.parts)


def search_for(text: str) -> Search:
    """What was typed, understood; SearchError if it is not."""
    return Search(tuple(_part(*match.groups()) for match in _PART.finditer(text.casefold())))


def _part(minus: str, field: str | None, sign: str | None, value: str) -> Part:
    wanted = value.strip('"')
    if sign == "=" and field not in FIELDS:  # a part of a name, as in lr=0.1
        field, wanted = None, f"{field}={wanted}"
    if field is None or sign is None:
        return Part(lambda row: wanted in said_by(row), bool(minus), needs_entry=True)
    needs_entry = field in _OF_ENTRIES
    if field in _NUMBERS:
        number, of = _number(field, wanted), _NUMBERS[field]
        compare = _COMPARE["=" if sign == ":" else sign]
        return Part(lambda row: _compares(of(row), compare, number), bool(minus), needs_entry)
    if field not in _TEXTS:
        fields = ", ".join(FIELDS)
        raise SearchError(f"There is no field {field!r} to search. Fields: {fields}.")
    if sign not in ":=":
        raise SearchError(f"{field} is text: write {field}:{wanted}.")
    text_of = _TEXTS[field]
    if field == "tag":  # a tag is a word: "bad" does not find "badly"
        return Part(lambda row: wanted in text_of(row).casefold().split(), bool(minus))
    return Part(lambda row: wanted in text_of(row).casefold(), bool(minus), needs_entry)


def _compares(value: float | None, compare: Callable[[float, float], bool], number: float) -> bool:
    return value is not None and compare(value, number)


def _number(field: str, text: str) -> float:
    match = _AMOUNT.fullmatch(text)
    try:
        amount = float(match[1].replace(",", "")) if match else float(text)
    except ValueError:
        raise SearchError(f"{field} is a number: write {field}>0.01, for example.") from None
    return amount * _SECONDS.get((match and match[2]) or "", 1)


def said_by(row: RunRow) -> str:
    """All that a row says, to look for words in."""
    parts = (_TEXTS[name](row) for name in ("run", "verdict", "finding", "model", "tag", "note"))
    return " ".join([*parts, row.choice.run.source, row.state]).casefold()
