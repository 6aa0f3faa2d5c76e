"""The command line: `ampwatch COMMAND`, one file for each subject.

Exit codes: 0 done, 1 `--fail-on` met, 2 wrong use or unreadable input, with one line on stderr and
never a traceback. Heavy libraries are imported by the command that needs them, so that `--help` is
quick.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Sequence

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
from ampwatch.cli.terminal import complain, prepare_streams
from ampwatch.errors import AmpwatchError

INTERRUPTED = 130

# typer carries its own copy of click or uses the installed one; either way this is its root error.
_UsageError: type[Exception]
_CommandLineError: type[Exception]
_UsageError, _CommandLineError = typer.BadParameter.__mro__[1:3]

HELP = """Find out why mixed-precision training goes wrong, and what to change.

One line in a training loop records a run:

\b
    ampwatch.attach(scaler, model)

Then:

\b
    ampwatch runs                        the runs in ./ampwatch-runs
    ampwatch tag RUN good                put tags and a note on a run
    ampwatch watch RUN                   a live view in the terminal
    ampwatch report [RUN]                what is wrong, why, and what to do
    ampwatch prove RUN                   train again with a lower rate, and say which holds
    ampwatch plan RUN                    how to start again, for people and launchers
    ampwatch compare RUN RUN             where runs differ, and which settings do
    ampwatch fleet PLACE                 what broke in the runs of a whole team
    ampwatch dashboard                   the same in the browser

To try it, run `ampwatch demo`: it trains a small model and shows its loss scale collapse.
"""

_COMMANDS: tuple[tuple[str, Callable[..., None], str], ...] = (
    ("demo", demo.command, demo.HELP),
    ("dashboard", dashboard.command, dashboard.HELP),
    ("run", run_script.command, run_script.HELP),
    ("runs", runs.list_runs_in, runs.HELP),
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
    ("sweep", publish.sweep, publish.SWEEP_HELP),
    ("keys", keys.command, keys.HELP),
    ("explain", explain.command, explain.HELP),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the program `ampwatch` with these arguments, or those of sys.argv, and exit."""
    prepare_streams()
    signal.signal(signal.SIGTERM, _end)  # child processes must not outlive us
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def _end(number: int, _: object) -> None:
    raise SystemExit(128 + number)


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; trouble is one line on stderr."""
    try:
        code = build()(args=list(arguments), prog_name="ampwatch", standalone_mode=False)
    except _CommandLineError as error:
        return complain(_with_hint(error))
    except AmpwatchError as error:
        return complain(str(error))
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output is gone (`ampwatch runs | head`): there is nobody to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return complain(f"{error.filename or 'ampwatch'}: {error.strerror or error}.")
    return code if isinstance(code, int) else 0


def build() -> typer.Typer:
    """Build the program `ampwatch` with all its commands."""
    app = typer.Typer(
        help=HELP,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    app.callback()(_program)
    for name, function, text in _COMMANDS:
        # What stands after a script belongs to the script.
        settings = {"allow_interspersed_args": False} if name == "run" else None
        app.command(name, help=text, context_settings=settings)(function)
    alerts.add_to(app)  # it has commands of its own
    return app


def _version(asked: bool) -> None:
    if asked:
        from ampwatch import __version__

        typer.echo(f"ampwatch {__version__}")
        raise typer.Exit


def _program(
    version: bool = typer.Option(
        False, "--version", help="Print the version.", is_eager=True, callback=_version
    ),
) -> None:
    del version  # handled by its callback


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
