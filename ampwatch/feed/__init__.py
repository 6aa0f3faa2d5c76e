"""The feed: batches go live from trainers to a recorder over ZeroMQ. Only this package knows zmq.

A trainer's `Sender` connects, a recorder's `Receiver` binds. They share the frames of `frames.py`
and the user's keys. They know of the store only `codec.Batch` and `BatchSource`.
"""

from ampwatch.feed.endpoint import DEFAULT_ENDPOINT as DEFAULT_ENDPOINT
from ampwatch.feed.endpoint import announce as announce
from ampwatch.feed.endpoint import check_endpoint as check_endpoint
from ampwatch.feed.endpoint import is_local as is_local
from ampwatch.feed.endpoint import reachable_form as reachable_form
from ampwatch.feed.endpoint import resolve_endpoint as resolve_endpoint
from ampwatch.feed.endpoint import withdraw as withdraw
from ampwatch.feed.frames import Hello as Hello
from ampwatch.feed.frames import Instruction as Instruction
from ampwatch.feed.frames import Key as Key
from ampwatch.feed.keys import Security as Security
from ampwatch.feed.keys import allow_key as allow_key
from ampwatch.feed.keys import allowed_keys as allowed_keys
from ampwatch.feed.keys import find_security as find_security
from ampwatch.feed.keys import forget_key as forget_key
from ampwatch.feed.keys import key_folder as key_folder
from ampwatch.feed.keys import own_keys as own_keys
from ampwatch.feed.receiver import Arrival as Arrival
from ampwatch.feed.receiver import BadArrived as BadArrived
from ampwatch.feed.receiver import EndArrived as EndArrived
from ampwatch.feed.receiver import GapArrived as GapArrived
from ampwatch.feed.receiver import HelloArrived as HelloArrived
from ampwatch.feed.receiver import KeyDenied as KeyDenied
from ampwatch.feed.receiver import Limits as Limits
from ampwatch.feed.receiver import Peer as Peer
from ampwatch.feed.receiver import PeerKey as PeerKey
from ampwatch.feed.receiver import RankTurnedAway as RankTurnedAway
from ampwatch.feed.receiver import Receiver as Receiver
from ampwatch.feed.receiver import RowsArrived as RowsArrived
from ampwatch.feed.sender import InstructionArrived as InstructionArrived
from ampwatch.feed.sender import Sender as Sender
