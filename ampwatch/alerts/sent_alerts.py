"""What was sent, in the user's state folder: nothing twice after a restart, or by two processes.

    STATE/alerts/outcomes.json             of each setting, the last message and the last failure
    STATE/alerts/runs/RUN_ID/sent.json     what of a run was told to whom, and whether it is over
    STATE/alerts/runs/RUN_ID/lock          held by the process that sends alerts of this run

All of it can be deleted: then what live runs suffer from is sent once more.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ampwatch.alerts.alert_settings import alerts_folder
from ampwatch.alerts.alert_text import LOST
from ampwatch.diagnosis import Severity
from ampwatch.errors import RunInUseError
from ampwatch.files import BAD_VALUES, make_private_folder, read_at_most, replace_file
from ampwatch.store.locks import held, hold, is_held

_MAX_BYTES = 1 << 20
_LOCK_WAIT_S = 5.0
_KEPT_S = 30 * 86400.0  # what was told of a run that is over


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a setting's messages last; 0 if there was none."""

    sent_ns: int = 0
    title: str = ""
    failed_ns: int = 0
    failure: str = ""


class RunClaim:
    """This process alone sends alerts of a run, until it lets go of it or ends."""

    def __init__(self, folder: Path, lock: int, run: Path) -> None:
        self._path, self._lock = folder / "sent.json", lock
        self._run = run
        self._told = _read_told(self._path)
        self._changing = threading.Lock()
        self._write(is_over=False)

    @classmethod
    def take(cls, run_id: str, run: Path) -> RunClaim | None:
        """The claim on the run at `run`; None while another process has it."""
        folder = alerts_folder() / "runs" / run_id
        make_private_folder(folder)
        try:
            return cls(folder, hold(folder), run)
        except RunInUseError:
            return None

    def told(self, setting_id: str) -> dict[str, Severity]:
        """What a receiver has had, by code."""
        with self._changing:
            return dict(self._told.get(setting_id, {}))

    def note(self, setting_id: str, told: Mapping[str, Severity]) -> None:
        """Note what a receiver has had."""
        with self._changing:
            self._told.setdefault(setting_id, {}).update(told)
            self._write(is_over=False)

    def is_live(self) -> None:
        """Note that the run goes on: it may be lost once more."""
        with self._changing:
            lost = [told for told in self._told.values() if LOST in told]
            for told in lost:
                del told[LOST]
            if lost:
                self._write(is_over=False)

    def release(self, *, is_over: bool) -> None:
        """Let others send; `is_over`: all is sent, and nobody needs to look again."""
        with self._changing:
            if is_over:
                self._write(is_over=True)
            os.close(self._lock)

    def _write(self, *, is_over: bool) -> None:
        with contextlib.suppress(OSError):  # a full disk: told again after a restart, at worst
            told = {"path": str(self._run.absolute()), "over": is_over, "told": self._told}
            replace_file(self._path, json.dumps(told).encode())


def unfinished_runs() -> Iterator[Path]:
    """Runs whose alerts a process did not send to their end; what is old is forgotten."""
    try:
        folders = sorted((alerts_folder() / "runs").iterdir())
    except OSError:
        return
    for folder in folders:
        told = _read(folder / "sent.json")
        if not told.get("over") and isinstance(told.get("path"), str):
            yield Path(told["path"])
        elif _age_s(folder / "sent.json") > _KEPT_S and not is_held(folder):
            shutil.rmtree(folder, ignore_errors=True)


def read_outcomes() -> dict[str, Outcome]:
    """What became of each setting's messages, by the setting's id."""
    try:
        return {key: Outcome(**told) for key, told in _read(_outcomes_path()).items()}
    except BAD_VALUES:
        return {}


def note_outcome(setting_id: str, *, title: str = "", failure: str = "") -> None:
    """Note that a message with this title was accepted, or why one was not."""
    now = time.time_ns()
    path = _outcomes_path()
    with contextlib.suppress(OSError, RunInUseError):  # a remark on the page, no more
        make_private_folder(path.parent)
        with held(path.parent, wait_s=_LOCK_WAIT_S):
            outcomes = read_outcomes()
            last = outcomes.get(setting_id, Outcome())
            outcomes[setting_id] = (
                replace(last, failed_ns=now, failure=failure)
                if failure
                else replace(last, sent_ns=now, title=title)
            )
            text = json.dumps({key: asdict(outcome) for key, outcome in outcomes.items()})
            replace_file(path, text.encode())


# --- within ---------------------------------------------------------------------------------------


def _outcomes_path() -> Path:
    return alerts_folder() / "outcomes.json"


def _read(path: Path) -> dict[str, Any]:
    """What a file on sent alerts says; nothing if it is damaged or not there."""
    try:
        told = json.loads(read_at_most(path, _MAX_BYTES))
    except (OSError, *BAD_VALUES):
        return {}
    return told if isinstance(told, dict) else {}


def _read_told(path: Path) -> dict[str, dict[str, Severity]]:
    try:
        return {
            setting: {code: Severity(severity) for code, severity in told.items()}
            for setting, told in _read(path).get("told", {}).items()
        }
    except BAD_VALUES:
        return {}


def _age_s(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0
