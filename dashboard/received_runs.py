"""Where runs go that come over the feed from trainers whose logs are not read here.

They are kept among one's own if that is asked for: by AMPWATCH_KEEP_RECEIVED=1 (`ampwatch dashboard
--keep`), or by letting trainers of other machines send. Else they lie in a folder that ends with
this server; each can be kept from the page.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import shutil
import tempfile
import time
from pathlib import Path

from ampwatch.environment import state_folder
from ampwatch.errors import AmpwatchError
from ampwatch.feed import is_local
from ampwatch.store import locks

_NEW_S = 60.0  # its process may not hold it yet
KEEP = "AMPWATCH_KEEP_RECEIVED"


def are_kept(endpoint: str) -> bool:
    """Whether what comes over the feed is kept among one's own runs."""
    setting = os.environ.get(KEEP, "")
    return setting == "1" if setting else not is_local(endpoint)


def folder_for_a_while() -> Path:
    """A folder that this process holds and removes at its end; what killed ones left goes."""
    try:
        place = state_folder() / "received"
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        _sweep(place)
        folder = place / secrets.token_hex(8)
        folder.mkdir(mode=0o700)
    except (OSError, RuntimeError):
        folder = Path(tempfile.mkdtemp(prefix="ampwatch-received-"))
    locks.hold(folder)  # until this process ends
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _sweep(place: Path) -> None:
    for left in place.iterdir():
        is_new = time.time() - left.stat().st_mtime < _NEW_S
        if not is_new and not locks.is_held(left):
            shutil.rmtree(left, ignore_errors=True)


def keep(run_folder: Path, runs: Path) -> Path:
    """Move a received run to one's own; AmpwatchError says why it stays where it is."""
    draft = runs / f".{secrets.token_hex(8)}.new"
    try:
        runs.mkdir(parents=True, exist_ok=True)
        shutil.copytree(run_folder, draft)
        kept = _free_name(runs, run_folder.name)
        draft.rename(kept)
    except OSError as problem:
        with contextlib.suppress(OSError):
            shutil.rmtree(draft)
        reason = problem.strerror or str(problem)
        raise AmpwatchError(f"{run_folder.name} cannot be kept in {runs} ({reason}).") from problem
    shutil.rmtree(run_folder, ignore_errors=True)
    return kept


def _free_name(runs: Path, name: str) -> Path:
    number, free = 2, runs / name
    while free.exists():
        number, free = number + 1, runs / f"{name}-{number}"
    return free
