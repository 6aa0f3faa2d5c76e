"""Where the recorder listens: what the user says, else what a recorder here has announced.

A recorder that had to take another port writes it into the user's state folder, one file a host
(homes are shared), so that trainers started after it find it with nothing configured.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import uuid
from collections.abc import Mapping
from pathlib import Path

from ampwatch.errors import FeedError

DEFAULT_ENDPOINT = "tcp://127.0.0.1:5797"
_FORM = re.compile(r"(tcp://[^\s/]+:(\d{1,5}|\*)|ipc://\S+)")


def resolve_endpoint(
    endpoint: str | None = None, environ: Mapping[str, str] = os.environ
) -> str | None:
    """The endpoint a trainer connects to; None when the user has switched the feed off."""
    chosen = endpoint or environ.get("AMPWATCH_ENDPOINT") or announced(environ) or DEFAULT_ENDPOINT
    return None if chosen == "off" else check_endpoint(chosen)


def check_endpoint(endpoint: str) -> str:
    """The endpoint itself, or a FeedError that shows the form."""
    if not _FORM.fullmatch(endpoint):
        raise FeedError(
            f"{endpoint!r} is no endpoint: write tcp://HOST:PORT, such as {DEFAULT_ENDPOINT}, "
            "or off."
        )
    return endpoint


def is_local(endpoint: str) -> bool:
    """Whether nobody outside this machine can reach the endpoint."""
    host = endpoint.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    return endpoint.startswith("ipc://") or host in {"localhost", "::1"} or host.startswith("127.")


def reachable_form(endpoint: str) -> str:
    """What a trainer on this machine connects to, for an endpoint that listens on every address."""
    return endpoint.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")


def state_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """The user's folder for what programs note for themselves."""
    if base := environ.get("XDG_STATE_HOME"):
        return Path(base) / "ampwatch"
    return Path("~/.local/state/ampwatch").expanduser()


def announce(endpoint: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Note the endpoint that this process listens on; whether that could be written."""
    path = _note(environ)
    draft = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft.write_text(json.dumps({"endpoint": endpoint, "pid": os.getpid()}), "utf-8")
        draft.replace(path)
    except OSError:
        return False
    return True


def withdraw(environ: Mapping[str, str] = os.environ) -> None:
    """Take this process's note back; another's stays."""
    with contextlib.suppress(OSError):
        if _read_note(environ).get("pid") == os.getpid():
            _note(environ).unlink()


def announced(environ: Mapping[str, str] = os.environ) -> str | None:
    """The endpoint that a recorder on this host, still alive, has noted."""
    note = _read_note(environ)
    endpoint, pid = note.get("endpoint"), note.get("pid")
    if not isinstance(endpoint, str) or not _FORM.fullmatch(endpoint) or not _is_alive(pid):
        return None
    return endpoint


def _note(environ: Mapping[str, str]) -> Path:
    host = re.sub(r"[^A-Za-z0-9.-]", "_", socket.gethostname())
    return state_folder(environ) / f"recorder-{host}.json"


def _read_note(environ: Mapping[str, str]) -> dict[str, object]:
    try:
        note = json.loads(_note(environ).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return note if isinstance(note, dict) else {}


def _is_alive(pid: object) -> bool:
    if not isinstance(pid, int) or pid <= 0:
        return False
    if os.name == "nt":
        return True  # os.kill would end it there; a stale note costs no more than the live view
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return False  # not ours
    return True
