"""What a recorder's process is told and says, one line of JSON each, and the status that results.

The status is what a recorder knows of the runs it hears, as snapshots that are safe to keep.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from ampwatch import feed

# --- status ---------------------------------------------------------------------------------------

ALIVE_S = 5.0  # a trainer gives a sign of life each second


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

    frames: int = 0
    rows: int = 0
    bytes: int = 0
    bad_frames: int = 0
    ignored_frames: int = 0  # older than the last request
    requests: int = 0  # for rows, at hellos and after losses under way
    gaps: int = 0  # numbers that will never come
    denied_keys: tuple[str, ...] = ()

    def __add__(self, other: RecorderStats) -> RecorderStats:
        both = {name: getattr(self, name) + getattr(other, name) for name in self.__slots__}
        return RecorderStats(**both | {"denied_keys": tuple(dict.fromkeys(both["denied_keys"]))})


@dataclass(frozen=True, slots=True)
class RankReport:
    """How a rank stands, and to which run it belongs."""

    run_id: str
    run_name: str
    folder: Path
    record: RankRecord


class RecorderStatus:
    """What the recorder's process, and those before it, have reported; one thread writes it."""

    def __init__(self) -> None:
        # By run and rank: the newest report, and the number of the process that made it.
        self._ranks: dict[tuple[str, int], tuple[RankReport, int]] = {}
        self._before, self._latest = RecorderStats(), RecorderStats()
        self._process = 0
        self._since_s = time.monotonic()

    def new_process(self) -> None:
        """Another process reports from now on, and counts from zero."""
        self._before, self._latest = self._before + self._latest, RecorderStats()
        self._process += 1
        self._since_s = time.monotonic()

    def take(self, report: RankReport | RecorderStats) -> None:
        """Note how a rank or the counts stand."""
        if isinstance(report, RecorderStats):
            self._latest = report
        else:
            self._ranks[report.run_id, report.record.rank] = (report, self._process)

    @property
    def runs(self) -> dict[str, RecordedRun]:
        """The runs heard of, by id."""
        found: dict[str, RecordedRun] = {}
        reports = self._ranks.copy().values()
        for rank, process in sorted(reports, key=lambda report: report[0].record.rank):
            before = found[rank.run_id].ranks if rank.run_id in found else ()
            records = (*before, self._as_of_now(rank.record, process))
            found[rank.run_id] = RecordedRun(rank.run_id, rank.run_name, rank.folder, records)
        return found

    @property
    def stats(self) -> RecorderStats:
        """The counts of all recorder processes, those that ended included."""
        gaps = [gap for rank, _ in self._ranks.copy().values() for gap in rank.record.gaps]
        lost = sum(after - first for first, after in gaps)
        return replace(self._before + self._latest, gaps=lost)

    def _as_of_now(self, record: RankRecord, process: int) -> RankRecord:
        """A rank that the present process has not heard of for some time is not alive."""
        is_news = process == self._process or time.monotonic() - self._since_s < ALIVE_S
        return record if is_news else replace(record, is_alive=False)


# --- what it is told ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Orders:
    """The arguments of a recorder's process."""

    endpoint: str
    directory: Path
    insecure: bool
    fallback: bool
    port_wait_s: float  # for a port that another recorder's process is about to release
    beside: tuple[Path, ...] = ()  # where runs are read that need no copy

    def to_text(self) -> str:
        """The orders as one argument of a command."""
        return json.dumps(asdict(self), default=str)

    @classmethod
    def from_text(cls, text: str) -> Orders:
        """What `to_text` wrote."""
        told = json.loads(text)
        folders = {"directory": Path(told["directory"]), "beside": tuple(map(Path, told["beside"]))}
        return cls(**told | folders)


@dataclass(frozen=True, slots=True)
class Asked:
    """An instruction on its way to one rank; all that a recorder's process is ever sent."""

    run_id: str
    rank: int
    number: int
    instruction: feed.Instruction

    def to_line(self) -> bytes:
        """The instruction as a line, its end included."""
        instruction = self.instruction.to_bytes().decode()
        return json.dumps([self.run_id, self.rank, self.number, instruction]).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Asked:
        """What `to_line` wrote."""
        run_id, rank, number, instruction = json.loads(line)
        return cls(run_id, rank, number, feed.Instruction.from_bytes(instruction.encode()))


# --- what it says ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Listening:
    """It has the port; if not, it says `Failed` instead."""

    endpoint: str
    fell_back: bool


@dataclass(frozen=True, slots=True)
class Failed:
    """It cannot begin, because of one of our errors."""

    error: str  # its name in `ampwatch.errors`
    sentence: str


@dataclass(frozen=True, slots=True)
class Noted:
    """A sentence that the user should see."""

    sentence: str


@dataclass(frozen=True, slots=True)
class NewRows:
    """Rows have come for a run."""

    folder: Path


Message: TypeAlias = Listening | Failed | Noted | NewRows | RankReport | RecorderStats

_KINDS: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (Listening, Failed, Noted, NewRows, RankReport, RecorderStats)
}


def to_line(message: Message) -> bytes:
    """A message of the recorder's process as a line, its end included."""
    return json.dumps([type(message).__name__, asdict(message)], default=str).encode() + b"\n"


def from_line(line: bytes) -> Message:
    """The message of the recorder's process in a whole line."""
    name, told = json.loads(line)
    if "folder" in told:
        told["folder"] = Path(told["folder"])
    if "denied_keys" in told:
        told["denied_keys"] = tuple(told["denied_keys"])
    if "record" in told:
        gaps = tuple((first, after) for first, after in told["record"]["gaps"])
        told["record"] = RankRecord(**told["record"] | {"gaps": gaps})
    message: Message = _KINDS[name](**told)
    return message
