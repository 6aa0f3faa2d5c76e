"""Facts and sentences, of which a letter is made, and the reader that gets facts from rows.

A fact is one number, its text, and how anybody recomputes it from the run's rows: the operation,
the table, the column and the steps. A sentence is made of words, names and facts, so no number
stands in a letter that was not read from rows. A number that is no reading says so: it is what the
diagnosis estimates.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, TypeAlias

import numpy as np

from ampwatch.diagnosis import Finding
from ampwatch.diagnosis.column_arrays import (
    Floats,
    Integers,
    Mask,
    flags,
    integers,
    known,
    numbers,
    steps_of,
    texts,
)
from ampwatch.diagnosis.findings import json_value
from ampwatch.diagnosis.record import Record, detail_of
from ampwatch.diagnosis.value_text import rate_text, scale_text, two_digits, value_text
from ampwatch.report.facts import rows_of_optimizer
from ampwatch.rows import COLUMNS, EventKind, Mark, Table, column


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
    STEP_OF_LOWEST = "step of the lowest"  # the first such step
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

    def to_json(self) -> dict[str, Any]:
        """The sentence, and how each of its numbers is computed again."""
        return {"text": str(self), "facts": [as_json(fact) for fact in self.facts]}


def as_json(fact: Fact) -> dict[str, Any]:
    """A fact's value, its rows and its operation, without what does not apply."""
    told = json_value(fact)
    assert isinstance(told, dict)
    unsaid = {"table", "rank"} if fact.reading is Reading.ESTIMATE else set()
    return {name: it for name, it in told.items() if it is not None and name not in unsaid}


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


# --- facts read from rows -------------------------------------------------------------------------

# --- texts ----------------------------------------------------------------------------------------

_RATES = frozenset(("lr_base",))  # as its user gave it; what a schedule makes of it has two digits
_SCALES = frozenset(("scale", "scale_after"))
_STEP_READINGS = frozenset(
    (
        Reading.STEP,
        Reading.STEP_OF_HIGHEST,
        Reading.STEP_OF_LOWEST,
        Reading.FIRST_STEP,
        Reading.LAST_STEP,
        Reading.SINCE,
    )
)


def _text_of(reading: Reading, column: str, value: float) -> str:
    if reading in _STEP_READINGS or reading in {Reading.COUNT, Reading.STEPS}:
        return f"{value:,.0f}"
    if column in _RATES:
        return rate_text(value)
    return scale_text(value) if column in _SCALES else two_digits(value)


def _evidence_text(table: Table, signal: str, value: float) -> str:
    unit = column(table, signal).unit
    if unit == "%":
        return f"{two_digits(100 * value)} %"
    return value_text(signal, value) if unit else _text_of(Reading.VALUE, signal, value)


@dataclass(frozen=True, slots=True)
class Series:
    """A column by step: the known values, each step once."""

    step: Integers
    value: Floats

    @property
    def finite(self) -> Series:
        """Without the values that are inf or nan."""
        fine = np.isfinite(self.value)
        return Series(self.step[fine], self.value[fine])

    def within(self, first: int | None, last: int | None) -> Series:
        """The values of these steps; None: from the first, to the last."""
        inside = np.ones(len(self.step), np.bool_)
        if first is not None:
            inside &= self.step >= first
        if last is not None:
            inside &= self.step <= last
        return Series(self.step[inside], self.value[inside])

    def __len__(self) -> int:
        return len(self.step)


_FLAGS = frozenset(("skipped", "found_inf"))
SIGNALS = {
    "loss": ("loss",),
    "gradient norm": ("grad_norm",),
    "learning rate": ("lr",),
    "loss scale": ("scale", "scale_after"),
}
_READ = (
    "step", "loss", "grad_norm", "lr", "lr_base", "scale", "scale_after", "skipped",
    "autocast_dtype",
)  # fmt: skip


