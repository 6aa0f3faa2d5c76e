"""Logs of other trainers become runs: one small file for each format.

    bytes -> lines -> format (what a line says) -> run builder (which step, which rank) -> rows

A format recognises its framework's lines and returns what they state. `store` writes the rows, and
from then on an imported run is a run like any other. `import_log` imports a whole file;
`TextLogFollower` follows a log that is still being written.
"""

from __future__ import annotations

from pathlib import Path

from ampwatch.errors import LogError
from ampwatch.importers.formats import FORMATS
from ampwatch.importers.import_options import ImportOptions, OnProgress
from ampwatch.importers.log_file import LogFile
from ampwatch.importers.named_numbers import TEXT_COLUMNS
from ampwatch.importers.table_import import SOURCES, import_table, open_table
from ampwatch.importers.text_import import (
    TextImport,
    TextLogFollower,
    import_ranks,
    import_text,
    known_sources,
    nothing_known,
    rank_logs,
)

__all__ = [
    "FORMATS", "ImportOptions", "LogFile", "TextImport", "TextLogFollower", "import_log",
    "known_sources", "nothing_known", "rank_logs",
]  # fmt: skip


def import_log(
    path: str | Path,
    out: Path,
    options: ImportOptions | None = None,
    on_progress: OnProgress | None = None,
) -> Path:
    """Import another trainer's log into the folder `out`; return the run's folder.

    The format is recognised unless `options` names one; a folder with a log of each rank becomes a
    run with all of them. Raises LogError, with a sentence, if the file cannot be read or holds no
    training; then nothing is left in `out`.
    """
    options = options or ImportOptions()
    if options.source is not None and options.source not in known_sources():
        raise LogError(
            f"There is no format {options.source!r}. Known formats: {', '.join(known_sources())}."
        )
    if logs := rank_logs(Path(path)):
        return import_ranks(Path(path), logs, out, options, on_progress)
    with LogFile(path) as log:
        table = None
        if options.source is None or options.source in (*SOURCES, "hf-trainer"):
            table = open_table(log, options)
        if table is not None:
            return import_table(log, table, out, options, on_progress)
        if options.source in SOURCES:
            raise LogError(f"{path} is not a {options.source} file.", path=path)
        if odd := options.columns.keys() - TEXT_COLUMNS:
            raise LogError(
                f"--map {min(odd)}={options.columns[min(odd)]}: of a text log, "
                f"{', '.join(TEXT_COLUMNS)} can be named."
            )
        return import_text(log, out, options, on_progress)
