"""Judges the runs of a place that have no verdict yet, by workers, and stores the verdicts.

Verdicts are stored while others are still worked on, so who is stopped keeps what was judged. Runs
that cannot be judged are named, and the others go on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from ampwatch.errors import AmpwatchError, PlaceError
from ampwatch.fleet.chosen_runs import Choice
from ampwatch.fleet.judging_worker import ShareVerdicts, judge_share, shares_of
from ampwatch.fleet.place import Place
from ampwatch.fleet.runs_delta_table import PublishedRun, list_published
from ampwatch.fleet.verdicts import (
    FleetVerdicts,
    NotJudged,
    RunVerdict,
    rules_version,
    store_verdicts,
    tables_of,
    verdicts_on,
)
from ampwatch.fleet.workers import Workers

# A transaction takes some tenths of a second, in a bucket some seconds, so many verdicts are one.
_STORED_EVERY_S, _STORED_RUNS = 20.0, 500

Progress = Callable[[int, int], None]


def judge_place(
    place: Place | str,
    choice: Choice,
    workers: Workers,
    *,
    findings: bool = True,
    progress: Progress | None = None,
) -> FleetVerdicts:
    """Judge those chosen runs of a place that have no verdict yet; return all their verdicts.

    The verdicts are on all chosen runs, also those judged before. Raises PlaceError; what was
    judged by then is stored, as it is after Ctrl-C. Without `findings` the runs have none, which
    are most of the bytes. `progress` gets the runs that were judged and all that are to be.
    """
    place = place if isinstance(place, Place) else Place(place)
    chosen = choice.of_runs(list_published(place))
    done = _JudgedSoFar(place, chosen)
    told = 0
    try:
        for share, said in workers.as_done(judge_share, place.address, done.shares(workers.count)):
            done.take(share, said)
            told = done.seen
            if progress:
                progress(told, done.total)
    finally:
        done.store()
        if progress and told != done.seen:  # Ctrl-C came in between
            progress(done.seen, done.total)
    if done.judged:
        done.tidy()
    verdicts = choice.of_verdicts(chosen, verdicts_on(place, chosen, findings=findings))
    ours = tuple(one for one in verdicts if one.rules == rules_version())
    return FleetVerdicts(place.address, ours, done.judged, tuple(done.failed), done.changed)


class _JudgedSoFar:
    """What the workers have judged so far, and what is not stored yet."""

    def __init__(self, place: Place, chosen: Sequence[PublishedRun]) -> None:
        self._place = place
        self._tables = tables_of(place)
        known = self._tables[0].keys()
        self._left = [one for one in chosen if (one.id, one.stamp, rules_version()) not in known]
        self._names = {one.id: one.name for one in self._left}
        self._found: list[RunVerdict] = []
        self._stored_s = time.monotonic()
        self.total = len(self._left)
        self.seen = self.judged = self.changed = 0
        self.failed: list[NotJudged] = []

    def shares(self, workers: int) -> list[list[PublishedRun]]:
        """The runs that are to be judged, in shares for the workers."""
        return shares_of(self._left, workers)

    def take(self, share: Sequence[PublishedRun], said: ShareVerdicts) -> None:
        """Take what a worker made of its share; raises what kept it from reading the place."""
        if said.rules != rules_version():
            raise AmpwatchError(
                f"A worker judges by the rules {said.rules} and this machine by {rules_version()}: "
                "install the same ampwatch on both."
            )
        self._found += said.found
        self.judged += len(said.found)
        self.changed += len(said.changed)
        self.seen += len(share)
        self.failed += [NotJudged(id_, self._names[id_], why) for id_, why in said.failed.items()]
        if said.trouble:
            raise PlaceError(said.trouble, place=self._place.address)
        is_time = time.monotonic() - self._stored_s > _STORED_EVERY_S
        if self._found and (is_time or len(self._found) >= _STORED_RUNS):
            self.store()

    def store(self) -> None:
        """Store the verdicts that are new; after Ctrl-C in here they are stored again, once."""
        if self._found:
            store_verdicts(self._tables, self._found)
            self._found = []
        self._stored_s = time.monotonic()

    def tidy(self) -> None:
        """Join the small files of the verdict tables after judging."""
        for table in self._tables:
            table.tidy()
