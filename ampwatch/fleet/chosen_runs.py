"""Chooses among a place's runs: `--since` a time, `--where` by search, `--similar-to` a run."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ampwatch.diagnosis import RULES
from ampwatch.diagnosis.earlier_runs import Signature, signature_of
from ampwatch.errors import RunError, SearchError
from ampwatch.fleet.runs_delta_table import PublishedRun
from ampwatch.fleet.summary import MODEL, PERSON, PERSON_SETTINGS, settings_of
from ampwatch.fleet.verdicts import RunVerdict
from ampwatch.follow.list_entry import MODEL_SETTINGS
from ampwatch.search import Fields, Search, search_for
from ampwatch.store import Run

_NAMES = {rule.code: f"{rule.code} {rule.name}" for rule in RULES}
_UNITS = {"h": "hours", "d": "days", "w": "weeks"}


@dataclass(slots=True)
class RunToChoose:
    """A published run to choose or not, and its verdict once there is one."""

    row: PublishedRun
    verdict: RunVerdict | None = None
    _settings: dict[str, str] | None = None

    @property
    def settings(self) -> dict[str, str]:
        """The run's settings by their path, as text."""
        if self._settings is None:
            try:
                config = json.loads(self.row.config or "{}")
            except ValueError:  # said when it is judged
                config = {}
            told = settings_of(config) if isinstance(config, dict) else {}
            self._settings = {name.casefold(): value for name, value in told.items()}
        return self._settings

    def setting(self, name: str) -> str | None:
        """The run's value of one setting."""
        return self.settings.get(name)

    def first_of(self, names: Sequence[str]) -> str:
        """The run's value of the first of these settings that it has."""
        return next((self.settings[name] for name in names if name in self.settings), "")


_TEXTS: dict[str, Callable[[RunToChoose], str]] = {
    "run": lambda one: f"{one.row.name} {one.row.id}",
    "tag": lambda one: " ".join(one.row.tags),
    "note": lambda one: one.row.note or "",
    "source": lambda one: one.row.source or "",
    "host": lambda one: one.row.host or "",
    "state": lambda one: one.row.state_words or "",
    MODEL: lambda one: one.first_of(MODEL_SETTINGS),
    PERSON: lambda one: one.first_of(PERSON_SETTINGS),
    "verdict": lambda one: one.verdict.verdict if one.verdict else "",
    "finding": lambda one: (
        " ".join(_NAMES.get(code, code) for code in one.verdict.codes) if one.verdict else ""
    ),
    "layer": lambda one: (one.verdict.layer or "") if one.verdict else "",
}
_NUMBERS: dict[str, Callable[[RunToChoose], float | None]] = {
    "steps": lambda one: one.row.steps,
    "ranks": lambda one: one.row.ranks,
    "age": lambda one: _age_s(one.row.last_time),
    "rate": lambda one: _number(one.verdict.learning_rate.get("current")) if one.verdict else None,
    "lost_steps": lambda one: one.verdict.lost_steps if one.verdict else None,
    "lost_hours": lambda one: one.verdict.lost_hours if one.verdict else None,
    "hours": lambda one: one.verdict.hours if one.verdict else None,
}
_OF_VERDICTS = ("verdict", "finding", "layer", "rate", "lost_steps", "lost_hours", "hours")


def _says(one: RunToChoose) -> str:
    names = ("run", "tag", "note", "source", "host", "state", MODEL, PERSON)
    return " ".join(_TEXTS[name](one) for name in names)


FIELDS = Fields(
    _TEXTS,
    _NUMBERS,
    _says,
    whole=frozenset({"tag"}),
    judged=frozenset(_OF_VERDICTS),
    setting=RunToChoose.setting,
)


@dataclass(frozen=True, slots=True)
class Choice:
    """Which runs of a place are chosen: started since then, found by the search, alike."""

    since: dt.datetime | None = None
    where: Search[RunToChoose] = field(default_factory=Search)
    like: Signature | None = None

    def of_runs(self, rows: Sequence[PublishedRun]) -> list[PublishedRun]:
        """The runs that may be chosen, by what is known before they are judged."""
        self._refuse_unknown(rows)
        known = self.where.without_diagnosis()
        return [row for row in rows if self._may_be(row) and known.finds(RunToChoose(row))]

    def of_verdicts(
        self, rows: Sequence[PublishedRun], verdicts: Sequence[RunVerdict]
    ) -> list[RunVerdict]:
        """The verdicts on the chosen runs."""
        by_id = {row.id: row for row in rows}
        return [v for v in verdicts if self.where.finds(RunToChoose(by_id[v.run_id], v))]

    def _may_be(self, row: PublishedRun) -> bool:
        if self.since is not None and (row.started is None or row.started < self.since):
            return False
        if self.like is not None:
            made = Signature.of_text(row.signature)
            return made is not None and self.like.is_alike(made)
        return True

    def _refuse_unknown(self, rows: Sequence[PublishedRun]) -> None:
        """Refuse a search for a name that is no field and no run's setting: it finds nothing."""
        wanted = {part.setting for part in self.where.parts if part.setting}
        for row in rows if wanted else ():
            wanted -= RunToChoose(row).settings.keys()
        if wanted and rows:
            known = ", ".join(FIELDS.names)
            raise SearchError(
                f"No run has a setting {min(wanted)!r}, and there is no such field. Fields: "
                f"{known}, and any setting by its path."
            )


def choice_of(
    since: str | dt.timedelta | None = None, where: str = "", like: Run | None = None
) -> Choice:
    """The choice that `--since`, `--where` and `--similar-to` ask for; else SearchError."""
    age = _age_in(since) if isinstance(since, str) else since
    return Choice(
        since=None if age is None else dt.datetime.now(dt.timezone.utc) - age,
        where=search_for(where, FIELDS),
        like=None if like is None else made_of(like),
    )


def made_of(run: Run) -> Signature:
    """The signature that other runs must be like; RunError if the run does not record it."""
    made = signature_of(run)
    if made is None:
        raise RunError(
            f"{run.info.name} does not show its layers and its optimizer, so no similar runs can "
            "be found. A watched training records both; most other tools' logs lack them.",
            path=run.path,
        )
    return made


def _age_in(text: str) -> dt.timedelta:
    match = re.fullmatch(r"(\d{1,4})([hdw])", text)
    if match is None:
        raise SearchError(f"{text!r} is not an age: give hours, days or weeks, such as 7d.")
    return dt.timedelta(**{_UNITS[match[2]]: int(match[1])})


def _age_s(time: dt.datetime | None) -> float | None:
    return None if time is None else (dt.datetime.now(dt.timezone.utc) - time).total_seconds()


def _number(value: object) -> float | None:
    try:
        return None if value is None else float(str(value))
    except ValueError:
        return None
