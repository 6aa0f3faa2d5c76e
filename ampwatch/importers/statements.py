"""What a line of a log can state: the only types that formats and the run builder share.

A format returns what its line states and nothing else; what the line does not contain is None.
Which step an unnumbered event belongs to, which of eight equal lines are one event and where a
restart begins is decided by the run builder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class Stats:
    """A statement of statistics: the state after a step, or over the steps since the last one."""

    step: int | None = None  # the log's own counter
    values: Mapping[str, float] = field(default_factory=dict)  # columns of the steps table
    epoch: int | None = None  # if the counter restarts each epoch: `step` is then the batch
    per_epoch: int | None = None  # batches in an epoch, if the line contains it
    window_skips: int | None = None  # skipped since the previous line
    total_skips: int | None = None  # skipped since the run began
    is_summary: bool = False  # of an epoch: its loss is not the loss of a step
    lost_loss: bool = False  # the format omits a loss that is nan or zero, and it is missing here
    is_skipped: bool | None = None  # whether this step was skipped, if the line says
    is_redrawn: bool = False  # a bar's: drawn again at the same step, the later values hold


@dataclass(frozen=True, slots=True)
class LayerStats:
    """A statement of one layer's statistics at one step."""

    layer: str
    step: int
    values: Mapping[str, float] = field(default_factory=dict)  # columns of the layers table
    scales: Mapping[str, float] = field(default_factory=dict)  # of its delayed casts, by role
    formats: Mapping[str, str] = field(default_factory=dict)  # columns of its facts
    time_ns: int | None = None  # when it was printed


@dataclass(frozen=True, slots=True)
class Place:
    """A statement of a step or an epoch alone: its values are on the lines after it."""

    step: int | None = None
    epoch: int | None = None
    per_epoch: int | None = None
    is_evaluation: bool = False  # what follows is measured, and not trained on


@dataclass(frozen=True, slots=True)
class More:
    """A statement of values alone: they belong to the last place, or to this step's own line."""

    values: Mapping[str, float]
    step: int | None = None
    epoch: int | None = None  # or to the first step of this epoch


@dataclass(frozen=True, slots=True)
class Metrics:
    """A statement of metrics alone, such as of an evaluation, after the last step."""

    values: Mapping[str, float]  # by names that say what they are
    epoch: int | None = None  # a log may have nothing but an evaluation after each epoch


@dataclass(frozen=True, slots=True)
class Skip:
    """The statement that a step overflowed and was skipped."""

    scale: float | None = None  # before
    scale_after: float | None = None
    step: int | None = None
    rank: int | None = None  # the rank that printed it
    grad_norm: float | None = None  # nan or inf, if the line says which
    time_ns: int | None = None  # when it was printed


@dataclass(frozen=True, slots=True)
class Amend:
    """A later line's statement about the last overflow."""

    scale: float | None = None
    scale_after: float | None = None
    layer: str | None = None
    is_skip: bool = False  # the last step is the one that was skipped


@dataclass(frozen=True, slots=True)
class Scale:
    """A statement of the loss scale outside of the statistics, such as a growth."""

    scale_after: float
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """The statement of a progress bar or a bare counter: the current step."""

    step: int
    total: int | None = None  # the end of the bar; bars of other loops have another one
    values: Mapping[str, float] = field(default_factory=dict)  # values at the end of the bar


@dataclass(frozen=True, slots=True)
class Setup:
    """A statement of settings that the log prints at its start."""

    config: Mapping[str, Any] = field(default_factory=dict)
    scaler: Mapping[str, float] = field(default_factory=dict)
    begins: bool = False  # the line is printed at the start of each attempt


@dataclass(frozen=True, slots=True)
class Fatal:
    """The statement of the error that ended the run."""

    exception: str
    message: str


@dataclass(frozen=True, slots=True)
class GaveUp:
    """The statement that the run ends; ignored if the log goes on."""

    exception: str
    message: str
    column: str | None = None  # the column of the steps table that is not finite
    step: int | None = None
    says_why: bool = False  # of itself, in a log that has nothing else


Statement: TypeAlias = (
    "Stats | LayerStats | Place | More | Metrics | Skip | Amend | Scale | Progress | Setup"
    " | Fatal | GaveUp"
)
