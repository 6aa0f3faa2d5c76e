"""What a receiver yields: frames that have passed every check, as what they mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from ampwatch.codec import Batch
from ampwatch.feed.frames import Hello
from ampwatch.feed.peers import PeerKey


@dataclass(frozen=True, slots=True)
class HelloArrived:
    """A rank has introduced itself; it sends nothing until `resume` says from where."""

    peer: PeerKey
    hello: Hello
    head: int  # the next number it will write


@dataclass(frozen=True, slots=True)
class RowsArrived:
    """A batch of a rank, perhaps ahead of older ones that follow, perhaps for the second time."""

    peer: PeerKey
    sequence: int
    batch: Batch


@dataclass(frozen=True, slots=True)
class GapArrived:
    """Numbers of a rank that will never come, `first` up to and without `after`."""

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
    """A frame that was dropped; `peer` as far as the frame itself told."""

    peer: PeerKey | None
    address: str
    reason: str


@dataclass(frozen=True, slots=True)
class KeyDenied:
    """The holder of a key that is not on the list has tried to connect, for the first time."""

    public: str
    trouble: str = ""  # what of the list cannot be read


@dataclass(frozen=True, slots=True)
class RankTurnedAway:
    """A rank was refused, the first time for this reason: as many are here as may be."""

    peer: PeerKey
    reason: str


Arrival: TypeAlias = (
    HelloArrived | RowsArrived | GapArrived | EndArrived | BadArrived | KeyDenied | RankTurnedAway
)
