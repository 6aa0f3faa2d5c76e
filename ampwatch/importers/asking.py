"""What whoever imports a log asks for."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ampwatch.importers.source import STANDARD_INPUT
from ampwatch.store import RunInfo

Seen = Callable[[int, int], None]  # bytes read, bytes in all (0 where that is not known)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The format, the columns and the name, where they are not to be recognised."""

    source: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)  # ours: the log's own names
    name: str | None = None


def fresh_info(path: str, wanted: Wanted) -> RunInfo:
    """A run of its own, named for its file."""
    stem = "standard-input" if path == STANDARD_INPUT else _stem(Path(path))
    return RunInfo(id=secrets.token_hex(16), name=wanted.name or stem or "log", source="text")


_PACKED = {".gz", ".bz2", ".xz", ".zst"}


def _stem(path: Path) -> str:
    """The file's name without what says how it is packed and what it is: `lr-0.1` of a log."""
    if path.name.startswith("events.out."):
        return "events"
    return Path(path.stem).stem if path.suffix in _PACKED else path.stem
