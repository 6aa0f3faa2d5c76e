"""What is under way and what is still owed: the sender's two books."""

from __future__ import annotations

from collections import deque

WINDOW_BYTES = 16 << 20
_MOST_RANGES = 1000


class Window:
    """Counts the bytes that are sent and not yet acknowledged, and says whether more may be sent.

    ZeroMQ's own high-water mark counts messages, and a send to a dead peer succeeds; so what is not
    acknowledged counts as held in memory. Frames arrive in the order in which they were sent, so
    the peer acknowledges by their count.
    """

    __slots__ = ("_limit_bytes", "_popped", "_sizes", "held_bytes")

    def __init__(self) -> None:
        self.held_bytes = 0
        self._limit_bytes = 0
        self._popped = 0
        self._sizes: deque[int] = deque()

    @property
    def room_bytes(self) -> int:
        """How much more may be served from the log; a quarter is kept free for live rows."""
        return max(0, self._limit_bytes * 3 // 4 - self.held_bytes)

    def fits(self, size_bytes: int) -> bool:
        """Whether a frame may be sent now; one alone may exceed the peer's credit, never ours."""
        if self.held_bytes == 0 and self._limit_bytes > 0:
            return size_bytes <= WINDOW_BYTES
        return self.held_bytes + size_bytes <= self._limit_bytes

    def allow(self, credit_bytes: int) -> None:
        """Take the peer's credit, which can only narrow our own limit."""
        self._limit_bytes = min(credit_bytes, WINDOW_BYTES)

    def add(self, size_bytes: int) -> None:
        """Note a frame as sent."""
        self._sizes.append(size_bytes)
        self.held_bytes += size_bytes

    def acknowledge(self, frame_count: int | None) -> None:
        """Drop the first so many frames, counted from the last `clear`; None: all."""
        while self._sizes and (frame_count is None or self._popped < frame_count):
            self.held_bytes -= self._sizes.popleft()
            self._popped += 1

    def clear(self) -> None:
        """Begin anew: all frames are known to be gone."""
        self._sizes.clear()
        self.held_bytes = self._popped = 0


class Owed:
    """The numbers that were not sent live and are to be served from the log, lowest first."""

    __slots__ = ("_ranges",)

    def __init__(self) -> None:
        self._ranges: deque[tuple[int, int]] = deque()

    def __bool__(self) -> bool:
        return bool(self._ranges)

    @property
    def next_range(self) -> tuple[int, int]:
        """The lowest stretch, from its first number up to and without its last."""
        return self._ranges[0]

    def add(self, first: int, after: int) -> None:
        """Owe these too; they lie above all that is owed already."""
        if first >= after:
            return
        if self._ranges and (self._ranges[-1][1] >= first or len(self._ranges) >= _MOST_RANGES):
            first = self._ranges.pop()[0]  # what lies between is then sent twice, and ignored once
        self._ranges.append((first, after))

    def settle(self, upto: int) -> None:
        """Owe nothing below this number any more."""
        while self._ranges and self._ranges[0][1] <= upto:
            self._ranges.popleft()
        if self._ranges and self._ranges[0][0] < upto:
            self._ranges[0] = (upto, self._ranges[0][1])

    def clear(self) -> None:
        """Owe nothing."""
        self._ranges.clear()
