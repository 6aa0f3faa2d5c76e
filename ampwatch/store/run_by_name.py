"""Find a run by its folder or by its name in the default folder; if there is none, say what is.

The sentences serve the command line and Python alike: each names what was looked for, where, and
what to type next.
"""

from __future__ import annotations

import difflib
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from ampwatch.errors import NotARunError, reason_of
from ampwatch.store.catalogue import default_log_dir
from ampwatch.store.run_info import RUN_FILE

HOW_TO_BEGIN = "Add `ampwatch.attach(scaler, model)` to a training loop, or run `ampwatch demo`."

_MOST_NAMED = 3
_MOST_COMPARED = 2_000  # names: to compare one takes 50 us
_LEAST_PART = 3  # letters of a name that are looked for within other names


def find_run(named: str | Path) -> Path:
    """The folder of the run at a path, or of this name in the default folder; or NotARunError."""
    for folder in (Path(named), default_log_dir() / named):
        if os.path.lexists(folder / RUN_FILE):  # if it is damaged, its reader says how
            return folder
    raise NotARunError(_why_none(str(named)), path=named)


def report_command(run_folder: Path) -> str:
    """The command that reports on a run: by its name if that suffices, else by its path."""
    if _is_in_default(run_folder):
        return f"ampwatch report {shlex.quote(run_folder.name)}"
    path = shown_folder(run_folder).removeprefix(f".{os.sep}")
    return f"ampwatch report {shlex.quote(path)}"


def how_to_see(run_folder: Path) -> str:
    """The command that reports on a run and where it is, for who started this very program."""
    if _has_moved():
        return f"`ampwatch report {shlex.quote(str(run_folder.absolute()))}`"
    folder = f" (in {shown_folder(run_folder.parent)})" if _is_in_default(run_folder) else ""
    return f"`{report_command(run_folder)}`{folder}"


def _has_moved() -> bool:
    """Whether this program works in another folder than the shell that started it, if one did."""
    shell = os.environ.get("PWD")
    return shell is not None and os.path.realpath(shell) != os.path.realpath(".")


def _is_in_default(run_folder: Path) -> bool:
    return os.path.realpath(run_folder.parent) == os.path.realpath(default_log_dir())


def shown_folder(folder: Path) -> str:
    """A folder as a message shows it: from the working folder if it is below that."""
    try:
        below = Path(os.path.relpath(folder))
    except (OSError, ValueError):  # the working folder is gone, or on another drive
        return str(folder)
    is_elsewhere = ".." in below.parts or below == Path()
    return str(folder) if is_elsewhere else f".{os.sep}{below}"


def _is_folder(path: Path) -> bool:
    return os.path.isdir(path)  # noqa: PTH112 - a Path raises for a name that is too long


def _why_none(text: str) -> str:
    """Why this names no run, and what to do."""
    if "://" in text:
        return f"{text} is a place for runs, not a run: name one of its runs, as in {text}#NAME."
    if os.path.isfile(text):  # noqa: PTH113 - a Path raises for a name that is too long
        return (
            f"{text} is a file; a run is a folder with a run.json. If it is the log of another "
            f"trainer, `ampwatch import {shlex.quote(text)}` makes a run of it."
        )
    for folder in (Path(text), default_log_dir() / text):
        if _is_folder(folder):
            return _what_folder_has(folder)
    if len(Path(text).parts) > 1:
        return _none_in_folder(Path(text))
    return _none_by_name(text)


def _what_folder_has(folder: Path) -> str:
    """Which runs there are in a folder that was given as a run."""
    try:
        names = run_names(folder)
    except OSError as problem:
        return f"{folder} cannot be read: {reason_of(problem)}."
    if not names:
        return f'The folder "{folder}" has no run in it.{_guess(folder.name, _known_names())}'
    command = report_command(folder / names[0])
    if len(names) == 1:
        return f"{folder} is a folder of 1 run. Report on it with: {command}"
    named = _listed(names[:_MOST_NAMED], "and")
    some = f", the newest {named}" if len(names) > _MOST_NAMED else f": {named}"
    return f"{folder} is a folder of {len(names):,} runs{some}. Report on one with: {command}"


def _none_in_folder(path: Path) -> str:
    """Why a path with folders in it leads to no run."""
    folder = path.parent
    nothing = f"No run named {path.name} in {shown_folder(folder)}"
    if not _is_folder(folder):
        return f"{nothing}: there is no such folder."
    names = _names_or_none(folder)
    if not names:
        return f"{nothing}, which has no run in it."
    return f"{nothing}.{_guess(path.name, names, folder) or ' `ampwatch runs` lists all runs.'}"


def _none_by_name(name: str) -> str:
    """Why a name alone is that of no run."""
    names = _known_names()
    nothing = f"No run named {name} in {shown_folder(default_log_dir())}"
    if not names:
        return f"{nothing}, which has no run yet. {HOW_TO_BEGIN}"
    return f"{nothing}.{_guess(name, names) or ' `ampwatch runs` lists all runs.'}"


def _known_names() -> list[str]:
    """The runs that can be named without a path: of the default folder, and of the working one."""
    return [*_names_or_none(default_log_dir()), *_names_or_none(Path())]


def _names_or_none(folder: Path) -> list[str]:
    try:
        return run_names(folder)
    except OSError:
        return []


def run_names(folder: Path) -> list[str]:
    """The names of the runs in a folder, newest first; none of them is opened."""
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            info = os.path.join(entry.path, RUN_FILE)  # noqa: PTH118 - of 10,000 folders
            if not entry.name.startswith(".") and os.path.lexists(info):
                found.append((os.lstat(info).st_mtime_ns, entry.name))
    return [name for _, name in sorted(found, reverse=True)]


def _guess(name: str, names: Sequence[str], folder: Path = Path()) -> str:
    """A question that names the runs which may have been meant; empty if none is near."""
    near = [shlex.quote(str(folder / one)) for one in _near(name, names)]
    return f" Did you mean {_listed(near, 'or')}?" if near else ""


def _near(name: str, names: Sequence[str]) -> list[str]:
    """The run names that begin with this one, contain it or are spelled much like it."""
    known = {one.lower(): one for one in reversed(names[:_MOST_COMPARED])}
    wanted, newest_first = name.lower(), list(known)[::-1]
    begin = [one for one in newest_first if one.startswith(wanted)]
    contain = [one for one in newest_first if wanted in one and len(wanted) >= _LEAST_PART]
    alike = difflib.get_close_matches(wanted, newest_first, _MOST_NAMED)
    return [known[one] for one in dict.fromkeys([*begin, *contain, *alike])][:_MOST_NAMED]


def _listed(names: Sequence[str], word: str) -> str:
    *first, last = names
    return f"{', '.join(first)} {word} {last}" if first else last
