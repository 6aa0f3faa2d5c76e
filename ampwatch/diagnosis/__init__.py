"""A run in, a diagnosis out. Pure: the same rows give the same findings, live or years later.

    run -> signals (columns) -> case (skips explained) -> rules -> causes -> verdict, advice

`diagnose(run)` is the door; `RULES` are the pages that `ampwatch explain` prints.
"""

from __future__ import annotations

from datetime import datetime, timezone

import numpy as np

from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.causes import advise, judge, link
from ampwatch.diagnosis.findings import (
    Action,
    Advice,
    Diagnosis,
    Evidence,
    Finding,
    RunFacts,
    Severity,
    Verdict,
)
from ampwatch.diagnosis.registry import Rule
from ampwatch.diagnosis.rules import RULES
from ampwatch.diagnosis.signals import Integers, Record, Signals, read_signals
from ampwatch.rows import EventKind

__all__ = [
    "RULES",
    "Action",
    "Advice",
    "Diagnosis",
    "Evidence",
    "Finding",
    "Record",
    "Rule",
    "RunFacts",
    "Severity",
    "Verdict",
    "diagnose",
]


def diagnose(run: Record) -> Diagnosis:
    """What is wrong with a run, since when, why, and what to do about it."""
    case = Case(read_signals(run))
    findings = link([finding for rule in RULES for finding in rule.findings(case)])
    verdict = judge(case, findings)
    return Diagnosis(_facts(run, case.signals), verdict, findings, advise(case, verdict, findings))


def _facts(run: Record, signals: Signals) -> RunFacts:
    known = np.flatnonzero(~np.isnan(signals.scale))
    skipped = _distinct(signals.step[signals.skipped])
    told = {event.step for event in signals.of_kind(EventKind.OVERFLOW)}
    return RunFacts(
        id=run.info.id,
        source=run.info.source,
        ranks=tuple(run.ranks),
        steps=_distinct(signals.step),
        started=_iso(run.info.started_ns),
        ended=_iso(run.last_time_ns),
        clean_end=run.clean_end,
        first_scale=float(signals.scale[known[0]]) if len(known) else None,
        final_scale=signals.final_scale,
        overflows=max(len(told), skipped),
        skipped=skipped,
    )


def _distinct(steps: Integers) -> int:
    """How many different steps there are; they come in order."""
    return int((np.diff(steps) != 0).sum()) + 1 if len(steps) else 0


def _iso(time_ns: int | None) -> str | None:
    """A moment as ISO 8601 in UTC, to the second."""
    if not time_ns or time_ns < 0:
        return None
    moment = datetime.fromtimestamp(time_ns // 1_000_000_000, tz=timezone.utc)
    return moment.isoformat().replace("+00:00", "Z")
