"""The user's keys, in files only the user may read, and who may connect to whom by them.

The folder is $AMPWATCH_CONFIG_DIR, else the platform's configuration folder. Keys are written as 64
hexadecimal digits, which need no quoting in a shell. A key pair is made on first use. If many
ranks ask for it at once, one of them makes it and all get the same.

CURVE is on every socket. Loopback is not private: whoever bound the port first would receive
another user's frames. So a trainer talks only to a recorder that holds the key it expects (its own
user's, or $AMPWATCH_RECORDER_KEY). A recorder listens only to its own key and those on its list.
"""

from __future__ import annotations

import contextlib
import os
import stat
import uuid
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zmq
from zmq.auth.base import Authenticator
from zmq.utils import z85

from ampwatch.errors import FeedError, reason_of, warn
from ampwatch.feed.endpoint import is_local
from ampwatch.files import draft_of
from ampwatch.retry import retry

_PAIR_FILE = "key-pair"
_ALLOWED_FILE = "allowed-keys"
_PATIENCE_S = 2.0


@dataclass(frozen=True, slots=True)
class KeyPair:
    """Both halves as 32 raw bytes; the secret one is never printed."""

    public: bytes
    secret: bytes = field(repr=False)


def key_folder() -> Path:
    """The folder of this user's keys."""
    if chosen := os.environ.get("AMPWATCH_CONFIG_DIR"):
        return Path(chosen).expanduser()
    if os.name == "nt" and (roaming := os.environ.get("APPDATA")):
        return Path(roaming) / "ampwatch"
    if base := os.environ.get("XDG_CONFIG_HOME"):
        return Path(base) / "ampwatch"
    return Path("~/.config/ampwatch").expanduser()


def own_keys(folder: Path | None = None) -> KeyPair:
    """This user's key pair, made if there is none."""
    path = (folder or key_folder()) / _PAIR_FILE
    try:
        if not path.exists():
            _make_pair(path)
        _refuse_if_shared(path.parent, stat.S_IWGRP | stat.S_IWOTH, "chmod 700")
        _refuse_if_shared(path, stat.S_IRWXG | stat.S_IRWXO, "chmod 600")
        return _read_pair(path)
    except OSError as error:
        raise FeedError(
            f"The key pair {path} cannot be used ({reason_of(error)}): set "
            "AMPWATCH_CONFIG_DIR to a folder of yours, or AMPWATCH_ENDPOINT=off to send nothing."
        ) from error


def allowed_keys(folder: Path | None = None) -> dict[str, str]:
    """The public keys of others who may connect, each with its comment."""
    keys, trouble = legible_keys(folder)
    if trouble:  # writing the list again would drop the keys that cannot be read
        raise FeedError(trouble)
    return keys


def legible_keys(folder: Path | None = None) -> tuple[dict[str, str], str]:
    """The keys that can be read, and a sentence if some of the list cannot."""
    path = (folder or key_folder()) / _ALLOWED_FILE
    keys: dict[str, str] = {}
    trouble = ""
    try:
        if not path.exists():
            return {}, ""
        _refuse_if_shared(path, stat.S_IWGRP | stat.S_IWOTH, "chmod 600")
        lines = path.read_text("utf-8", errors="replace").splitlines()
    except OSError as error:
        return {}, f"{path} cannot be read ({reason_of(error)})."
    except FeedError as error:
        return {}, str(error)
    for line in lines:
        key, _, comment = line.strip().partition(" ")
        try:
            if key and not key.startswith("#"):
                keys[key_from_hex(key, where=str(path)).hex()] = comment.strip()
        except FeedError as error:
            trouble = trouble or str(error)
    return keys, trouble


def allow_key(public: str, comment: str = "", folder: Path | None = None) -> Path:
    """Let the holder of this public key connect; returns the file that lists it."""
    keys = allowed_keys(folder)
    keys[key_from_hex(public).hex()] = " ".join(comment.split())
    return _write_allowed(keys, folder or key_folder())


def forget_key(public: str) -> bool:
    """Remove a public key from the list; returns whether it was there."""
    keys = allowed_keys()
    was_listed = keys.pop(key_from_hex(public).hex(), None) is not None
    _write_allowed(keys, key_folder())
    return was_listed


