"""Learns what each kind of line of a log is for, where its words alone do not say it.

Lines that name the same numbers are of one kind. Within a kind a step is the whole number that
climbs, whatever it is called; a number that is called step and stands still is none. Values without
a step belong to the last line that only counts; where no line counts, each is a step.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from ampwatch.importers.named_numbers import NamedNumber

Kind = tuple[tuple[tuple[str, ...], bool], ...]
_LEAST_LINES = 3  # to know how a number behaves
_LEAST_TO_DOUBT = 6  # lines, to doubt a name
_CLIMBS = 0.6  # share of the pairs of lines between which a step climbs
_FALLS = 0.25  # ... and at most falls: a new epoch, a restart


class Duty(enum.Enum):
    """What a kind of line is for."""

    STEP = "its step and its values"
    PLACE = "a step or an epoch, whose values are on other lines"
    MORE = "values of the place before"
    UNNUMBERED = "values of a step that nothing numbers"
    EPOCH = "values of an epoch, beside a counter that stands still"
    NONE = "what other lines say already, under a counter that stands still"


@dataclass(frozen=True, slots=True)
class Counter:
    """A number that counts, by its place in the line; `of` if it is the one after a slash."""

    at: int
    of: bool = False


@dataclass(frozen=True, slots=True)
class Role:
    """What a kind of line is for, and which of its numbers is the step if words do not say it."""

    duty: Duty | None = None
    step: Counter | None = None


@dataclass(frozen=True, slots=True)
class Words:
    """What the words of a line say of it by themselves."""

    counts: bool  # names a step or an epoch
    names_epoch: bool
    place: Hashable  # ... or what stands in a bar, in brackets, at its beginning; None without one
    step_at: int | None
    has_loss: bool
    names_loss: bool  # by that name
    has_values: bool
    has_metrics: bool

    @property
    def is_bare(self) -> bool:
        """Whether a line tells nothing but where the training is."""
        return not (self.has_values or self.has_metrics)


def kind_of(numbers: Sequence[NamedNumber]) -> Kind:
    """What lines of one kind have in common: the names of their numbers."""
    return tuple((number.words, number.of is not None) for number in numbers)


class Line(Protocol):
    """A line with its named numbers."""

    @property
    def numbers(self) -> Sequence[NamedNumber]:
        """The line's numbers, each with the words before it."""


_Line = TypeVar("_Line", bound=Line)


def learn_roles(
    lines: Iterable[_Line],
    words_of: Callable[[_Line], Words],
    is_no_counter: Callable[[NamedNumber], bool],
) -> Mapping[Kind, Role]:
    """The role of each kind of line in a log that words alone would read wrongly, or not at all."""
    kinds: dict[Kind, list[_Line]] = {}
    for line in lines:
        if line.numbers:
            kinds.setdefault(kind_of(line.numbers), []).append(line)
    said = {kind: words_of(members[0]) for kind, members in kinds.items()}
    numbers = {kind: [line.numbers for line in members] for kind, members in kinds.items()}
    steps = {kind: _learned_step(numbers[kind], said[kind], is_no_counter) for kind in kinds}
    places = _places(numbers, said)
    rounds = _rounds(numbers, said, places)
    places -= rounds
    placed = {
        kind for kind, members in kinds.items()
        if said[kind].place is not None and (places or _changes(map(words_of, members)))
        and (steps[kind] or not _stands(numbers[kind], said[kind]))
    }  # fmt: skip
    is_numbered = any(words.has_loss and (k in placed or steps[k]) for k, words in said.items())
    counts = bool(places) or any(
        words.counts and not words.has_loss and _moves(numbers[k]) for k, words in said.items()
    )
    # How often a training's step is told: metrics that come as often belong to it.
    steps_told = max(
        (len(kinds[k]) for k, words in said.items() if words.has_loss or k in places), default=0
    )
    roles: dict[Kind, Role] = {}
    for kind, words in said.items():
        duty = Duty.PLACE if kind in places else Duty.NONE if kind in rounds else None
        if duty is None and steps[kind] and (words.has_values or words.has_metrics):
            duty = Duty.STEP
        elif duty is None and is_numbered and _stands(numbers[kind], words):
            moves = words.names_epoch and _moves(numbers[kind])
            duty = Duty.EPOCH if moves else Duty.NONE
        elif duty is None and words.has_values and kind not in placed and _tells(numbers[kind]):
            how = {"has_places": counts, "is_numbered": is_numbered}
            duty = _duty_without_place(words, len(kinds[kind]), **how)
        elif duty is None and words.has_metrics and kind not in placed | places:
            comes_along = 2 * len(kinds[kind]) >= steps_told > 0 and _moves(numbers[kind])
            duty = Duty.MORE if comes_along else None
        if duty is not None:
            roles[kind] = Role(duty, steps[kind])
    return roles


