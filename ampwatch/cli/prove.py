"""`ampwatch prove RUN`: train again with one thing changed, and say what holds."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ampwatch.cli.options import seconds
from ampwatch.cli.run import environment_of
from ampwatch.cli.run_argument import is_log, make_run
from ampwatch.cli.terminal import answer, say
from ampwatch.errors import AmpwatchError
from ampwatch.exit_codes import ExitCode

if TYPE_CHECKING:
    from ampwatch.recovery.change import Value
    from ampwatch.recovery.proof import Proof
    from ampwatch.recovery.rerun import Command
    from ampwatch.report.restart_place import Checkpoint
    from ampwatch.store import RunInfo

HELP = """Rerun a training with one change, and say which change helps.

  ampwatch prove train-1204
  ampwatch prove train-1204 --steps 300 --budget 15m
  ampwatch prove train-1204 --bisect               switch one thing at a time
  ampwatch prove train-1204 --set lr=0.01          try this learning rate first
  ampwatch prove train-1204 --lr-flag=--lr         the script takes it as --lr
  ampwatch prove train.log -- python train.py      a log, and its command

If the learning rate is too high, the reruns search for the highest one that
works. If the report names another cause, they try its remedies, then lower
learning rates. Your files are not changed. Exit code: 0 if a change is proved,
3 if none is.
"""


def command(
    run: str = typer.Argument(
        metavar="RUN|FILE", show_default=False, help="A run's folder or name, or a log.",
    ),
    own_command: list[str] = typer.Argument(
        None, metavar="-- COMMAND", show_default=False, help=""
    ),
    steps: int = typer.Option(
        None, metavar="N", min=1, show_default=False,
        help="Steps to train.  [default: 1.5 times the failing step, or the warm-up]",
    ),
    budget: str = typer.Option("15m", metavar="TIME", help="Time for all reruns: 90s, 15m, 2h."),
    bisect: bool = typer.Option(
        False, "--bisect", help="Switch one thing at a time: autocast, the scaler, ..."
    ),
    set_: str = typer.Option(
        None, "--set", metavar="lr=VALUE", show_default=False,
        help="The learning rate to try first.",
    ),
    lr_flag: str = typer.Option(
        None, metavar="OPTION", show_default=False,
        help="The script's own option for the learning rate.",
    ),
    resume_flag: str = typer.Option(
        None, metavar="OPTION", show_default=False,
        help="The script's own option for a checkpoint to begin at.",
    ),
    place: Path = typer.Option(
        None, "-o", "--output", metavar="DIR", show_default=False,
        help="Folder for the reruns.  [default: beside the run]",
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
) -> None:  # fmt: skip
    """Rerun, and print what held."""
    from ampwatch.recovery.prove import Budget, Reruns, prove
    from ampwatch.store import read_info

    with _run_of(run, own_command or ()) as path:
        arguments, cwd = _arguments(read_info(path), own_command or ())
        saved = None if resume_flag is None else _checkpoint(path, cwd)
        options = _Options(lr_flag, resume_flag, None if saved is None else saved.path)
        reruns = Reruns(
            starter(arguments, options), cwd, lambda: _place(path, place),
            0 if saved is None else saved.step, say,
        )  # fmt: skip
        limits, first = Budget(seconds(budget, "--budget"), steps), _rate(set_) if set_ else None
        proof = prove(path, reruns, limits, first=first, bisects=bisect)
    if as_json:
        sys.stdout.write(json.dumps(proof.to_json(), ensure_ascii=False) + "\n")
    else:
        _print(proof)
    if proof.proved is None:
        raise typer.Exit(ExitCode.NOTHING_HELD)


@contextlib.contextmanager
def _run_of(text: str, own: Sequence[str]) -> Iterator[Path]:
    """The run to rerun; a log becomes a run, beside which is kept what reruns prove of it."""
    from ampwatch.store import find_run

    if not is_log(text):
        yield find_run(text)
        return
    if not own:
        raise AmpwatchError(
            "A log does not record which command trained it. Give the command: "
            f"`ampwatch prove {text} -- python train.py ...`."
        )
    path = make_run(text, None, ())
    try:
        yield path
    except AmpwatchError:
        shutil.rmtree(path)  # nothing was proved
        raise
    say(f"The log is the run {path.name} now: `ampwatch report {path.name}` says what held.")


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
        raise typer.BadParameter(f"--set takes a learning rate, as lr=0.01, not {text!r}")
    return rate


def _print(proof: Proof) -> None:
    from ampwatch.recovery.proof import sentence_of, table_of

    rows = table_of(proof)
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    for row in rows if proof.tries else ():
        cells = zip(row, widths, strict=True)
        answer("  ".join(cell.ljust(width) for cell, width in cells).rstrip())
    answer(sentence_of(proof))
