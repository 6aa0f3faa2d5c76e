"""A folder in which each rank wrote logs of its own becomes one run with all of them.

A file says its rank in its name: `training.global_rank_3.….jsonl` of torchtitan,
`nvdlfw_inspect_globalrank-3.log` of NVIDIA's inspector. Several of one rank are its attempts.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from ampwatch.diagnosis.value_text import count_text
from ampwatch.errors import LogError
from ampwatch.importers.import_options import ImportOptions, OnProgress, fresh_info
from ampwatch.importers.log_file import LogFile
from ampwatch.importers.text_import import TextImport
from ampwatch.store import RunInfo, create_run
from ampwatch.store.layout import rank_folder

_RANK = re.compile(r"global_?rank[-_](\d{1,6})(?!\d)")
_PLACES = ("*", "*/*")  # of the inspector's two folders one holds the statistics


def rank_logs(folder: Path) -> dict[int, list[Path]]:
    """The logs of each rank in a folder, by name; empty if no file's name says its rank."""
    found: dict[int, list[Path]] = {}
    if not folder.is_dir() or (folder / "run.json").exists():
        return found
    for path in sorted(path for place in _PLACES for path in folder.glob(place)):
        told = _RANK.search(path.name)
        if told is not None and path.is_file():
            found.setdefault(int(told[1]), []).append(path)
    return dict(sorted(found.items()))


def import_ranks(
    place: Path,
    logs: Mapping[int, Sequence[Path]],
    out: Path,
    options: ImportOptions,
    on_progress: OnProgress | None = None,
) -> Path:
    """Import a folder's logs of all ranks as one run; raises LogError if none holds a training."""
    info = fresh_info(str(place), options)
    folder = create_run(out, info)
    size = sum(path.stat().st_size for paths in logs.values() for path in paths)
    read = 0
    told: list[int] = []
    try:
        for rank, paths in logs.items():
            if _import_rank(folder, info, options, rank, paths, is_first=not told):
                told.append(rank)
            read += sum(path.stat().st_size for path in paths)
            if on_progress is not None:
                on_progress(read, size)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    if not told:
        shutil.rmtree(folder, ignore_errors=True)
        ranks = count_text(len(logs), "rank")
        raise LogError(f"The logs of {ranks} in {place} hold no training.", path=place)
    return folder


def _import_rank(
    folder: Path,
    info: RunInfo,
    options: ImportOptions,
    rank: int,
    paths: Sequence[Path],
    *,
    is_first: bool,
) -> bool:
    """Import one rank's logs; whether they hold a training. The first one describes the run."""
    text = TextImport(folder, info, options, rank)
    try:
        for path in paths:
            with LogFile(path) as log:
                for chunk in log.chunks():
                    text.feed(chunk)
        text.finish()
        if text.builder.attempts and is_first:
            text.describe()
    finally:
        text.close()
    if not text.builder.attempts:
        shutil.rmtree(rank_folder(folder, rank), ignore_errors=True)
    return bool(text.builder.attempts)
