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
    stem = "standard-input" if path == STANDARD_INPUT else Path(path).name.split(".")[0]
    return RunInfo(id=secrets.token_hex(16), name=wanted.name or stem or "log", source="text")
