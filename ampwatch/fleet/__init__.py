"""Many runs: published to a place, and read from there as from a disk.

A *place* is a folder or a prefix in object storage that holds Delta tables: a row table for each of
`rows.py`, and `runs`, whose row for a run is written last. A run that `runs` does not name is not
there, whatever else is. Needs the extra `fleet`; nothing that runs beside a training comes here.
"""

from __future__ import annotations

from ampwatch.fleet.place import Place, is_place
from ampwatch.fleet.published_run import open_published
from ampwatch.fleet.publishing import publish
from ampwatch.fleet.run_table import PublishedRun, list_published
from ampwatch.fleet.share_writing import Outcome

__all__ = [
    "Outcome",
    "Place",
    "PublishedRun",
    "is_place",
    "list_published",
    "open_published",
    "publish",
]
