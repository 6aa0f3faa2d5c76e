"""Where no log can be written: batches are numbered for the wire, and none can be replayed."""

from __future__ import annotations

from ampwatch.codec import Batch


class MemoryLog:
    """Counts; keeps nothing."""

    def __init__(self) -> None:
        self.next_sequence = 0

    def append(self, _batch: Batch, _sequence: int | None = None) -> int:
        """The batch's number."""
        self.next_sequence += 1
        return self.next_sequence - 1

    def is_in_place(self) -> bool:
        """There is no place that it could be taken from."""
        return True

    def begin_anew(self) -> str | None:
        """Nothing to begin."""
        return None

    def read_from(self, _sequence: int, _max_bytes: int) -> list[tuple[int, Batch]]:
        """Nothing: it was not kept."""
        return []

    def close(self) -> None:
        """Nothing to let go of."""
