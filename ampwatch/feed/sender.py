"""The trainer's end: sends what the log has taken, and never makes training wait.

The recorder asks (`want`) from a number on. From then on new batches go out as they are made, and
what lies behind is served from the log in chunks within the recorder's credit. What cannot be sent
at once is not queued but owed; the log has it. So a recorder that is dead, stopped or slow costs
bounded memory and bounded time, and one that comes late gets everything.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import zmq

from ampwatch.codec import MAX_PAYLOAD_BYTES, Batch
from ampwatch.errors import AmpwatchError, FrameError
from ampwatch.feed.endpoint import check_endpoint
from ampwatch.feed.frames import (
    ENDED,
    REPLAYED,
    Frame,
    Hello,
    Kind,
    pack,
    unpack,
)
from ampwatch.feed.keepalive import notice_lost_hosts
from ampwatch.feed.security import Security, find_security
from ampwatch.feed.window import Owed, Window

BEAT_S = 1.0
RECENTLY_S = 5.0  # a peer that has answered within it is connected
_REFUSED_S = 30.0  # between two hellos to a recorder that will not listen
_CHUNK_BYTES = 512 << 10  # served from the log in one call: a few milliseconds of a thread
_CHUNK_FRAMES = 128
_QUEUED_FRAMES = 1000
_READ_TRIES = 10  # calls in a row before a log that cannot be read counts as lost


class BatchSource(Protocol):
    """The log as the sender sees it."""

    @property
    def next_sequence(self) -> int:
        """The number that the next batch will get."""

    def read_from(self, sequence: int, max_bytes: int) -> list[tuple[int, Batch]]:
        """Batches from this number on; at least one if there is one."""


@dataclass(frozen=True, slots=True)
class SenderStats:
    """What the sender has done so far, in frames of rows."""

    sent: int
    skipped: int
    replayed: int
    lost: int
    acknowledged: int  # every number below it is on the recorder's disk
    connected: bool
    bytes_outstanding: int
    errors: int
    refused: str | None  # the recorder's sentence, if it will not listen


class Sender:
    """One rank's connection to the recorder. One thread at a time; never blocks.

    After construction nothing raises: what goes wrong is counted in `stats`.
    """

    def __init__(
        self,
        endpoint: str,
        hello: Hello,
        source: BatchSource,
        *,
        keys: Security | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._endpoint = check_endpoint(endpoint)
        self._hello, self._hello_bytes = hello, hello.to_bytes()
        self._source = source
        self._security = keys or find_security(endpoint)
        self._clock = clock
        self._window = Window()
        self._token = 0
        self._owed = Owed()
        self._live: int | None = None  # the next number to send live, once the recorder has asked
        self._acknowledged = 0
        self._beat_at = self._hello_at = -BEAT_S
        self._first_beat_at: float | None = None
        self._answered_at: float | None = None
        self._end_sent = self._end_filed = False
        self._sent = self._skipped = self._replayed = self._lost = self._errors = 0
        self._failed_reads = 0
        self._refused: str | None = None
        self._context: zmq.Context[zmq.Socket[bytes]] | None = zmq.Context()
        self._socket = self._connect()

    @property
    def stats(self) -> SenderStats:
        """A snapshot."""
        return SenderStats(
            sent=self._sent,
            skipped=self._skipped,
            replayed=self._replayed,
            lost=self._lost,
            acknowledged=self._acknowledged,
            connected=self._is_connected(),
            bytes_outstanding=self._window.held_bytes,
            errors=self._errors,
            refused=self._refused,
        )

    def send(self, sequence: int, batch: Batch) -> None:
        """Send a batch that the log has just taken; if it cannot leave now it is owed."""
        if self._context is None or self._live is None:
            self._skipped += 1  # nobody has asked yet
            return
        if sequence < self._live:
            return  # owed, and perhaps served, already
        self._owed.add(self._live, sequence)
        self._live = sequence + 1
        if not self._send_rows(sequence, batch, flags=0):
            self._skipped += 1
            self._owed.add(sequence, sequence + 1)

    def poll(self) -> None:
        """Hear the recorder, serve what it misses, and give a sign of life."""
        if self._context is None:
            return
        self._hear()
        self._serve()
        self._beat()

    def close(self, timeout_s: float = 2.0) -> bool:
        """Send the end mark; whether the recorder has confirmed it and all before it.

        Waits, at most this long, only while a recorder is there to answer.
        """
        if self._context is None:
            return self._end_filed
        deadline = self._clock() + timeout_s
        self._beat_at = self._clock() - BEAT_S
        self.poll()
        while self._is_worth_waiting() and (left_s := deadline - self._clock()) > 0:
            self._send_end()
            self._wait(min(left_s, 0.05))
            self.poll()
        self._socket.close(0)
        self._context.term()
        self._context = None
        return self._end_filed

    # -- the socket

    def _connect(self) -> zmq.Socket[bytes]:
        assert self._context is not None
        dealer = self._context.socket(zmq.DEALER)
        dealer.linger = 0  # at closing, and at an exit without it, nothing is waited for
        dealer.immediate = True  # nothing is queued for a peer that is not there
        dealer.sndhwm = _QUEUED_FRAMES
        dealer.rcvhwm = _QUEUED_FRAMES
        dealer.maxmsgsize = 1 << 16
        dealer.reconnect_ivl, dealer.reconnect_ivl_max = 100, 2000
        notice_lost_hosts(dealer)
        dealer.ipv6 = "[" in self._endpoint
        self._security.dress_sender(dealer)
        dealer.connect(self._endpoint)
        return dealer

    def _transmit(self, kind: Kind, **fields: Any) -> bool:
        """Send a frame if it can leave now."""
        frame = Frame(kind, self._hello.run_id, self._hello.rank, self._token, **fields)
        try:
            self._socket.send_multipart(pack(frame), zmq.NOBLOCK)
        except zmq.Again:
            return False
        except zmq.ZMQError:
            self._errors += 1
            return False
        return True

    def _wait(self, seconds: float) -> None:
        try:
            self._socket.poll(round(seconds * 1000) + 1)
        except zmq.ZMQError:
            self._errors += 1

    # -- up

    def _send_rows(self, sequence: int, batch: Batch, flags: int) -> bool:
        """Send one batch; False when there is no room or nobody."""
        size_bytes = len(batch.payload)
        if size_bytes > MAX_PAYLOAD_BYTES:
            return self._give_up(sequence, sequence + 1)
        if not self._window.fits(size_bytes) or not self._transmit(
            Kind.ROWS, sequence=sequence, table=batch.table, payload=batch.payload, flags=flags
        ):
            return False
        self._window.add(size_bytes)
        self._sent += 1
        return True

    def _give_up(self, first: int, after: int) -> bool:
        """Tell the recorder that these numbers will never come."""
        if not self._transmit(Kind.LOST, sequence=first, value=after):
            return False
        self._lost += after - first
        return True

    def _serve(self) -> None:
        """Send one chunk of what is owed, from the log."""
        if self._live is None:
            return
        head = self._source.next_sequence
        self._owed.add(self._live, head)  # what went into the log without `send`
        self._live = max(self._live, head)
        if not self._owed or not self._window.room_bytes:
            return
        first, after = self._owed.next_range
        batches = self._read(first, min(_CHUNK_BYTES, self._window.room_bytes))
        if batches is not None:
            self._serve_range(after, batches)

    def _serve_range(self, after: int, batches: list[tuple[int, Batch]]) -> None:
        """Send these batches as far as they are owed; what the log lacks is given up."""
        for sequence, batch in batches:
            if not self._skip_to(min(sequence, after)):
                return
            if sequence >= after or not self._send_rows(sequence, batch, REPLAYED):
                return
            self._replayed += 1
            self._owed.settle(sequence + 1)
        if not batches:
            self._skip_to(after)

    def _skip_to(self, number: int) -> bool:
        """Give up what is owed below this number; False when that cannot be said now."""
        if self._owed and self._owed.next_range[0] < number:
            if not self._give_up(self._owed.next_range[0], number):
                return False
            self._owed.settle(number)
        return True

    def _read(self, first: int, max_bytes: int) -> list[tuple[int, Batch]] | None:
        """A chunk of the log, empty if it holds nothing more; None to try again later."""
        try:
            batches = self._source.read_from(first, max_bytes)
        except (OSError, AmpwatchError):
            self._errors += 1
            self._failed_reads += 1
            if self._failed_reads < _READ_TRIES:
                return None
            batches = []
        self._failed_reads = 0
        return batches[:_CHUNK_FRAMES]

    def _beat(self) -> None:
        now = self._clock()
        if now - self._beat_at < BEAT_S:
            return
        sent = self._owed.next_range[0] if self._owed else self._live or 0
        head = self._source.next_sequence
        if self._transmit(Kind.BEAT, sequence=sent, value=head, time_ns=time.time_ns()):
            self._beat_at = now
            self._first_beat_at = self._first_beat_at or now

    def _send_end(self) -> None:
        final = self._source.next_sequence
        if not self._end_sent and not self._owed and self._live == final:
            self._end_sent = self._transmit(Kind.END, sequence=final, time_ns=time.time_ns())

    # -- down

    def _hear(self) -> None:
        """Take every answer that waits."""
        for _ in range(_QUEUED_FRAMES):
            try:
                frame = unpack(self._socket.recv_multipart(zmq.NOBLOCK))
            except zmq.Again:
                return
            except (zmq.ZMQError, FrameError):
                self._errors += 1
                continue
            if (frame.run_id, frame.rank) == (self._hello.run_id, self._hello.rank):
                self._answered_at = self._clock()
                self._obey(frame)

    def _obey(self, frame: Frame) -> None:
        if frame.kind is Kind.WHO:
            self._introduce()
        elif frame.kind is Kind.WANT:
            self._restart(frame)
        elif frame.kind is Kind.ACK and frame.token == self._token:
            self._acknowledged = max(self._acknowledged, frame.sequence)
            everything = self._live is not None and frame.sequence >= self._live
            self._window.acknowledge(None if everything else frame.count)
            self._window.allow(frame.value)
            self._end_filed = bool(frame.flags & ENDED)
        elif frame.kind is Kind.NO:
            self._refused = frame.payload.decode("utf-8", "replace")
            self._live, self._token = None, 0

    def _introduce(self) -> None:
        now = self._clock()
        pause_s = BEAT_S if self._refused is None else _REFUSED_S
        if now - self._hello_at >= pause_s and self._transmit(
            Kind.HELLO, value=self._source.next_sequence, payload=self._hello_bytes
        ):
            self._hello_at = now

    def _restart(self, want: Frame) -> None:
        """Go on from where the recorder asks; a request repeated is one already obeyed."""
        self._window.allow(want.value)
        if want.token == self._token:
            return
        if self._window.held_bytes:
            # What still waits in the old pipe would be counted by nobody: it goes with its socket.
            self._socket.close(0)
            self._socket = self._connect()
        self._window.clear()
        self._owed.clear()
        self._token = want.token
        self._acknowledged = want.sequence
        self._live = self._source.next_sequence
        self._owed.add(want.sequence, self._live)
        self._end_sent, self._refused = False, None

    # -- is somebody there

    def _is_connected(self) -> bool:
        """Whether a recorder has answered lately."""
        return self._answered_at is not None and self._clock() - self._answered_at < RECENTLY_S

    def _is_worth_waiting(self) -> bool:
        if self._end_filed or self._refused is not None:
            return False
        if self._answered_at is None and self._first_beat_at is not None:
            return self._clock() - self._first_beat_at < RECENTLY_S  # it may be about to answer
        return self._is_connected()
