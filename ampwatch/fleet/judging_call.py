"""The call `ampwatch.fleet(place)`: judges a place's runs as the command `ampwatch fleet` does."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path
from typing import TYPE_CHECKING

from ampwatch.errors import AmpwatchError
from ampwatch.fleet.workers import LocalWorkers, Workers

if TYPE_CHECKING:
    from ampwatch.fleet.judging import Progress
    from ampwatch.fleet.place import Place
    from ampwatch.fleet.verdicts import FleetVerdicts
    from ampwatch.store import Run

ENGINES = ("local", "ray")


def judge(
    place: str | Place,
    *,
    engine: str = "local",
    address: str | None = None,
    workers: int | None = None,
    since: str | dt.timedelta | None = None,
    where: str = "",
    like: Run | str | Path | None = None,
    progress: Progress | None = None,
) -> FleetVerdicts:
    """Judge what is new of the runs in a place; return the verdicts on all of them.

    `.verdicts` and `.findings` of what it returns are Arrow tables, `.runs` the same as objects,
    and `.failed` names the runs that cannot be judged. Raises PlaceError; what was judged by then
    is stored. `engine`: "local" for processes of this machine, `workers` of them; "ray" for a
    cluster at `address`, or one of this machine. `since`: an age such as "7d"; `where`: as in the
    search of runs; `like`: only runs that are made of what this one is. `progress` gets the runs
    that were judged and all that are to be.
    """
    from ampwatch.fleet.chosen_runs import choice_of
    from ampwatch.fleet.judging import judge_place
    from ampwatch.store import Run, open_run

    opened = like if isinstance(like, Run) or like is None else open_run(like)
    choice = choice_of(since, where, opened)
    return judge_place(place, choice, workers_of(engine, address, workers), progress=progress)


def workers_of(engine: str, address: str | None, workers: int | None) -> Workers:
    """The workers that a call of `judge` asks for; AmpwatchError if it names none there are."""
    if engine not in ENGINES:
        raise AmpwatchError(f"There is no engine {engine!r}: local or ray.")
    if workers is not None and workers < 1:
        raise AmpwatchError(f"{workers} workers can judge nothing: give one or more.")
    if engine == "ray":
        from ampwatch.fleet.ray_workers import RayWorkers

        return RayWorkers(address, workers)
    if address is not None:
        raise AmpwatchError("An address is that of a Ray cluster: add --engine ray.")
    return LocalWorkers(workers or os.cpu_count() or 1)
