"""Many runs: published to a place, and read from there like runs on disk.

A *place* is a folder or a prefix in object storage that holds Delta tables: a row table for each of
`rows.py`, and `runs`, whose row for a run is written last. A run that `runs` does not name is not
there, whatever else is. Needs the extra `fleet`; nothing that runs beside a training comes here.

The package is also a function: `ampwatch.fleet(place)` is `ampwatch.fleet.judge(place)`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from ampwatch.fleet.judging import judge
from ampwatch.fleet.place import Place, is_place
from ampwatch.fleet.publishing import Outcome, publish
from ampwatch.fleet.row_tables import open_published
from ampwatch.fleet.runs_delta_table import PublishedRun, list_published

__all__ = [
    "Outcome",
    "Place",
    "PublishedRun",
    "is_place",
    "judge",
    "list_published",
    "open_published",
    "publish",
]


class _CallablePackage(ModuleType):
    """A package that is also the function `judge`: `ampwatch.fleet(place)`."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return judge(*arguments, **named)


sys.modules[__name__].__class__ = _CallablePackage
