"""A run on disk: create it, append to it, read it live or finished, compact it, find it.

A rank's batches are appended to one Arrow stream a table, and an index record with a checksum
vouches for each. Torn or damaged batches are left out and reported; acknowledged ones are read.
`Run` and `compact` are imported when they are first used, so a program that only writes is quick.

- a run's folder: layout, locks, run_info, tags, console_and_diff
- a rank's log: writer, live_log, compacted_log, parquet_file, compaction, rank_log
- a run as its readers see it: run, public_rows
- lists of runs, and runs by their name: catalogue, kept_facts
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ampwatch.store.catalogue import HOW_TO_BEGIN as HOW_TO_BEGIN
from ampwatch.store.catalogue import OWN_SOURCE as OWN_SOURCE
from ampwatch.store.catalogue import Catalogue as Catalogue
from ampwatch.store.catalogue import RunSummary as RunSummary
from ampwatch.store.catalogue import default_log_dir as default_log_dir
from ampwatch.store.catalogue import delete_run as delete_run
from ampwatch.store.catalogue import find_run as find_run
from ampwatch.store.catalogue import how_to_see as how_to_see
from ampwatch.store.catalogue import list_runs as list_runs
from ampwatch.store.catalogue import register_run as register_run
from ampwatch.store.catalogue import shown_folder as shown_folder
from ampwatch.store.catalogue import summarize as summarize
from ampwatch.store.layout import create_run as create_run
from ampwatch.store.layout import safe_name as safe_name
from ampwatch.store.layout import size_of_run as size_of_run
from ampwatch.store.locks import is_written as is_written
from ampwatch.store.run_info import COPY_FILE as COPY_FILE
from ampwatch.store.run_info import RUN_FILE as RUN_FILE
from ampwatch.store.run_info import CopyNote as CopyNote
from ampwatch.store.run_info import RunInfo as RunInfo
from ampwatch.store.run_info import describe_run as describe_run
from ampwatch.store.run_info import load_copies as load_copies
from ampwatch.store.run_info import read_copies as read_copies
from ampwatch.store.run_info import read_info as read_info
from ampwatch.store.run_info import write_copies as write_copies
from ampwatch.store.tags import RunTags as RunTags
from ampwatch.store.tags import edit_tags as edit_tags
from ampwatch.store.tags import read_tags as read_tags
from ampwatch.store.writer import RankWriter as RankWriter

if TYPE_CHECKING:
    from ampwatch.store.compaction import compact as compact
    from ampwatch.store.run import Reading as Reading
    from ampwatch.store.run import Run as Run
    from ampwatch.store.run import RunFiles as RunFiles
    from ampwatch.store.run import RunFolder as RunFolder
    from ampwatch.store.run import is_published as is_published
    from ampwatch.store.run import open_run as open_run


# Arrow's Parquet and its functions take 150 ms, which a program that only writes does not pay.
_LATE = {
    "compaction": ("compact",),
    "run": ("Reading", "Run", "RunFiles", "RunFolder", "is_published", "open_run"),
}
_HOMES = {name: module for module, names in _LATE.items() for name in names}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'ampwatch.store' has no attribute {name!r}")
    value = getattr(import_module(f"ampwatch.store.{home}"), name)
    globals()[name] = value
    return value
