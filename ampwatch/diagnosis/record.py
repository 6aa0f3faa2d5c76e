"""What the diagnosis reads of a run's record: `store.Run` and `store.Reading` provide it.

Also its events, and the settings of its GradScaler, as run.json tells them, with what follows from
them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from ampwatch.diagnosis import thresholds
from ampwatch.rows import EventKind, Table

_LARGEST = 2**1000


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a run: its step, rank and kind, and its detail as a mapping."""

    step: int
    rank: int
    kind: str
    detail: Mapping[str, Any]

    @property
    def exception(self) -> str:
        """The type of the exception, if the event reports one."""
        return str(self.detail.get("exception") or self.detail.get("type") or "an exception")

    @property
    def layer(self) -> str | None:
        """The layer that the event names; None if it names none."""
        layer = self.detail.get("layer")
        return str(layer) if layer else None

    def is_traced_to(self, direction: str) -> bool:
        """Whether the event is an overflow traced to this: input, forward, loss, weights ..."""
        return self.kind == EventKind.OVERFLOW.value and self.detail.get("direction") == direction

    def retraced(self, direction: str, layer: str) -> Event:
        """The same overflow event, traced to a layer of another model."""
        detail = {**self.detail, "direction": direction, "layer": layer}
        return Event(self.step, self.rank, self.kind, detail)

    @property
    def is_guarded(self) -> bool:
        """Whether the event reports a non-finite forward pass after which the loop took no step."""
        return self.detail.get("guarded") is True


def detail_of(text: str | None) -> Mapping[str, Any]:
    """The detail of an event, read from its JSON text; other text is kept under the key `text`."""
    if not text:
        return {}
    try:
        detail = json.loads(text)
    except (ValueError, RecursionError):
        return {"text": text}
    return detail if isinstance(detail, dict) else {"text": detail}


def positive_number(value: Any) -> float | None:
    """A number above zero from an event's detail or run.json; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if isinstance(value, int):
        value = min(value, _LARGEST)  # JSON's whole numbers have no end
    return float(value) if value > 0 else None


class Info(Protocol):
    """What the diagnosis reads of a run's identity."""

    @property
    def id(self) -> str: ...  # noqa: D102
    @property
    def source(self) -> str: ...  # noqa: D102
    @property
    def started_ns(self) -> int: ...  # noqa: D102
    @property
    def config(self) -> Mapping[str, Any]: ...  # noqa: D102
    @property
    def scaler(self) -> Mapping[str, Any]: ...  # noqa: D102
    @property
    def marks(self) -> Mapping[str, Sequence[str]]: ...  # noqa: D102


class Record(Protocol):
    """What the diagnosis reads of a run's record; `store.Run` is one."""

    @property
    def info(self) -> Info: ...  # noqa: D102
    @property
    def ranks(self) -> tuple[int, ...]: ...  # noqa: D102
    @property
    def notes(self) -> tuple[str, ...]: ...  # noqa: D102
    @property
    def clean_end(self) -> bool: ...  # noqa: D102
    @property
    def last_time_ns(self) -> int | None: ...  # noqa: D102

    def read(
        self, table: Table, columns: Sequence[str] | None = None, rank: int | None = None
    ) -> pa.Table:
        """Read a table of the record in canonical order: these columns, this rank's rows."""


class RecordRows(Protocol):
    """Reads a record's rows once, portion by portion; `store.Reading` is one."""

    is_overtaken: bool  # a row has come among those that were taken: they no longer hold

    def portions(self) -> Iterator[None]:
        """Make one more portion of the record readable at a time, until all of it is."""

    def read(
        self, table: Table, columns: Sequence[str], rank: int | None = None, start: int = 0
    ) -> pa.Table:
        """Read the rows of a table that are readable by now, from number `start` on."""


class RowsInMemory:
    """Reads the rows of a record that holds them in memory, in one portion."""

    is_overtaken = False

    def __init__(self, record: Record) -> None:
        self._record = record

    def portions(self) -> Iterator[None]:
        """Make the whole record readable at once."""
        yield

    def read(
        self, table: Table, columns: Sequence[str], rank: int | None = None, start: int = 0
    ) -> pa.Table:
        """Read the rows of a table of the record from number `start` on."""
        return self._record.read(table, columns=columns, rank=rank).slice(start)


@dataclass(frozen=True, slots=True)
class RecordFacts:
    """What a run's record says about itself: its source, its ranks, its notes, how it ended."""

    id: str
    source: str
    started_ns: int
    ranks: tuple[int, ...]
    notes: tuple[str, ...]
    marks: Mapping[str, Sequence[str]]  # how a foreign log's columns are to be read
    clean_end: bool
    last_time_ns: int | None

    @classmethod
    def of(cls, run: Record) -> RecordFacts:
        """The facts about a run's record as it stands now."""
        info = run.info
        return cls(
            info.id, info.source, info.started_ns, tuple(run.ranks), tuple(run.notes), info.marks,
            run.clean_end, run.last_time_ns,
        )  # fmt: skip


# torch's own default, for records that do not say.
GROWTH_INTERVAL = 2000
# What run.json says may be anything; no run is longer.
LONGEST_INTERVAL = 2.0**40
# Skips belong to one episode when the next comes within a tenth of a growth interval: a fall that
# pauses for a few accepted steps is one fall, overflows a whole interval apart are not.
_EPISODE_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Scaler:
    """The settings of a run's GradScaler, as run.json tells them."""

    initial: float | None
    growth_factor: float
    growth_interval: int
    floor: float | None
    backoff_factor: float = 0.5
    hysteresis: int = 1  # overflows in a row before the scale falls

    @property
    def tooth_skips(self) -> int:
        """How many skips undo one growth of the scaler, with one more that an overflow may need."""
        if not (self.growth_factor > 1.0 > self.backoff_factor > 0.0):
            return thresholds.SAWTOOTH_SKIPS
        undone = math.log(self.growth_factor) / -math.log(self.backoff_factor)
        return max(thresholds.SAWTOOTH_SKIPS, math.ceil(undone - 1e-9) + 1) + self.hysteresis - 1

    def skips_by_growth(self, steps: int) -> float:
        """How many skips the scaler's growth causes in so many steps: one a growth too far."""
        return steps / self.growth_interval * self.hysteresis

    @property
    def close_steps(self) -> int:
        """How near the next skip must be, with this scaler, to belong to the same episode."""
        share = int(self.growth_interval * _EPISODE_SHARE)
        return min(max(thresholds.NEAR_STEPS, share), self.growth_interval)

    @property
    def established_steps(self) -> int:
        """How many accepted steps in a row establish a scale, with this scaler."""
        return min(thresholds.ESTABLISHED_STEPS, self.growth_interval)


def scaler_of(info: Info) -> Scaler:
    """The scaler of a run, with torch's defaults for what run.json does not say."""
    settings = {name: positive_number(value) for name, value in info.scaler.items()}
    interval = min(settings.get("growth_interval") or GROWTH_INTERVAL, LONGEST_INTERVAL)
    return Scaler(
        initial=settings.get("init_scale"),
        growth_factor=settings.get("growth_factor") or 2.0,
        growth_interval=max(1, int(interval)),
        floor=settings.get("min_scale"),
        backoff_factor=settings.get("backoff_factor") or 0.5,
        hysteresis=int(min(settings.get("hysteresis") or 1.0, 16.0)),
    )
