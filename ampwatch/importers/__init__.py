"""A foreign log in, a `Run` out: one small file a framework, one registry.

    bytes -> lines -> format (what a line says) -> timeline (which step, which rank) -> rows

A format recognises its framework's lines and says what they say, absent where they are silent;
`store` writes the rows, and from there a foreign run is a run like any other. `import_log` is the
door; who follows a log that grows holds a `TextImport`.
"""

from __future__ import annotations

from pathlib import Path

from ampwatch.errors import LogError
from ampwatch.importers.asking import Seen, Wanted
from ampwatch.importers.following import GrowingLog, nothing_known
from ampwatch.importers.registry import BY_SOURCE, FORMATS
from ampwatch.importers.source import Source
from ampwatch.importers.table_import import SOURCES, import_table, open_table
from ampwatch.importers.text_import import TextImport, import_text

__all__ = [
    "FORMATS", "GrowingLog", "Source", "TextImport", "Wanted", "import_log", "known_sources",
    "nothing_known",
]  # fmt: skip


def known_sources() -> tuple[str, ...]:
    """The names that a format goes by."""
    return tuple(sorted({*BY_SOURCE, *SOURCES}))


def import_log(
    path: str | Path, out: Path, wanted: Wanted | None = None, seen: Seen | None = None
) -> Path:
    """Make a run of a foreign log in the folder `out`; the run's folder.

    The format is recognised, unless it is asked for. Raises LogError, with a sentence, where the
    file cannot be read or tells of no training; then nothing is left in `out`.
    """
    wanted = wanted or Wanted()
    if wanted.source is not None and wanted.source not in known_sources():
        raise LogError(
            f"No format is called {wanted.source!r}: there are {', '.join(known_sources())}."
        )
    with Source(path) as source:
        table = None
        if wanted.source is None or wanted.source in (*SOURCES, "hf-trainer"):
            table = open_table(source, wanted)
        if table is not None:
            return import_table(source, table, out, wanted, seen)
        if wanted.source in SOURCES:
            raise LogError(f"{path} is no {wanted.source} file.", path=path)
        if wanted.columns:
            raise LogError(f"{path} is text: --map is for CSV, JSON lines and other tables.")
        return import_text(source, out, wanted, seen)
