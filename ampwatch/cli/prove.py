"""`ampwatch prove RUN`: train again with one thing changed, and say what holds."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ampwatch.cli.run import environment_of
from ampwatch.cli.run_argument import RUN_ARGUMENT
from ampwatch.cli.terminal import answer, say
from ampwatch.errors import AmpwatchError

if TYPE_CHECKING:
    from ampwatch.recovery.change import Value
    from ampwatch.recovery.proof import Proof
    from ampwatch.recovery.rerun import Command
    from ampwatch.report.restart_place import Checkpoint
    from ampwatch.store import RunInfo

HELP = """Train again with one thing changed, and say what holds.

Starts the run's own command again, watched. Where the learning rate is too high: with the advised
rate first, then halving what is left, until the limit is known within a factor of two or the time
is up. Where another cause is named: with the cures of that finding, and with lower rates if none of
them brings the training to learn. What the script writes goes to a folder of the reruns; your files
stay as they are.

\b
Examples:
  ampwatch prove RUN
  ampwatch prove RUN --steps 300 --budget 15m
  ampwatch prove RUN --bisect                      switch one thing at a time
  ampwatch prove RUN --set lr=0.01                 try this rate first
  ampwatch prove RUN --rate-argument --lr          the script takes its rate as --lr
  ampwatch prove RUN --resume-argument --resume    begin at the last clean checkpoint
  ampwatch prove RUN -- python train.py --small    this command instead of the run's own

Exits with 0 if a rate or a cure held, with 3 if none did.
"""

NOTHING_HELD = 3
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def command(
    run: str = RUN_ARGUMENT,
    own_command: list[str] = typer.Argument(
        None, metavar="[-- COMMAND...]", show_default=False, help="A command to start instead."
    ),
    steps: int = typer.Option(
        None, metavar="N", min=1, show_default=False,
        help="Steps to train.  [default: 1.5 times as many as the run took to fail]",
    ),
    budget: str = typer.Option("15m", metavar="TIME", help="Time for all reruns: 90s, 15m, 2h."),
    bisect: bool = typer.Option(
        False, "--bisect", help="Switch one thing at a time: autocast, the scaler, ..."
    ),
    set_: str = typer.Option(
        None, "--set", metavar="lr=RATE", show_default=False, help="The rate to try first."
    ),
    rate_argument: str = typer.Option(
        None, metavar="OPTION", show_default=False,
        help="The script's own option for the rate, if the script sets the rate itself.",
    ),
    resume_argument: str = typer.Option(
        None, metavar="OPTION", show_default=False,
        help="The script's own option that takes a checkpoint to resume from.",
    ),
    place: Path = typer.Option(
        None, "--dir", metavar="DIR", show_default=False,
        help="Where the reruns go.  [default: a new folder beside the run]",
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
) -> None:  # fmt: skip
    """Rerun, and print what held."""
    from ampwatch.recovery.prove import Budget, Reruns, prove
    from ampwatch.store import find_run, read_info

    path = find_run(run)
    arguments, cwd = _arguments(read_info(path), own_command or ())
    saved = None if resume_argument is None else _checkpoint(path, cwd)
    options = _Options(rate_argument, resume_argument, None if saved is None else saved.path)
    reruns = Reruns(
        starter(arguments, options), cwd, lambda: _place(path, place),
        0 if saved is None else saved.step, say,
    )  # fmt: skip
    limits, first = Budget(_seconds(budget), steps), _rate(set_) if set_ else None
    proof = prove(path, reruns, limits, first=first, bisects=bisect)
    if as_json:
        sys.stdout.write(json.dumps(proof.to_json(), ensure_ascii=False) + "\n")
    else:
        _print(proof)
    if proof.proved is None:
        raise typer.Exit(NOTHING_HELD)


def _checkpoint(path: Path, cwd: Path) -> Checkpoint | None:
    """The last clean checkpoint whose file is there."""
    from ampwatch.recovery.restart_plan import checkpoint_before_trouble

    saved = checkpoint_before_trouble(path)
    if saved is None or saved.path is None:
        told = "No clean checkpoint before the trouble is recorded with its file"
        say(f"{told} (`watch.saved(path)` tells it): the reruns begin at the first step.")
        return None
    if not (cwd / saved.path).is_file():
        say(f"The checkpoint {saved.path} is gone: the reruns begin at the first step.")
        return None
    say(f"The reruns begin at step {saved.step:,}, from {saved.path}.")
    return saved


def _arguments(info: RunInfo, own: Sequence[str]) -> tuple[list[str], Path]:
    """The command to start, and its folder; AmpwatchError if it cannot be rerun here."""
    from ampwatch.store.run_info import MASK

    if os.name != "posix":
        raise AmpwatchError("Reruns need a POSIX system, to end a process with all its children.")
    folder = Path(info.origin.get("folder") or ".")
    if own:
        return list(own), Path.cwd()
    script = info.origin.get("script")
    give = "Give the command: `ampwatch prove RUN -- python train.py ...`."
    if not script or not info.command:
        raise AmpwatchError(f"The run does not record which script trained it. {give}")
    if info.world_size > 1:
        raise AmpwatchError(
            f"The run had {info.world_size} ranks, which a launcher started. {give}"
        )
    if any(MASK in word for word in info.command):
        raise AmpwatchError(f"The run's command held a secret, which was not recorded. {give}")
    if not Path(script).is_file():
        raise AmpwatchError(f"The run's script {script} is gone. {give}")
    if not folder.is_dir():
        raise AmpwatchError(f"The folder {folder}, where the run was started, is gone. {give}")
    return [sys.executable, script, *info.command[1:]], folder


@dataclass(frozen=True, slots=True)
class _Options:
    """The script's own options that a rerun sets."""

    rate: str | None = None
    resume: str | None = None
    checkpoint: str | None = None


