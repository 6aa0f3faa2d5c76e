"""`ampwatch compare A B...`: where runs differ, and which settings do."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import typer

from ampwatch.cli.report import refuse_no_file, write_page
from ampwatch.cli.run_argument import opened_run_or_log
from ampwatch.cli.terminal import answers
from ampwatch.errors import RunError

HELP = """Compare runs: where they differ, and which settings do.

Shows the first step at which anything that both recorded differs from the first run (batch, rate,
scale, loss, gradients), and in which layer; every setting (config, optimizer, scaler, versions)
that is not the same; and the best and last values. Two seeds give different losses from the first
step on; "beyond noise" is the step at which the difference exceeds the usual change from step to
step. For runs of one model with different learning rates it also prints the highest stable rate
that they imply.

All runs are compared with the first one, or with --baseline. FILE is the log of another trainer.

\b
Examples:
  ampwatch compare train-1203 train-1204
  ampwatch compare rate-0.1 rate-0.03 rate-0.01      the highest stable rate
  ampwatch compare ampwatch-runs/* --baseline first  any number of runs
  ampwatch compare ampwatch-runs/* --sweep           from which rate on they fail
  ampwatch compare ampwatch-runs/* --by batch_size --outcome "val/acc, best"
  ampwatch compare good.log bad.log --json | jq .partings
  ampwatch compare good.log bad.log --html out.html  with both courses in one chart
"""

_RUNS = typer.Argument(
    metavar="RUN|FILE...",
    show_default=False,
    help="Two or more runs: their folders, their names in ./ampwatch-runs, or logs of other "
    "trainers.",
)
_BASELINE = typer.Option(
    None,
    "--baseline",
    metavar="RUN",
    show_default=False,
    help="The one of these runs that the others are compared with; the first if not given.",
)
_BY = typer.Option(
    None,
    "--by",
    metavar="SETTING",
    show_default=False,
    help="Sweep over another setting that differs, such as config.batch_size.",
)
_OUTCOME = typer.Option(
    None,
    "--outcome",
    metavar="VALUE",
    show_default=False,
    help='What came of a run in a sweep: "best loss", "val/acc, best"; else its loss at the end.',
)


def command(
    runs: list[str] = _RUNS,
    baseline: str = _BASELINE,
    sweep: bool = typer.Option(
        False, "--sweep", help="Print the runs by their learning rate, and from where on they fail."
    ),
    by: str = _BY,
    outcome: str = _OUTCOME,
    as_json: bool = typer.Option(False, "--json", help="Print JSON instead of the tables."),
    html: Path = typer.Option(
        None, "--html", metavar="OUT", show_default=False, help="Write one HTML file instead."
    ),
    as_: str = typer.Option(
        None, "--as", metavar="FORMAT", show_default=False, help="The format of every FILE."
    ),
) -> None:
    """Compare the runs and print where they differ."""
    from ampwatch.report import Asked, compare, html_comparison, print_comparison, print_sweep

    if len(runs) < 2:
        raise RunError("compare takes two runs or more; `ampwatch report RUN` takes one.")
    runs = _with_first(runs, baseline)
    if html and as_json:
        raise RunError("--html cannot be combined with --json.")
    if html:
        refuse_no_file(html)
    with ExitStack() as stack:
        opened = [stack.enter_context(opened_run_or_log(run, as_)) for run in runs]
        compared = compare(opened, Asked(by, outcome))
        if html:
            write_page(html, html_comparison(opened, compared))
            return
    if as_json:
        typer.echo(json.dumps(compared.to_json(), indent=2, allow_nan=False, ensure_ascii=False))
    elif sweep or by or outcome:
        print_sweep(answers(), compared)
    else:
        print_comparison(answers(), compared)


def _with_first(runs: list[str], baseline: str | None) -> list[str]:
    """The runs to compare, the baseline first; it may be named by its folder's last part."""
    if baseline is None:
        return runs
    found = [run for run in runs if baseline in {run, Path(run).name}]
    if len(found) != 1:
        raise RunError(
            f"--baseline {baseline} is {'none' if not found else 'more than one'} of the runs that "
            "are compared: name one of them as it was given."
        )
    return [found[0], *(run for run in runs if run is not found[0])]
