"""Delete a run from a folder of runs: nobody writes it, and nothing but ours is in its folder."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from ampwatch.errors import RunError, RunInUseError
from ampwatch.store import locks
from ampwatch.store.copy_notes import COPY_FILE
from ampwatch.store.layout import is_rank_name, rank_folder, ranks_in
from ampwatch.store.locks import LOCK_FILE
from ampwatch.store.run_info import RUN_FILE, read_info
from ampwatch.store.tags import TAGS_FILE

_OURS = {RUN_FILE, COPY_FILE, TAGS_FILE, LOCK_FILE}
_DRAFT = re.compile(r"\..+\.\d+\.new")
_GOING = ".deleted"  # such a folder is on its way out; who is killed meanwhile leaves it
_STRANGERS_NAMED = 3


def delete_run(run_folder: Path, run_id: str, within: Iterable[Path]) -> None:
    """Delete a run of this id that lies directly in one of these folders of runs.

    RunError says why it stays as it is. Readers see all of it or nothing.
    """
    _refuse(run_folder, run_id, within)
    for left in run_folder.parent.glob(f".*{_GOING}"):
        shutil.rmtree(left, ignore_errors=True)
    going = run_folder.with_name(f".{run_folder.name[:100]}.{os.getpid()}{_GOING}")
    try:
        with _held(run_folder):
            run_folder.rename(going)
        shutil.rmtree(going)
    except RunInUseError:
        raise RunError(f"{run_folder.name} is being written: it stays.", path=run_folder) from None
    except OSError as problem:
        reason = problem.strerror or str(problem)
        raise RunError(
            f"{run_folder} cannot be deleted ({reason}): make its folder writable.", path=run_folder
        ) from problem


def size_of_run(run_folder: Path) -> int:
    """The bytes of all its files."""
    total = 0
    for folder, _, names in os.walk(run_folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += (Path(folder) / name).lstat().st_size
    return total


def _refuse(run_folder: Path, run_id: str, within: Iterable[Path]) -> None:
    name = run_folder.name
    if run_folder.is_symlink():
        raise RunError(f"{name} is a link to a run: delete the link by hand.", path=run_folder)
    parent = os.path.realpath(run_folder.parent)
    if parent not in {os.path.realpath(folder) for folder in within}:
        raise RunError(
            f"{run_folder} is not in a folder of runs that is shown here: it stays.",
            path=run_folder,
        )
    if read_info(run_folder).id != run_id:
        raise RunError(f"{name} is another run by now: it stays.", path=run_folder)
    strangers = sorted(path.name for path in run_folder.iterdir() if not _is_ours(path))
    if strangers:
        more = len(strangers) - _STRANGERS_NAMED
        named = ", ".join(strangers[:_STRANGERS_NAMED]) + (f" and {more} more" if more > 0 else "")
        raise RunError(
            f"{run_folder} also holds what ampwatch did not write ({named}): move that away first.",
            path=run_folder,
        )


def _is_ours(path: Path) -> bool:
    is_rank = is_rank_name(path.name) and path.is_dir() and not path.is_symlink()
    return is_rank or path.name in _OURS or _DRAFT.fullmatch(path.name) is not None


@contextlib.contextmanager
def _held(run_folder: Path) -> Iterator[None]:
    """Hold every rank's lock, so that no writer begins meanwhile."""
    held: list[int] = []
    try:
        held.extend(locks.hold(rank_folder(run_folder, rank)) for rank in ranks_in(run_folder))
        if os.name == "nt":  # a folder with an open file cannot be renamed there
            while held:
                os.close(held.pop())
        yield
    finally:
        for lock in held:
            os.close(lock)
