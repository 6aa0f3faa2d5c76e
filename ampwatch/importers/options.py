"""Options of an import, and the description of the new run."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ampwatch.importers.log_file import STANDARD_INPUT
from ampwatch.store import RunInfo

OnProgress = Callable[[int, int], None]  # bytes read, bytes in all (0 if unknown)


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """The format, the columns and the name, if they are not to be recognised."""

    source: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)  # our column: the log's name of it
    name: str | None = None


def fresh_info(path: str, options: ImportOptions) -> RunInfo:
    """A description of a new run, named after its file."""
    stem = "standard-input" if path == STANDARD_INPUT else _stem(Path(path))
    return RunInfo(id=secrets.token_hex(16), name=options.name or stem or "log", source="text")


_COMPRESSED = {".gz", ".bz2", ".xz", ".zst"}


def _stem(path: Path) -> str:
    """The file's name without its suffixes: `lr-0.1` for `lr-0.1.log.gz`."""
    if path.name.startswith("events.out."):
        return "events"
    return Path(path.stem).stem if path.suffix in _COMPRESSED else path.stem
