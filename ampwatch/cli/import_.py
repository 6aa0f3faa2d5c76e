"""`ampwatch import FILE`: another trainer's log becomes an ordinary run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ampwatch.cli.find import usual_folder
from ampwatch.cli.terminal import answer, asides
from ampwatch.errors import AmpwatchError

if TYPE_CHECKING:
    from ampwatch.importers import ImportOptions
    from ampwatch.importers.options import OnProgress

NAME = "import"
HELP = """Import the log of another trainer as a run.

All other commands then work on it. Reads the text that Apex, fairseq, DeepSpeed, Megatron-LM,
Hugging Face's Trainer and others print, plain or compressed, and CSV, JSON, Parquet, TensorBoard
and W&B files. Values that the log does not contain are absent in the run. FILE may be - for
standard input, or a folder in which each rank wrote a log of its own: NVIDIA's inspector and
torchtitan do so.

\b
Examples:
  ampwatch import train.log
  ampwatch import metrics.csv --map loss=my_loss --map lr=rate
  ampwatch import slurm-81.out.gz --as deepspeed --out runs/
  ampwatch import nvdlfw_inspect_statistics_logs/
"""

# For smaller files a progress bar would only flicker.
BAR_FROM_BYTES = 32 << 20

FILE_ARGUMENT = typer.Argument(metavar="FILE", show_default=False, help="The log, or - for stdin.")
AS_OPTION = typer.Option(
    None, "--as", metavar="FORMAT", show_default=False, help="The format, if it is not recognised."
)
MAP_OPTION = typer.Option(
    [], "--map", metavar="COLUMN=NAME", show_default=False,
    help="The table's name for one of our columns, such as loss=train/loss.",
)  # fmt: skip


def command(
    file: str = FILE_ARGUMENT,
    as_: str = AS_OPTION,
    mapped: list[str] = MAP_OPTION,
    out: Path = typer.Option(
        None,
        "--out",
        metavar="DIR",
        show_default=False,
        help="The folder for the run.  [default: ./ampwatch-runs]",
    ),
) -> None:
    """Import and say where the run is."""
    folder = make_run(file, out or usual_folder(), wanted_of(as_, mapped))
    answer(f"{folder}\n`ampwatch report {folder}` shows what is wrong with it.")


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
