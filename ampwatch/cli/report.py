"""`ampwatch report [RUN|FILE]...`: prints what is wrong with a run, why, and what to do."""

from __future__ import annotations

import enum
import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ampwatch.cli.options import (
    FORMAT_OPTION,
    output_kind,
    output_option,
    say_written,
    written_to,
)
from ampwatch.cli.run_argument import (
    MAP_OPTION,
    clipboard_help,
    find_newest,
    is_log,
    opened_run_or_log,
)
from ampwatch.cli.terminal import answer, answers, is_verbose, say
from ampwatch.errors import PlaceError, ReportError
from ampwatch.exit_codes import ExitCode
from ampwatch.files import draft_of

if TYPE_CHECKING:
    from ampwatch.diagnosis import Diagnosis, SeveralDiagnoses
    from ampwatch.diagnosis.earlier_runs import EarlierRun
    from ampwatch.recovery.proof import JudgedRun
    from ampwatch.report.health_check import HealthCheck
    from ampwatch.store import Run

HELP = f"""Say what is wrong with a run, why, and what to do.

  ampwatch report                           the newest run
  ampwatch report train.log                 another trainer's log
  ampwatch report train-1204 --all          every finding in full, every number
  ampwatch report train-1204 -o out.html    with charts and layers, as one file
  ampwatch report lr-0.1 lr-0.03            one learning rate from several runs
  {clipboard_help("report")}

FILE is a log of Hugging Face, DeepSpeed, Megatron-LM, fairseq, Apex, ...
"""