def key_from_hex(text: str, where: str = "") -> bytes:
    """A key from the form that people pass on."""
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != 32:
        place = f" in {where}" if where else ""
        raise FeedError(
            f"{text[:80]!r}{place} is not a key: a key has 64 hexadecimal digits, as "
            "`ampwatch keys` prints them."
        )
    return key


def _make_pair(path: Path) -> None:
    """Write a new key pair, whole or not at all; if another process was first, its pair stays."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    public, secret = (z85.decode(key) for key in zmq.curve_keypair())
    text = (
        "# ampwatch: this user's key pair. Keep this file to yourself.\n"
        f"public {public.hex()}\nsecret {secret.hex()}\n"
    )
    draft = path.with_name(f".{_PAIR_FILE}-{uuid.uuid4().hex}")
    _write_new(draft, text)
    try:
        os.link(draft, path)  # unlike a rename, fails if the file exists
    except FileExistsError:
        return
    except OSError:
        # No hard links on this file system: a reader waits until the file is whole.
        with contextlib.suppress(FileExistsError):
            _write_new(path, text)
    finally:
        draft.unlink()


def _write_new(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(descriptor)


def _read_pair(path: Path) -> KeyPair:
    pair = retry(lambda: _parse_pair(path.read_text("utf-8", errors="replace")), _PATIENCE_S)
    if pair is None:
        raise FeedError(
            f"{path} holds no key pair: delete it to have a new one made, and pass the new public "
            "key on to the machines that knew the old one."
        )
    return pair


def _parse_pair(text: str) -> KeyPair | None:
    halves = dict(line.split(" ", 1) for line in text.splitlines() if line.count(" ") == 1)
    try:
        pair = KeyPair(bytes.fromhex(halves["public"]), bytes.fromhex(halves["secret"]))
        matches = zmq.curve_public(z85.encode(pair.secret)) == z85.encode(pair.public)
    except (KeyError, ValueError, zmq.ZMQError):
        return None
    return pair if matches else None


def _write_allowed(keys: Mapping[str, str], folder: Path) -> Path:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / _ALLOWED_FILE
    lines = ["# ampwatch: the public keys of others who may connect, one a line, then a comment."]
    lines += [f"{key} {comment}".strip() for key, comment in keys.items()]
    with draft_of(path) as draft:
        draft.unlink(missing_ok=True)  # of a process that was killed, which had the same number
        _write_new(draft, "\n".join(lines) + "\n")
    return path


def _refuse_if_shared(path: Path, forbidden: int, remedy: str) -> None:
    """Refuse a key's file or folder that others may use; Windows' profile folder needs no check."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if os.name != "nt" and mode & forbidden:
        raise FeedError(
            f"{path} is open to other users (mode {mode:04o}), so others may have read or changed "
            f"its keys: run `{remedy} {path}`, and delete the key pair if somebody may have."
        )


# --- who may connect to whom ----------------------------------------------------------------------

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


def find_security(endpoint: str, *, insecure: bool = False) -> Security:
    """The security for this endpoint: the user's keys, unless it was switched off."""
    if insecure or os.environ.get("AMPWATCH_INSECURE") == "1":
        _warn_of_no_encryption(endpoint)
        return Security(own=None)
    if not zmq.has("curve"):
        raise FeedError(
            "This libzmq was built without CURVE, so the feed would be open to every user of this "
            "machine: install pyzmq from its own wheels, or set AMPWATCH_INSECURE=1 if nobody else "
            "can log in."
        )
    text = os.environ.get("AMPWATCH_RECORDER_KEY")
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
        """The socket of the authenticator of keys, to poll."""
        return self._authenticator.zap_socket

    def answer(self) -> None:
        """Answer every question whether a key may connect."""
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
        if own is not None and public.hex() in listed:
            return True
        self._on_denied(public.hex(), trouble)
        return False

    def close(self) -> None:
        """Stop answering: nobody new may connect."""
        self._authenticator.stop()


def _finish(step: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine of the authenticator of keys, which never waits here."""
    try:
        step.send(None)
    except StopIteration:
        return
    step.close()
    raise RuntimeError("pyzmq's authenticator waited for something")
