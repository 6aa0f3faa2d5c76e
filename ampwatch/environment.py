"""What the environment decides: whether ampwatch is on and quiet, and where a user's files are."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

_YES, _NO = ("1", "on", "true", "yes"), ("0", "off", "false", "no")


def switched_off(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether AMPWATCH=0 (or off, false, no) in the environment turns ampwatch into no-ops."""
    return environment.get("AMPWATCH", "").strip().lower() in _NO


def switched_on(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether AMPWATCH=1 (or on, true, yes) has each training watched, without a line of code."""
    return environment.get("AMPWATCH", "").strip().lower() in _YES


def quiet(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether AMPWATCH_QUIET=1 (or on, true, yes) keeps `attach` from printing where the run is."""
    return environment.get("AMPWATCH_QUIET", "").strip().lower() in _YES


def keeps(text: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether AMPWATCH_KEEP=console,diff names this text to be kept beside a run's rows."""
    return text in environment.get("AMPWATCH_KEEP", "").lower().replace(",", " ").split()


def state_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """The folder for a user's own files, apart from runs; RuntimeError without a home."""
    if os.name == "nt":
        base = environment.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    else:
        base = environment.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "ampwatch"
