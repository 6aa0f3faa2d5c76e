"""Facts and sentences: what a letter is made of.

A fact is one number, its text, and how anybody recomputes it from the run's rows: the operation,
the table, the column and the steps. A sentence is made of words, names and facts, so no number
stands in a letter that was not read from rows. A number that is no reading says so: it is what the
diagnosis estimates.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ampwatch.diagnosis.value_text import rate_text, two_digits
from ampwatch.rows import Table


class Reading(str, enum.Enum):
    """How a fact's number is read from the rows of its span of steps.

    Where a step has several rows (layers), its value is the highest finite one of them.
    """

    VALUE = "value"  # of the column at the span's first step
    FIRST = "first"  # finite value
    LAST = "last"  # finite value
    HIGHEST = "highest"  # finite value
    LOWEST = "lowest"  # finite value
    MEDIAN = "median"  # of the finite values
    COUNT = "count"  # of the steps in which `holds` is true
    STEPS = "steps"  # that have a row
    STEP = "step"  # the span's first step, at which `holds` is true
    STEP_OF_HIGHEST = "step of the highest"  # the first such step
    FIRST_STEP = "first step"  # in which `holds` is true
    LAST_STEP = "last step"  # in which `holds` is true
    SINCE = "since"  # the first step from which `holds` is true of every value
    ESTIMATE = "estimate"  # of the diagnosis: `column` names the key in `report --json`


class Holds(str, enum.Enum):
    """What is true of a column's value in the steps that a fact counts or finds."""

    TRUE = "true"
    NOT_FINITE = "not finite"
    PRESENT = "present"
    ZERO = "zero"
    ABOVE = "above"  # the fact's `line`, or not finite
    OF_CODE = "of the code"  # a misuse event with the fact's `code`
    OF_LAYER = "of the layer"  # an event that names the fact's layer, as the fact's `direction`


@dataclass(frozen=True, slots=True)
class Fact:
    """One number of a letter, its text, and how to recompute it."""

    reading: Reading
    value: float
    text: str
    table: Table = Table.STEPS
    column: str = ""
    first: int | None = None  # step; None: from the first row on
    last: int | None = None  # step; None: to the last row
    holds: Holds | None = None
    line: float | None = None
    layer: str | None = None
    direction: str | None = None  # of an overflow: forward or backward
    code: str | None = None  # of a misuse
    rank: int = 0
    optimizer: int | None = None  # whose rows; None: the first one's

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Name:
    """A name, a command or a code in a sentence: data, shown as it is."""

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Remedy:
    """A sentence that says what to do, from the finding's rule: its numbers are no readings."""

    text: str

    def __str__(self) -> str:
        return self.text


Part: TypeAlias = "str | Fact | Name | Remedy"


@dataclass(frozen=True, slots=True)
class Sentence:
    """Words, names and facts, in order."""

    parts: tuple[Part, ...]

    @classmethod
    def of(cls, *parts: Part | Sentence) -> Sentence:
        """A sentence of these parts; sentences among them are taken apart."""
        flat: list[Part] = []
        for part in parts:
            flat += part.parts if isinstance(part, Sentence) else [part]
        return cls(tuple(flat))

    @property
    def facts(self) -> tuple[Fact, ...]:
        """The facts in the sentence."""
        return tuple(part for part in self.parts if isinstance(part, Fact))

    def __str__(self) -> str:
        return "".join(map(str, self.parts))

    def __bool__(self) -> bool:
        return bool(self.parts)


def joined(parts: Sequence[Part | Sentence], by: str = ", ") -> Sentence:
    """Parts with a separator between them, as one sentence."""
    flat: list[Part | Sentence] = []
    for part in parts:
        flat += [by, part] if flat else [part]
    return Sentence.of(*flat)


# --- numbers that are no readings -----------------------------------------------------------------


def estimate(key: str, value: float) -> Fact:
    """A number that the diagnosis estimates; `key` names it in the advice of `report --json`."""
    return Fact(Reading.ESTIMATE, value, two_digits(value), column=key)


def present_rate(value: float) -> Fact:
    """The learning rate in use, as its user gave it."""
    return Fact(Reading.ESTIMATE, value, rate_text(value), column="current")


def tested_rate(key: str, value: float) -> Fact:
    """A learning rate that a rerun has tried; `key` names it in the advice of `report --json`."""
    return Fact(Reading.ESTIMATE, value, f"{value:.3g}", column=key)


def estimated_step(key: str, step: int) -> Fact:
    """A step that the diagnosis chose; `key` names it in the advice of `report --json`."""
    return Fact(Reading.ESTIMATE, step, f"{step:,}", column=key)
