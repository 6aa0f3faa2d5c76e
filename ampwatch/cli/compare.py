"""`ampwatch compare A B...`: where runs part, and what was set otherwise."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import typer

from ampwatch.cli.find import opened_run_or_log
from ampwatch.cli.report import refuse_no_file, write_page
from ampwatch.cli.terminal import answers
from ampwatch.errors import RunError

NAME = "compare"
HELP = """Runs side by side: where they part, and which settings differ.

It answers "it worked yesterday": the first step at which the loss, the scale or the skips are not
those of A, and every setting (config, optimizer, scaler, versions) that is not the same. A loss
differs at once between two seeds; "beyond noise" is where the difference outgrows what the losses
do from step to step. Of runs of one model that differ in their learning rate it tells the highest
stable rate that they imply.

The first is what the others are held against. FILE is the log of another trainer.

\b
Examples:
  ampwatch compare train-1203 train-1204
  ampwatch compare rate-0.1 rate-0.03 rate-0.01      where the stable rates end
  ampwatch compare good.log bad.log --json | jq .partings
  ampwatch compare good.log bad.log --html out.html  with their courses over one another
"""


def command(
    runs: list[str] = typer.Argument(
        metavar="RUN|FILE...",
        show_default=False,
        help="Two or more: runs' folders, names in ./ampwatch-runs, or other trainers' logs.",
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON instead of the tables."),
    html: Path = typer.Option(
        None, "--html", metavar="OUT", show_default=False, help="Write one HTML file instead."
    ),
    as_: str = typer.Option(
        None, "--as", metavar="FORMAT", show_default=False, help="The format of every FILE."
    ),
) -> None:
    """Print the comparison."""
    from ampwatch.report import MOST_RUNS, compare, html_comparison, print_comparison

    if not 2 <= len(runs) <= MOST_RUNS:
        raise RunError(f"compare takes 2 to {MOST_RUNS} runs; `ampwatch report RUN` takes one.")
    if html and as_json:
        raise RunError("--html takes no --json: write the one or print the other.")
    if html:
        refuse_no_file(html)
    with ExitStack() as stack:
        opened = [stack.enter_context(opened_run_or_log(run, as_)) for run in runs]
        compared = compare(opened)
        if html:
            write_page(html, html_comparison(opened, compared))
            return
    if as_json:
        typer.echo(json.dumps(compared.to_json(), indent=2, allow_nan=False, ensure_ascii=False))
    else:
        print_comparison(answers(), compared)