def _places(
    numbers: Mapping[Kind, Sequence[Sequence[NamedNumber]]], said: Mapping[Kind, Words]
) -> set[Kind]:
    """The kinds of line that only count, and those with one line that is called as they are."""
    bare = [kind for kind, words in said.items() if words.counts and words.is_bare]
    moving = {kind for kind in bare if _moves(numbers[kind])}
    names = {kind[-1][0][-1:] for kind in moving}
    return moving | {kind for kind in bare if kind[-1][0][-1:] in names}


def _rounds(
    numbers: Mapping[Kind, Sequence[Sequence[NamedNumber]]],
    said: Mapping[Kind, Words],
    places: Collection[Kind],
) -> set[Kind]:
    """The places that go round within a step which another place counts: passes over its data."""
    losses = sum(len(lines) for kind, lines in numbers.items() if said[kind].has_loss)
    if not any(abs(len(numbers[kind]) - losses) <= 1 for kind in places):
        return set()
    return {kind for kind in places if _goes_round(numbers[kind], losses)}


def _goes_round(lines: Sequence[Sequence[NamedNumber]], losses: int) -> bool:
    """Whether a count begins anew again and again, and more often than losses are told."""
    values = _values(lines, Counter(0))
    falls = 0 if values is None else int((np.diff(values) < 0).sum())
    return len(lines) >= 2 * losses and falls >= _LEAST_LINES - 1


def _stands(lines: Sequence[Sequence[NamedNumber]], words: Words) -> bool:
    """Whether the number that is called the step is the same in all of many lines."""
    if words.step_at is None or len(lines) < _LEAST_LINES:
        return False
    values = _values(lines, Counter(words.step_at))
    return values is not None and bool((values == values[0]).all())


def _tells(lines: Sequence[Sequence[NamedNumber]]) -> bool:
    """Whether lines tell of a training: their numbers change, or they come again and again."""
    return _moves(lines) or len(lines) >= _LEAST_TO_DOUBT


def _duty_without_place(
    words: Words, lines: int, *, has_places: bool, is_numbered: bool
) -> Duty | None:
    """What values without a step are, by what the log's other lines are."""
    if has_places or (is_numbered and not words.names_loss):
        return Duty.MORE
    is_step = words.has_loss and not is_numbered and lines >= _LEAST_LINES
    return Duty.UNNUMBERED if is_step else None


def _changes(said: Iterable[Words]) -> bool:
    """Whether the places of lines of one kind change; of a few lines nobody knows."""
    places = [words.place for words in said]
    return len(places) < _LEAST_LINES or len(set(places)) > 1


def _moves(lines: Sequence[Sequence[NamedNumber]]) -> bool:
    """Whether some number changes from line to line."""
    return len({tuple(number.text for number in line) for line in lines}) > 1


def _learned_step(
    lines: Sequence[Sequence[NamedNumber]],
    words: Words,
    is_no_counter: Callable[[NamedNumber], bool],
) -> Counter | None:
    """The number that climbs, where the one that words name does not, or they name none."""
    lines = [line for at, line in enumerate(lines) if not at or line != lines[at - 1]]
    if len(lines) < _LEAST_LINES:  # each may have been printed by two handlers
        return None
    if words.step_at is not None:
        named = _values(lines, Counter(words.step_at))
        if _leads(lines, named):
            return Counter(0)
        if named is None or _is_sure(named):
            return None
        end = Counter(words.step_at, of=True)
        if _climbs(_values(lines, end)):  # `Batch 0/4100`: an epoch and its batch
            return end
    climbing = [
        Counter(at)
        for at, number in enumerate(lines[0])
        if not is_no_counter(number) and _climbs(_values(lines, Counter(at)))
    ]
    order = {(lines[0][counter.at].of is None, counter.at): counter for counter in climbing}
    return order[min(order)] if order else None


def _leads(lines: Sequence[Sequence[NamedNumber]], named: np.ndarray | None) -> bool:
    """Whether a line begins with a nameless count out of a total, finer than the named one."""
    first = lines[0][0]
    leading = None if first.words or first.of is None else _values(lines, Counter(0))
    if leading is None or named is None:
        return False
    return bool((np.diff(leading) > np.maximum(np.diff(named), 0)).all())


def _is_sure(named: np.ndarray) -> bool:
    """Whether a number that is called a step behaves like one, or nobody knows."""
    changes = bool((named != named[0]).any())
    return changes and (_climbs(named) or len(named) < _LEAST_TO_DOUBT)


def _values(lines: Sequence[Sequence[NamedNumber]], counter: Counter) -> np.ndarray | None:
    """A number of each line, if it is whole in all of them."""
    texts = [text_of(line, counter) for line in lines]
    if not all(text.isdecimal() and len(text) <= 12 for text in texts):
        return None
    return np.array([int(text) for text in texts], np.int64)


def text_of(numbers: Sequence[NamedNumber], counter: Counter) -> str:
    """A line's number at a place, or the one after its slash."""
    number = numbers[counter.at]
    return (number.of or "") if counter.of else number.text


def _climbs(values: np.ndarray | None) -> bool:
    if values is None:
        return False
    steps = np.diff(values)
    return bool((steps > 0).mean() >= _CLIMBS and (steps < 0).mean() <= _FALLS)
