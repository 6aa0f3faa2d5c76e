"""`ampwatch compare A B...`: where runs differ, and which settings do."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import typer

from ampwatch.cli.options import FORMAT_OPTION, output_kind, output_option, written_to
from ampwatch.cli.report import write_page
from ampwatch.cli.run_argument import opened_run_or_log
from ampwatch.cli.terminal import answers
from ampwatch.errors import RunError

HELP = """Compare runs: where they differ, and in which settings.

  ampwatch compare train-1203 train-1204
  ampwatch compare lr-0.1 lr-0.03 lr-0.01        highest stable learning rate
  ampwatch compare ampwatch-runs/* --baseline first   any number of runs
  ampwatch compare ampwatch-runs/* --sweep       learning rates that fail
  ampwatch compare ampwatch-runs/* --by batch_size --outcome "val/acc, best"
  ampwatch compare good.log bad.log -o out.html  both in one chart

It shows the first step and layer in which anything differs from the first run,
each setting that differs, and the best and last values. "Beyond noise" is the
first step whose difference exceeds the usual change from step to step.
"""

_RUNS = typer.Argument(
    metavar="RUN|FILE",
    show_default=False,
    help="Runs by folder or by name in ./ampwatch-runs, or logs.",
)
_BASELINE = typer.Option(
    None,
    "--baseline",
    metavar="RUN",
    show_default=False,
    help="Compare with this run.  [default: the first]",
)
_BY = typer.Option(
    None,
    "--by",
    metavar="SETTING",
    show_default=False,
    help="Order the runs by a setting, as config.batch_size.",
)
_OUTCOME = typer.Option(
    None,
    "--outcome",
    metavar="VALUE",
    show_default=False,
    help='Judge by this, as "best loss".  [default: the last loss]',
)


def command(
    runs: list[str] = _RUNS,
    baseline: str = _BASELINE,
    sweep: bool = typer.Option(
        False, "--sweep", help="Order the runs by learning rate, and say which fail."
    ),
    by: str = _BY,
    outcome: str = _OUTCOME,
    as_json: bool = typer.Option(False, "--json", help="Print JSON instead of the tables."),
    output: Path = output_option(".html with charts, .json, .txt"),
    format_: str = FORMAT_OPTION,
) -> None:
    """Compare the runs and print where they differ."""
    from ampwatch.report import Asked, compare, html_comparison, print_comparison, print_sweep

    if len(runs) < 2:
        raise RunError("compare takes two runs or more; `ampwatch report RUN` takes one.")
    runs = _with_first(runs, baseline)
    kind = output_kind(output, json=as_json)
    with ExitStack() as stack:
        opened = [stack.enter_context(opened_run_or_log(run, format_)) for run in runs]
        compared = compare(opened, Asked(by, outcome))
        if kind == "html":
            write_page(output, html_comparison(opened, compared))
            return
    with written_to(output):
        if kind == "json":
            text = json.dumps(compared.to_json(), indent=2, allow_nan=False, ensure_ascii=False)
            typer.echo(text)
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
