"""Follow live runs: one reader and one engine per run, however many consumers it has.

    run's log -> Follower (state, engine) -> FollowedRun
    FollowedRun -> alerts, mirrors, `ampwatch watch`, dashboard

`follow(path)` gives the process's one `Follower` of a run. A `FollowedRun` says whether the run is
live, ended or lost, and what is found in it so far. `FollowThread` checks runs repeatedly until
they are over. Consumers that need rows read them through the follower, too. `lesson_for` says what
earlier runs have shown.
"""

from __future__ import annotations

from ampwatch.follow.follower import FollowedRun, Follower, FollowThread, NewFindings, follow
from ampwatch.follow.list_entry import (
    KeptEntries,
    ListEntry,
    entry_of,
    keep_for_later,
    lesson_for,
)
from ampwatch.follow.liveness import (
    Liveness,
    State,
    as_it_stands,
    at_a_glance,
    diagnose,
    diagnose_together,
)

__all__ = [
    "FollowThread",
    "FollowedRun",
    "Follower",
    "KeptEntries",
    "ListEntry",
    "Liveness",
    "NewFindings",
    "State",
    "as_it_stands",
    "at_a_glance",
    "diagnose",
    "diagnose_together",
    "entry_of",
    "follow",
    "keep_for_later",
    "lesson_for",
]
