"""What the diagnosis says of the run so far: asked of `ampwatch` in a process of its own.

The training's own process would lose time to it, and its threads their lock.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PATIENCE_S = 120.0
_MOST = 0.95  # of a factor that is worth lowering by


class Advice:
    """One question about the learning rate; `answer` never waits."""

    def __init__(self, run_folder: Path) -> None:
        self._told = tempfile.TemporaryFile()  # noqa: SIM115 - open until the answer is read
        self._child = _ampwatch("report", run_folder, self._told)
        self._until = time.monotonic() + PATIENCE_S

    def answer(self) -> tuple[float | None, str] | None:
        """The factor for every rate, None to let them be, and why; None while nobody knows."""
        if self._child.poll() is None:
            if time.monotonic() < self._until:
                return None
            self.drop()
            return None, "the diagnosis did not answer in time"
        self._told.seek(0)
        told = _read_json(self._told.read())
        self.drop()
        return _factor_of(told)

    def drop(self) -> None:
        """Let go of it."""
        if self._child.poll() is None:
            self._child.kill()
        self._child.wait()
        self._told.close()


def write_plan(run_folder: Path) -> tuple[Path | None, int | None]:
    """The plan of a restart, written into the run's folder; and the exit code that says it."""
    with tempfile.TemporaryFile() as out:
        child = _ampwatch("plan", run_folder, out)
        try:
            code = child.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            return None, None
        out.seek(0)
        told = out.read()
    if _read_json(told) is None:
        return None, None
    path = run_folder / "plan.json"
    path.write_bytes(told)
    return path, code


def _ampwatch(command: str, run_folder: Path, out: Any) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "ampwatch", command, str(run_folder), "--json"]
    return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.DEVNULL)


def _read_json(text: bytes) -> dict[str, Any] | None:
    with contextlib.suppress(ValueError):
        told = json.loads(text)
        return told if isinstance(told, dict) else None
    return None


def _factor_of(told: dict[str, Any] | None) -> tuple[float | None, str]:
    rate = None if told is None else told.get("learning_rate")
    if not isinstance(rate, dict):
        return None, "the diagnosis could not be read"
    factor = rate.get("factor")
    if rate.get("action") != "lower" or not isinstance(factor, (int, float)):
        return None, f"the diagnosis does not say to lower it ({rate.get('action')})"
    if not 0.0 < factor <= _MOST:
        return None, "the diagnosis would change it by next to nothing"
    return float(factor), "as the diagnosis advises"
