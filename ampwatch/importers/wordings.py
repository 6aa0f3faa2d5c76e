"""Reads a framework's lines by wordings: patterns in which `<name>` stands for a number.

    skip("Overflow: setting loss scale to <scale_after>")
    stats("iter <step>: loss <loss>, time <step_time_ms>ms")

A line of the kind `named` also holds our columns under their usual names.

A name is a field of the statement or a column of the steps table; `<>` is a number that is not
kept, a setting of the scaler is kept as such. What is not a number is a group of its own, such as
`(?P<opt_level>O\\d)`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from ampwatch.importers.format import NUMBER, number
from ampwatch.importers.named_numbers import numbers_in, values_of
from ampwatch.importers.statements import Amend, Fatal, Scale, Setup, Skip, Statement, Stats

_COUNT = r"\d[\d,]{0,14}"
_COUNTS = frozenset({"step", "epoch", "batches", "rank", "total_skips"})
_PLACES = frozenset({"step", "epoch", "batches"})
_SETTINGS = frozenset({
    "growth_factor", "backoff_factor", "growth_interval", "init_scale", "min_scale", "max_scale",
})  # fmt: skip
_WORDS: Mapping[str, Any] = {"True": True, "False": False, "None": None}
_HOLE = re.compile(r"(?<!\?P)<(\w*)>")

Told: TypeAlias = "dict[str, Any]"
Kind: TypeAlias = Literal["stats", "named", "skip", "amend", "scale", "setup", "fatal"]


@dataclass(frozen=True, slots=True)
class Wording:
    """How a framework words one kind of statement, and which numbers such a line may hold."""

    kind: Kind
    pattern: re.Pattern[str]
    fields: Mapping[str, re.Pattern[str]] = field(default_factory=dict)
    needs: tuple[str, ...] = ()  # the line has one of these texts,
    unless: tuple[str, ...] = ()  # and none of these
    wants: tuple[str, ...] = ()  # columns, of which the line has one
    first_epoch: int | None = None  # the step is counted through all epochs, from this one on
    mended: Callable[[Told], Told] | None = None  # what is told, in our units
    begins: bool = False  # the line is printed at the start of each attempt
    exception: str = ""

    def read(self, line: str) -> Iterator[Statement]:
        """Yield what a line in this wording states; a line may say it of several ranks."""
        if self.needs and not any(text in line for text in self.needs):
            return
        if any(text in line for text in self.unless):
            return
        for match in self.pattern.finditer(line):
            yield from self._statements(line, match)
            if self.kind != "skip":
                return

    def _statements(self, line: str, match: re.Match[str]) -> Iterator[Statement]:
        values: Told = {n: _value(n, text) for n, text in match.groupdict().items() if text}
        if self.kind == "named":
            values = {**values_of(numbers_in(line)), **values}
        for name, pattern in self.fields.items():
            if found := pattern.search(line):
                values[name] = _value(name, found["found"])
        if self.wants and not values.keys() & {*self.wants}:
            return
        if self.mended is not None:
            values = self.mended(values)
        scaler = {name: values.pop(name) for name in _SETTINGS & values.keys()}
        if scaler:
            yield Setup(scaler=scaler)
        if self.kind in ("stats", "named"):
            yield self._stats(values)
        elif self.kind == "fatal":
            yield Fatal(self.exception, line[match.start() :].strip()[:300])
        elif self.kind == "setup":
            named = {str(values["key"]): values["value"]} if "key" in values else values
            yield Setup(config={n: _WORDS.get(v, v) for n, v in named.items()}, begins=self.begins)
        else:
            yield _OF_SCALE[self.kind](**values)

    def _stats(self, told: Told) -> Stats:
        """The statistics of a line; the epoch and its batch are one step if both are counted."""
        apart = {*_PLACES, "skipped", "total_skips"}
        values = {name: value for name, value in told.items() if name not in apart}
        step, epoch = told.get("step"), told.get("epoch")
        if self.first_epoch is not None and epoch is not None and "batches" in told:
            step, epoch = (epoch - self.first_epoch) * told["batches"] + step, None
        is_skipped = told["skipped"] == "True" if "skipped" in told else None
        skips = told.get("total_skips")
        return Stats(step, values, epoch=epoch, total_skips=skips, is_skipped=is_skipped)


_OF_SCALE: Mapping[str, Callable[..., Statement]] = {"skip": Skip, "amend": Amend, "scale": Scale}


def _value(name: str, text: str) -> Any:
    plain = text.replace(",", "")
    if name in _COUNTS:
        return int(plain)
    return number(text) if name != "value" and re.fullmatch(NUMBER, plain) else text


def worded(kind: Kind, text: str, fields: Mapping[str, str] | None = None, **more: Any) -> Wording:
    """A wording of a statement; in each text `<name>` stands for a number."""
    texts = {
        name: _compiled(part.replace("<>", "<found>")) for name, part in (fields or {}).items()
    }
    return Wording(kind, _compiled(text), texts, **more)


def _compiled(text: str) -> re.Pattern[str]:
    def group(hole: re.Match[str]) -> str:
        name = hole[1]
        pattern = _COUNT if name in (*_COUNTS, "growth_interval") else NUMBER
        return f"(?P<{name}>{pattern})" if name else f"(?:{pattern})"

    return re.compile(_HOLE.sub(group, text))


def reader(wordings: Sequence[Wording]) -> Callable[[str], Iterator[Statement]]:
    """The function that reads a line by the first of these wordings that it has.

    A line may also say that the run ends.
    """

    def read(line: str) -> Iterator[Statement]:
        is_read = False
        for wording in wordings:
            if is_read and wording.kind != "fatal":
                continue
            for statement in wording.read(line):
                is_read = True
                yield statement

    return read
