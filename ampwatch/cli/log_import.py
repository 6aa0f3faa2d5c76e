"""Makes a run of another trainer's log, for the commands that take one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ampwatch.cli.terminal import asides
from ampwatch.errors import AmpwatchError

if TYPE_CHECKING:
    from ampwatch.importers import ImportOptions
    from ampwatch.importers.import_options import OnProgress

# For smaller files a progress bar would only flicker.
BAR_FROM_BYTES = 32 << 20

AS_OPTION = typer.Option(
    None, "--as", metavar="FORMAT", show_default=False, help="The format, if it is not recognised."
)
MAP_OPTION = typer.Option(
    [], "--map", metavar="COLUMN=NAME", show_default=False,
    help="The table's name for one of our columns, such as loss=train/loss.",
)  # fmt: skip


def wanted_of(source: str | None, mapped: Sequence[str] = ()) -> ImportOptions:
    """The options of the import."""
    from ampwatch.importers import ImportOptions

    pairs = {}
    for text in mapped:
        column, is_there, name = text.partition("=")
        if not is_there or not column or not name:
            raise AmpwatchError(f"--map {text}: write COLUMN=NAME, such as --map loss=train/loss.")
        pairs[column] = name
    return ImportOptions(source=source, columns=pairs)


def make_run(file: str, out: Path, wanted: ImportOptions) -> Path:
    """Import a log, with a progress bar if it is large; return the run's folder."""
    from ampwatch.importers import import_log

    with _bar(file) as seen:
        return import_log(file, out, wanted, seen)


@contextmanager
def _bar(file: str) -> Iterator[OnProgress | None]:
    console = asides()
    path = Path(file)
    size = path.stat().st_size if path.is_file() else 0
    if size < BAR_FROM_BYTES or not console.is_terminal:
        yield None
        return
    from rich.progress import Progress

    with Progress(console=console, transient=True) as progress:
        task = progress.add_task(f"Reading {path.name}", total=size)
        yield lambda read, _: progress.update(task, completed=read)
