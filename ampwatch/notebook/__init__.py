"""In notebooks: a cell that follows a run, and `%ampwatch` after `%load_ext ampwatch`.

IPython is looked up among the loaded modules and never loaded, so a training outside of a notebook
does without. What a run looks like in a cell stands in `report.notebook_html`.
"""

from __future__ import annotations

import html
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ampwatch.cli.run_argument import opened_run_or_log
from ampwatch.cli.terminal import answer, complain
from ampwatch.errors import AmpwatchError, warn
from ampwatch.follow import FollowedRun, Follower, FollowThread, State
from ampwatch.report import last_values
from ampwatch.report.notebook_html import run_html
from ampwatch.store import open_run

if TYPE_CHECKING:
    from ampwatch.probe import Watch
    from ampwatch.store import Run

EVERY_S = 2.0
_SHARE = 0.05  # of this process's time, at most: the training may need it
_LONGEST_WAIT_S = 30.0
_PRINTING = ("compare", "explain", "export", "list", "plan", "report", "tag")  # and end by then


def show(run: Watch | str | Path) -> FollowThread | None:
    """Show a run in the output of this cell, and follow it there until it is over.

    `run` is what `attach` returned, or a run's name or folder.
    """
    if isinstance(run, (str, Path)):
        folder, began_ns = open_run(run).path, 0
    elif run.run_folder is None:
        warn("this run has no log on disk, so there is nothing to show.")
        return None
    else:
        folder, began_ns = run.run_folder, run.began_ns
    if (display := _display()) is None:
        warn(f"show() needs a notebook. In a terminal: ampwatch watch {shlex.quote(str(folder))}")
        return None
    cell = _LiveCell(display(_Html("Reading the run ..."), display_id=True))
    thread = FollowThread(
        cell.update, cell.say_unreadable, every_s=EVERY_S, name="ampwatch-notebook"
    )
    thread.follow(folder, began_ns)
    return thread


def _display() -> Any:
    """IPython's function that shows an object in the running cell; None outside of a kernel."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return sys.modules["IPython.display"].display if hasattr(shell, "kernel") else None


class _Html:
    """What a cell shows: HTML, or the same words where HTML cannot be shown."""

    def __init__(self, words: str, page: str | None = None) -> None:
        self._words, self._page = words, page

    def __repr__(self) -> str:
        return self._words

    def _repr_html_(self) -> str:
        return html.escape(self._words) if self._page is None else self._page


class _LiveCell:
    """The output of one cell; a thread brings it up to date."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._shown: tuple[int, State] | None = None

    def update(self, _folder: Path, follower: Follower) -> bool:
        """Show what is new; whether the run is over."""
        began_s = time.monotonic()
        followed = follower.update()
        if (followed.rows, followed.state) != self._shown:
            with follower.reading() as run:
                words = _status(run, followed)
                page = f"<p>{html.escape(words)}</p>{run_html(run, followed.diagnosis)}"
            if not self._show(_Html(words, page)):
                return True
            self._shown = followed.rows, followed.state
        if followed.is_over:
            return True
        time.sleep(min((time.monotonic() - began_s) / _SHARE, _LONGEST_WAIT_S))
        return False

    def say_unreadable(self, folder: Path, problem: AmpwatchError) -> None:
        """Show why the run cannot be read."""
        self._show(_Html(f"{folder.name} cannot be read: {problem}"))

    def _show(self, page: _Html) -> bool:
        """Replace the output; whether anybody can still see it."""
        try:
            self._handle.update(page)
        except Exception:  # noqa: BLE001  the kernel is going away: there is nobody to tell
            return False
        return True


def _status(run: Run, followed: FollowedRun) -> str:
    """The run's name and state, and its newest values."""
    newest = [f"{name} {value:.4g}" for name, value in last_values(run).items()]
    return ", ".join([f"{run.info.name}: {followed.state.value}", *newest])


# --- %ampwatch ------------------------------------------------------------------------------------


def load_ipython_extension(shell: Any) -> None:
    """IPython calls this for `%load_ext ampwatch`."""
    shell.register_magic_function(magic, "line", "ampwatch")


def magic(line: str) -> None:
    """Show a run or a log, follow a run, or print what a command prints.

    %ampwatch report RUN|FILE
    %ampwatch watch RUN
    %ampwatch list
    """
    words = shlex.split(line)
    try:
        _obey(words)
    except AmpwatchError as error:
        complain(str(error))


def _obey(words: list[str]) -> None:
    from ampwatch import cli

    display = _display()
    match words:
        case ["report", str(named)] if display is not None and not named.startswith("-"):
            with opened_run_or_log(named) as run:
                display(_Html(f"{run!r}", run_html(run)))
        case ["watch", str(named)]:
            show(named)
        case [str(command), *_] if command in _PRINTING:
            cli.run(words)
        case _:
            answer(f"In a notebook: !ampwatch {shlex.join(words)}" if words else cli.FIRST_STEPS)