class FailOn(str, enum.Enum):
    """The severity from which on `ampwatch report` exits with 1."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Asked:
    """What a command line asks of a report."""

    kind: str  # html, json, text, sarif or junit
    output: Path | None
    earlier: str | None
    everything: bool
    baseline: Run | None
    fail_on: FailOn | None


def command(
    runs: list[str] = typer.Argument(
        None,
        metavar="RUN|FILE",
        show_default=False,
        help="A run's folder or name, or a log; - reads a pipe.",
    ),
    json: bool = typer.Option(False, "--json", help="Print JSON instead of the report."),
    fail_on: FailOn = typer.Option(
        None,
        "--fail-on",
        metavar="warning|error",
        help="Exit with 1 at such a finding, 4 if too short.",
        show_default=False,
    ),
    baseline: str = typer.Option(
        None,
        "--baseline",
        metavar="RUN|TAG",
        help="--fail-on fails if worse than this run.",
        show_default=False,
    ),
    output: Path = output_option(".html, .json, .txt, .sarif, .xml"),
    format_: str = FORMAT_OPTION,
    earlier: str = typer.Option(
        None,
        "--earlier",
        metavar="PLACE",
        envvar="AMPWATCH_EARLIER",
        show_default=False,
        help="Compare with runs in PLACE.",
    ),
    everything: bool = typer.Option(
        False, "--all", help="Print every finding with evidence and arithmetic."
    ),
    mapped: list[str] = MAP_OPTION,
) -> None:
    """Report on one run or several."""
    kind = output_kind(output, json=json, kinds=(".html", ".json", ".txt", ".sarif", ".xml"))
    runs = runs or [newest_run(is_of_log=bool(format_ or mapped))]
    if kind == "html" and len(runs) > 1:
        raise ReportError("An HTML report takes one run; for several use `ampwatch compare -o`.")
    with ExitStack() as stack:
        opened = [stack.enter_context(opened_run_or_log(run, format_, mapped)) for run in runs]
        held = None if baseline is None else _opened_baseline(baseline, opened[0], stack)
        asked = Asked(kind, output, earlier, everything or is_verbose(), held, fail_on)
        # A log's name is what was typed: the commands that the report names take that.
        names = [
            text if is_log(text, format_, mapped) else run.info.name
            for text, run in zip(runs, opened, strict=True)
        ]
        checks = _report(names, opened, asked)
    if fail_on is not None and (code := exit_code(checks)):
        raise typer.Exit(code)


def exit_code(checks: Sequence[HealthCheck]) -> ExitCode:
    """What `--fail-on` says of the runs: one is not healthy, one is not judged, or neither."""
    if not all(check.is_healthy for check in checks):
        return ExitCode.FINDING
    return ExitCode.DONE if all(check.is_judged for check in checks) else ExitCode.NOT_JUDGED


def newest_run(*, is_of_log: bool) -> str:
    """The run to report on where none is named; `--format` and `--map` are of a log."""
    if is_of_log:
        raise ReportError("--format and --map say how to read a FILE: name it, too.")
    return str(find_newest(say, "Reporting on"))


def _opened_baseline(text: str, judged: Run, stack: ExitStack) -> Run:
    """The run or the log that `--baseline` names."""
    from ampwatch.report.health_check import open_baseline

    if is_log(text):
        return stack.enter_context(opened_run_or_log(text))
    return open_baseline(text, apart_from=judged)


def _report(names: Sequence[str], runs: Sequence[Run], asked: Asked) -> list[HealthCheck]:
    """Write the report as it is asked for."""
    from ampwatch.diagnosis import Severity
    from ampwatch.follow import diagnose_together
    from ampwatch.recovery.proof import judge
    from ampwatch.report.health_check import health_check

    least = Severity((asked.fail_on or FailOn.WARNING).value)
    check = partial(health_check, baseline=asked.baseline, least=least)
    if len(runs) > 1 and asked.kind in {"json", "text"}:
        together = diagnose_together(runs)
        checks = [check(run, one) for run, one in zip(runs, together.diagnoses, strict=True)]
        with written_to(asked.output):
            _print_together(names, together, checks, asked)
        return checks
    judged = [judge(run, _published_runs(asked.earlier)) for run in runs]
    checks = [check(run, one.diagnosis) for run, one in zip(runs, judged, strict=True)]
    if asked.kind == "html":
        _write_html(asked, judged[0], checks[0])
    else:
        with written_to(asked.output):
            _print(list(zip(names, checks, strict=True)), judged[0], asked)
    return checks


def _print_together(
    names: Sequence[str], together: SeveralDiagnoses, checks: Sequence[HealthCheck], asked: Asked
) -> None:
    from ampwatch.report import print_reports

    if asked.kind == "json":
        _print_json(together, checks)
        return
    print_reports(answers(), names, together)
    for name, check in zip(names, checks, strict=True):
        if check.baseline is not None:
            answer(f"{name}: {check.baseline_text}")


def _print(checks: Sequence[tuple[str, HealthCheck]], judged: JudgedRun, asked: Asked) -> None:
    """Print the report as JSON, as text, or in a format of CI."""
    if asked.kind == "sarif":
        from ampwatch.report.sarif_file import sarif_of

        typer.echo(json.dumps(sarif_of(checks), indent=1, allow_nan=False, ensure_ascii=False))
    elif asked.kind == "junit":
        from ampwatch.report.junit_file import junit_of

        typer.echo(junit_of(checks), nl=False)
    elif asked.kind == "json":
        from ampwatch.report.letter import letter_of

        name, check = checks[0]
        letter = {}
        if asked.everything:
            letter = {"letter": letter_of(name, check.run, judged.diagnosis).to_json()}
        _print_json(judged.diagnosis, [check], **letter)
    else:
        _print_text(*checks[0], judged, asked)


def _print_json(
    body: Diagnosis | SeveralDiagnoses, checks: Sequence[HealthCheck], **more: Any
) -> None:
    """Print the object of `--json`, with what was held against a baseline."""
    from ampwatch.report import to_json

    compared = [check.baseline_json() for check in checks if check.baseline is not None]
    if compared:
        more["baseline"] = compared[0] if len(checks) == 1 else compared
    typer.echo(to_json(body, **more))


def _print_text(name: str, check: HealthCheck, judged: JudgedRun, asked: Asked) -> None:
    from ampwatch.recovery.proof import sentence_of
    from ampwatch.report import print_fact, print_report
    from ampwatch.report.settings import changed_text

    run, lesson, proof = check.run, judged.lesson, judged.proof
    print_report(answers(), name, run, judged.diagnosis, everything=asked.everything)
    print_fact(answers(), "baseline", check.baseline_text)
    if asked.everything or asked.earlier:
        print_fact(answers(), "changed", changed_text(run))
        print_fact(answers(), "alike", lesson.text if lesson else "")
    if proof is not None and judged.diagnosis.learning_rate.because != sentence_of(proof):
        answer(sentence_of(proof))


def _write_html(asked: Asked, judged: JudgedRun, check: HealthCheck) -> None:
    from ampwatch.report import html_report

    assert asked.output is not None
    page = html_report(check.run, judged.diagnosis, judged.established_scale)
    write_page(asked.output, page)
    if check.baseline is not None:
        answer(check.baseline_text)


def _published_runs(place: str | None) -> Sequence[EarlierRun]:
    """The judged runs of the place that --earlier names; none, and why, if it cannot be read."""
    if not place:
        return []
    from ampwatch.fleet.alike_runs import runs_in

    try:
        return runs_in(place)
    except PlaceError as problem:
        say(f"Earlier runs are left out: {problem}")
        return []


def write_page(path: Path, page: str) -> None:
    """Write a report's HTML, complete or not at all, and print its size."""
    with draft_of(path) as draft:
        draft.write_text(page, encoding="utf-8")
    say_written(path)
