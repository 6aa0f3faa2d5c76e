"""What a recorder says of itself and of the runs it hears: snapshots, safe to keep."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class RankRecord:
    """One rank as the recorder knows it."""

    rank: int
    filed: int  # every number below it is in the folder, or known to be lost
    head: int  # the next number the trainer will write
    gaps: tuple[tuple[int, int], ...]  # first and after of what will never come
    bad_frames: int
    is_copy: bool  # written here by the recorder, not by the trainer itself
    is_blocked: bool  # cannot be filed at present
    is_alive: bool  # heard of lately, and not ended
    has_ended: bool
    heard_ns: int


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """A run that sends, or has sent, to this recorder."""

    id: str
    name: str
    folder: Path
    ranks: tuple[RankRecord, ...]

    @property
    def has_ended(self) -> bool:
        """Whether every rank heard of has sent its end mark."""
        return all(record.has_ended for record in self.ranks)


@dataclass(frozen=True, slots=True)
class RecorderStats:
    """What the recorder has met, over all runs."""

    frames: int
    rows: int
    bytes: int
    bad_frames: int
    ignored_frames: int  # older than the last request
    requests: int  # for rows, at hellos and after losses under way
    gaps: int  # numbers that will never come
    denied_keys: tuple[str, ...]
