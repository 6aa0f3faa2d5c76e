"""The memory and utilisation of a run's devices, folded into a fixed number of windows.

Rows of devices are ordered by time and not by steps, so they are folded apart from the blocks: in
the order of each rank's log, to the same result wherever one fold ends and the next begins.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from ampwatch.codec import column
from ampwatch.diagnosis.column_arrays import Floats, Integers, integers, numbers, texts
from ampwatch.diagnosis.doubling_windows import DoublingWindows

# A series has between half as many and as many windows.
MOST_WINDOWS = 32
MOST_DEVICES = 1024
_PERCENTS = 101

# Memory and utilisation are judged in 16 to 32 windows of equal length, from this many samples on:
# before, the warm-up of the caching allocator and of the first evaluation is most of the record.
MEMORY_SAMPLES = 256
# What is kept grows when what is allocated at the least rises from each quarter of the last four
# fifths to the next, and the peak in nearly every window of it, by a tenth in all. A leak lifts
# both alike; longer sequences lift the peak alone, so the least must rise by half as much.
MEMORY_PART, MEMORY_QUARTERS = 0.8, 4
MEMORY_RISING_SHARE, MEMORY_GROWTH, MEMORY_FLOOR_SHARE = 0.8, 1.1, 0.5
# It is urgent when the card is full before the run has lasted this many times as long again.
MEMORY_HORIZON = 4.0
# One part in twenty is what fragments and a longer batch take. A card that is filled on purpose
# stands still there; one that passes its own highest twice in the last half, by a hundredth, will
# pass the limit too.
MEMORY_LIMIT, MEMORY_LIMIT_RECORDS, MEMORY_LIMIT_RISE = 0.95, 2, 0.01

_NO_FLOOR = DoublingWindows.empty(np.fmin, MOST_WINDOWS)
_NO_PEAK = DoublingWindows.empty(np.fmax, MOST_WINDOWS)


@dataclass(frozen=True, slots=True)
class MemoryGrowth:
    """How a device's kept memory has grown, over the judged part of the record."""

    first_bytes: float
    last_bytes: float
    bytes_per_hour: float  # at this pace
    fills_device: bool  # within a few times the record's own length


