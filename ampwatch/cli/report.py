"""`ampwatch report [RUN|FILE]...`: prints what is wrong with a run, why, and what to do."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ampwatch.cli.run_argument import (
    MAP_OPTION,
    clipboard_help,
    find_newest,
    is_log,
    opened_run_or_log,
)
from ampwatch.cli.terminal import answer, answers, say
from ampwatch.errors import PlaceError, ReportError
from ampwatch.files import draft_of

if TYPE_CHECKING:
    from ampwatch.diagnosis import Diagnosis, SeveralDiagnoses
    from ampwatch.diagnosis.earlier_runs import EarlierRun
    from ampwatch.store import Run

HELP = f"""Print what is wrong with a run, why, and what to do.

Without RUN, reports on the newest run. For several runs of one model with different learning rates,
prints one advice on the rate. FILE is the log of another trainer (Apex, fairseq, DeepSpeed,
Megatron-LM, ...), or - for standard input; the report says what such a log cannot show.
`ampwatch import` keeps it as a run.

\b
Examples:
  ampwatch report                                the newest run
  ampwatch report train.log
  ampwatch report ampwatch-runs/train-1204
  ampwatch report train-1204 --json | jq .verdict
  ampwatch report train-1204 --html out.html     with charts and layers, as one file
  ampwatch report train-1204 --all               every finding in full, every number
  ampwatch report train-1204 --fail-on error     exit code 1 if there is an error
  ampwatch report rate-0.1 rate-0.03             one learning rate from both runs
  ampwatch report train-1204 --earlier s3://team/runs    what runs like it showed there

{clipboard_help("report")}"""


class FailOn(str, enum.Enum):
    """The severity from which on `ampwatch report` exits with 1."""

    ERROR = "error"
    WARNING = "warning"


def command(
    runs: list[str] = typer.Argument(
        None,
        metavar="RUN|FILE",
        show_default=False,
        help="A run's folder, its name in ./ampwatch-runs, another trainer's log, or -.",
    ),
    json: bool = typer.Option(False, "--json", help="Print JSON instead of the report."),
    fail_on: FailOn = typer.Option(
        None,
        "--fail-on",
        help="Exit with 1 if there is a finding of this severity or worse.",
        show_default=False,
    ),
    html: Path = typer.Option(
        None, "--html", metavar="OUT", show_default=False, help="Write one HTML file instead."
    ),
    as_: str = typer.Option(
        None, "--as", metavar="FORMAT", show_default=False, help="The format of FILE."
    ),
    earlier: str = typer.Option(
        None,
        "--earlier",
        metavar="PLACE",
        envvar="AMPWATCH_EARLIER",
        show_default=False,
        help="Also say what runs in a place showed that are made of the same.",
    ),
    everything: bool = typer.Option(
        False, "--all", help="Also print every finding in full, with evidence and arithmetic."
    ),
    mapped: list[str] = MAP_OPTION,
) -> None:
    """Report on one run or several."""
    runs = runs or [newest_run(is_of_log=bool(as_ or mapped))]
    if html and (json or len(runs) > 1):
        raise ReportError(
            "--html takes one run and cannot be combined with --json; for several "
            "runs use `ampwatch compare --html`."
        )
    with ExitStack() as stack:
        opened = [stack.enter_context(opened_run_or_log(run, as_, mapped)) for run in runs]
        # A log's name is what was typed: the commands that the report names take that.
        names = [
            text if is_log(text, as_, mapped) else run.info.name
            for text, run in zip(runs, opened, strict=True)
        ]
        diagnosis: Diagnosis | SeveralDiagnoses
        if len(opened) > 1:
            diagnosis = _report_together(names, opened, json=json)
        else:
            diagnosis = _report(
                names[0], opened[0], html, earlier, json=json, everything=everything
            )
    from ampwatch.diagnosis import Severity

    worst = diagnosis.worst()
    if fail_on and worst and worst.weight >= Severity(fail_on.value).weight:
        raise typer.Exit(1)


def newest_run(*, is_of_log: bool) -> str:
    """The run to report on where none is named; `--as` and `--map` are of a log and need one."""
    if is_of_log:
        raise ReportError("--as and --map say how to read a FILE: name it, too.")
    return str(find_newest(say, "Reporting on"))


def _report_together(names: Sequence[str], runs: Sequence[Run], *, json: bool) -> SeveralDiagnoses:
    from ampwatch.follow import diagnose_together
    from ampwatch.report import print_reports, to_json

    together = diagnose_together(runs)
    if json:
        typer.echo(to_json(together))
    else:
        print_reports(answers(), names, together)
    return together


def _report(
    name: str, run: Run, html: Path | None, earlier: str | None, *, json: bool, everything: bool
) -> Diagnosis:
    """Report on one run: as one HTML file, as JSON or as text."""
    from ampwatch.recovery.proof import sentence_of
    from ampwatch.recovery.proved_advice import judge
    from ampwatch.report import html_report, print_fact, print_report, to_json
    from ampwatch.report.settings import changed_text

    if html:
        refuse_no_file(html)
    judged = judge(run, _published_runs(earlier) if earlier else ())
    diagnosis, lesson, proof = judged.diagnosis, judged.lesson, judged.proof
    if html:
        write_page(html, html_report(run, diagnosis, judged.established_scale))
    elif json:
        typer.echo(to_json(diagnosis))
    else:
        print_report(answers(), name, run, diagnosis, everything=everything)
        if everything or earlier:
            print_fact(answers(), "changed", changed_text(run))
            print_fact(answers(), "alike", lesson.text if lesson else "")
        if proof is not None and diagnosis.learning_rate.because != sentence_of(proof):
            answer(sentence_of(proof))
    return diagnosis


def _published_runs(place: str) -> Sequence[EarlierRun]:
    """The judged runs of the place that --earlier names; none, and why, if it cannot be read."""
    from ampwatch.fleet.alike_runs import runs_in

    try:
        return runs_in(place)
    except PlaceError as problem:
        say(f"Earlier runs are left out: {problem}")
        return []


def refuse_no_file(path: Path) -> None:
    """Refuse, before any work, to report into a file that cannot be written."""
    if path.is_dir() or not path.parent.is_dir():
        raise ReportError(f"{path} cannot be written: pass a file in an existing folder.")


def write_page(path: Path, page: str) -> None:
    """Write a report's HTML, complete or not at all, and print its size."""
    from ampwatch.diagnosis.value_text import bytes_text

    with draft_of(path) as draft:
        draft.write_text(page, encoding="utf-8")
    answer(f"{path}: {bytes_text(path.stat().st_size)}")
