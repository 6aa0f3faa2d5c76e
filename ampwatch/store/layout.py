"""Where a run's files are, and how its folder is created.

RUN/run.json, RUN/rank-N/<table>.arrows, RUN/rank-N/index, and once compacted RUN/rank-N/base.json
with the Parquet files it names. A folder's name is the run's name made safe; no path ever comes
from outside.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import time
import unicodedata
from collections.abc import Iterator
from pathlib import Path

from ampwatch.errors import NotARunError, RunError, reason_of
from ampwatch.files import make_run_folder, write_file
from ampwatch.rows import Table
from ampwatch.store.run_info import RUN_FILE, RunInfo, read_info

INDEX_FILE, BASE_FILE = "index", "base.json"
MAX_NAME_BYTES = 120  # file systems allow 255; "-12" and temporary names need room
_MAX_SAME_NAME = 10_000
_UNNAMED = re.compile(r"\.[0-9a-f]{16}\.new")
_LEFT_S = 3600.0  # no run takes so long to create
_UNSAFE = re.compile(r'[<>:"/\\|?*]')
_WINDOWS_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
_ASIDE = "damaged-"
_RANK = re.compile(r"rank-(0|[1-9]\d{0,8})")


def rank_folder(run_folder: Path, rank: int) -> Path:
    """Where one rank's files are."""
    return run_folder / f"rank-{rank}"


def table_file(folder: Path, table: Table) -> Path:
    """A table's stream of batches within a rank's folder."""
    return folder / f"{table.value}.arrows"


def new_aside(folder: Path) -> Path:
    """A folder for the damaged files of a rank, which are kept before a writer cuts them."""
    number = 1
    while (aside := folder / f"{_ASIDE}{number}").exists():
        number += 1
    return aside


def asides_in(folder: Path) -> tuple[str, ...]:
    """The names of the folders in which damaged files of a rank were set aside."""
    try:
        return tuple(sorted(path.name for path in folder.glob(f"{_ASIDE}*") if _is_folder(path)))
    except OSError:
        return ()


def ranks_in(run_folder: Path) -> tuple[int, ...]:
    """The ranks that have a folder, in order."""
    try:
        names = [entry.name for entry in run_folder.iterdir() if _is_folder(entry)]
    except OSError:
        return ()
    return tuple(sorted(int(match[1]) for match in map(_RANK.fullmatch, names) if match))


def is_rank_name(name: str) -> bool:
    """Whether a rank's folder is named so."""
    return _RANK.fullmatch(name) is not None


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # one folder without permission must not hide the others
        return False


def safe_name(name: str) -> str:
    """A run's name as a folder's: no separators, leading dots or reserved names; unicode kept."""
    text = unicodedata.normalize("NFC", name)
    text = "".join("-" if unicodedata.category(char)[0] == "C" else char for char in text)
    text = _UNSAFE.sub("-", text).strip().lstrip(".")
    text = text.encode("utf-8")[:MAX_NAME_BYTES].decode("utf-8", "ignore").rstrip(". ")
    if _WINDOWS_RESERVED.fullmatch(text):
        text = f"run-{text}"
    return text or "run"


def create_run(log_dir: Path, info: RunInfo, *, resume: bool = False) -> Path:
    """The run's folder: created, or found if another rank of the run was first.

    If a folder of that name holds another run, "-2", "-3" and so on is added. With `resume`, the
    newest run of that name is taken as it is: its run.json, and so its id, stay.
    """
    log_dir = Path(log_dir)
    try:
        log_dir.mkdir(parents=True, exist_ok=True)
        sweep(log_dir)
        if resume and (found := _newest_named(log_dir, info)):
            return found
        return _claim(log_dir, info)
    except OSError as problem:
        raise RunError(
            f"No run can be created in {log_dir} ({reason_of(problem)}): give log_dir, "
            "or set AMPWATCH_DIR, to a folder that can be written.",
            path=log_dir,
        ) from problem


def find_in(log_dir: Path, info: RunInfo) -> Path | None:
    """The folder in which this very run is, if it is in this folder of runs."""
    for folder in _candidates(log_dir, info.name):
        if not folder.exists():
            return None
        if _id_in(folder) == info.id:
            return folder
    return None


def sweep(log_dir: Path) -> None:
    """Remove what processes left that were killed, long ago, while they created a run.

    Such a folder is unnamed and holds a run.json at most; one that holds more is left alone.
    """
    try:
        with os.scandir(log_dir) as there:  # of a hundred thousand runs, perhaps
            left = [Path(entry.path) for entry in there if _UNNAMED.fullmatch(entry.name)]
    except OSError:
        return
    for folder in left:
        with contextlib.suppress(OSError):  # another user's folder, or another process was first
            is_old = time.time() - folder.stat().st_mtime > _LEFT_S
            if is_old and {path.name for path in folder.iterdir()} <= {RUN_FILE}:
                (folder / RUN_FILE).unlink(missing_ok=True)
                folder.rmdir()


def size_of_run(run_folder: Path) -> int:
    """The bytes of all of a run's files, which deleting it frees."""
    total = 0
    for folder, _, names in os.walk(run_folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += (Path(folder) / name).lstat().st_size
    return total


def _candidates(log_dir: Path, name: str) -> Iterator[Path]:
    """The folders to try for a run of this name, in order; the first is usually free."""
    stem = safe_name(name)
    yield log_dir / stem
    for number in range(2, _MAX_SAME_NAME):
        yield log_dir / f"{stem}-{number}"


def _newest_named(log_dir: Path, info: RunInfo) -> Path | None:
    newest = None
    for folder in _candidates(log_dir, info.name):
        if not folder.exists():
            break
        held = _id_in(folder)
        if held == info.id:
            return folder
        newest = folder if held else newest
    return newest


def _claim(log_dir: Path, info: RunInfo) -> Path:
    """Rename a finished folder into place: a run's folder never stands without its run.json."""
    fresh = log_dir / f".{secrets.token_hex(8)}.new"  # see `sweep`
    make_run_folder(fresh)
    try:
        write_file(fresh / RUN_FILE, info.to_json().encode())
        for folder in _candidates(log_dir, info.name):
            if not folder.exists() and _moved(fresh, folder):
                return folder
            if _id_in(folder) == info.id:
                return folder
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    raise RunError(
        f"{log_dir} holds {_MAX_SAME_NAME} runs named {info.name!r}: choose another name.",
        path=log_dir,
    )


def _moved(fresh: Path, folder: Path) -> bool:
    """Whether the new run's folder was renamed; another process' folder may stand there."""
    try:
        fresh.rename(folder)
    except OSError:
        if not folder.exists():
            raise
        return False
    return True


def _id_in(folder: Path) -> str | None:
    try:
        return read_info(folder).id
    except NotARunError:
        return None
    except RunError:  # a run of a newer format, which this process cannot join
        return ""
