"""What a launcher left for its ranks to find: torchrun's rendezvous id, and torchrun itself.

`torchrun train.py`, run twice on one machine, gives both launches the same address and port and the
rendezvous id "none". Only the process that launched the ranks differs, so on one machine that
process is looked up, where the system shows it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

_RUN_ID = "TORCHELASTIC_RUN_ID"
_PROC = Path("/proc")
_DEEPEST_SHELL = 16


def rendezvous_id(environment: Mapping[str, str]) -> str | None:
    """The rendezvous id, or None where the launcher has none to tell launches apart."""
    given = environment.get(_RUN_ID, "").strip()
    return None if given.lower() in ("", "none") else given


def mark(environment: Mapping[str, str]) -> str | None:
    """Text that names the torchrun process that started this rank, equal on all of its ranks.

    None for other launchers, for several machines, and where the system has no /proc.
    """
    if _RUN_ID not in environment or environment.get("GROUP_WORLD_SIZE") != "1":
        return None
    process_id = os.getpid()
    for _ in range(_DEEPEST_SHELL):
        process_id, started = _parent(process_id)
        if process_id <= 0:
            return None
        # Shells between torchrun and the script carry the rank's environment as well.
        if not _is_rank(process_id):
            return f"{process_id}@{started}"
    return None


def _parent(process_id: int) -> tuple[int, str]:
    """The parent's process id and start time (in ticks since boot); 0 where it cannot be read."""
    try:
        parent_id = int(_stat(process_id)[1])
        return parent_id, _stat(parent_id)[19]
    except (OSError, ValueError, IndexError):
        return 0, ""


def _stat(process_id: int) -> list[str]:
    """The fields of /proc/PID/stat after the program's name, which may hold anything."""
    return (_PROC / str(process_id) / "stat").read_text().rpartition(")")[2].split()


def _is_rank(process_id: int) -> bool:
    """Whether the process was itself started with a rank's environment."""
    try:
        environment = (_PROC / str(process_id) / "environ").read_bytes()
    except OSError:  # another user's process is no shell of ours
        return False
    return f"\0{_RUN_ID}=".encode() in b"\0" + environment
