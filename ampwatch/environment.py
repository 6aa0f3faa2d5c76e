"""What the environment decides: whether ampwatch is on, and where it keeps a user's own files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def switched_off(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether AMPWATCH=0 (or off, false, no) in the environment turns ampwatch into no-ops."""
    return environment.get("AMPWATCH", "").strip().lower() in ("0", "off", "false", "no")


def state_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """The folder for a user's own files, apart from runs; RuntimeError without a home."""
    if os.name == "nt":
        base = environment.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    else:
        base = environment.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "ampwatch"
