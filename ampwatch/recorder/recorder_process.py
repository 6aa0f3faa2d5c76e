"""The recorder's process as its starter holds it, and what the two say: one line of JSON each."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

from ampwatch import feed
from ampwatch.errors import FeedError
from ampwatch.recorder.status import RankRecord, RankReport, RecorderStats

# The starter's import path, so that both import the same ampwatch.
_PROGRAM = """
import json, sys
sys.path[:] = json.loads(sys.argv[2])
from ampwatch.recorder import recorder_child, recorder_process
recorder_child.main(recorder_process.Orders.from_text(sys.argv[1]))
"""
# The terminal's Ctrl-C must not reach it: what was sent before is still to be filed.
_OWN_GROUP = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)


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
        """As one argument of a command."""
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
        """As a line, its end included."""
        instruction = self.instruction.to_bytes().decode()
        return json.dumps([self.run_id, self.rank, self.number, instruction]).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Asked:
        """What `to_line` wrote."""
        run_id, rank, number, instruction = json.loads(line)
        return cls(run_id, rank, number, feed.Instruction.from_bytes(instruction.encode()))


class RecorderProcess:
    """One process, from its start to its end. FeedError if it cannot be started."""

    def __init__(self, orders: Orders, environ: Mapping[str, str]) -> None:
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, orders.to_text(), json.dumps(sys.path)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(environ),
                start_new_session=True, creationflags=_OWN_GROUP,
            )  # fmt: skip
        except OSError as error:
            reason = error.strerror or str(error)
            raise FeedError(f"The recorder's process cannot be started ({reason}).") from error

    @property
    def id(self) -> int:
        """Its process id."""
        return self._process.pid

    def messages(self) -> Iterator[Message]:
        """What it says, until it has ended."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith(b"\n"):  # a process that is killed may leave half a line
                yield from_line(line)

    def instruct(self, asked: Asked) -> bool:
        """Have it pass an instruction on; False if it has ended."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(asked.to_line())
            self._process.stdin.flush()
        except (OSError, ValueError):  # ValueError: closed by `ask_to_end`
            return False
        return True

    def ask_to_end(self) -> None:
        """Let it file what it has, and end."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def kill(self) -> None:
        """End it now; what it has acknowledged is in the files."""
        self._process.kill()

    def wait(self) -> str:
        """How it ended, in words; call this when it has no more to say."""
        assert self._process.stdout is not None
        self.ask_to_end()
        code = self._process.wait()
        self._process.stdout.close()
        if code >= 0:
            return f"exit status {code}"
        with contextlib.suppress(ValueError):
            return signal.Signals(-code).name
        return f"signal {-code}"


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
        gaps = tuple((first, after) for first, after in told["record"]["gaps"])
        told["record"] = RankRecord(**told["record"] | {"gaps": gaps})
    message: Message = _KINDS[name](**told)
    return message
