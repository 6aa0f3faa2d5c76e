"""The time at which a line was printed: `2024-05-01 12:00:00`, with `/`, `T` or a fraction.

Such a timestamp names no time zone and is read as UTC: durations are right, the hour may not be.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

PATTERN = r"\d{4}[-/]\d\d[-/]\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?"
_STAMP = re.compile(PATTERN)
_WHOLE = 19  # characters, down to the seconds
_YEARS = (1990, 2100)  # other years are not timestamps
_PLACES = {"year": (0, 4), "month": (5, 2), "day": (8, 2), "hour": (11, 2), "minute": (14, 2),
           "second": (17, 2)}  # fmt: skip


def find(text: str) -> re.Match[str] | None:
    """The first timestamp in a line."""
    return _STAMP.search(text)


def time_ns(text: str) -> int | None:
    """The time that a line's timestamp says, in nanoseconds; None if the line has none."""
    found = find(text)
    return None if found is None else _one_ns(found[0])


@functools.lru_cache(maxsize=256)  # a logger writes many lines within a millisecond
def _one_ns(stamp: str) -> int | None:
    times = times_ns([stamp.encode()])
    return None if times is None else int(times[0])


def times_ns(timestamps: Sequence[bytes]) -> npt.NDArray[np.int64] | None:
    """The times that many timestamps say; None if one of them is not a date."""
    width = max(map(len, timestamps))
    whole = b"".join(stamp.ljust(width, b"0") for stamp in timestamps)
    digits = np.frombuffer(whole, np.uint8).reshape(-1, width) - np.uint8(ord("0"))
    part = {name: _number(digits, *place) for name, place in _PLACES.items()}
    if not _is_date(part):
        return None
    months = (part["year"] - 1970).astype("datetime64[Y]").astype("datetime64[M]")
    days = (months + (part["month"] - 1)).astype("datetime64[D]") + (part["day"] - 1)
    seconds = days.astype(np.int64) * 86400
    seconds += part["hour"] * 3600 + part["minute"] * 60 + part["second"]
    fraction = max(0, width - _WHOLE - 1)
    fraction_ns = _number(digits, _WHOLE + 1, fraction) * 10 ** (9 - fraction)
    return np.asarray(seconds * 10**9 + fraction_ns, np.int64)


def _number(digits: npt.NDArray[np.uint8], at: int, length: int) -> npt.NDArray[np.int64]:
    value = np.zeros(len(digits), np.int64)
    for place in range(at, at + length):
        value = 10 * value + digits[:, place]
    return value


def _is_date(part: dict[str, npt.NDArray[np.int64]]) -> bool:
    most = {"month": 12, "day": 31, "hour": 23, "minute": 59, "second": 60}
    least = {"month": 1, "day": 1}
    fits = all((part[name] <= limit).all() for name, limit in most.items())
    fits &= all((part[name] >= limit).all() for name, limit in least.items())
    first, last = _YEARS
    return fits and bool(((part["year"] >= first) & (part["year"] <= last)).all())
