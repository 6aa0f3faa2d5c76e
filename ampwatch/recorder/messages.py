"""What the recorder's process and whoever started it say to each other: one line of JSON each."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

from ampwatch.recorder.records import RankRecord


@dataclass(frozen=True, slots=True)
class Orders:
    """What a recorder's process is started with."""

    endpoint: str
    directory: Path
    insecure: bool
    fallback: bool
    port_wait_s: float  # for a port that another recorder's process is about to let go

    def to_text(self) -> str:
        """As an argument of the process."""
        return json.dumps(asdict(self), default=str)

    @classmethod
    def from_text(cls, text: str) -> Orders:
        """What `to_text` wrote."""
        told = json.loads(text)
        return cls(**told | {"directory": Path(told["directory"])})


@dataclass(frozen=True, slots=True)
class Listening:
    """It has the port; what cannot be had is told by `Failed` instead."""

    endpoint: str
    fell_back: bool


@dataclass(frozen=True, slots=True)
class Failed:
    """It cannot begin, by one of our errors."""

    error: str  # its name in `ampwatch.errors`
    sentence: str


@dataclass(frozen=True, slots=True)
class Noted:
    """A sentence that the user should see."""

    sentence: str


@dataclass(frozen=True, slots=True)
class Woken:
    """Rows have come for a run."""

    folder: Path


@dataclass(frozen=True, slots=True)
class RankTold:
    """How a rank stands, told when that has changed."""

    run_id: str
    run_name: str
    folder: Path
    record: RankRecord


@dataclass(frozen=True, slots=True)
class Counted:
    """What this process has met since it began."""

    frames: int = 0
    rows: int = 0
    bytes: int = 0
    bad_frames: int = 0
    ignored_frames: int = 0
    requests: int = 0
    denied_keys: tuple[str, ...] = ()

    def __add__(self, other: Counted) -> Counted:
        return Counted(
            frames=self.frames + other.frames,
            rows=self.rows + other.rows,
            bytes=self.bytes + other.bytes,
            bad_frames=self.bad_frames + other.bad_frames,
            ignored_frames=self.ignored_frames + other.ignored_frames,
            requests=self.requests + other.requests,
            denied_keys=tuple(dict.fromkeys(self.denied_keys + other.denied_keys)),
        )


Message: TypeAlias = Listening | Failed | Noted | Woken | RankTold | Counted

_KINDS: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (Listening, Failed, Noted, Woken, RankTold, Counted)
}


def to_line(message: Message) -> bytes:
    """A message as a line, its end included."""
    return json.dumps([type(message).__name__, asdict(message)], default=str).encode() + b"\n"


def from_line(line: bytes) -> Message:
    """The message in a whole line."""
    name, told = json.loads(line)
    if "folder" in told:
        told["folder"] = Path(told["folder"])
    if "denied_keys" in told:
        told["denied_keys"] = tuple(told["denied_keys"])
    if "record" in told:
        told["record"] = _record(told["record"])
    message: Message = _KINDS[name](**told)
    return message


def _record(told: dict[str, Any]) -> RankRecord:
    told["gaps"] = tuple((first, after) for first, after in told["gaps"])
    return RankRecord(**told)
