"""`ampwatch report RUN|FILE...`: what is wrong with a run, why, and what to do."""

from __future__ import annotations

import enum
from contextlib import ExitStack

import typer

from ampwatch.cli.find import opened_run_or_log
from ampwatch.cli.terminal import answers

NAME = "report"
HELP = """What is wrong with a run, since when, why, and what to do. On one screen.

Several runs of one model that differ in their learning rate get one advice on it together. FILE is
the log of another trainer (Apex, fairseq, DeepSpeed, Megatron-LM, ...): it is told what that file
can honestly support. `ampwatch import` keeps it as a run.

\b
Examples:
  ampwatch report train.log
  ampwatch report ampwatch-runs/train-1204
  ampwatch report train-1204 --json | jq .verdict
  ampwatch report train-1204 --fail-on error     exit code 1 if an error stands
  ampwatch report rate-0.1 rate-0.03             one learning rate out of both
"""


class FailOn(str, enum.Enum):
    """From which severity on the exit code is 1."""

    ERROR = "error"
    WARNING = "warning"


def command(
    runs: list[str] = typer.Argument(
        metavar="RUN|FILE...",
        show_default=False,
        help="A run's folder, its name in ./ampwatch-runs, or another trainer's log.",
    ),
    json: bool = typer.Option(False, "--json", help="Print JSON instead of the letter."),
    fail_on: FailOn = typer.Option(
        None, "--fail-on", help="Exit with 1 if a finding this grave stands.", show_default=False
    ),
    as_: str = typer.Option(
        None, "--as", metavar="FORMAT", show_default=False, help="The format of FILE."
    ),
) -> None:
    """Print the report."""
    from ampwatch.diagnosis import Diagnosis, Severity, diagnose, diagnose_together
    from ampwatch.report import print_letter, print_together, to_json

    with ExitStack() as stack:
        opened = [stack.enter_context(opened_run_or_log(run, as_)) for run in runs]
        said = diagnose(opened[0]) if len(opened) == 1 else diagnose_together(opened)
        if json:
            typer.echo(to_json(said))
        elif isinstance(said, Diagnosis):
            print_letter(answers(), opened[0].info.name, opened[0], said)
        else:
            print_together(answers(), [run.info.name for run in opened], said)
    worst = said.worst()
    if fail_on and worst and worst.weight >= Severity(fail_on.value).weight:
        raise typer.Exit(1)
