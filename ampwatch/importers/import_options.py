"""The options of an import, and the new run that it makes: its name, description and folder."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ampwatch.importers.log_file import STANDARD_INPUT
from ampwatch.store import RunInfo, create_run

OnProgress = Callable[[int, int], None]  # bytes read, bytes in all (0 if unknown)


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """What the user sets for an import: the log's format, names of columns, the run's name."""

    source: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)  # our column: the log's name of it
    name: str | None = None


def fresh_info(path: str, options: ImportOptions) -> RunInfo:
    """The description of the run that an import is to make, named after the log's file."""
    stem = "standard-input" if path == STANDARD_INPUT else _stem(Path(path))
    return RunInfo(id=secrets.token_hex(16), name=options.name or stem or "log", source="text")


@contextmanager
def new_run(path: str, out: Path, options: ImportOptions) -> Iterator[tuple[Path, RunInfo]]:
    """The folder in `out` and the description of the run that a log becomes.

    An error takes the folder away again.
    """
    info = fresh_info(path, options)
    folder = create_run(out, info)
    try:
        yield folder, info
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


_COMPRESSED = {".gz", ".bz2", ".xz", ".zst"}


def _stem(path: Path) -> str:
    """The log file's name without its suffixes: `lr-0.1` for `lr-0.1.log.gz`."""
    if path.name.startswith("events.out."):
        return "events"
    return Path(path.stem).stem if path.suffix in _COMPRESSED else path.stem
