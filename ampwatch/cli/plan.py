"""`ampwatch plan RUN`: what a launcher does next, in words, as JSON and as an exit code."""

from __future__ import annotations

import json
import sys

import typer

from ampwatch.cli.find import RUN_ARGUMENT, opened_run_or_log
from ampwatch.cli.terminal import answer

NAME = "plan"
HELP = """Say how to start a run again, or that it goes on, or stops.

Names the checkpoint to load, the factor of the learning rate, the batches to leave out, the layers
to keep in float32, and what to watch. What `ampwatch prove` has proved goes before an estimate.

\b
Examples:
  ampwatch plan RUN
  ampwatch plan RUN --json > plan.json

\b
Exits with
   0  go on: nothing to change
  10  start again, as planned
  11  stop: a person must look
"""


def command(
    run: str = RUN_ARGUMENT,
    as_json: bool = typer.Option(False, "--json", help="Print the plan as JSON."),
) -> None:
    """Plan."""
    from ampwatch.recovery.restart_plan import plan, sentences_of

    with opened_run_or_log(run) as opened:
        made = plan(opened)
    if as_json:
        sys.stdout.write(json.dumps(made.to_json(), ensure_ascii=False, indent=1) + "\n")
    else:
        for sentence in sentences_of(made):
            answer(sentence)
    if made.exit_code:
        raise typer.Exit(made.exit_code)
