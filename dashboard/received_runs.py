"""The feed's recorder of this server, and where the runs go that it receives.

Received runs are kept among the user's own with AMPWATCH_KEEP_RECEIVED=1 (`ampwatch dashboard
--keep`), or if trainers of other machines may send. Else they are in a temporary folder, which is
removed as this server ends; each can be kept from the page.
"""

from __future__ import annotations

import atexit
import contextlib
import secrets
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import server_options
import streamlit as st

from ampwatch.environment import state_folder
from ampwatch.errors import AmpwatchError
from ampwatch.recorder import Recorder
from ampwatch.store import locks

_NEW_S = 60.0  # its process may not hold it yet


@dataclass(frozen=True, slots=True)
class ServerFeed:
    """The recorder of this server, or why there is none."""

    recorder: Recorder | None
    absence: str = ""
    received: Path | None = None  # where runs are that are not kept

    @property
    def trouble(self) -> tuple[str, ...]:
        """Sentences on why trainers do not reach this server's recorder; none if they do."""
        if self.recorder is None:
            return (self.absence,) if self.absence else ()
        if self.recorder.is_running:
            return ()
        return ("No feed: its process ended again and again.",)

    @property
    def notes(self) -> tuple[str, ...]:
        """The messages of this server's recorder, the newest last."""
        return self.recorder.notes if self.recorder else ()


@st.cache_resource(show_spinner=False)
def server_feed() -> ServerFeed:
    """This server's recorder of runs from the feed, started once; a taken port is left alone."""
    endpoint = server_options.feed_endpoint()
    if endpoint is None:
        return ServerFeed(None)  # as its user asked
    place = None
    try:
        if server_options.keeps_received_runs(endpoint):
            started = Recorder(endpoint, server_options.shown_folders()[0], fallback=True).start()
        else:
            place = temporary_folder()  # before it starts: removed after it ends
            started = Recorder(
                endpoint, place, fallback=True, beside=server_options.shown_folders()
            ).start()
    except AmpwatchError as error:
        return ServerFeed(None, f"No feed: {error}")
    return ServerFeed(started, received=place)


def temporary_folder() -> Path:
    """A folder for received runs, removed as this process ends; removes those of killed ones."""
    try:
        place = state_folder() / "received"
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        _remove_left_folders(place)
        folder = place / secrets.token_hex(8)
        folder.mkdir(mode=0o700)
    except (OSError, RuntimeError):
        folder = Path(tempfile.mkdtemp(prefix="ampwatch-received-"))
    locks.hold(folder)  # until this process ends
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _remove_left_folders(place: Path) -> None:
    for left in place.iterdir():
        is_new = time.time() - left.stat().st_mtime < _NEW_S
        if not is_new and not locks.is_held(left):
            shutil.rmtree(left, ignore_errors=True)


def keep_run(run_folder: Path, runs: Path) -> Path:
    """Move a received run to the user's own runs; AmpwatchError says why it stays."""
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