class FactReader:
    """Reads facts from a run's rows: the lowest rank's, of the first optimizer or of this one.

    Of a step with several rows the last one counts: a resumed run may have computed it twice.
    """

    def __init__(self, run: Record, optimizer: int | None = None) -> None:
        self._run = run
        self.optimizer = optimizer
        self.rank = min(run.ranks, default=0)
        self._columns: dict[str, Series] = {}

    @cached_property
    def _rows(self) -> Any:
        return rows_of_optimizer(self._run, _READ, self.optimizer)

    @cached_property
    def steps(self) -> Integers:
        """The steps that have a row, in order."""
        step = steps_of(self._rows)
        return step if (np.diff(step) > 0).all() else np.unique(step)

    @property
    def has_every_step(self) -> bool:
        """Whether the record has a row of each step from its first to its last."""
        return not len(self.steps) or self.steps[-1] - self.steps[0] + 1 == len(self.steps)

    @property
    def counts_entries(self) -> bool:
        """Whether a foreign log numbers no step, so that each entry has the number of its place."""
        is_placed = Mark.PLACED.value in self._run.info.marks.get("step", ())
        return is_placed and self.has_every_step

    @property
    def last_step(self) -> int | None:
        """The last step that has a row."""
        return int(self.steps[-1]) if len(self.steps) else None

    def series(self, column: str) -> Series:
        """A column of the steps: its known values, inf and nan among them."""
        if column not in self._columns:
            rows = self._rows
            if column not in _READ:  # only a finding's evidence asks for it
                rows = rows_of_optimizer(self._run, ("step", column), self.optimizer)
            if column in _FLAGS:
                values: Floats = flags(rows, column).astype(np.float64)
                there: Mask = values >= 0
            else:
                values, there = numbers(rows, column), known(rows, column)
            self._columns[column] = _by_step(steps_of(rows)[there], values[there])
        return self._columns[column]

    def records(self, signal: str) -> bool:
        """Whether the rows hold values of a signal, which is named as in `SIGNALS`."""
        return any(len(self.series(column)) for column in SIGNALS[signal])

    @property
    def has_layers(self) -> bool:
        """Whether the record has rows of layers."""
        return bool(self._run.read(Table.LAYERS, ("step",), self.rank).num_rows)

    @cached_property
    def activations(self) -> Series:
        """Of each sampled step the largest activation of any layer, where it is finite."""
        rows = self._run.read(Table.LAYERS, ("step", "act_amax"), self.rank)
        values = numbers(rows, "act_amax")
        fine = np.isfinite(values)
        step, at = np.unique(steps_of(rows)[fine], return_inverse=True)
        highest = np.full(len(step), -np.inf)
        np.maximum.at(highest, at, values[fine])
        return Series(step, highest)

    @cached_property
    def formats(self) -> tuple[str, ...]:
        """The formats to which autocast cast, the first one first."""
        found = self._rows.column("autocast_dtype").unique().to_pylist()
        return tuple(name for name in found if name)

    @cached_property
    def events(self) -> list[dict[str, Any]]:
        """The events that a letter tells of, with their details."""
        rows = self._run.read(Table.EVENTS, ("step", "kind", "detail"), self.rank)
        kinds = {kind.value for kind in _LETTER_EVENTS}
        return [
            {**detail_of(row["detail"]), "step": row["step"], "kind": row["kind"]}
            for row in rows.to_pylist() if row["kind"] in kinds and row["step"] is not None
        ]  # fmt: skip

    # --- facts --------------------------------------------------------------------------------

    def evidence(self, signal: str, step: int, value: float, layer: str | None) -> Fact | None:
        """A finding's evidence as a fact, if the rows show this very number at this very step."""
        of_steps, of_layers = (
            any(one.name == signal for one in COLUMNS[table])
            for table in (Table.STEPS, Table.LAYERS)
        )
        if not of_steps and (not of_layers or layer is None):
            return None
        table, of_layer = (Table.STEPS, None) if of_steps else (Table.LAYERS, layer)
        columns = ("step", signal) if of_layer is None else ("step", "layer", signal)
        rows = self._run.read(table, columns, self.rank)
        here = steps_of(rows) == step
        if of_layer is not None:
            names, number = texts(rows, "layer")
            here &= number == (names.index(of_layer) if of_layer in names else -2)
        found = numbers(rows, signal)[here]
        found = found[np.isfinite(found)]
        if not len(found) or not math.isclose(float(found[-1]), value, rel_tol=1e-5):
            return None
        text = _evidence_text(table, signal, value)
        where = (table, signal, step, step)
        return self._own(Fact(Reading.VALUE, value, text, *where, layer=of_layer))

    def _own(self, fact: Fact) -> Fact:
        """A fact as one of the rows that this reader reads."""
        return replace(fact, rank=self.rank, optimizer=self.optimizer)

    def value(self, column: str, step: int) -> Fact | None:
        """The column's value at a step."""
        found = self._source(column).within(step, step)
        return self._fact(Reading.VALUE, column, found, step, step) if len(found) else None

    def fact(
        self, reading: Reading, column: str, first: int | None = None, last: int | None = None
    ) -> Fact | None:
        """A reading of the column's finite values in a span; None if there are none."""
        found = self._source(column).finite.within(first, last)
        return self._fact(reading, column, found, first, last) if len(found) else None

    def _fact(
        self, reading: Reading, column: str, found: Series, first: int | None, last: int | None
    ) -> Fact:
        value = _READINGS[reading](found)
        table = Table.LAYERS if column == "act_amax" else Table.STEPS
        text = _text_of(reading, column, value)
        return self._own(Fact(reading, value, text, table, column, first, last))

    def _source(self, column: str) -> Series:
        return self.activations if column == "act_amax" else self.series(column)

    def holding(self, column: str, holds: Holds, line: float | None = None) -> Integers:
        """The steps in which something is true of a column's value."""
        series = self._source(column)
        return series.step[_holds(series.value, holds, line)]

    def step_fact(
        self, reading: Reading, step: int, column: str, holds: Holds,
        first: int | None = None, last: int | None = None, line: float | None = None,
    ) -> Fact:  # fmt: skip
        """A step at which something is true of a column, as a fact."""
        where = (Table.STEPS, column, first, last, holds, line)
        return self._own(Fact(reading, step, f"{step:,}", *where))

    def at_step(self, step: int) -> Fact:
        """A step that has a row, as a fact."""
        return self.step_fact(Reading.STEP, step, "step", Holds.PRESENT, step, step)

    def count(
        self, column: str, holds: Holds, first: int | None = None, last: int | None = None
    ) -> Fact:
        """In how many steps of a span something is true of the column."""
        series = self._source(column).within(first, last)
        found = int(_holds(series.value, holds, None).sum())
        where = (Table.STEPS, column, first, last, holds)
        return self._own(Fact(Reading.COUNT, found, f"{found:,}", *where))

    def count_steps(self, first: int | None = None, last: int | None = None) -> Fact:
        """How many steps of a span have a row."""
        steps = len(Series(self.steps, self.steps.astype(np.float64)).within(first, last))
        where = (Table.STEPS, "step", first, last)
        return self._own(Fact(Reading.STEPS, steps, f"{steps:,}", *where))

    def since(self, column: str, holds: Holds, line: float | None = None) -> Fact | None:
        """From which step on something is true of every known value, to the end."""
        series = self._source(column)
        if not len(series):
            return None
        fine = _holds(series.value, holds, line)
        if not fine[-1]:
            return None
        wrong = np.flatnonzero(~fine)
        at = int(wrong[-1]) + 1 if len(wrong) else 0
        return self.step_fact(Reading.SINCE, int(series.step[at]), column, holds, line=line)

    def overflows(self, layer: str, direction: str) -> tuple[Fact, Fact] | None:
        """The first overflow that was traced to a layer, and how many were; None if none was."""
        steps = sorted({
            row["step"] for row in self.events
            if row["kind"] == EventKind.OVERFLOW.value
            and row.get("layer") == layer and row.get("direction") == direction
        })  # fmt: skip
        if not steps:
            return None
        fact = partial(
            _event_fact, EventKind.OVERFLOW, holds=Holds.OF_LAYER, layer=layer,
            direction=direction, rank=self.rank, optimizer=self.optimizer,
        )  # fmt: skip
        return fact(Reading.FIRST_STEP, steps[0]), fact(Reading.COUNT, len(steps))

    def first_misuse(self, code: str) -> Fact | None:
        """The first step with a misuse of this code; None if there is none."""
        steps = sorted({
            row["step"] for row in self.events
            if row["kind"] == EventKind.MISUSE.value and row.get("code") == code
        })  # fmt: skip
        if not steps:
            return None
        return _event_fact(
            EventKind.MISUSE, Reading.FIRST_STEP, steps[0], holds=Holds.OF_CODE, code=code,
            rank=self.rank, optimizer=self.optimizer,
        )  # fmt: skip

    def overflows_of_rank(self, rank: int, since: int | None) -> tuple[Fact, Fact, Fact] | None:
        """A rank's first overflow since a step, its last, and how many these are; None if none."""
        rows = self._run.read(Table.EVENTS, ("step", "kind"), rank)
        names, number = texts(rows, "kind")
        if EventKind.OVERFLOW.value not in names:
            return None
        steps = np.unique(steps_of(rows)[number == names.index(EventKind.OVERFLOW.value)])
        steps = steps if since is None else steps[steps >= since]
        if not len(steps):
            return None
        fact = partial(_event_fact, EventKind.OVERFLOW, first=since, holds=Holds.PRESENT, rank=rank)
        return (
            fact(Reading.FIRST_STEP, int(steps[0])), fact(Reading.LAST_STEP, int(steps[-1])),
            fact(Reading.COUNT, len(steps)),
        )  # fmt: skip


