"""`ampwatch import FILE`: makes an ordinary run of another trainer's log."""

from __future__ import annotations

from pathlib import Path

import typer

from ampwatch.cli.run_argument import AS_OPTION, MAP_OPTION, make_run
from ampwatch.cli.standard_input import clipboard_help
from ampwatch.cli.terminal import answer

NAME = "import"
HELP = f"""Import the log of another trainer as a run.

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

{clipboard_help(NAME)}"""

FILE_ARGUMENT = typer.Argument(metavar="FILE", show_default=False, help="The log, or - for stdin.")


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
    """Import a log and say where the run is."""
    folder = make_run(file, as_, mapped, out)
    answer(f"{folder}\n`ampwatch report {folder}` shows what is wrong with it.")
