"""What the cards of a run have done, folded: their memory and utilisation, in bounded windows.

Rows of devices stand by the clock and not by steps, so they are folded apart from the blocks: in
the order of each rank's log, to the same result wherever one fold ends and the next begins.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ampwatch.diagnosis.blocks import DeviceRows
from ampwatch.diagnosis.signals import Floats, Integers

# A power of two; a series has between half as many and as many windows.
MOST_WINDOWS = 32
MOST_CARDS = 1024
_PERCENTS = 101


@dataclass(frozen=True, slots=True)
class Windows:
    """A series as a few windows of equally many samples, each with its least or its largest.

    The windows grow twofold as the series does: sample n is in window n // width for ever.
    """

    operation: np.ufunc  # fmin or fmax: what is absent (nan) is passed over
    count: int = 0
    width: int = 1
    values: Floats = field(default_factory=lambda: np.zeros(0))

    def add(self, series: Floats) -> Windows:
        """The windows with these samples more."""
        if not len(series):
            return self
        count, width, values = self.count + len(series), self.width, self.values
        while -(-count // width) > MOST_WINDOWS:
            width *= 2
            values = self._joined(values)
        at = np.arange(self.count, count) // width
        made = np.full(int(at[-1]) + 1, np.nan)
        made[: len(values)] = values
        self.operation.at(made, at, series)
        return replace(self, count=count, width=width, values=made)

    def _joined(self, values: Floats) -> Floats:
        return np.asarray(self.operation.reduceat(values, np.arange(0, len(values), 2)))

    @property
    def whole(self) -> Floats:
        """The windows that are full: what an open one says may still change."""
        return self.values[: self.count // self.width]


@dataclass(frozen=True, slots=True)
class Card:
    """One card as one rank sees it."""

    rank: int
    device: str
    name: str | None = None
    capability: str | None = None
    first_time_ns: int = 0
    last_time_ns: int = 0
    total_bytes: float = float("nan")
    reserved_bytes: float = float("nan")  # the most
    # Of this process. Between steps only weights and what is kept are allocated: the floor.
    floor_bytes: Windows = field(default_factory=lambda: Windows(np.fmin))
    peak_bytes: Windows = field(default_factory=lambda: Windows(np.fmax))
    # The peak as a share of what others and the driver leave to this process.
    share: Windows = field(default_factory=lambda: Windows(np.fmax))
    utilisation: Integers = field(default_factory=lambda: np.zeros(_PERCENTS, np.int64))

    @property
    def samples(self) -> int:
        """How many rows there were."""
        return self.floor_bytes.count

    @property
    def key(self) -> tuple[int, str]:
        """What tells cards apart."""
        return self.rank, self.device

    def with_rows(self, rows: DeviceRows, at: Integers) -> Card:
        """The card with its rows among these."""
        allocated, peak, reserved, used, total = (
            rows.numbers[name][at]
            for name in ("allocated_bytes", "peak_bytes", "reserved_bytes", "used_bytes",
                         "total_bytes")
        )  # fmt: skip
        peak = np.where(np.isnan(peak), allocated, peak)
        others = np.fmax(used - reserved, 0.0)
        left = total - np.where(np.isnan(others), 0.0, others)
        left[left <= 0] = np.nan
        return replace(
            self,
            name=_latest(rows.names, rows.name[at]) or self.name,
            capability=_latest(rows.capabilities, rows.capability[at]) or self.capability,
            first_time_ns=self.first_time_ns if self.samples else int(rows.time_ns[at[0]]),
            last_time_ns=int(rows.time_ns[at[-1]]),
            total_bytes=_largest(self.total_bytes, total),
            reserved_bytes=_largest(self.reserved_bytes, reserved),
            floor_bytes=self.floor_bytes.add(allocated),
            peak_bytes=self.peak_bytes.add(peak),
            share=self.share.add(peak / left),
            utilisation=self.utilisation + _histogram(rows.numbers["utilisation"][at]),
        )

    def utilisation_at(self, quantile: float, *, busy: bool = False) -> float:
        """This quantile of the utilisation, 0 to 1; `busy` leaves out seconds without a kernel."""
        counts = self.utilisation.copy()
        counts[0] *= not busy
        total = int(counts.sum())
        if not total:
            return float("nan")
        return float(np.searchsorted(np.cumsum(counts), quantile * total)) / (_PERCENTS - 1)

    def seconds_used(self, *, busy: bool = False) -> int:
        """How many samples tell a utilisation."""
        return int(self.utilisation[1:].sum() if busy else self.utilisation.sum())


@dataclass(frozen=True, slots=True)
class DeviceCourse:
    """What is remembered of the cards; `fold` makes a new one."""

    cards: dict[tuple[int, str], Card] = field(default_factory=dict)

    def fold(self, rank: int, rows: DeviceRows) -> DeviceCourse:
        """The course with more of one rank's rows."""
        cards = dict(self.cards)
        for code in np.unique(rows.device[rows.device >= 0]).tolist():
            key = (rank, rows.devices[code])
            if key in cards or len(cards) < MOST_CARDS:
                known = cards.get(key) or Card(*key)
                cards[key] = known.with_rows(rows, np.flatnonzero(rows.device == code))
        return replace(self, cards=cards)

    def last_times_ns(self) -> dict[int, int]:
        """When each rank last told of its devices; a rank does so while it waits for others."""
        last: dict[int, int] = {}
        for card in self.cards.values():
            last[card.rank] = max(last.get(card.rank, 0), card.last_time_ns)
        return last

    def __iter__(self) -> Iterator[Card]:
        """The cards by rank and device."""
        return (self.cards[key] for key in sorted(self.cards))


def _latest(texts: tuple[str, ...], codes: Integers) -> str | None:
    known = codes[codes >= 0]
    return texts[int(known[-1])] if len(known) else None


def _largest(known: float, values: Floats) -> float:
    return float(np.fmax.reduce(values, initial=known))


def _histogram(utilisation: Floats) -> npt.NDArray[Any]:
    """How often each whole per cent was seen."""
    known = utilisation[np.isfinite(utilisation)]
    percent = np.rint(np.clip(known, 0.0, 1.0) * (_PERCENTS - 1)).astype(np.int64)
    return np.bincount(percent, minlength=_PERCENTS)
