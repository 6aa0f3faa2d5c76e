"""The trainer's end: sends what the log has taken, and never makes training wait.

The recorder requests rows from a number on. From then on new batches are sent as they are made, and
older ones are read from the log in chunks, within the recorder's credit. What cannot be sent at
once is not queued but owed: the log has it. So a recorder that is dead, stopped or slow costs
bounded memory and bounded time, and one that comes late gets everything.

New batches go ahead of the owed ones, because a recorder takes longer to file an hour's log than a
page may lag: 4 s of its CPU for one rank, 41 s for eight (`benchmarks/feed.py --late`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from ampwatch.codec import MAX_PAYLOAD_BYTES, Batch
from ampwatch.errors import AmpwatchError, FrameError
from ampwatch.feed.frames import ENDED, REPLAYED, Frame, Hello, Instruction, Kind
from ampwatch.feed.keys import Security, find_security
from ampwatch.feed.sockets import TrainerSocket
from ampwatch.ranges import Ranges

BEAT_S = 1.0
RECENTLY_S = 5.0  # a recorder that has answered within it is connected
WINDOW_BYTES = 16 << 20
_REFUSED_S = 30.0  # between two hellos to a recorder that refuses us
_CHUNK_BYTES = 512 << 10  # read from the log in one call: a few milliseconds of a thread
_CHUNK_FRAMES = 128
_READ_TRIES = 10  # calls in a row before a log that cannot be read counts as lost
_MOST_RANGES = 1000


class BatchSource(Protocol):
    """The log as the sender sees it."""

    @property
    def next_sequence(self) -> int:
        """The number that the next batch will get."""

    def read_from(self, sequence: int, max_bytes: int) -> list[tuple[int, Batch]]:
        """Batches from this number on; at least one if there is one."""


@dataclass(slots=True)
class SenderStats:
    """What the sender has done so far, in frames of rows."""

    sent: int = 0
    skipped: int = 0
    replayed: int = 0
    lost: int = 0
    acknowledged: int = 0  # every number below it is on the recorder's disk
    connected: bool = False
    bytes_outstanding: int = 0
    errors: int = 0
    refused: str | None = None  # the recorder's sentence, if it refuses us


class SendWindow:
    """Counts the bytes that are sent and not yet acknowledged, and says whether more may be sent.

    ZeroMQ's own high-water mark counts messages, and a send to a dead peer succeeds; so what is not
    acknowledged counts as held in memory. Frames arrive in the order in which they were sent, so
    the recorder acknowledges by their count.
    """

    __slots__ = ("_limit_bytes", "_popped", "_sizes", "held_bytes")

    def __init__(self) -> None:
        self.held_bytes = 0
        self._limit_bytes = 0
        self._popped = 0
        self._sizes: deque[int] = deque()

    @property
    def room_bytes(self) -> int:
        """How much more may be read from the log; a quarter is kept free for new batches."""
        return max(0, self._limit_bytes * 3 // 4 - self.held_bytes)

    def fits(self, size_bytes: int) -> bool:
        """Whether a frame may be sent now; one alone may exceed the credit, never our own limit."""
        if self.held_bytes == 0 and self._limit_bytes > 0:
            return size_bytes <= WINDOW_BYTES
        return self.held_bytes + size_bytes <= self._limit_bytes

    def allow(self, credit_bytes: int) -> None:
        """Take the recorder's credit, which can only lower our own limit."""
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
        """Start again: all frames are known to be gone."""
        self._sizes.clear()
        self.held_bytes = self._popped = 0


@dataclass(slots=True)
class Request:
    """What the recorder requested last, and how much of it is still to be sent."""

    token: int = 0
    live: int | None = None  # the next number to send as it is made; None: nothing was requested
    owed: Ranges = field(default_factory=Ranges)  # older numbers, to be read from the log
    end_sent: bool = False

    def owe(self, first: int, after: int) -> None:
        """Owe these numbers too; they are above all that is owed already."""
        if first >= after:
            return
        if len(self.owed) >= _MOST_RANGES:
            first = min(first, self.owed.end)  # what is between is sent twice, and ignored once
        self.owed.add(first, after)


@dataclass(frozen=True, slots=True)
class InstructionArrived:
    """An instruction as it came."""

    instruction: Instruction
    number: int
    age_s: float  # since the sign of life that its sender had heard last
    is_authentic: bool  # it came encrypted, from the recorder that this user trusts


