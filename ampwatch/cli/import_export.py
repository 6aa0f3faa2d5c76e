"""`ampwatch import FILE` and `ampwatch export RUN`: runs from other tools' files, and to them."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ampwatch.cli.run_argument import (
    AS_OPTION,
    MAP_OPTION,
    RUN_ARGUMENT,
    clipboard_help,
    make_run,
)
from ampwatch.cli.terminal import answer
from ampwatch.errors import AmpwatchError
from ampwatch.files import draft_of

if TYPE_CHECKING:
    import pyarrow as pa

    from ampwatch.store import Run

IMPORT_HELP = f"""Import the log of another trainer as a run.

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

{clipboard_help("import")}"""


def import_(
    file: str = typer.Argument(metavar="FILE", show_default=False, help="The log, or - for stdin."),
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
    """Import a log and say where the run is."""
    folder = make_run(file, as_, mapped, out)
    answer(f"{folder}\n`ampwatch report {folder}` shows what is wrong with it.")


EXPORT_HELP = """Write a run as Parquet, CSV or TensorBoard files.

Parquet and CSV: one file for each table, in the folder OUT. In CSV, absent values are empty cells
and lists (learning rates by group, exponent histograms) are JSON text.

TensorBoard: an event file with the scalars of steps, layers and devices, and the findings and
settings as text; each rank is a run of its own.

\b
Examples:
  ampwatch export train-1204 --to parquet tables/
  ampwatch export train-1204 --to csv tables/
  ampwatch export train-1204 --to tensorboard events/ && tensorboard --logdir events/
"""

TABLES = ("steps", "layers", "devices", "events")


class Format(str, enum.Enum):
    """The file formats of an export."""

    PARQUET = "parquet"
    CSV = "csv"
    TENSORBOARD = "tensorboard"


def export(
    run: str = RUN_ARGUMENT,
    out: Path = typer.Argument(
        metavar="OUT", show_default=False, help="A folder; it is created if needed."
    ),
    to: Format = typer.Option(..., "--to", help="The format."),
) -> None:
    """Export a run's tables to files."""
    from ampwatch.store import open_run

    opened = open_run(run)
    if out.exists() and not out.is_dir():
        raise AmpwatchError(f"{out} is a file: pass a folder.")
    out.mkdir(parents=True, exist_ok=True)
    if to is Format.TENSORBOARD:
        _write_events(opened, out)
        return
    for table in TABLES:
        rows = opened.read(table)
        path = out / f"{table}.{to.value}"
        write(rows, path, to)
        answer(f"{path}: {rows.num_rows:,} rows")


def _write_events(run: Run, out: Path) -> None:
    from ampwatch.diagnosis.value_text import bytes_text
    from ampwatch.follow import diagnose
    from ampwatch.report import write_event_files

    for path in write_event_files(run, diagnose(run), out):
        answer(f"{path}: {bytes_text(path.stat().st_size)}")


def write(rows: pa.Table, path: Path, to: Format) -> None:
    """Export one table as one file, which appears complete or not at all."""
    with draft_of(path) as draft:
        if to is Format.PARQUET:
            import pyarrow.parquet as pq

            pq.write_table(rows, draft, compression="zstd")
        else:
            from pyarrow import csv

            csv.write_csv(_flat(rows), draft)


def _flat(rows: pa.Table) -> pa.Table:
    """The table to export as CSV, with what CSV cannot hold (lists, dictionaries) as text."""
    import json

    import pyarrow as pa

    for position, field in enumerate(rows.schema):
        column = rows.column(position)
        if pa.types.is_nested(field.type):
            texts = [None if v is None else json.dumps(v) for v in column.to_pylist()]
            rows = rows.set_column(position, field.name, pa.array(texts, pa.string()))
        elif pa.types.is_dictionary(field.type):
            rows = rows.set_column(position, field.name, column.cast(field.type.value_type))
    return rows
