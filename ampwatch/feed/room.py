"""How many ranks a receiver follows at once, in all and with one key."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Container

from zmq.utils import z85

from ampwatch.feed.keys import key_to_hex
from ampwatch.feed.peers import Limits, Peer, PeerKey

_GONE_S = 60.0  # whoever files its rows has let go of a rank that is silent for so long
_CLEAR_EVERY_S = 1.0


class Room:
    """Lets ranks in as far as the limits go; those that have ended or are gone make room."""

    def __init__(
        self,
        limits: Limits,
        peers: dict[PeerKey, Peer],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits = limits
        self._peers = peers
        self._clock = clock
        self._by_user: Counter[str] = Counter()
        self._cleared_s = -_CLEAR_EVERY_S

    def lack(self, user: str, unanswered: Container[PeerKey]) -> str:
        """Why there is no room for one more rank of this user's, if there is none.

        `unanswered` are ranks that are still to hear something, and stay.
        """
        lack = self._lack(user)
        if lack and self._clock() - self._cleared_s > _CLEAR_EVERY_S:
            self._clear(unanswered)
            lack = self._lack(user)
        return lack

    def take(self, peer: Peer) -> None:
        """Follow one more."""
        self._peers[peer.key] = peer
        self._by_user[peer.user] += 1

    def forget(self, key: PeerKey) -> None:
        """Follow one less."""
        peer = self._peers.pop(key, None)
        if peer is not None:
            self._by_user[peer.user] -= 1

    def _lack(self, user: str) -> str:
        if len(self._peers) >= self._limits.peers:
            return (
                f"This recorder follows {self._limits.peers} ranks at once, and that many send: "
                "the others keep their own logs, and are heard once some have ended."
            )
        if user and self._by_user[user] >= self._limits.key_peers:
            return (
                f"This recorder follows {self._limits.key_peers} ranks at once with one key, and "
                f"that many send with the key {key_to_hex(z85.decode(user))}: the others keep "
                "their own logs, and are heard once some have ended."
            )
        return ""

    def _clear(self, unanswered: Container[PeerKey]) -> None:
        self._cleared_s = self._clock()
        for key, peer in list(self._peers.items()):
            is_gone = time.monotonic() - peer.heard_s > _GONE_S
            if (peer.is_ended or is_gone) and key not in unanswered:
                self.forget(key)
