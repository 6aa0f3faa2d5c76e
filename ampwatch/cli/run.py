"""`ampwatch run SCRIPT ARGS...`: trains with a script as it is, and records the run.

A fresh Python replaces this process and runs the script. A folder on its path makes it load, at its
start, the code that attaches. So arguments, exit code, signals, `__main__` and tracebacks are those
of the script.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from subprocess import _args_from_interpreter_flags  # type: ignore[attr-defined]

import typer

from ampwatch.cli.options import RUNS_FOLDER_OPTION
from ampwatch.cli.terminal import is_quiet
from ampwatch.errors import AmpwatchError
from ampwatch.integrations.script_watch import OPTIONS, PROCESS_ID

HELP = """Run a training script without changes, and record the run.

  ampwatch run train.py --lr 1e-3 --epochs 3
  ampwatch run -m mypackage.train --config small.yaml
  ampwatch run --name night-3 train.py        a name for the run
  ampwatch run torchrun --nproc-per-node 2 train.py
  ampwatch run accelerate launch train.py

ampwatch finds the scaler, and the model that the optimizer trains. All words
after the script are passed to the script. Its exit code, signals and
tracebacks stay the same. One line on stderr names the folder of the run (not
with -q). Afterwards: ampwatch report.
"""


def command(
    script: str = typer.Argument(..., metavar="SCRIPT", help="A script, a module, or a launcher."),
    arguments: list[str] = typer.Argument(None, metavar="ARGS", help="The script's own arguments."),
    module: bool = typer.Option(
        False, "-m", help="SCRIPT is a module's name, as for python -m.", show_default=False
    ),
    name: str = typer.Option(
        None,
        "--name",
        metavar="NAME",
        help="The run's name.  [default: the script's, and the time]",
        show_default=False,
    ),
    folder: Path = RUNS_FOLDER_OPTION,
    endpoint: str = typer.Option(
        None, metavar="ENDPOINT", help='The address of a recorder, or "off".', show_default=False
    ),
    layer_every: int = typer.Option(
        50, metavar="N", help="Examine the layers in every N-th step.", min=1
    ),
) -> None:
    """Replace this process by the script, which is watched."""
    asked = {
        "run": name,
        "log_dir": None if folder is None else str(folder.resolve()),
        "endpoint": endpoint,
        "layer_every": layer_every,
    }
    if sys.flags.ignore_environment or sys.flags.no_site:
        raise AmpwatchError(
            "This Python was started with -E, -I or -S. The script's Python would be too, and "
            "could not load ampwatch: start ampwatch without these options."
        )
    become(
        _command_line(script, module=module) + list(arguments or ()),
        environment_of(asked)
        | {PROCESS_ID: str(os.getpid())}
        | ({"AMPWATCH_QUIET": "1"} if is_quiet() else {}),
    )


def _command_line(script: str, *, module: bool) -> list[str]:
    python = [sys.executable, *_args_from_interpreter_flags()]
    if module:
        return [*python, "-m", script]
    if _runs_by_itself(Path(script)):
        return [str(Path(script).absolute())]
    if Path(script).exists():
        return [*python, script]
    launcher = shutil.which(script)
    if launcher is None:
        raise AmpwatchError(
            f"There is no script or command {script!r}: pass a script, -m MODULE, or a launcher "
            "such as torchrun."
        )
    return [launcher]


def _runs_by_itself(script: Path) -> bool:
    """Whether the script is an executable, such as a shell script that starts the training."""
    if not script.is_file() or not os.access(script, os.X_OK) or script.suffix == ".py":
        return False
    with script.open("rb") as file:
        first = file.readline(200)
    return first.startswith(b"\x7fELF") or (first.startswith(b"#!") and b"python" not in first)


def environment_of(asked: dict[str, object]) -> dict[str, str]:
    """The environment of the script to watch; its Python loads its site from our folder first."""
    here = str(Path(__file__).resolve().parent.parent / "integrations" / "launch")
    paths = [here, *filter(None, [os.environ.get("PYTHONPATH")])]
    options = {name: value for name, value in asked.items() if value is not None}
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        OPTIONS: json.dumps(options),
    }


def become(command_line: list[str], environment: dict[str, str]) -> None:
    """Replace this process by the script; where that is impossible, run it as a child."""
    if sys.stdout is not None:  # None if closed; the script's will be closed too
        sys.stdout.flush()
    if sys.platform != "win32":
        os.execve(command_line[0], command_line, environment)  # noqa: S606
    with subprocess.Popen(command_line, env=environment) as child:
        code: int | None = None
        while code is None:
            with contextlib.suppress(KeyboardInterrupt):  # the child got it too and decides itself
                code = child.wait()
    raise SystemExit(code)
