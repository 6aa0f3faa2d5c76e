"""The ranks that a receiver follows: what it knows of each, and how many it takes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Container
from dataclasses import dataclass, field

from zmq.utils import z85

from ampwatch.feed.keys import key_to_hex

_GONE_S = 60.0  # the recorder has closed the files of a rank that is silent for so long
_CLEAR_EVERY_S = 1.0


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

    def credit_each(self, peers: int) -> int:
        """The credit of one rank among so many."""
        fair = self.credit_all_bytes // max(1, peers)
        return max(self.credit_least_bytes, min(self.credit_bytes, fair))


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


class Peers:
    """The ranks that are followed, up to the limits; ended and silent ones make room for others."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self.by_key: dict[PeerKey, Peer] = {}
        self._limits = limits
        self._clock = clock
        self._by_user: Counter[str] = Counter()
        self._cleared_s = -_CLEAR_EVERY_S

    def why_full(self, user: str, keep: Container[PeerKey]) -> str:
        """Why one more rank of this user's cannot be followed; empty if it can.

        Ended and silent ranks are forgotten first, except those in `keep`.
        """
        reason = self._why_full(user)
        if reason and self._clock() - self._cleared_s > _CLEAR_EVERY_S:
            self._clear(keep)
            reason = self._why_full(user)
        return reason

    def add(self, peer: Peer) -> None:
        """Follow a rank."""
        self.by_key[peer.key] = peer
        self._by_user[peer.user] += 1

    def forget(self, key: PeerKey) -> None:
        """Follow a rank no more."""
        peer = self.by_key.pop(key, None)
        if peer is not None:
            self._by_user[peer.user] -= 1

    def _why_full(self, user: str) -> str:
        if len(self.by_key) >= self._limits.peers:
            return (
                f"This recorder follows at most {self._limits.peers} ranks, and that many are "
                "sending: the others keep their own logs, and are recorded once some have ended."
            )
        if user and self._by_user[user] >= self._limits.key_peers:
            return (
                f"This recorder follows at most {self._limits.key_peers} ranks with one key, and "
                f"that many send with the key {key_to_hex(z85.decode(user))}: the others keep "
                "their own logs, and are recorded once some have ended."
            )
        return ""

    def _clear(self, keep: Container[PeerKey]) -> None:
        self._cleared_s = self._clock()
        for key, peer in list(self.by_key.items()):
            is_gone = time.monotonic() - peer.heard_s > _GONE_S
            if (peer.is_ended or is_gone) and key not in keep:
                self.forget(key)
