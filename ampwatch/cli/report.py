"""`ampwatch report RUN`: what is wrong with a run, why, and what to do."""

from __future__ import annotations

import enum

import typer

from ampwatch.cli.find import RUN_ARGUMENT, open_named
from ampwatch.cli.terminal import answers

NAME = "report"
HELP = """What is wrong with a run, since when, why, and what to do. On one screen.

\b
Examples:
  ampwatch report ampwatch-runs/train-1204
  ampwatch report train-1204 --json | jq .verdict
  ampwatch report train-1204 --fail-on error     exit code 1 if an error stands
"""


class FailOn(str, enum.Enum):
    """From which severity on the exit code is 1."""

    ERROR = "error"
    WARNING = "warning"


def command(
    run: str = RUN_ARGUMENT,
    json: bool = typer.Option(False, "--json", help="Print JSON instead of the letter."),
    fail_on: FailOn = typer.Option(
        None, "--fail-on", help="Exit with 1 if a finding this grave stands.", show_default=False
    ),
) -> None:
    """Print the report."""
    from ampwatch.diagnosis import Severity, diagnose
    from ampwatch.report import print_letter, to_json

    opened = open_named(run)
    diagnosis = diagnose(opened)
    if json:
        typer.echo(to_json(diagnosis))
    else:
        print_letter(answers(), opened.info.name, opened, diagnosis)
    worst = diagnosis.worst()
    if fail_on and worst and worst.weight >= Severity(fail_on.value).weight:
        raise typer.Exit(1)
