"""Reads lines that repeat with other numbers by a template, a thousand at a time.

A log prints the same line again and again with other numbers. After a format has read one such
line, its *template* is found by trial: each number is replaced in turn and the line read again;
what changes shows which field the number is. A number without which the line says something else
belongs to its words, such as the 64 of `np.float64(0.38)`. From then on one pattern extracts the
numbers from all such lines; any other line is read by its format.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ampwatch.importers import timestamps
from ampwatch.importers.format import NUMBER
from ampwatch.importers.statements import Statement, Stats
from ampwatch.importers.table_rows import TableRows
from ampwatch.importers.tables.cells import Cells

_TOKEN = re.compile(NUMBER)
_MOST_TOKENS = 64
_SHAPE, _NO_DIGITS = 120, str.maketrans("", "", "0123456789")
_CAPTURED, _COUNT, _PASSED = f"({NUMBER})", r"(\d{1,12})(?:\.0*)?", r"[-+]?[\w.]+(?:[-+]\d+)?"
_FRACTION = rf"((?=[-+]?\d*\.){NUMBER})"
SKIPS_IN_WINDOW, SKIPS_IN_ALL, STEP = "(window_skips)", "(total_skips)", "(step)"
_COUNTS = (STEP, SKIPS_IN_WINDOW, SKIPS_IN_ALL)
TIME = "time_ns"


def shape_of(line: str) -> str:
    """The beginning of a line without its digits: what lines of one kind have in common."""
    return line[:_SHAPE].translate(_NO_DIGITS)


@dataclass(slots=True)
class LineTemplate:
    """The pattern of a repeated line, the field of each of its numbers, and the numbers so far."""

    pattern: re.Pattern[bytes]
    names: tuple[str, ...]
    is_redrawn: bool
    has_taken: bool = False
    taken: list[tuple[bytes, ...]] = field(default_factory=list)

    def takes(self, line: bytes) -> bool:
        """Whether a line fits the template; if so, its numbers are kept."""
        match = self.pattern.fullmatch(line)
        if match is None:
            return False
        self.taken.append(match.groups())
        self.has_taken = True
        return True

    def rows(self) -> TableRows:
        """The lines that fitted the template since the last call, as rows of a table."""
        taken, self.taken = self.taken, []
        told = zip(self.names, zip(*taken, strict=True), strict=True)
        columns = {name: _column(name, texts) for name, texts in told}
        step, every = columns.pop(STEP), np.ones(len(taken), np.bool_)
        assert step is not None
        skips = {name: columns.pop(name, None) for name in (SKIPS_IN_WINDOW, SKIPS_IN_ALL)}
        counted = next((column for column in skips.values() if column is not None), None)
        return TableRows(
            step,
            is_numbered=every,
            values={n: Cells(column, every) for n, column in columns.items() if column is not None},
            skipped=Cells.absent(len(taken)),
            skips=Cells.absent(len(taken)) if counted is None else Cells(counted, every),
            is_total=skips[SKIPS_IN_ALL] is not None,
            is_redrawn=self.is_redrawn,
        )


def _column(name: str, texts: Sequence[bytes]) -> np.ndarray | None:
    if name == TIME:
        return timestamps.times_ns(texts)
    if name in _COUNTS:
        return np.array([int(text.partition(b".")[0]) for text in texts], np.int64)
    return np.array([float(text) for text in texts])


def learn(line: bytes, read: Callable[[str], Iterable[Statement]]) -> LineTemplate | None:
    """Learn the template of a plain line of statistics; None for any other line."""
    text = line.decode("utf-8", "replace")
    if "�" in text or not (facts := _facts(read, text)):
        return None
    tokens = list(_TOKEN.finditer(text))
    if STEP not in facts or len(tokens) > _MOST_TOKENS:
        return None
    found = {at: _part_of(token, text, facts, read) for at, token in enumerate(tokens)}
    parts = {at: part for at, part in found.items() if part is not None}
    names = {at: part.name for at, part in parts.items() if part.name}
    if sorted(names.values()) != sorted(facts):
        return None
    stamp = timestamps.find(text)
    within = [] if stamp is None else _within(stamp, tokens)
    if within:
        names[within[0]] = TIME
        parts[within[0]] = _Part(TIME, f"({timestamps.PATTERN})")
    pattern = _pattern(text, tokens, parts, stamp.span() if within and stamp else (0, 0))
    is_redrawn = any(isinstance(said, Stats) and said.is_redrawn for said in read(text))
    template = LineTemplate(pattern, tuple(names[at] for at in sorted(names)), is_redrawn)
    return template if pattern.fullmatch(line) else None


def _within(stamp: re.Match[str], tokens: Sequence[re.Match[str]]) -> list[int]:
    """Which numbers of a line are within its timestamp; none if the timestamp ends inside one."""
    touched = [
        at for at, token in enumerate(tokens)
        if token.start() < stamp.end() and token.end() > stamp.start()
    ]  # fmt: skip
    first, last = tokens[touched[0]], tokens[touched[-1]]
    whole = first.start() >= stamp.start() and last.end() <= stamp.end()
    return touched if whole else []


def _facts(read: Callable[[str], Iterable[Statement]], text: str) -> dict[str, float]:
    """What a format reads in a plain line of statistics, by field; empty for any other line."""
    facts = list(read(text))
    if len(facts) != 1 or not isinstance(facts[0], Stats):
        return {}
    stats = facts[0]
    special = {stats.epoch, stats.per_epoch, stats.is_skipped} != {None}
    has_both = stats.window_skips is not None and stats.total_skips is not None
    if special or has_both or stats.step is None or stats.lost_loss or stats.is_summary:
        return {}
    counts = {
        STEP: stats.step,
        SKIPS_IN_WINDOW: stats.window_skips,
        SKIPS_IN_ALL: stats.total_skips,
    }
    return {**stats.values, **{name: count for name, count in counts.items() if count is not None}}


# Two trials for each number: its field must become exactly what was inserted. Some numbers are read
# only if they have a point.
_TRIALS = (("4", "8"), ("4.0", "8.5"))


@dataclass(frozen=True, slots=True)
class _Part:
    """What a number of a line is: its field, "" if it is none, and what else may stand there."""

    name: str
    pattern: str


def _part_of(
    token: re.Match[str], text: str, facts: Mapping[str, float],
    read: Callable[[str], Iterable[Statement]],
) -> _Part | None:  # fmt: skip
    """What a number in a line is; None if the line says something else with another one."""
    for trials in _TRIALS if "." in token[0] else _TRIALS[:1]:
        said = [
            _facts(read, text[: token.start()] + trial + text[token.end() :]) for trial in trials
        ]
        if any(other.keys() != facts.keys() for other in said):
            continue
        changed = {name for other in said for name in facts if other[name] != facts[name]}
        if not changed:
            return _Part("", _PASSED) if trials is _TRIALS[0] else None
        name = next(iter(changed))
        if len(changed) > 1 or [other[name] for other in said] != list(map(float, trials)):
            return None
        pattern = _COUNT if name in _COUNTS else _CAPTURED
        return _Part(name, pattern if trials is _TRIALS[0] else _FRACTION)
    return None


def _pattern(
    text: str, tokens: list[re.Match[str]], parts: Mapping[int, _Part], stamp: tuple[int, int]
) -> re.Pattern[bytes]:
    pieces, end = [], 0
    for at, token in enumerate(tokens):
        is_stamp = stamp[0] <= token.start() < stamp[1]
        if at not in parts or (is_stamp and parts[at].name != TIME):
            continue
        first, last = stamp if is_stamp else token.span()
        pieces += [_literal(text[end:first]), parts[at].pattern]
        end = last
    pieces.append(_literal(text[end:]))
    return re.compile("".join(pieces).encode())


def _literal(text: str) -> str:
    """A line's text as a pattern with any number of blanks: numbers are aligned with blanks."""
    return re.sub(r"(?:\\ )+", " *", re.escape(text))
