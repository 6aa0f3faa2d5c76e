"""`ampwatch report [RUN|FILE]...`: prints what is wrong with a run, why, and what to do."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ampwatch.cli.run_argument import MAP_OPTION, find_newest, is_log, opened_run_or_log
from ampwatch.cli.standard_input import clipboard_help
from ampwatch.cli.terminal import answer, answers, say
from ampwatch.errors import PlaceError, ReportError
from ampwatch.files import draft_of

if TYPE_CHECKING:
    from ampwatch.diagnosis import Diagnosis, SeveralDiagnoses
    from ampwatch.diagnosis.earlier_runs import EarlierRun, LessonOfEarlierRuns
    from ampwatch.store import Run

NAME = "report"
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

{clipboard_help(NAME)}"""


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
        from ampwatch.diagnosis import Severity
        from ampwatch.follow import diagnose, diagnose_together

        said: Diagnosis | SeveralDiagnoses
        if html:
            said = write_html(opened[0], html, earlier)
        else:
            said = diagnose(opened[0]) if len(opened) == 1 else diagnose_together(opened)
            names = [
                text if is_log(text, as_, mapped) else run.info.name
                for text, run in zip(runs, opened, strict=True)
            ]
            print_said(opened, names, said, json=json, earlier=earlier, everything=everything)
    worst = said.worst()
    if fail_on and worst and worst.weight >= Severity(fail_on.value).weight:
        raise typer.Exit(1)


def newest_run(*, is_of_log: bool) -> str:
    """The run to report on where none is named; `--as` and `--map` are of a log and need one."""
    if is_of_log:
        raise ReportError("--as and --map say how to read a FILE: name it, too.")
    return str(find_newest(say, "Reporting on"))


def print_said(
    runs: Sequence[Run],
    names: Sequence[str],
    said: Diagnosis | SeveralDiagnoses,
    *,
    json: bool,
    earlier: str | None = None,
    everything: bool = False,
) -> None:
    """Print the report on one run or several, as text or JSON.

    A log's name is what was typed: it is what the commands that the report names take.
    """
    from ampwatch.diagnosis import Diagnosis
    from ampwatch.diagnosis.earlier_runs import with_lesson
    from ampwatch.recovery.proof import kept_proof, sentence_of, with_proof
    from ampwatch.report import print_fact, print_report, print_reports, to_json
    from ampwatch.report.settings import changed_text

    lesson = proof = None
    if isinstance(said, Diagnosis):
        lesson, proof = _lesson(runs[0], said, earlier), kept_proof(runs[0].path)
        said = with_proof(with_lesson(said, lesson), proof)
    if json:
        typer.echo(to_json(said))
    elif isinstance(said, Diagnosis):
        print_report(answers(), names[0], runs[0], said, everything=everything)
        if everything or earlier:
            print_fact(answers(), "changed", changed_text(runs[0]))
            print_fact(answers(), "alike", lesson.text if lesson else "")
        if proof is not None and said.learning_rate.because != sentence_of(proof):
            answer(sentence_of(proof))
    else:
        print_reports(answers(), names, said)


def _lesson(run: Run, said: Diagnosis, earlier: str | None) -> LessonOfEarlierRuns | None:
    """What earlier runs that are made of the same teach, for the report; None without such runs."""
    from ampwatch.follow import KeptEntries, keep_for_later, lesson_for

    kept = KeptEntries()
    lesson = lesson_for(run, _published_runs(earlier) if earlier else (), kept)
    keep_for_later(run, said, kept)
    return lesson


def _published_runs(place: str) -> Sequence[EarlierRun]:
    """The judged runs of the place that --earlier names; none, and why, if it cannot be read."""
    from ampwatch.fleet.alike_runs import runs_in

    try:
        return runs_in(place)
    except PlaceError as problem:
        say(f"Earlier runs are left out: {problem}")
        return []


def write_html(run: Run, path: Path, earlier: str | None = None) -> Diagnosis:
    """Write the report on a run as one HTML file, which appears complete or not at all."""
    from ampwatch.diagnosis import Engine, conclude
    from ampwatch.diagnosis.earlier_runs import with_lesson
    from ampwatch.follow import as_it_stands
    from ampwatch.recovery.proof import kept_proof, with_proof
    from ampwatch.report import html_report

    refuse_no_file(path)
    case = Engine().feed(run).case()
    diagnosis = as_it_stands(run, conclude(case))
    diagnosis = with_lesson(diagnosis, _lesson(run, diagnosis, earlier))
    diagnosis = with_proof(diagnosis, kept_proof(run.path))
    write_page(path, html_report(run, diagnosis, case.scale.level))
    return diagnosis


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
