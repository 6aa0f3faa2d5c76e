"""A run on disk: create it, append to it, read it live or finished, compact it, find it.

A rank's batches are appended to one Arrow stream a table, and an index record with a checksum
vouches for each. What is torn or damaged is left out and said; what was acknowledged is read.
"""

from __future__ import annotations

from ampwatch.store.catalogue import (
    RunSummary,
    default_log_dir,
    list_runs,
    register_run,
    state_folder,
    summarize,
)
from ampwatch.store.compaction import CompactResult, compact
from ampwatch.store.info import RUN_FILE, RunInfo, read_info
from ampwatch.store.layout import create_run, safe_name
from ampwatch.store.run import Run, open_run
from ampwatch.store.writer import RankWriter

__all__ = [
    "RUN_FILE",
    "CompactResult",
    "RankWriter",
    "Run",
    "RunInfo",
    "RunSummary",
    "compact",
    "create_run",
    "default_log_dir",
    "list_runs",
    "open_run",
    "read_info",
    "register_run",
    "safe_name",
    "state_folder",
    "summarize",
]
