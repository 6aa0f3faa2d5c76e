"""`ampwatch plan RUN`: says what a launcher should do next: in words, as JSON, by exit code."""

from __future__ import annotations

import json
import sys

import typer

from ampwatch.cli.run_argument import RUN_ARGUMENT, opened_run_or_log
from ampwatch.cli.terminal import answer

HELP = """Say whether to continue, restart or stop a run, and how.

Names the checkpoint to load, the factor for the learning rate, the batches to skip, the layers to
keep in float32, the settings to switch, and what to watch. A rate proved by `ampwatch prove` takes
precedence over an estimate.

\b
Examples:
  ampwatch plan RUN
  ampwatch plan RUN --json > plan.json

\b
Exits with
   0  continue: nothing to change
  10  restart as planned
  11  stop: a person must look
"""


def command(
    run: str = RUN_ARGUMENT,
    as_json: bool = typer.Option(False, "--json", help="Print the plan as JSON."),
) -> None:
    """Print the plan for the run's next start."""
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
