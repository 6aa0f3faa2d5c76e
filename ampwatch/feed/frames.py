"""What travels over the wire: frames of a fixed header and, for some kinds, one payload.

Up from a trainer: beats, hellos, rows, losses and the end mark. Down from the recorder:
acknowledgements, requests, refusals and instructions. A frame names its run and rank, and the token
of the request that it answers: so what was sent before a request is told apart from what was sent
after it. Reading a frame never trusts it: sizes, kinds and numbers are checked here, rows by
`codec.check`.

An instruction is what a page may ask of a trainer that allows it, of a closed list, checked at both
ends. It has a number that is higher than that of any before it, so one that comes twice is told
from a new one. It repeats the time of the trainer's last sign of life, by the trainer's own clock,
so one that comes late is told from a fresh one though the two clocks differ.
"""

from __future__ import annotations

import enum
import json
import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from ampwatch.codec import MAX_PAYLOAD_BYTES
from ampwatch.errors import FrameError
from ampwatch.rows import TABLES, Table

# --- instructions ---------------------------------------------------------------------------------

MAX_INSTRUCTION_BYTES = 200
LEAST_FACTOR, MOST_FACTOR = 1e-4, 4.0  # of the learning rate: what advice can ask for, and some


class Key(str, enum.Enum):
    """All that can be asked for."""

    RATE = "learning-rate"  # multiply every group's rate by the value
    SAVE = "save"  # write a checkpoint, by the function that the training gave
    STOP = "stop"  # end after the step in progress


@dataclass(frozen=True, slots=True)
class Instruction:
    """One thing that a page asks for."""

    key: Key
    value: float | None = None  # the factor of a rate; of the others None

    def __post_init__(self) -> None:
        if (self.key is Key.RATE) != (self.value is not None):
            raise FrameError(f"The instruction {self.key.value!r} has the value {self.value}.")
        if self.value is not None and not LEAST_FACTOR <= self.value <= MOST_FACTOR:
            raise FrameError(
                f"A learning rate is multiplied by {LEAST_FACTOR:g} to {MOST_FACTOR:g}, "
                f"not by {self.value:.4g}."
            )

    def to_bytes(self) -> bytes:
        """The payload of its frame."""
        return json.dumps({"key": self.key.value, "value": self.value}).encode()

    @classmethod
    def from_bytes(cls, payload: bytes) -> Instruction:
        """The instruction in a payload from outside."""
        try:
            fields = json.loads(payload)
            key, value = Key(fields["key"]), fields["value"]
            number = None if value is None else float(value)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise FrameError(f"An instruction cannot be read ({type(error).__name__}).") from None
        return cls(key, number)


# --- frames ---------------------------------------------------------------------------------------

VERSION = 1
MAX_HELLO_BYTES = 1 << 20
MAX_SENTENCE_BYTES = 2000
MAX_RANK = (1 << 20) - 1

_MAGIC = b"aw"
_NO_TABLE = 255
# magic, version, kind, table, flags, padding, rank, token, run id, sequence, value, count, time
_HEADER = struct.Struct("<2sBBBB2xII16sQQQQ")


class Kind(enum.IntEnum):
    """The closed list of frames, with what their fields mean."""

    # Up.
    BEAT = 1  # all below `sequence` has been sent; `value` is the next number to be written
    HELLO = 2  # `value` is the next number to be written; the payload is a Hello
    ROWS = 3  # the payload is batch `sequence`
    LOST = 4  # the numbers from `sequence` up to, but not including, `value` will never come
    END = 5  # `sequence` is the number after the last
    # Down.
    ACK = 16  # all below `sequence` is filed, after `count` frames; `value` bytes may be under way
    WANT = 17  # send from `sequence` on; `value` bytes may be under way
    WHO = 18  # say hello
    NO = 19  # the payload is a sentence that says why you are refused
    # The payload is an Instruction, `sequence` its number, `time_ns` of your last sign of life.
    INSTRUCT = 20


