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
_FIRST, _END = "1990", "2101"  # other years are not timestamps
_TO_ISO = bytes.maketrans(b"/,", b"-.")


def find(text: str) -> re.Match[str] | None:
    """The first timestamp in a line."""
    return _STAMP.search(text)


def time_ns(text: str) -> int | None:
    """The time that a line's timestamp says, in nanoseconds; None if the line has none."""
    match = find(text)
    return None if match is None else _one_ns(match[0])


@functools.lru_cache(maxsize=256)  # a logger writes many lines within a millisecond
def _one_ns(stamp: str) -> int | None:
    times = times_ns([stamp.encode()])
    return None if times is None else int(times[0])


def times_ns(timestamps: Sequence[bytes]) -> npt.NDArray[np.int64] | None:
    """The times that many timestamps say; None if one of them is not a date."""
    texts = b"\n".join(timestamps).translate(_TO_ISO).decode().split("\n")
    if min(texts) < _FIRST or max(texts) >= _END:
        return None
    try:
        return np.array(texts, "datetime64[ns]").astype(np.int64)
    except ValueError:
        return None
