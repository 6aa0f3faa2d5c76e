"""The sockets of both ends: a trainer's connects, a recorder's binds, and neither blocks.

A socket learns by TCP's own means that the host at its other end is gone, not by ZeroMQ's
heartbeats. In libzmq up to 4.3.5 a connection whose queue was full when its peer was killed waits,
marked as broken, until the queue has been read; if a heartbeat is due in that moment, on either
side's account, libzmq aborts the process (`!_io_error`, stream_engine_base.cpp). So neither end of
the feed asks for heartbeats. A stranger's socket still may: that is why the recorder's socket lives
in a process of its own (`ampwatch.recorder`).
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import zmq

from ampwatch.codec import MAX_PAYLOAD_BYTES
from ampwatch.errors import EndpointTakenError, FeedError, FrameError
from ampwatch.feed.endpoint import check_endpoint
from ampwatch.feed.frames import Frame, pack, unpack
from ampwatch.feed.keys import Doorkeeper, Security

_TRAINER_QUEUE, _RECORDER_QUEUE = 1000, 32  # frames
_MAX_ANSWER_BYTES = 1 << 16
_IDLE_S, _BETWEEN_S, _PROBES = 15, 5, 3


def _new_socket(
    context: zmq.Context[zmq.Socket[bytes]], kind: int, endpoint: str, queued_frames: int
) -> zmq.Socket[bytes]:
    socket = context.socket(kind)
    socket.linger = 0  # nothing is waited for at closing, nor at an exit without it
    socket.sndhwm = socket.rcvhwm = queued_frames
    socket.ipv6 = "[" in endpoint
    # A connection ends half a minute after its other host has vanished.
    socket.tcp_keepalive = 1
    socket.tcp_keepalive_idle = _IDLE_S
    socket.tcp_keepalive_intvl = _BETWEEN_S
    socket.tcp_keepalive_cnt = _PROBES
    socket.tcp_maxrt = 1000 * (_IDLE_S + _BETWEEN_S * _PROBES)  # the same while data is under way
    return socket


class TrainerSocket:
    """A trainer's connection; once made it never raises: errors are counted."""

    def __init__(self, endpoint: str, security: Security) -> None:
        self.errors = 0
        self.is_open = True
        self._endpoint = check_endpoint(endpoint)
        self._security = security
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._dealer = self._connect()

    def send(self, frame: Frame) -> bool:
        """Send a frame if it can leave now; returns whether it did."""
        try:
            self._dealer.send_multipart(pack(frame), zmq.NOBLOCK)
        except zmq.Again:
            return False
        except zmq.ZMQError:
            self.errors += 1
            return False
        return True

    def received(self) -> Iterator[Frame]:
        """The frames that have arrived."""
        for _ in range(_TRAINER_QUEUE):
            try:
                frame = unpack(self._dealer.recv_multipart(zmq.NOBLOCK))
            except zmq.Again:
                return
            except (zmq.ZMQError, FrameError):
                self.errors += 1
                continue
            yield frame

    def wait(self, seconds: float) -> None:
        """Wait at most this long for a frame to arrive."""
        try:
            self._dealer.poll(round(seconds * 1000) + 1)
        except zmq.ZMQError:
            self.errors += 1

    def renew(self) -> None:
        """Connect again; what waited in the old socket's queue is dropped."""
        self._dealer.close(0)
        self._dealer = self._connect()

    def close(self) -> None:
        """Close the connection."""
        self._dealer.close(0)
        self._context.term()
        self.is_open = False

    def _connect(self) -> zmq.Socket[bytes]:
        dealer = _new_socket(self._context, zmq.DEALER, self._endpoint, _TRAINER_QUEUE)
        dealer.immediate = True  # nothing is queued for a peer that is not there
        dealer.maxmsgsize = _MAX_ANSWER_BYTES
        dealer.reconnect_ivl, dealer.reconnect_ivl_max = 100, 2000
        self._security.configure_trainer(dealer)
        dealer.connect(self._endpoint)
        return dealer


@dataclass(frozen=True, slots=True)
class Message:
    """What arrived at a recorder's socket, unchecked, and what libzmq knows of its sender."""

    identity: bytes
    parts: list[bytes]
    user: str  # the sender's public key
    address: str


class RecorderSocket:
    """A recorder's bound socket; FeedError if the endpoint cannot be had.

    `on_denied` is called with each key that may not connect (see `Doorkeeper`). With `fallback` a
    port that is taken is replaced by a free one.
    """

    def __init__(
        self,
        endpoint: str,
        security: Security,
        on_denied: Callable[[str, str], None],
        *,
        fallback: bool,
    ) -> None:
        self.fell_back = False
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._router = _new_socket(self._context, zmq.ROUTER, endpoint, _RECORDER_QUEUE)
        self._router.maxmsgsize = MAX_PAYLOAD_BYTES
        security.configure_recorder(self._router)
        self._doorkeeper = Doorkeeper(self._context, security, on_denied)
        try:
            self._bind(check_endpoint(endpoint), fallback=fallback)
        except FeedError:
            self.close()
            raise
        self.endpoint: str = bytes(self._router.get(zmq.LAST_ENDPOINT)).decode().rstrip("\0")
        self._poller = zmq.Poller()
        self._poller.register(self._router, zmq.POLLIN)
        self._poller.register(self._doorkeeper.socket, zmq.POLLIN)

    def wait(self, seconds: float) -> None:
        """Wait at most this long for something to arrive; decide who may connect."""
        self._poller.poll(round(seconds * 1000))
        self._doorkeeper.answer()

    def receive(self) -> Message | None:
        """The next message that has arrived."""
        try:
            identity, *body = self._router.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return None
        # libzmq 4.3.4 does not always know the properties of the identity's own part.
        of_sender = body[-1] if body else identity
        parts = [part.bytes for part in body]
        user, address = _property(of_sender, "User-Id"), _property(of_sender, "Peer-Address")
        return Message(identity.bytes, parts, user, address)

    def send(self, identity: bytes, frame: Frame) -> bool:
        """Send a frame if it can leave now; returns whether it did."""
        try:
            self._router.send_multipart([identity, *pack(frame)], zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        return True

    def close(self) -> None:
        """Release the port."""
        self._doorkeeper.close()
        self._router.close(0)
        self._context.term()

    def _bind(self, endpoint: str, *, fallback: bool) -> None:
        try:
            self._router.bind(endpoint)
        except zmq.ZMQError as error:
            if error.errno != errno.EADDRINUSE:
                raise FeedError(f"{endpoint} cannot be listened on: {error.strerror}.") from None
            if not fallback or not endpoint.startswith("tcp://"):
                raise EndpointTakenError(
                    f"{endpoint} is taken by another program, perhaps another recorder or "
                    "dashboard: stop that one, or choose another port here and in the trainers' "
                    "AMPWATCH_ENDPOINT."
                ) from None
            self._router.bind(endpoint.rpartition(":")[0] + ":*")
            self.fell_back = True


def _property(part: zmq.Frame, name: str) -> str:
    """A property of a message's sender, as libzmq knows it, or nothing."""
    try:
        return str(part.get(name))
    except zmq.ZMQError:
        return ""
