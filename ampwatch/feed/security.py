"""Who may connect to whom: CURVE on every socket, and a list of allowed keys.

Loopback is not private: whoever bound the port first would receive another user's frames. So a
trainer talks only to a recorder that holds the key it expects (its own user's, or
$AMPWATCH_RECORDER_KEY), and a recorder listens only to its own key and those on its list.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zmq
from zmq.auth.base import Authenticator
from zmq.utils import z85

from ampwatch.errors import FeedError, warn
from ampwatch.feed.endpoint import is_local
from ampwatch.feed.keys import KeyPair, key_from_hex, key_to_hex, legible_keys, own_keys

_DOMAIN = "ampwatch"


@dataclass(frozen=True, slots=True)
class Security:
    """The keys that a socket uses and demands; `own` is None if encryption was switched off."""

    own: KeyPair | None
    recorder: bytes | None = None
    folder: Path | None = None

    def configure_trainer(self, dealer: zmq.Socket[bytes]) -> None:
        """Make a trainer's socket talk only to the recorder it trusts."""
        if self.own is not None:
            dealer.curve_publickey = self.own.public
            dealer.curve_secretkey = self.own.secret
            dealer.curve_serverkey = self.recorder or self.own.public

    def configure_recorder(self, router: zmq.Socket[bytes]) -> None:
        """Make a recorder's socket demand a key, which the doorkeeper then checks."""
        if self.own is not None:
            router.curve_server = True
            router.curve_publickey = self.own.public
            router.curve_secretkey = self.own.secret
            router.zap_domain = _DOMAIN.encode()


def find_security(
    endpoint: str, *, insecure: bool = False, environ: Mapping[str, str] = os.environ
) -> Security:
    """The security for this endpoint: the user's keys, unless it was switched off."""
    if insecure or environ.get("AMPWATCH_INSECURE") == "1":
        _warn_of_no_encryption(endpoint)
        return Security(own=None)
    if not zmq.has("curve"):
        raise FeedError(
            "This libzmq was built without CURVE, so the feed would be open to every user of this "
            "machine: install pyzmq from its own wheels, or set AMPWATCH_INSECURE=1 if nobody else "
            "can log in."
        )
    text = environ.get("AMPWATCH_RECORDER_KEY")
    recorder = key_from_hex(text, where="AMPWATCH_RECORDER_KEY") if text else None
    return Security(own=own_keys(), recorder=recorder)


def _warn_of_no_encryption(endpoint: str) -> None:
    reach = "every user of this machine" if is_local(endpoint) else "everybody on the network"
    warn(
        f"the feed at {endpoint} is neither encrypted nor authenticated: {reach} can read what a "
        "run sends, send rows of their own, or pose as the recorder.",
        stacklevel=5,
    )


class Doorkeeper:
    """Tells libzmq whether a key may connect, through pyzmq's own authenticator.

    It has no thread: the recorder polls `socket` beside its own and calls `answer`. `on_denied` is
    called with a key that was denied, and with what could not be read of the list of keys.
    """

    def __init__(
        self, context: zmq.Context[Any], security: Security, on_denied: Callable[[str, str], None]
    ) -> None:
        self._security = security
        self._on_denied = on_denied
        self._authenticator = Authenticator(context)
        self._authenticator.configure_curve_callback(_DOMAIN, self)
        self._authenticator.start()

    @property
    def socket(self) -> zmq.Socket[bytes]:
        """The socket to poll."""
        return self._authenticator.zap_socket

    def answer(self) -> None:
        """Answer every question that has arrived."""
        with contextlib.suppress(zmq.Again):
            while True:
                question = self.socket.recv_multipart(zmq.NOBLOCK)
                _finish(self._authenticator.handle_zap_message(question))

    def callback(self, _domain: str, key: bytes) -> bool:
        """Whether the holder of this key may connect; the list is read again each time."""
        own = self._security.own
        public = z85.decode(key)
        if own is not None and public == own.public:
            return True
        listed, trouble = legible_keys(self._security.folder)
        if own is not None and key_to_hex(public) in listed:
            return True
        self._on_denied(key_to_hex(public), trouble)
        return False

    def close(self) -> None:
        """Stop answering: nobody new may connect."""
        self._authenticator.stop()


def _finish(step: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that never waits: the authenticator does not, with a callback like ours."""
    try:
        step.send(None)
    except StopIteration:
        return
    step.close()
    raise RuntimeError("pyzmq's authenticator waited for something")