_LETTER_EVENTS = (EventKind.OVERFLOW, EventKind.EXCEPTION, EventKind.STATE_SAVED, EventKind.MISUSE)


def _event_fact(kind: EventKind, reading: Reading, value: int, **more: Any) -> Fact:
    return Fact(reading, value, f"{value:,}", Table.EVENTS, kind.value, **more)


def _by_step(step: Integers, value: Floats) -> Series:
    """Of each step the last of its values."""
    if len(step) < 2 or (np.diff(step) > 0).all():
        return Series(step, value)
    order = np.argsort(step, kind="stable")
    step, value = step[order], value[order]
    last = np.append(step[1:] != step[:-1], [True])
    return Series(step[last], value[last])


def _holds(value: Floats, holds: Holds, line: float | None) -> Mask:
    if holds is Holds.TRUE:
        return np.asarray(value > 0)
    if holds is Holds.NOT_FINITE:
        return ~np.isfinite(value)
    if holds is Holds.ZERO:
        return np.asarray(value == 0)
    if holds is Holds.ABOVE:
        return np.asarray(~(value <= (math.inf if line is None else line)))
    return np.ones(len(value), np.bool_)


def _step_of_highest(found: Series) -> float:
    return float(found.step[int(np.argmax(found.value))])


def _step_of_lowest(found: Series) -> float:
    return float(found.step[int(np.argmin(found.value))])


