"""How many bytes are under way: sent and not yet acknowledged."""

from __future__ import annotations

from collections import deque

WINDOW_BYTES = 16 << 20


class Window:
    """Counts what is under way and says whether more may be sent.

    ZeroMQ's own high-water mark counts messages, and a send to a dead peer succeeds; so what is not
    acknowledged counts as held in memory.
    """

    __slots__ = ("_frames", "_limit_bytes", "held_bytes")

    def __init__(self) -> None:
        self.held_bytes = 0
        self._limit_bytes = 0
        self._frames: deque[tuple[int, int]] = deque()

    @property
    def room_bytes(self) -> int:
        """How much more may be sent."""
        return max(0, self._limit_bytes - self.held_bytes)

    def fits(self, size_bytes: int) -> bool:
        """Whether a frame may be sent now; one alone may exceed the peer's credit, never ours."""
        if self.held_bytes == 0 and self._limit_bytes > 0:
            return size_bytes <= WINDOW_BYTES
        return size_bytes <= self.room_bytes

    def allow(self, credit_bytes: int) -> None:
        """Take the peer's credit, which can only narrow our own limit."""
        self._limit_bytes = min(credit_bytes, WINDOW_BYTES)

    def add(self, sequence: int, size_bytes: int) -> None:
        """Note a frame as sent."""
        self._frames.append((sequence, size_bytes))
        self.held_bytes += size_bytes

    def acknowledge(self, sequence: int) -> None:
        """Drop the frames below this number."""
        while self._frames and self._frames[0][0] < sequence:
            self.held_bytes -= self._frames.popleft()[1]

    def clear(self) -> None:
        """Forget all frames: they are known to be gone."""
        self._frames.clear()
        self.held_bytes = 0