def starter(
    arguments: Sequence[str], options: _Options = _Options()
) -> Callable[[str, Value], Command]:
    """What starts a rerun with a change."""
    from ampwatch.recovery.change import RATE

    def of_change(name: str, value: Value) -> Command:
        def command(runs: Path) -> tuple[Sequence[str], Mapping[str, str]]:
            asked: dict[str, object] = {"log_dir": str(runs.resolve()), "endpoint": "off"}
            temporary = runs.parent / "tmp"
            temporary.mkdir()
            environment = environment_of(asked) | {
                "AMPWATCH_DIR": str(runs.resolve()),
                "AMPWATCH_QUIET": "1",  # its run is gone when the reruns have ended
                "AMPWATCH_ENDPOINT": "off",
                "TMPDIR": str(temporary.resolve()),
            }
            given = list(arguments)
            if name == RATE:
                given = with_option(given, options.rate, repr(value))
            if options.checkpoint is not None:
                given = with_option(given, options.resume, options.checkpoint)
            return given, environment

        return command

    return of_change


def with_option(arguments: Sequence[str], option: str | None, value: str) -> list[str]:
    """The arguments with the script's own option set, as `--lr 0.1` or `--lr=0.1`."""
    if option is None:
        return list(arguments)
    left, skips = [], False
    for word in arguments:
        if skips:
            skips = False
        elif word == option:
            skips = True
        elif not word.startswith(f"{option}="):
            left.append(word)
    return [*left, option, value]


def _place(path: Path, given: Path | None) -> Path:
    if given is not None:
        return Path(tempfile.mkdtemp(prefix="prove-", dir=_made(given)))
    return Path(tempfile.mkdtemp(prefix=f".prove-{path.name}-", dir=path.parent))


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _rate(text: str) -> float:
    name, _, value = text.partition("=")
    try:
        rate = float(value)
    except ValueError:
        rate = -1.0
    if name != "lr" or not rate > 0:
        raise typer.BadParameter(f"--set takes lr=RATE, not {text!r}")
    return rate


def _seconds(text: str) -> float:
    unit = _UNITS.get(text[-1:])
    try:
        return float(text[:-1] if unit else text) * (unit or 1.0)
    except ValueError:
        raise typer.BadParameter(f"--budget takes 90s, 15m or 2h, not {text!r}") from None


def _print(proof: Proof) -> None:
    from ampwatch.recovery.proof import sentence_of, table_of

    rows = table_of(proof)
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    for row in rows if proof.tries else ():
        cells = zip(row, widths, strict=True)
        answer("  ".join(cell.ljust(width) for cell, width in cells).rstrip())
    answer(sentence_of(proof))