_READINGS = {
    Reading.VALUE: lambda found: float(found.value[0]),
    Reading.FIRST: lambda found: float(found.value[0]),
    Reading.LAST: lambda found: float(found.value[-1]),
    Reading.HIGHEST: lambda found: float(found.value.max()),
    Reading.LOWEST: lambda found: float(found.value.min()),
    Reading.MEDIAN: lambda found: float(np.median(found.value)),
    Reading.STEP_OF_HIGHEST: _step_of_highest,
    Reading.STEP_OF_LOWEST: _step_of_lowest,
}


_OF_ONE_LOSS = frozenset(("AMP204", "AMP211"))


def optimizer_of(run: Record, finding: Finding) -> int | None:
    """The optimizer whose losses are not finite, if the first one's are; None: the first one."""
    if finding.code not in _OF_ONE_LOSS:
        return None
    rows = run.read(Table.STEPS, ("optimizer", "loss"), min(run.ranks, default=0))
    numbered, loss = integers(rows, "optimizer"), numbers(rows, "loss")
    lost = numbered[known(rows, "loss") & ~np.isfinite(loss)]
    present = numbered[numbered >= 0]
    if not len(lost) or not len(present) or present[0] in lost:
        return None
    return int(lost[0]) if lost[0] >= 0 else None
