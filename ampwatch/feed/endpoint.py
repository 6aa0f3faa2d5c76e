"""Where the recorder listens: what the user says, else what a recorder on this host announced.

A recorder that had to take another port writes it into the user's state folder, one file a host
(homes may be shared), so that trainers started later find it without configuration.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path

from ampwatch.environment import state_folder
from ampwatch.errors import FeedError
from ampwatch.files import draft_of

DEFAULT_ENDPOINT = "tcp://127.0.0.1:5797"
_FORM = re.compile(r"(tcp://[^\s/]+:(\d{1,5}|\*)|ipc://\S+)")


def resolve_endpoint(
    endpoint: str | None = None, environ: Mapping[str, str] = os.environ
) -> str | None:
    """The endpoint a trainer connects to; None when the user has switched the feed off."""
    chosen = endpoint or environ.get("AMPWATCH_ENDPOINT") or announced(environ) or DEFAULT_ENDPOINT
    return None if chosen == "off" else check_endpoint(chosen)


def check_endpoint(endpoint: str) -> str:
    """Return an endpoint of the feed; FeedError, which shows the form, if it is not one."""
    if not _FORM.fullmatch(endpoint):
        raise FeedError(
            f"{endpoint!r} is not an endpoint: write tcp://HOST:PORT, such as {DEFAULT_ENDPOINT}, "
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


def announce(endpoint: str) -> bool:
    """Write down the endpoint that this process listens on; False if that cannot be written."""
    try:
        path = _note()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with draft_of(path) as draft:
            draft.write_text(json.dumps({"endpoint": endpoint, "pid": os.getpid()}), "utf-8")
    except (OSError, RuntimeError):  # RuntimeError: no home folder
        return False
    return True


def withdraw() -> None:
    """Delete the note of this process's endpoint; another's stays."""
    with contextlib.suppress(OSError, RuntimeError):
        if _read_note().get("pid") == os.getpid():
            _note().unlink()


def announced(environ: Mapping[str, str]) -> str | None:
    """The endpoint that a recorder on this host, still alive, has announced."""
    note = _read_note(environ)
    endpoint, pid = note.get("endpoint"), note.get("pid")
    if not isinstance(endpoint, str) or not _FORM.fullmatch(endpoint) or not _is_alive(pid):
        return None
    return endpoint


def _note(environ: Mapping[str, str] = os.environ) -> Path:
    host = re.sub(r"[^A-Za-z0-9.-]", "_", socket.gethostname())
    return state_folder(environ) / f"recorder-{host}.json"


def _read_note(environ: Mapping[str, str] = os.environ) -> dict[str, object]:
    try:
        note = json.loads(_note(environ).read_text("utf-8"))
    except (OSError, ValueError, RuntimeError):
        return {}
    return note if isinstance(note, dict) else {}


def _is_alive(pid: object) -> bool:
    if not isinstance(pid, int) or pid <= 0:
        return False
    if os.name == "nt":
        return True  # os.kill would end the process; a stale note costs only the live view
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return False  # not ours
    return True
