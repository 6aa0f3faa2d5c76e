"""`ampwatch plan RUN`: says what a launcher should do next: in words, as JSON, by exit code."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import typer

from ampwatch.cli.options import output_kind, output_option, written_to
from ampwatch.cli.run_argument import RUN_ARGUMENT, opened_run_or_log
from ampwatch.cli.terminal import answer

HELP = """Say whether to continue, restart or stop a run, and how.

  ampwatch plan train-1204
  ampwatch plan train-1204 -o plan.json    for a script

It names the checkpoint to load, the factor for the learning rate, batches to
skip, layers to keep in float32, settings to switch, and what to check. What
`ampwatch prove` has tested takes precedence over an estimate.

Exit codes:   0  continue: nothing to change
             10  restart as planned
             11  stop: a person must look
"""


def command(
    run: str = RUN_ARGUMENT,
    as_json: bool = typer.Option(False, "--json", help="Print JSON instead of sentences."),
    output: Path = output_option(".json or .txt"),
) -> None:
    """Print the plan for the run's next start."""
    from ampwatch.recovery.restart_plan import plan, sentences_of

    kind = output_kind(output, json=as_json, kinds=(".json", ".txt"))
    with opened_run_or_log(run) as opened:
        next_start = plan(opened)
    with written_to(output):
        if kind == "json":
            text = json.dumps(next_start.to_json(), ensure_ascii=False, indent=1)
            sys.stdout.write(f"{text}\n")
        else:
            for sentence in sentences_of(next_start):
                answer(sentence)
    if next_start.exit_code:
        raise typer.Exit(next_start.exit_code)
