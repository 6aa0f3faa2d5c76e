"""What a line of a foreign log can say; the only words between a format and the timeline.

A format says what its line says and nothing else: what the line does not hold is None. Which step
an unnumbered event belongs to, which of eight equal lines are one event and where a restart begins
is for the timeline to tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class Stats:
    """A line of statistics: the state after a step, or over the steps since the last such line."""

    step: int | None = None  # the log's own counter
    values: Mapping[str, float] = field(default_factory=dict)  # columns of the steps table
    epoch: int | None = None  # where the counter is of the epoch: `step` is then the batch's
    per_epoch: int | None = None  # batches an epoch, if the line says
    window_skips: int | None = None  # skipped since the line before
    total_skips: int | None = None  # skipped since the run began
    is_summary: bool = False  # of an epoch: its loss is no step's
    lost_loss: bool = False  # the format leaves the loss out where it is nan or zero, and did
    is_skipped: bool | None = None  # this very step, if the line says


@dataclass(frozen=True, slots=True)
class Place:
    """A step or an epoch by itself: what it held stands on the lines behind it."""

    step: int | None = None
    epoch: int | None = None
    per_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class More:
    """Values by themselves: they are of the place told last, if any was."""

    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Skip:
    """An overflow: the step was thrown away."""

    scale: float | None = None  # before
    scale_after: float | None = None
    step: int | None = None
    rank: int | None = None  # that printed it
    grad_norm: float | None = None  # where the line says how it is not finite
    time_ns: int | None = None  # when it was printed


@dataclass(frozen=True, slots=True)
class Amend:
    """What a following line adds to the last overflow."""

    scale: float | None = None
    scale_after: float | None = None
    layer: str | None = None
    is_skip: bool = False  # the step last told of is the one that was skipped


@dataclass(frozen=True, slots=True)
class Scale:
    """The loss scale as a line tells it outside of the statistics, such as a growth."""

    scale_after: float
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """A progress bar or a bare counter: how far the run has got."""

    step: int
    total: int | None = None  # that the bar goes to: bars of other loops have another
    values: Mapping[str, float] = field(default_factory=dict)  # that the bar shows at its end


@dataclass(frozen=True, slots=True)
class Setup:
    """Settings that the log prints at its start."""

    config: Mapping[str, Any] = field(default_factory=dict)
    scaler: Mapping[str, float] = field(default_factory=dict)
    begins: bool = False  # the line stands at the beginning of each attempt


@dataclass(frozen=True, slots=True)
class Fatal:
    """The error that ended the run."""

    exception: str
    message: str


@dataclass(frozen=True, slots=True)
class GaveUp:
    """The framework ends the run by itself, unless the log goes on."""

    exception: str
    message: str
    column: str | None = None  # of the steps table, that is no number
    step: int | None = None


Saying: TypeAlias = (
    "Stats | Place | More | Skip | Amend | Scale | Progress | Setup | Fatal | GaveUp"
)
