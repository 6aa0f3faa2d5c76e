"""`ampwatch alerts`: lists and changes who gets alerts from dashboards and recorders."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import typer

from ampwatch.cli.help_page import CommandHelp, ProgramHelp
from ampwatch.cli.terminal import age_text, answer, complain
from ampwatch.errors import AlertError
from ampwatch.exit_codes import ExitCode

if TYPE_CHECKING:
    from ampwatch.alerts import AlertSetting, Outcome

HELP = """Set who gets a message when a live run fails.

  ampwatch alerts                                  the list, the last messages
  ampwatch alerts add --name team                  asks for the address, hidden
  ampwatch alerts add slack://... --min-severity error
  ampwatch alerts add ntfy://topic --finding 'AMP1*' --run 'train-*'
  ampwatch alerts test team                        send a test message now
  ampwatch alerts change team --off                pause; --on resumes
  ampwatch alerts remove team

Running dashboards and `ampwatch record` send messages to this list. Addresses:
slack://TOKEN_A/TOKEN_B/TOKEN_C, discord://WEBHOOK_ID/WEBHOOK_TOKEN,
mailto://user:password@example.com, json://my.server/hook, and a hundred more:
https://appriseit.com/services/. Only you can read the file with the
addresses, and they are never shown. To install: pip install -e '.[notify]'
"""
_WHICH_HELP = "Its name, or its number in the list."
_NAME = typer.Option(None, "--name", metavar="TEXT", help="A name for it.", show_default=False)
_MIN_SEVERITY = typer.Option(
    None, "--min-severity", metavar="LEVEL", show_default=False,
    help="info, warning or error.  [default: warning]",
)  # fmt: skip
_FINDING = typer.Option(
    None, "--finding", metavar="CODE", show_default=False,
    help="Only these findings, such as AMP103, 'AMP1*' or bad-batch; may be repeated.",
)  # fmt: skip
_RUN = typer.Option(
    None, "--run", metavar="PATTERN", show_default=False,
    help="Only runs of such names, as in 'train-*'; may be repeated.",
)  # fmt: skip


def add_to(app: typer.Typer) -> None:
    """Add `ampwatch alerts` to the program, with commands of its own."""
    group = typer.Typer(
        help=HELP,
        cls=ProgramHelp,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    group.callback(invoke_without_command=True)(_list_unless_asked)
    for name, function in (("add", add), ("test", try_out), ("change", change), ("remove", remove)):
        group.command(name, cls=CommandHelp)(function)
    app.add_typer(group, name="alerts")


def _list_unless_asked(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        _list()


def _list() -> None:
    from ampwatch.alerts import Outcome, read_outcomes, read_settings, settings_path

    settings, outcomes = read_settings(), read_outcomes()
    if not settings:
        answer("Nobody gets alerts yet: see `ampwatch alerts add --help` for examples.")
        return
    for number, setting in enumerate(settings, start=1):
        state = "" if setting.is_on else "  off"
        answer(f"{number}  {setting.label}{state}  {setting.scope}")
        for line in _lines(outcomes.get(setting.id, Outcome())):
            answer(f"   {line}")
    answer(f"kept in {settings_path()}")


def _lines(outcome: Outcome) -> Iterator[str]:
    if outcome.sent_ns:
        yield f"last message {_ago(outcome.sent_ns)}: {outcome.title}"
    if outcome.failed_ns:
        yield f"last failure {_ago(outcome.failed_ns)}: {outcome.failure}"


def _ago(time_ns: int) -> str:
    return f"{age_text((time.time_ns() - time_ns) / 1e9)} ago"


def add(
    address: str = typer.Argument(
        None, metavar="ADDRESS", show_default=False,
        help="Where to send messages. Without it, ampwatch asks for it or reads a pipe, so that "
        "it is in no shell history.",
    ),
    name: str = _NAME,
    min_severity: str = _MIN_SEVERITY,
    finding: list[str] = _FINDING,
    run: list[str] = _RUN,
) -> None:  # fmt: skip
    """Add a receiver of alerts."""
    from ampwatch.alerts import add_setting, new_setting, open_services

    setting = new_setting(address or _asked_address(), **_parts(name, min_severity, finding, run))
    open_services([setting.address])  # whether it is understood
    add_setting(setting)
    answer(f"{setting.label} gets alerts from now on: {setting.scope}. Try `ampwatch alerts test`.")


def try_out(
    which: str = typer.Argument(
        None, metavar="WHICH", help=f"{_WHICH_HELP}  [default: all]", show_default=False
    ),
) -> None:
    """Send a test message, and say whether it was accepted."""
    from ampwatch.alerts import Trial, read_settings

    settings = read_settings() if which is None else (_find(which),)
    if not settings:
        raise AlertError("Nobody gets alerts yet: add somebody with `ampwatch alerts add`.")
    results = [(one.label, Trial(one)) for one in settings]
    failed = False
    for label, trial in results:
        result = trial.wait()
        failed = failed or not result.is_accepted
        sentence = f"{label}: {result.sentence}"
        if result.is_accepted:
            answer(sentence)
        else:
            complain(sentence)
    if failed:
        raise typer.Exit(ExitCode.PARTLY_DONE)


def change(
    which: str = typer.Argument(..., metavar="WHICH", help=_WHICH_HELP, show_default=False),
    address: str = typer.Option(
        None, "--address", metavar="ADDRESS", help="Another one; - asks for it.", show_default=False
    ),
    name: str = _NAME,
    min_severity: str = _MIN_SEVERITY,
    finding: list[str] = _FINDING,
    run: list[str] = _RUN,
    on: bool = typer.Option(None, "--on/--off", help="Send, or pause.", show_default=False),
) -> None:
    """Change the settings of a receiver.

    '*' stands for all findings or all runs.
    """
    from ampwatch.alerts import change_setting, open_services

    found, parts = _find(which), _parts(name, min_severity, finding, run)
    if address is not None:
        parts["address"] = _asked_address() if address == "-" else address
        open_services([parts["address"]])
    if on is not None:
        parts["is_on"] = on
    changed = change_setting(found.id, **parts)
    answer(f"{changed.label}: {changed.scope}, {'on' if changed.is_on else 'off'}.")


def remove(
    which: str = typer.Argument(..., metavar="WHICH", help=_WHICH_HELP, show_default=False),
) -> None:
    """Remove a receiver and its address."""
    from ampwatch.alerts import remove_setting

    found = _find(which)
    remove_setting(found.id)
    answer(f"{found.label} is removed.")


def _parts(
    name: str | None, least: str | None, codes: Sequence[str] | None, run: Sequence[str] | None
) -> dict[str, Any]:
    """The parts of an alert setting that the command line gives."""
    from ampwatch.diagnosis import Severity

    try:
        severity = None if least is None else Severity(least.lower())
    except ValueError:
        raise AlertError(f"--min-severity is info, warning or error, not {least!r}.") from None
    parts = {
        "name": name,
        "least": severity,
        "what": tuple(code for code in codes if code != "*") if codes else None,
        "runs": tuple(one for one in run if one != "*") if run else None,
    }
    return {key: value for key, value in parts.items() if value is not None}


def _asked_address() -> str:
    if sys.stdin.isatty():
        return str(typer.prompt("Address", hide_input=True))
    return sys.stdin.readline().strip()


def _find(which: str) -> AlertSetting:
    """The alert setting with this name or number."""
    from ampwatch.alerts import read_settings

    settings = read_settings()
    named = [one for one in settings if which in (one.name, one.id)]
    if not named and which.isdecimal() and 0 < int(which) <= len(settings):
        named = [settings[int(which) - 1]]
    if len(named) != 1:
        why = "is the name of several" if named else "is nobody's name or number"
        raise AlertError(f"{which!r} {why}: `ampwatch alerts` prints the list with its numbers.")
    return named[0]
