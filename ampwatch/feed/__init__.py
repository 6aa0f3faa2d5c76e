"""The feed: batches go live from trainers to a recorder over ZeroMQ. Only this package knows zmq.

A trainer's `Sender` connects, a recorder's `Receiver` binds. They share the frames of `frames.py`
and the user's keys. They know of the store only `codec.Batch` and `BatchSource`.
"""

from ampwatch.feed.endpoint import (
    DEFAULT_ENDPOINT,
    announce,
    check_endpoint,
    is_local,
    reachable_form,
    resolve_endpoint,
    withdraw,
)
from ampwatch.feed.frames import Hello, Instruction, Key
from ampwatch.feed.keys import (
    Security,
    allow_key,
    allowed_keys,
    find_security,
    forget_key,
    key_folder,
    own_keys,
)
from ampwatch.feed.receiver import (
    Arrival,
    BadArrived,
    EndArrived,
    GapArrived,
    HelloArrived,
    KeyDenied,
    Limits,
    Peer,
    PeerKey,
    RankTurnedAway,
    Receiver,
    RowsArrived,
)
from ampwatch.feed.sender import InstructionArrived, Sender

__all__ = [
    "DEFAULT_ENDPOINT",
    "Arrival",
    "BadArrived",
    "EndArrived",
    "GapArrived",
    "Hello",
    "HelloArrived",
    "Instruction",
    "InstructionArrived",
    "Key",
    "KeyDenied",
    "Limits",
    "Peer",
    "PeerKey",
    "RankTurnedAway",
    "Receiver",
    "RowsArrived",
    "Security",
    "Sender",
    "allow_key",
    "allowed_keys",
    "announce",
    "check_endpoint",
    "find_security",
    "forget_key",
    "is_local",
    "key_folder",
    "own_keys",
    "reachable_form",
    "resolve_endpoint",
    "withdraw",
]
