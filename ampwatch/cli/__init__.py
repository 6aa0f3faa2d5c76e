"""The command line: `ampwatch COMMAND`, one file for each subject.

Its exit codes stand in `exit_codes`; an error is one line on stderr. Heavy libraries are imported
by the command that needs them, so that `--help` is quick.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from types import TracebackType

import typer

from ampwatch.cli import (
    alerts,
    compare,
    dashboard,
    demo,
    explain,
    fleet,
    import_export,
    keys,
    mcp,
    plan,
    prove,
    publish,
    record,
    report,
    runs,
    watch,
)
from ampwatch.cli import (
    run as run_script,
)
from ampwatch.cli.help_page import CommandHelp, ProgramHelp
from ampwatch.cli.terminal import answer, complain, is_verbose, prepare_streams, set_volume
from ampwatch.errors import AmpwatchError
from ampwatch.exit_codes import ExitCode

# typer carries its own copy of click or uses the installed one; either way this is its root error.
_UsageError: type[Exception]
_CommandLineError: type[Exception]
_UsageError, _CommandLineError = typer.BadParameter.__mro__[1:3]

HELP = "Find out why mixed-precision training goes wrong, and what to change."

FIRST_STEPS = f"""{HELP}

  ampwatch report train.log    a training log that you have: what went wrong
  ampwatch run train.py        train, and record the run; then: ampwatch report
  ampwatch demo                no training yet: one that fails, and its report

In code, one line before the loop does what `ampwatch run` does:

  ampwatch.attach(scaler, model)

All commands: ampwatch --help"""

_COMMANDS: tuple[tuple[str, Callable[..., None], str], ...] = (
    ("demo", demo.command, demo.HELP),
    ("dashboard", dashboard.command, dashboard.HELP),
    ("run", run_script.command, run_script.HELP),
    ("list", runs.list_runs_in, runs.HELP),
    ("tag", runs.tag, runs.TAG_HELP),
    ("watch", watch.command, watch.HELP),
    ("report", report.command, report.HELP),
    ("prove", prove.command, prove.HELP),
    ("plan", plan.command, plan.HELP),
    ("record", record.command, record.HELP),
    ("import", import_export.import_, import_export.IMPORT_HELP),
    ("compare", compare.command, compare.HELP),
    ("export", import_export.export, import_export.EXPORT_HELP),
    ("compact", runs.compact, runs.COMPACT_HELP),
    ("publish", publish.publish, publish.HELP),
    ("fleet", fleet.command, fleet.HELP),
    ("prune", publish.prune, publish.PRUNE_HELP),
    ("keys", keys.command, keys.HELP),
    ("explain", explain.command, explain.HELP),
    ("mcp", mcp.command, mcp.HELP),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the program `ampwatch` with these arguments, or those of sys.argv, and exit."""
    prepare_streams()
    signal.signal(signal.SIGTERM, _end)  # child processes must not outlive us
    sys.excepthook = _report_defect
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def _end(_: int, __: object) -> None:
    raise SystemExit(ExitCode.TERMINATED)


def _report_defect(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Print the traceback of a defect; Python alone would exit with the code of a finding."""
    sys.__excepthook__(kind, error, trace)
    raise SystemExit(ExitCode.DEFECT)


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; trouble is one line on stderr."""
    set_volume("")
    try:
        code = build()(args=list(arguments), prog_name="ampwatch", standalone_mode=False)
    except _CommandLineError as error:
        return _refused(error, _with_hint(error))
    except AmpwatchError as error:
        return _refused(error, str(error))
    except (KeyboardInterrupt, typer.Abort):
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # The reader of our output is gone (`ampwatch list | head`): there is nobody to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.DONE
    except OSError as error:
        return _refused(error, f"{error.filename or 'ampwatch'}: {error.strerror or error}.")
    return code if isinstance(code, int) else ExitCode.DONE


def _refused(error: Exception, sentence: str) -> int:
    if is_verbose():
        traceback.print_exception(error)
    complain(sentence)
    return ExitCode.REFUSED


def build() -> typer.Typer:
    """Build the program `ampwatch` with all its commands."""
    app = typer.Typer(
        help=HELP,
        cls=ProgramHelp,
        invoke_without_command=True,
        add_completion=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    app.callback()(_program)
    for name, function, text in _COMMANDS:
        # What stands after a script belongs to the script.
        settings = {"allow_interspersed_args": False} if name == "run" else None
        app.command(name, help=text, cls=CommandHelp, context_settings=settings)(function)
    alerts.add_to(app)  # it has commands of its own
    return app


def _version(asked: bool) -> None:
    if asked:
        from ampwatch import __version__

        typer.echo(f"ampwatch {__version__}")
        raise typer.Exit


def _program(
    context: typer.Context,
    version: bool = typer.Option(
        False, "-V", "--version", help="Print the version.", is_eager=True, callback=_version
    ),
) -> None:
    del version  # handled by its callback
    if context.invoked_subcommand is None:
        answer(FIRST_STEPS)


# typer lists every command that is spelled alike, the likeliest first.
_GUESSES = re.compile(r"(Did you mean '[^']*')(?:, '[^']*')+\?")


def _with_hint(error: Exception) -> str:
    """What is wrong with a command line, and which --help says more."""
    text = getattr(error, "format_message", lambda: str(error))().strip()
    text = _GUESSES.sub(r"\1?", text).replace(": Value error, ", ": ", 1)
    context = getattr(error, "ctx", None)
    if isinstance(error, _UsageError) and context is not None:
        end = "" if text.endswith("?") else "."
        text = f"{text.rstrip('.')}{end} See `{context.command_path} --help`."
    return text
