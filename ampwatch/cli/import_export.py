"""`ampwatch import FILE` and `ampwatch export RUN`: runs from other tools' files, and to them."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ampwatch.cli.options import FORMAT_OPTION, RUNS_FOLDER_OPTION
from ampwatch.cli.run_argument import (
    MAP_OPTION,
    RUN_ARGUMENT,
    clipboard_help,
    make_run,
)
from ampwatch.cli.terminal import answer, say
from ampwatch.errors import AmpwatchError
from ampwatch.files import draft_of

if TYPE_CHECKING:
    import pyarrow as pa

    from ampwatch.store import Run

IMPORT_HELP = f"""Import another trainer's log as a run.

  ampwatch import train.log
  ampwatch import metrics.csv --map loss=my_loss --map lr=alpha
  ampwatch import slurm-81.out.gz --format deepspeed -o runs/
  ampwatch import nvdlfw_inspect_statistics_logs/    one log for each rank
  {clipboard_help("import")}

Other commands then find it by its name. It reads text of Hugging Face, Apex,
DeepSpeed, Megatron-LM, fairseq and others, plain or compressed; CSV, JSON,
Parquet, TensorBoard and W&B files. Values that the log lacks stay absent.
"""


def import_(
    file: str = typer.Argument(metavar="FILE", show_default=False, help="The log; - reads a pipe."),
    format_: str = FORMAT_OPTION,
    mapped: list[str] = MAP_OPTION,
    out: Path = RUNS_FOLDER_OPTION,
) -> None:
    """Import a log and say where the run is."""
    folder = make_run(file, format_, mapped, out)
    answer(f"{folder}\n`ampwatch report {folder}` shows what is wrong with it.")


EXPORT_HELP = """Write a run as Parquet, CSV or TensorBoard files.

  ampwatch export train-1204 --format parquet -o tables/
  ampwatch export train-1204 --format csv -o tables/
  ampwatch export train-1204 --format tensorboard -o events/
  tensorboard --logdir events/

Parquet and CSV: a file for each table. In CSV, absent values are empty cells,
and lists (learning rates by group, exponent histograms) are JSON text.
TensorBoard: the scalars of steps, layers and devices, findings and settings as
text; each rank is a run of its own.
"""

TABLES = ("steps", "layers", "devices", "events")


class Format(str, enum.Enum):
    """The file formats of an export."""

    PARQUET = "parquet"
    CSV = "csv"
    TENSORBOARD = "tensorboard"


def export(
    run: str = RUN_ARGUMENT,
    old_out: Path = typer.Argument(None, hidden=True),
    format_: Format = typer.Option(
        ..., "--format", metavar="parquet|csv|tensorboard", help="What to write."
    ),
    out: Path = typer.Option(
        None, "-o", "--output", metavar="DIR", show_default=False,
        help="The folder to write to; it is made if needed.",
    ),
) -> None:  # fmt: skip
    """Export a run's tables to files."""
    from ampwatch.store import open_run

    if out is None and old_out is not None:
        say(f"`ampwatch export {run} {old_out}` is `ampwatch export {run} -o {old_out}` now.")
    out = out or old_out
    if out is None:
        raise AmpwatchError("-o DIR is missing: the folder to write to.")
    opened = open_run(run)
    if out.exists() and not out.is_dir():
        raise AmpwatchError(f"{out} is a file: pass a folder.")
    out.mkdir(parents=True, exist_ok=True)
    if format_ is Format.TENSORBOARD:
        _write_events(opened, out)
        return
    for table in TABLES:
        rows = opened.read(table)
        path = out / f"{table}.{format_.value}"
        write(rows, path, format_)
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
