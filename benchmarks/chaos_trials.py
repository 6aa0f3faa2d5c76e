"""What a trial of benchmarks/chaos.py is: what it may use, what it says, and the closed list.

A trial is a function that does one harmful thing and looks at what is left. It returns if all is
well; it raises `Lost`, `Changed` or `Hung` for what must never be, and whatever else leaves it is
a foreign exception of ours. All that is random in it comes from its seed.
"""

from __future__ import annotations

import contextlib
import enum
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path


class Outcome(str, enum.Enum):
    """How a trial may end."""

    OK = "ok"
    LOST = "lost"
    RAISED = "raised"
    HUNG = "hung"
    CHANGED = "changed"
    TOO_LARGE = "too large"


class Lost(Exception):  # noqa: N818 - an outcome
    """Rows that were acknowledged are not there, or rows are that nobody wrote."""


class Changed(Exception):  # noqa: N818 - an outcome
    """A training did not end as it does without us."""


class Hung(Exception):  # noqa: N818 - an outcome
    """Something did not answer, or did not end."""


@dataclass(frozen=True, slots=True)
class Record:
    """One trial, when it is over."""

    kind: str
    seed: int
    outcome: Outcome
    tried: str = ""
    detail: str = ""
    kills: int = 0
    inputs: int = 0
    left_behind: int = 0


@dataclass(slots=True)
class Trial:
    """One trial while it goes on."""

    chance: random.Random
    folder: Path  # of its own, empty
    material: Path  # what the driver has made for all; never changed
    say: Callable[[str], None]  # what is tried next, told before it is: it may be the last word
    kills: int = 0
    inputs: int = 0
    left_behind: int = 0  # folders that a killed program left and its successor did not tidy up


@dataclass(frozen=True, slots=True)
class Kind:
    """A sort of trial, and what it may take."""

    name: str
    work: Callable[[Trial], None]
    a_child: int  # trials in one process
    limit_s: float  # of one trial, on a machine that others use too
    share: float  # of the time, against the others'
    capped: bool  # whether a trial may not take much memory


KINDS: dict[str, Kind] = {}


def kind(
    name: str, *, a_child: int = 1, limit_s: float = 120.0, share: float = 1.0, capped: bool = False
) -> Callable[[Callable[[Trial], None]], Callable[[Trial], None]]:
    """Put a function on the list."""

    def listed(work: Callable[[Trial], None]) -> Callable[[Trial], None]:
        assert name not in KINDS
        KINDS[name] = Kind(name, work, a_child, limit_s, share, capped)
        return work

    return listed


@contextlib.contextmanager
def lost_if_raised(words: str, *kinds: type[Exception]) -> Iterator[None]:
    """What must be readable is not: that is a loss, whichever sentence says so."""
    try:
        yield
    except kinds as problem:
        raise Lost(f"{words}: {type(problem).__name__}: {problem}") from problem
