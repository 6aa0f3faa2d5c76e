"""Many runs: published to a place, and read from there like runs on disk.

A *place* is a folder or a prefix in object storage that holds Delta tables: one for each table of
`rows.py`, and `runs`, whose row for a run is written last. A run without a row in `runs` is not
published. Needs the extra `fleet`; the training process never imports this package.
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