@dataclass(frozen=True, slots=True)
class OneDeviceHistory:
    """The memory and utilisation of one device (GPU) so far, as one rank sees it."""

    rank: int
    device: str
    name: str | None = None
    capability: str | None = None
    first_time_ns: int = 0
    last_time_ns: int = 0
    total_bytes: float = float("nan")
    reserved_bytes: float = float("nan")  # the most
    # Of this process. Between steps only weights and what is kept are allocated: the floor.
    floor_bytes: DoublingWindows = _NO_FLOOR
    peak_bytes: DoublingWindows = _NO_PEAK
    # The peak as a share of what others and the driver leave to this process.
    share: DoublingWindows = _NO_PEAK
    # How often each whole per cent was seen.
    utilisation: Integers = field(default_factory=lambda: np.zeros(_PERCENTS, np.int64))

    @property
    def samples(self) -> int:
        """How many rows this device has."""
        return self.floor_bytes.count

    def with_rows(self, rows: pa.Table) -> OneDeviceHistory:
        """The device's figures with more of its rows."""
        times = integers(rows, "time_ns", 0)
        allocated, peak, reserved, used, total = (
            numbers(rows, f"{name}_bytes")
            for name in ("allocated", "peak", "reserved", "used", "total")
        )
        peak = np.where(np.isnan(peak), allocated, peak)
        left = total - np.fmax(used - reserved, 0.0)
        left[left <= 0] = np.nan
        shares = numbers(rows, "utilisation")
        percent = np.rint(np.clip(shares[np.isfinite(shares)], 0.0, 1.0) * (_PERCENTS - 1))
        return replace(
            self,
            name=_latest(rows, "name") or self.name,
            capability=_latest(rows, "capability") or self.capability,
            first_time_ns=self.first_time_ns if self.samples else int(times[0]),
            last_time_ns=int(times[-1]),
            total_bytes=float(np.fmax.reduce(total, initial=self.total_bytes)),
            reserved_bytes=float(np.fmax.reduce(reserved, initial=self.reserved_bytes)),
            floor_bytes=self.floor_bytes.with_next(allocated),
            peak_bytes=self.peak_bytes.with_next(peak),
            share=self.share.with_next(peak / left),
            utilisation=self.utilisation
            + np.bincount(percent.astype(np.int64), minlength=_PERCENTS),
        )

    def utilisation_at(self, quantile: float, *, busy: bool = False) -> float:
        """A quantile of the utilisation, 0 to 1; `busy` leaves out seconds without any kernel."""
        counts = self.utilisation.copy()
        counts[0] *= not busy
        totals = np.cumsum(counts)
        return float(np.searchsorted(totals, quantile * totals[-1])) / (_PERCENTS - 1)

    def seconds_used(self, *, busy: bool = False) -> int:
        """How many samples tell the utilisation; `busy` leaves out those without a kernel."""
        return int(self.utilisation[int(busy) :].sum())

    def growth(self) -> MemoryGrowth | None:
        """How the memory kept between steps grows; None if it does not grow steadily."""
        floor, peak = _last_part(self.floor_bytes), _last_part(self.peak_bytes)
        if self.samples < MEMORY_SAMPLES or np.isnan(floor).any() or np.isnan(peak).any():
            return None
        floors, peaks = _quarters(floor), _quarters(peak)
        first, last = floors[0], floors[-1]
        rises = bool((np.diff(floors) > 0).all())
        climbs = float((np.diff(peak) > 0).mean()) >= MEMORY_RISING_SHARE
        lasts = last - first >= MEMORY_FLOOR_SHARE * (peaks[-1] - peaks[0])
        if not (rises and climbs and lasts) or last < MEMORY_GROWTH * first:
            return None
        seconds = (self.last_time_ns - self.first_time_ns) / 1e9
        judged_s = seconds * (MEMORY_PART - MEMORY_PART / MEMORY_QUARTERS)
        pace = (last - first) / max(judged_s, 1.0) * 3600.0
        share = self.share.whole
        left = (1.0 - float(share[-1])) * self.total_bytes
        return MemoryGrowth(first, last, pace, pace * MEMORY_HORIZON * seconds / 3600 >= left)

    def limit_share(self) -> float | None:
        """The peak as a share of the memory that can be had, if it is near 1 and still rising."""
        share = self.share.whole
        if self.samples < MEMORY_SAMPLES or np.isnan(share).any():
            return None
        highest = np.maximum.accumulate(share)[len(share) // 2 - 1 :]
        records = int((np.diff(highest) > 0).sum())
        if share[-1] < MEMORY_LIMIT or records < MEMORY_LIMIT_RECORDS:
            return None
        return float(share[-1]) if highest[-1] - highest[0] >= MEMORY_LIMIT_RISE else None


@dataclass(frozen=True, slots=True)
class DeviceHistory:
    """All devices of a run, folded from their rows; `fold` makes a new one."""

    devices: dict[tuple[int, str], OneDeviceHistory] = field(default_factory=dict)

    def fold(self, rank: int, rows: pa.Table) -> DeviceHistory:
        """The history with more of one rank's device rows."""
        names, codes = texts(rows, "device")
        devices = dict(self.devices)
        for code in np.unique(codes[codes >= 0]).tolist():
            key = (rank, names[code])
            if key in devices or len(devices) < MOST_DEVICES:
                device = devices.get(key) or OneDeviceHistory(*key)
                devices[key] = device.with_rows(rows.filter(column(codes == code, pa.bool_())))
        return DeviceHistory(devices)

    def last_times_ns(self) -> dict[int, int]:
        """When each rank last sampled its devices; it does so while it waits for others too."""
        last: dict[int, int] = {}
        for device in self.devices.values():
            last[device.rank] = max(last.get(device.rank, 0), device.last_time_ns)
        return last

    def __iter__(self) -> Iterator[OneDeviceHistory]:
        """The cards by rank and device."""
        return (self.devices[key] for key in sorted(self.devices))


def _latest(rows: pa.Table, name: str) -> str | None:
    """The last text in a column of device rows; None if it is absent in all of them."""
    found, codes = texts(rows, name)
    codes = codes[codes >= 0]
    return found[int(codes[-1])] if len(codes) else None


def _last_part(windows: DoublingWindows) -> Floats:
    """The full windows of a device's memory, without those of the record's beginning."""
    whole = windows.whole
    return whole[len(whole) - int(len(whole) * MEMORY_PART) :]


def _quarters(windows: Floats) -> list[float]:
    """The least memory of a device in each quarter of the judged windows."""
    return [float(part.min()) for part in np.array_split(windows, MEMORY_QUARTERS)]
