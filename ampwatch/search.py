"""A small language to find runs with: words, fields, comparisons. Nothing in it is evaluated.

    sweep verdict:failing -tag:bad model:"big net" rate>0.01 age<2d

Each part must hold; one behind "-" must not. A word is looked for in all that a row says. What the
fields are says whoever searches.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from ampwatch.errors import SearchError

R = TypeVar("R")

_PART = re.compile(r'(-?)(?:([a-z][\w.]*)(:|<=|>=|<|>|=))?("[^"]*"|\S+)')
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge, "=": operator.eq,
}  # fmt: skip
_SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86400}
_AMOUNT = re.compile(r"(.+?)(s|min|h|d|%)?")


@dataclass(frozen=True, slots=True)
class Fields(Generic[R]):
    """The fields that a search for runs may ask for, and how to read them from a row.

    `whole` are texts that hold words, each to be named in full. `judged` are the fields that only a
    diagnosis tells; "" stands for a word without a field. `setting` finds one of a row's settings
    by its name; without it, what is no field is looked for as a word.
    """

    texts: Mapping[str, Callable[[R], str]]
    numbers: Mapping[str, Callable[[R], float | None]]
    says: Callable[[R], str]
    whole: frozenset[str] = frozenset()
    judged: frozenset[str] = frozenset()
    setting: Callable[[R, str], str | None] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all fields that can be searched."""
        return (*self.texts, *self.numbers)


@dataclass(frozen=True, slots=True)
class Part(Generic[R]):
    """One condition of a search."""

    holds: Callable[[R], bool]
    is_not: bool = False
    needs_entry: bool = False  # it asks for what only a diagnosis tells
    setting: str = ""  # the name of the setting that it asks for


@dataclass(frozen=True, slots=True)
class Search(Generic[R]):
    """A search for runs: conditions of which all must hold."""

    parts: tuple[Part[R], ...] = ()

    @property
    def needs_entries(self) -> bool:
        """Whether the search asks for what only judged runs have."""
        return any(part.needs_entry for part in self.parts)

    def finds(self, row: R) -> bool:
        """Whether a row meets all conditions of the search."""
        return all(part.holds(row) != part.is_not for part in self.parts)

    def without_diagnosis(self) -> Search[R]:
        """The search with only those conditions that hold or not before a run is judged."""
        return Search(tuple(part for part in self.parts if not part.needs_entry))


def search_for(text: str, fields: Fields[R]) -> Search[R]:
    """The search that the text describes; SearchError if it is not understood."""
    found = (_condition(fields, *match.groups()) for match in _PART.finditer(text.casefold()))
    return Search(tuple(found))


def _condition(
    fields: Fields[R], minus: str, field: str | None, sign: str | None, value: str
) -> Part[R]:
    wanted, is_not = value.strip('"'), bool(minus)
    if field is None or sign is None:
        return _word_condition(fields, wanted, is_not=is_not)
    needs_entry = field in fields.judged
    if field in fields.numbers:
        number, of = _number(field, wanted), fields.numbers[field]
        compare = _COMPARE["=" if sign == ":" else sign]
        return Part(lambda row: _compares(of(row), compare, number), is_not, needs_entry)
    if field not in fields.texts:
        return _setting_condition(fields, field, sign, wanted, is_not=is_not)
    if sign not in ":=":
        raise SearchError(f"{field} is text: write {field}:{wanted}.")
    text_of = fields.texts[field]
    if field in fields.whole:  # "bad" does not find "badly"
        return Part(lambda row: wanted in text_of(row).casefold().split(), is_not, needs_entry)
    return Part(lambda row: wanted in text_of(row).casefold(), is_not, needs_entry)


def _word_condition(fields: Fields[R], wanted: str, *, is_not: bool) -> Part[R]:
    return Part(lambda row: wanted in fields.says(row).casefold(), is_not, "" in fields.judged)


def _setting_condition(
    fields: Fields[R], name: str, sign: str, wanted: str, *, is_not: bool
) -> Part[R]:
    """The condition on a name that is no field: a setting, else a word as in lr=0.1."""
    setting = fields.setting
    if setting is not None:
        holds = _setting_test(sign, name, wanted)
        return Part(lambda row: holds(setting(row, name)), is_not, setting=name)
    if sign == "=" or not name.isalpha():
        return _word_condition(fields, f"{name}{sign}{wanted}", is_not=is_not)
    known = ", ".join(fields.names)
    raise SearchError(f"There is no field {name!r} to search. Fields: {known}.")


def _setting_test(sign: str, name: str, wanted: str) -> Callable[[str | None], bool]:
    """A test whether a setting is as asked: compared as a number, else as text."""
    if sign == ":":
        return lambda told: told is not None and wanted in told.casefold()
    compare = _COMPARE[sign]
    if sign == "=" and _float(wanted) is None:
        return lambda told: told is not None and wanted == told.casefold()
    number = _number(name, wanted)
    return lambda told: _compares(_float(told), compare, number)


def _compares(value: float | None, compare: Callable[[float, float], bool], number: float) -> bool:
    return value is not None and compare(value, number)


def _float(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def _number(field: str, text: str) -> float:
    match = _AMOUNT.fullmatch(text)
    try:
        amount = float(match[1].replace(",", "")) if match else float(text)
    except ValueError:
        raise SearchError(f"{field} is a number: write {field}>0.01, for example.") from None
    return amount * _SECONDS.get((match and match[2]) or "", 1)
