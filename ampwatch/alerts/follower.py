"""One run followed: its diagnosis whenever there is more, and what of it is news."""

from __future__ import annotations

from ampwatch.alerts.letters import Letter, letter_of, lost_letter
from ampwatch.alerts.news import News
from ampwatch.diagnosis import Diagnosis, Engine
from ampwatch.store import Run, open_run


class Follower:
    """Looks at a run again and again; a look costs what is new."""

    def __init__(self, run: Run) -> None:
        self.path = run.path
        self._run: Run | None = run
        self._engine = Engine()
        self._news = News()
        self._was_over = False

    @property
    def run(self) -> Run:
        """The run; one that was released is opened again."""
        if self._run is None:
            self._run, self._engine = open_run(self.path), Engine()
        return self._run

    def look(self) -> Diagnosis:
        """The diagnosis of what the run holds now; `run.refresh()` brings more."""
        return self._engine.feed(self.run).look()

    def news(self, diagnosis: Diagnosis, *, is_over: bool) -> list[Letter]:
        """What there is to tell: new findings, and once that the run ended without being done."""
        name, place = self.run.info.name, str(self.path.absolute())
        fresh = self._news.of(diagnosis)
        letters = [letter_of(name, place, diagnosis, fresh)] if fresh else []
        is_told, self._was_over = self._was_over, is_over
        if is_over and not is_told and _ended_badly(diagnosis):
            letters.append(lost_letter(name, place, diagnosis))
        return letters

    def release(self) -> None:
        """Let go of the rows, not of what was told: the run may go on one day."""
        self._run, self._engine = None, Engine()


def _ended_badly(diagnosis: Diagnosis) -> bool:
    return any(finding.code == "AMP902" for finding in diagnosis.findings)
