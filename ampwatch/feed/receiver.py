"""The recorder's end: checks every frame, acknowledges what is filed, and asks for what is missing.

What `receive` yields has passed every check. The recorder says up to where it has filed a rank's
rows (`filed`), and the receiver acknowledges that. When a rank says that it has sent more, rows
were lost under way: they are asked for again, because the trainer's log has them.
"""

from __future__ import annotations

import math
import secrets
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from zmq.utils import z85

from ampwatch.codec import Batch, check
from ampwatch.errors import CodecError, FrameError
from ampwatch.feed.frames import (
    ENDED,
    MAX_SENTENCE_BYTES,
    UP,
    Frame,
    Hello,
    Instruction,
    Kind,
    unpack,
)
from ampwatch.feed.keys import Security, find_security
from ampwatch.feed.sockets import Message, RecorderSocket

_FRAMES_A_CALL = 512
_DENIED_KEPT = 100
_GONE_S = 60.0  # the recorder has closed the files of a rank that is silent for so long
_CLEAR_EVERY_S = 1.0
_GREETING_S = 0.5  # a trainer that is not answered says hello again after twice as long


# --- the ranks that are followed ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PeerKey:
    """A rank of a run."""

    run_id: str
    rank: int

    def __str__(self) -> str:
        return f"run {self.run_id}, rank {self.rank}"


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one recorder takes; an honest trainer stays far below."""

    peers: int = 8192
    key_peers: int = 2048  # with one key: a user's sweeps and their ranks
    rank_rows: int = 1 << 36
    rank_bytes: int = 1 << 38
    credit_bytes: int = 4 << 20  # under way to us from one rank
    credit_all_bytes: int = 256 << 20  # and from all ranks together
    credit_least_bytes: int = 256 << 10


@dataclass(slots=True)
class Peer:
    """One rank as the receiver follows it."""

    key: PeerKey
    identity: bytes
    user: str  # the public key that spoke first for this rank; no other may
    token: int
    filed: int = 0  # everything below it is filed
    row_frames: int = 0  # that came since the last request
    head: int = 0  # the next number the trainer will write
    time_ns: int = 0  # when it last gave a sign of life, by its own clock
    is_paused: bool = True
    is_ended: bool = False
    is_refused: bool = False
    heard_s: float = 0.0  # by a clock that never jumps
    greeted: tuple[bytes, float] = (b"", 0.0)  # the last hello's sender, and its time on that clock
    rows: int = 0
    bytes: int = 0
    bad: int = 0


@dataclass(slots=True)
class Counts:
    """What the receiver has met, over all peers."""

    frames: int = 0
    rows: int = 0
    bytes: int = 0
    bad: int = 0
    ignored: int = 0
    requests: int = 0
    denied: dict[str, int] = field(default_factory=dict)  # public key -> attempts


# --- what `receive` yields ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HelloArrived:
    """A rank has introduced itself; it sends nothing until `resume` says from where."""

    peer: PeerKey
    hello: Hello
    head: int  # the next number it will write


@dataclass(frozen=True, slots=True)
class RowsArrived:
    """A batch of a rank; older ones may follow, and it may arrive twice."""

    peer: PeerKey
    sequence: int
    batch: Batch


@dataclass(frozen=True, slots=True)
class GapArrived:
    """The numbers from `first` up to, but not including, `after` will never come."""

    peer: PeerKey
    first: int
    after: int


@dataclass(frozen=True, slots=True)
class EndArrived:
    """A rank has ended, and everything below this number has been filed."""

    peer: PeerKey
    final: int


@dataclass(frozen=True, slots=True)
class BadArrived:
    """A frame was dropped; `peer` if the frame named one."""

    peer: PeerKey | None
    address: str
    reason: str


@dataclass(frozen=True, slots=True)
class KeyDenied:
    """The holder of a key that is not allowed has tried to connect, for the first time."""

    public: str
    trouble: str = ""  # what could not be read of the list of keys


@dataclass(frozen=True, slots=True)
class RankTurnedAway:
    """A rank was refused because the limits are reached; sent once a reason."""

    peer: PeerKey
    reason: str


Arrival: TypeAlias = (
    HelloArrived | RowsArrived | GapArrived | EndArrived | BadArrived | KeyDenied | RankTurnedAway
)


class Receiver:
    """The bound socket and the ranks behind it. Made anywhere, then used by one thread."""

    def __init__(
        self,
        endpoint: str,
        *,
        keys: Security | None = None,
        limits: Limits | None = None,
        fallback: bool = False,
    ) -> None:
        self._limits = limits or Limits()
        # The ranks that have introduced themselves; for others to read only.
        self.peers: dict[PeerKey, Peer] = {}
        self._by_user: Counter[str] = Counter()
        self._cleared_s = -math.inf
        self._unanswered: set[PeerKey] = set()
        self._refusals: list[KeyDenied | RankTurnedAway] = []  # not yielded yet
        self._reasons: set[str] = set()  # for which a rank was turned away
        self.counts = Counts()
        security = keys or find_security(endpoint)
        self._socket = RecorderSocket(endpoint, security, self._note_denied, fallback=fallback)
        self.endpoint = self._socket.endpoint
        self.fell_back = self._socket.fell_back  # to a free port, as the one asked for was taken

    def receive(self, timeout_s: float) -> Iterator[Arrival]:
        """What has arrived, after waiting at most this long for something to arrive."""
        self._socket.wait(timeout_s)
        while self._refusals:
            yield self._refusals.pop()
        for _ in range(_FRAMES_A_CALL):
            message = self._socket.receive()
            if message is None:
                break
            yield from self._arrivals_of(message)
        self._answer_all()

    def resume(self, key: PeerKey, sequence: int, *, paused: bool = False) -> None:
        """Ask a rank to send from this number on, or to pause there."""
        peer = self.peers[key]
        peer.filed = sequence
        peer.is_paused, peer.is_ended = paused, False
        self._request_rows(peer)

    def filed(self, key: PeerKey, sequence: int) -> None:
        """Everything of this rank below this number is filed; it is told after this round."""
        self.peers[key].filed = sequence
        self._unanswered.add(key)

    def confirm_end(self, key: PeerKey) -> None:
        """The rank's end mark is filed too."""
        self.peers[key].is_ended = True
        self._unanswered.add(key)

    def refuse(self, key: PeerKey, sentence: str) -> None:
        """Tell a rank why it is refused, and take nothing more from it."""
        peer = self.peers[key]
        peer.is_refused = True
        self._send_no(peer.identity, key, sentence)

    def instruct(self, key: PeerKey, instruction: Instruction, number: int) -> bool:
        """Pass on what a page asks of a rank; whether it could leave. The rank's rows answer."""
        peer = self.peers.get(key)
        if peer is None or peer.is_refused or peer.is_ended:
            return False
        frame = Frame(
            Kind.INSTRUCT, key.run_id, key.rank, peer.token, number,
            time_ns=peer.time_ns, payload=instruction.to_bytes(),
        )  # fmt: skip
        return self._socket.send(peer.identity, frame)

    def forget(self, key: PeerKey) -> None:
        """Forget a rank; if it sends again it is asked who it is."""
        peer = self.peers.pop(key, None)
        if peer is not None:
            self._by_user[peer.user] -= 1

    def close(self) -> None:
        """Release the port; what was not acknowledged will be sent again."""
        self._socket.close()

    # --- up --------------------------------------------------------------------------------------

    def _note_denied(self, public: str, trouble: str) -> None:
        denied = self.counts.denied
        if public in denied or len(denied) < _DENIED_KEPT:
            if public not in denied:
                self._refusals.append(KeyDenied(public, trouble))
            denied[public] = denied.get(public, 0) + 1

    def _arrivals_of(self, message: Message) -> Iterator[Arrival]:
        """What one message means, once it has passed the checks."""
        self.counts.frames += 1
        key = None
        try:
            frame = unpack(message.parts)
            key = PeerKey(frame.run_id, frame.rank)
            peer = self._peer_of(frame, key, message)
            if peer is not None:
                yield from self._arrivals_from(peer, frame)
        except FrameError as error:
            self.counts.bad += 1
            if key is not None and key in self.peers:
                self.peers[key].bad += 1
            if error.other_version:
                self._send_no(message.identity, PeerKey("0" * 32, 0), str(error))
            yield BadArrived(key, message.address, str(error))

    def _peer_of(self, frame: Frame, key: PeerKey, message: Message) -> Peer | None:
        """The rank that sent a frame; None if it must introduce itself first."""
        if frame.kind not in UP:
            raise FrameError(f"Only a recorder sends a {frame.kind.name.lower()} frame.")
        peer = self.peers.get(key)
        if peer is not None and peer.user != message.user:
            raise FrameError(f"Another user's key was used for {key}.")
        if peer is None and frame.kind is Kind.HELLO:
            if reason := self._why_full(message.user):
                self._turn_away(key, message.identity, reason)
                return None
            token = 1 + secrets.randbits(30)
            peer = self.peers[key] = Peer(key, message.identity, message.user, token)
            self._by_user[peer.user] += 1
        if peer is None or (frame.token == 0 and frame.kind is not Kind.HELLO):
            self._send(message.identity, Frame(Kind.WHO, key.run_id, key.rank))
            return None
        peer.identity = message.identity
        peer.heard_s = time.monotonic()
        if frame.time_ns:
            peer.time_ns = frame.time_ns
        return peer

    def _why_full(self, user: str) -> str:
        """Why one more rank of this user's cannot be followed; empty if it can.

        Ended and silent ranks are forgotten first, except those that are still to be answered.
        """
        now_s = time.monotonic()
        if self._reached(user) and now_s - self._cleared_s > _CLEAR_EVERY_S:
            self._cleared_s = now_s
            for key, peer in list(self.peers.items()):
                is_over = peer.is_ended or now_s - peer.heard_s > _GONE_S
                if is_over and key not in self._unanswered:
                    self.forget(key)
        return self._reached(user)

    def _reached(self, user: str) -> str:
        """The limit that is reached, in words; empty if none is."""
        if len(self.peers) >= self._limits.peers:
            limit = f"{self._limits.peers} ranks, and that many are sending"
        elif user and self._by_user[user] >= (most := self._limits.key_peers):
            key = z85.decode(user).hex()
            limit = f"{most} ranks with one key, and that many send with the key {key}"
        else:
            return ""
        return (
            f"This recorder follows at most {limit}: the others keep their own logs, and are "
            "recorded once some have ended."
        )

    def _turn_away(self, key: PeerKey, identity: bytes, reason: str) -> None:
        """Tell a rank that it cannot be followed; report it once a reason."""
        if reason not in self._reasons:
            self._reasons.add(reason)
            self._refusals.append(RankTurnedAway(key, reason))
        self._send_no(identity, key, reason)

    def _arrivals_from(self, peer: Peer, frame: Frame) -> Iterator[Arrival]:
        """What a frame of a known rank means."""
        if frame.kind is Kind.HELLO:
            before, at_s = peer.greeted
            if before == peer.identity and peer.heard_s - at_s < _GREETING_S:
                self.counts.ignored += 1  # a flood of hellos must not keep the others waiting
                return
            hello = Hello.from_bytes(frame.payload)
            if (hello.run_id, hello.rank) != (peer.key.run_id, peer.key.rank):
                raise FrameError("A hello names another run or rank than its frame.")
            peer.head, peer.is_refused = frame.value, False
            peer.greeted = peer.identity, peer.heard_s
            yield HelloArrived(peer.key, hello, frame.value)
        elif peer.is_refused or frame.token != peer.token:
            # It was sent before the rank got our last request, which may have been lost.
            self.counts.ignored += 1
            if frame.kind is Kind.BEAT:
                self._send_want(peer)
        else:
            yield from self._arrivals_for_request(peer, frame)

    def _arrivals_for_request(self, peer: Peer, frame: Frame) -> Iterator[Arrival]:
        """A frame that answers our last request."""
        if frame.kind is Kind.ROWS:
            yield from self._rows_from(peer, frame)
        elif frame.kind is Kind.LOST:
            if frame.value <= frame.sequence:
                raise FrameError("A loss names no numbers.")
            yield GapArrived(peer.key, frame.sequence, frame.value)
        elif frame.sequence > peer.filed:
            self._request_rows(
                peer
            )  # everything below that number was sent, and some did not arrive
        elif frame.kind is Kind.END:
            yield EndArrived(peer.key, frame.sequence)
        else:
            peer.head = frame.value
            self._unanswered.add(peer.key)

    def _rows_from(self, peer: Peer, frame: Frame) -> Iterator[Arrival]:
        """A batch. A bad one counts as lost: sent again, it would be just as bad."""
        table = frame.table
        assert table is not None
        peer.row_frames += 1
        try:
            rows: Any = check(table, frame.payload)
        except CodecError as error:
            yield GapArrived(peer.key, frame.sequence, frame.sequence + 1)
            raise FrameError(f"Batch {frame.sequence} ({table.value}): {error}") from None
        batch = Batch(table, rows.num_rows, frame.payload)
        self._count_rows(peer, batch)
        if not peer.is_refused:
            yield RowsArrived(peer.key, frame.sequence, batch)

    def _count_rows(self, peer: Peer, batch: Batch) -> None:
        """Count a batch, and refuse a rank that sends more than any training does."""
        peer.rows += batch.row_count
        peer.bytes += len(batch.payload)
        self.counts.rows += batch.row_count
        self.counts.bytes += len(batch.payload)
        if peer.rows > self._limits.rank_rows or peer.bytes > self._limits.rank_bytes:
            self.refuse(
                peer.key,
                f"This recorder takes {self._limits.rank_rows} rows and "
                f"{self._limits.rank_bytes} bytes from one rank, and this one has sent more.",
            )

    # --- down ------------------------------------------------------------------------------------

    def _request_rows(self, peer: Peer) -> None:
        """Ask for everything from where the files end; frames sent before no longer count."""
        peer.token = 1 + peer.token % 0x7FFFFFFF
        peer.row_frames = 0
        self.counts.requests += 1
        self._send_want(peer)

    def _send_want(self, peer: Peer) -> None:
        if not peer.is_refused:
            self._send(peer.identity, self._answer(Kind.WANT, peer))

    def _answer_all(self) -> None:
        for key in self._unanswered:
            if (peer := self.peers.get(key)) is not None:
                self._send(peer.identity, self._answer(Kind.ACK, peer))
        self._unanswered.clear()

    def _answer(self, kind: Kind, peer: Peer) -> Frame:
        limits = self._limits
        fair = min(limits.credit_bytes, limits.credit_all_bytes // max(1, len(self.peers)))
        return Frame(
            kind, peer.key.run_id, peer.key.rank, peer.token, peer.filed,
            value=0 if peer.is_paused else max(limits.credit_least_bytes, fair),
            count=peer.row_frames, flags=ENDED if peer.is_ended and kind is Kind.ACK else 0,
        )  # fmt: skip

    def _send_no(self, identity: bytes, key: PeerKey, sentence: str) -> None:
        payload = sentence.encode()[:MAX_SENTENCE_BYTES]
        self._send(identity, Frame(Kind.NO, key.run_id, key.rank, payload=payload))

    def _send(self, identity: bytes, frame: Frame) -> None:
        """Send if it can leave now; a trainer that misses an answer asks again by its beat."""
        if not self._socket.send(identity, frame):
            self.counts.ignored += 1
