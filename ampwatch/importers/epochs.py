"""Counters that begin anew with each epoch, as one counter through all of them."""

from __future__ import annotations

from dataclasses import dataclass

from ampwatch.importers.sayings import Stats


@dataclass(slots=True)
class Epochs:
    """How many steps lie before the epoch that the log is at."""

    before: int = 0
    epoch: int | None = None  # as last told

    def step(self, stats: Stats, batch: int, last: int | None, stride: int) -> int:
        """The step of a batch of its epoch; the line before told of step `last`."""
        last_batch = None if last is None else last - self.before
        if last_batch is not None and batch <= last_batch:
            self._turn_back(stats, batch, last_batch, stride)
        self.epoch = stats.epoch if stats.epoch is not None else self.epoch
        return self.before + batch

    def _turn_back(self, stats: Stats, batch: int, last: int, stride: int) -> None:
        """A counter that falls is at a later epoch, or was set back; one of all does not fall."""
        length, passed = stats.per_epoch, 0
        if stats.epoch is not None and self.epoch is not None:
            passed = stats.epoch - self.epoch
        elif length and batch < last and last + stride > length:
            passed = 1
        if passed > 0:
            self.before += length * passed if length else last + 1
        elif passed < 0 or (batch < last and stats.epoch is None):
            self.before = max(0, self.before + passed * length) if length and passed else 0