UP = frozenset({Kind.BEAT, Kind.HELLO, Kind.ROWS, Kind.LOST, Kind.END})
ENDED = 1  # flag of an ACK: the end mark is filed too
REPLAYED = 2  # flag of ROWS: served from the log
_MAX_PAYLOAD = {
    Kind.HELLO: MAX_HELLO_BYTES,
    Kind.ROWS: MAX_PAYLOAD_BYTES,
    Kind.NO: MAX_SENTENCE_BYTES,
    Kind.INSTRUCT: MAX_INSTRUCTION_BYTES,
}


@dataclass(frozen=True, slots=True)
class Frame:
    """One message between a trainer and a recorder."""

    kind: Kind
    run_id: str
    rank: int
    token: int = 0
    sequence: int = 0
    value: int = 0
    count: int = 0
    time_ns: int = 0
    flags: int = 0
    table: Table | None = None
    payload: bytes = b""


@dataclass(frozen=True, slots=True)
class Hello:
    """Who a trainer's rank is; `info_json` is the text of its run.json."""

    run_id: str
    rank: int
    info_json: str
    format: int
    version: str

    def to_bytes(self) -> bytes:
        """The payload of a hello frame."""
        payload = json.dumps(asdict(self)).encode()
        if len(payload) > MAX_HELLO_BYTES:
            raise FrameError(
                f"The run's description is {len(payload)} bytes long and a hello may have "
                f"{MAX_HELLO_BYTES}: give attach() a smaller config."
            )
        return payload

    @classmethod
    def from_bytes(cls, payload: bytes) -> Hello:
        """The hello in a payload from outside."""
        try:
            fields = json.loads(payload)
            hello = cls(**fields)
        except (ValueError, TypeError, RecursionError) as error:
            raise FrameError(f"A hello cannot be read ({type(error).__name__}).") from None
        texts = (hello.run_id, hello.info_json, hello.version)
        numbers = (hello.rank, hello.format)
        if not all(type(text) is str for text in texts) or not all(type(n) is int for n in numbers):
            raise FrameError("A hello has fields of the wrong type.")
        return hello


def pack(frame: Frame) -> list[bytes]:
    """The parts of a frame, ready to send."""
    table = _NO_TABLE if frame.table is None else frame.table.number
    header = _HEADER.pack(
        _MAGIC, VERSION, frame.kind, table, frame.flags, frame.rank, frame.token,
        bytes.fromhex(frame.run_id), frame.sequence, frame.value, frame.count, frame.time_ns,
    )  # fmt: skip
    return [header, frame.payload] if frame.payload else [header]


def unpack(parts: Sequence[bytes]) -> Frame:
    """The frame in parts that came from outside; FrameError if they are not one."""
    if not 1 <= len(parts) <= 2:
        raise FrameError(f"A message has {len(parts)} parts; a frame has one or two.")
    header = parts[0]
    if header[:2] != _MAGIC or len(header) < 3:
        raise FrameError("A message is not a frame of ampwatch.")
    if header[2] != VERSION:
        raise FrameError(
            f"A frame has wire version {header[2]}; this ampwatch speaks version {VERSION}: "
            "install the same ampwatch on both sides.",
            other_version=True,
        )
    if len(header) != _HEADER.size:
        raise FrameError(f"A header has {len(header)} bytes instead of {_HEADER.size}.")
    return _read(header, parts[1] if len(parts) == 2 else b"")


def _read(header: bytes, payload: bytes) -> Frame:
    _, _, number, table, flags, rank, token, run_id, *rest = _HEADER.unpack(header)
    sequence, value, count, time_ns = rest
    try:
        kind = Kind(number)
    except ValueError:
        raise FrameError(f"A frame is of the unknown kind {number}.") from None
    if len(payload) > _MAX_PAYLOAD.get(kind, 0):
        raise FrameError(f"A {kind.name.lower()} frame of {len(payload)} bytes is too large.")
    if rank > MAX_RANK or max(rest) >> 62:
        raise FrameError(f"A {kind.name.lower()} frame has a number out of bounds.")
    if (kind is Kind.ROWS) != (table < len(TABLES)):
        raise FrameError(f"A {kind.name.lower()} frame has the table number {table}.")
    of = TABLES[table] if kind is Kind.ROWS else None
    return Frame(
        kind, run_id.hex(), rank, token, sequence, value, count, time_ns, flags, of, payload
    )