@dataclass(slots=True)
class _Contact:
    """When something was last said and heard, by the sender's clock."""

    beat_at: float = -BEAT_S
    hello_at: float = -BEAT_S
    first_beat_at: float | None = None
    answered_at: float | None = None

    def is_connected(self, now: float) -> bool:
        """Whether a recorder has answered lately."""
        return self.answered_at is not None and now - self.answered_at < RECENTLY_S

    def may_answer(self, now: float) -> bool:
        """Whether one has answered lately, or may be about to for the first time."""
        if self.answered_at is None and self.first_beat_at is not None:
            return now - self.first_beat_at < RECENTLY_S
        return self.is_connected(now)


class Sender:
    """One rank's connection to the recorder. One thread at a time; never blocks.

    After construction nothing raises: what goes wrong is counted in `stats`. `on_instruction` is
    called by `poll` with what a page asks for; without it nothing can be asked.
    """

    def __init__(
        self,
        endpoint: str,
        hello: Hello,
        source: BatchSource,
        *,
        keys: Security | None = None,
        on_instruction: Callable[[InstructionArrived], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._on_instruction = on_instruction
        self._hello, self._hello_bytes = hello, hello.to_bytes()
        self._source = source
        self._clock = clock
        self._window = SendWindow()
        self._request = Request()
        self._contact = _Contact()
        self._stats = SenderStats()
        self._failed_reads = 0
        self._end_filed = False
        self._security = keys or find_security(endpoint)
        self._socket = TrainerSocket(endpoint, self._security)

    @property
    def stats(self) -> SenderStats:
        """A snapshot."""
        return replace(
            self._stats,
            connected=self._contact.is_connected(self._clock()),
            bytes_outstanding=self._window.held_bytes,
            errors=self._stats.errors + self._socket.errors,
        )

    def send(self, sequence: int, batch: Batch) -> None:
        """Send a batch that the log has just taken; if it cannot leave now it is owed."""
        request = self._request
        if not self._socket.is_open or request.live is None:
            self._stats.skipped += 1  # nothing was requested yet
            return
        if sequence < request.live:
            return  # owed, and perhaps sent, already
        request.owe(request.live, sequence)
        request.live = sequence + 1
        if not self._send_rows(sequence, batch, flags=0):
            self._stats.skipped += 1
            request.owe(sequence, sequence + 1)

    def poll(self) -> None:
        """Read the recorder's answers, send some of what is owed, and give a sign of life."""
        if not self._socket.is_open:
            return
        for frame in self._socket.received():
            if (frame.run_id, frame.rank) == (self._hello.run_id, self._hello.rank):
                self._contact.answered_at = self._clock()
                self._handle_answer(frame)
        self._send_owed()
        self._beat()

    def close(self, timeout_s: float = 2.0) -> bool:
        """Send the end mark; returns whether the recorder has confirmed it and all before it.

        Waits, at most this long, only while a recorder is there to answer.
        """
        if not self._socket.is_open:
            return self._end_filed
        deadline = self._clock() + timeout_s
        self._contact.beat_at = self._clock() - BEAT_S
        self.poll()
        while self._is_worth_waiting() and (left_s := deadline - self._clock()) > 0:
            self._send_end()
            self._socket.wait(min(left_s, 0.05))
            self.poll()
        self._socket.close()
        return self._end_filed

    # --- up --------------------------------------------------------------------------------------

    def _transmit(self, kind: Kind, **fields: Any) -> bool:
        """Send a frame if it can leave now; returns whether it did."""
        hello = self._hello
        return self._socket.send(
            Frame(kind, hello.run_id, hello.rank, self._request.token, **fields)
        )

    def _send_rows(self, sequence: int, batch: Batch, flags: int) -> bool:
        """Send one batch; False if the window is full or nobody is there."""
        size_bytes = len(batch.payload)
        if size_bytes > MAX_PAYLOAD_BYTES:
            return self._give_up(sequence, sequence + 1)
        if not self._window.fits(size_bytes) or not self._transmit(
            Kind.ROWS, sequence=sequence, table=batch.table, payload=batch.payload, flags=flags
        ):
            return False
        self._window.add(size_bytes)
        self._stats.sent += 1
        return True

    def _give_up(self, first: int, after: int) -> bool:
        """Tell the recorder that these numbers will never come; False if it cannot leave now."""
        if not self._transmit(Kind.LOST, sequence=first, value=after):
            return False
        self._stats.lost += after - first
        return True

    def _send_owed(self) -> None:
        """Send one chunk of what is owed, from the log."""
        request = self._request
        if request.live is None:
            return
        head = self._source.next_sequence
        request.owe(request.live, head)  # what went into the log without `send`
        request.live = max(request.live, head)
        if not request.owed or not self._window.room_bytes:
            return
        first, after = request.owed.first
        batches = self._read_log(first, min(_CHUNK_BYTES, self._window.room_bytes))
        if batches is not None:
            self._send_batches(after, batches)

    def _send_batches(self, after: int, batches: list[tuple[int, Batch]]) -> None:
        """Send these batches as far as they are owed; what the log lacks is given up."""
        for sequence, batch in batches:
            if not self._skip_to(min(sequence, after)):
                return
            if sequence >= after or not self._send_rows(sequence, batch, REPLAYED):
                return
            self._stats.replayed += 1
            self._request.owed.remove_below(sequence + 1)
        if not batches:
            self._skip_to(after)

    def _skip_to(self, number: int) -> bool:
        """Give up what is owed below this number; False if that cannot be sent now."""
        owed = self._request.owed
        if owed and owed.start < number:
            if not self._give_up(owed.start, number):
                return False
            owed.remove_below(number)
        return True

    def _read_log(self, first: int, max_bytes: int) -> list[tuple[int, Batch]] | None:
        """A chunk of the log, empty if it holds nothing more; None to try again later."""
        try:
            batches = self._source.read_from(first, max_bytes)
        except (OSError, AmpwatchError):
            self._stats.errors += 1
            self._failed_reads += 1
            if self._failed_reads < _READ_TRIES:
                return None
            batches = []
        self._failed_reads = 0
        return batches[:_CHUNK_FRAMES]

    def _beat(self) -> None:
        now = self._clock()
        if now - self._contact.beat_at < BEAT_S:
            return
        owed, live = self._request.owed, self._request.live
        sent = owed.start if owed else live or 0
        head = self._source.next_sequence
        if self._transmit(Kind.BEAT, sequence=sent, value=head, time_ns=time.time_ns()):
            self._contact.beat_at = now
            self._contact.first_beat_at = self._contact.first_beat_at or now

    def _send_end(self) -> None:
        request, final = self._request, self._source.next_sequence
        if not request.end_sent and not request.owed and request.live == final:
            request.end_sent = self._transmit(Kind.END, sequence=final, time_ns=time.time_ns())

    # --- down ------------------------------------------------------------------------------------

    def _handle_answer(self, frame: Frame) -> None:
        if frame.kind is Kind.WHO:
            self._introduce()
        elif frame.kind is Kind.WANT:
            self._begin_request(frame)
        elif frame.kind is Kind.ACK and frame.token == self._request.token:
            live = self._request.live
            self._stats.acknowledged = max(self._stats.acknowledged, frame.sequence)
            everything = live is not None and frame.sequence >= live
            self._window.acknowledge(None if everything else frame.count)
            self._window.allow(frame.value)
            self._end_filed = bool(frame.flags & ENDED)
        elif frame.kind is Kind.NO:
            self._stats.refused = frame.payload.decode("utf-8", "replace")
            self._request = Request()
        elif frame.kind is Kind.INSTRUCT and self._on_instruction is not None:
            self._pass_on(frame, self._on_instruction)

    def _pass_on(self, frame: Frame, act: Callable[[InstructionArrived], None]) -> None:
        try:
            instruction = Instruction.from_bytes(frame.payload)
        except FrameError:
            self._stats.errors += 1
            return
        age_s = (time.time_ns() - frame.time_ns) / 1e9
        act(InstructionArrived(instruction, frame.sequence, age_s, self._security.own is not None))

    def _introduce(self) -> None:
        now = self._clock()
        pause_s = BEAT_S if self._stats.refused is None else _REFUSED_S
        if now - self._contact.hello_at >= pause_s and self._transmit(
            Kind.HELLO,
            value=self._source.next_sequence,
            payload=self._hello_bytes,
            time_ns=time.time_ns(),
        ):
            self._contact.hello_at = now

    def _begin_request(self, want: Frame) -> None:
        """Go on from where the recorder asks; a repeated request was obeyed already."""
        self._window.allow(want.value)
        if want.token == self._request.token:
            return
        if self._window.held_bytes:
            # Nobody would count what still waits in the old queue: drop it with its socket.
            self._socket.renew()
        self._window.clear()
        head = self._source.next_sequence
        self._request = Request(want.token, live=head)
        self._request.owe(want.sequence, head)
        self._stats.acknowledged = want.sequence
        self._stats.refused = None

    def _is_worth_waiting(self) -> bool:
        if self._end_filed or self._stats.refused is not None:
            return False
        return self._contact.may_answer(self._clock())
