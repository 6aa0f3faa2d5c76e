"""The text of an alert, short enough for a phone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ampwatch.diagnosis import Diagnosis, Finding, Severity
from ampwatch.diagnosis.rule import title_of
from ampwatch.diagnosis.value_text import count_text, list_text
from ampwatch.printable_text import cut, printable

_MOST_ALERTS = 6  # findings described in full in one message
_LONGEST_PART = 300  # characters of a cause or an action
_LONGEST_BODY = 1900  # the smallest limit we know of (Discord) is 2,000 ...
_FOR_THE_REST = 500  # ... of which a path and the codes of other findings take some
LOST = "lost"  # in place of a code: what was told is that the run ended without an end mark


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert: its title, its text and its severity; of which run, and what it tells of."""

    title: str
    body: str
    severity: Severity
    run_id: str = ""
    told: Mapping[str, Severity] = field(default_factory=dict)  # by code


def alert_of(name: str, place: str, diagnosis: Diagnosis, fresh: Sequence[Finding]) -> Alert:
    """The alert that reports these findings of a run; `place` is the run's folder."""
    first = fresh[0]
    more = f" (and {len(fresh) - 1} more)" if len(fresh) > 1 else ""
    title = f"ampwatch: {name} is {diagnosis.verdict.value}: {title_of(first)}{more}"
    parts = ["\n".join(_paragraph(first))]
    for at, finding in enumerate(fresh[1:], start=1):
        part = "\n".join(_paragraph(finding))
        if sum(map(len, parts)) + len(part) > _LONGEST_BODY - _FOR_THE_REST:
            parts.append(f"Also: {list_text([left.code for left in fresh[at:]], limit=10)}.")
            break
        parts.append(part)
    see = f"See more: ampwatch report {_quoted(place)}\nWhat it means: ampwatch explain "
    parts.append(see + first.code)
    told = {finding.code: finding.severity for finding in fresh}
    return Alert(_line(title), "\n\n".join(parts), first.severity, diagnosis.run.id, told)


def lost_alert(name: str, place: str, diagnosis: Diagnosis) -> Alert:
    """The alert for a run that ended without an end mark."""
    steps = count_text(diagnosis.run.steps, "step")
    ended = next((f for f in diagnosis.findings if f.code == "AMP902"), None)
    if ended is None or not diagnosis.run.clean_end:
        what = (
            "The process stopped without closing the run: it was killed, it crashed, or its "
            "machine or connection is lost."
        )
    else:
        what = f"{ended.summary} {ended.cause}"
    return Alert(
        _line(f"ampwatch: {name} ended uncleanly after {steps}"),
        f"{_cut(what)}\n\nSee more: ampwatch report {_quoted(place)}",
        Severity.ERROR,
        diagnosis.run.id,
        {LOST: Severity.ERROR},
    )


def bundle(alerts: Sequence[Alert]) -> Alert:
    """Several alerts as one message."""
    if len(alerts) == 1:
        return alerts[0]
    gravest = max((alert.severity for alert in alerts), key=lambda severity: severity.weight)
    bodies = [f"{alert.title}\n\n{alert.body}" for alert in alerts[:_MOST_ALERTS]]
    if len(alerts) > _MOST_ALERTS:
        bodies.append(f"... and {len(alerts) - _MOST_ALERTS} more.")
    body = "\n\n----\n\n".join(bodies)
    if len(body) > _LONGEST_BODY:  # every title matters more than one alert's details
        body = "\n".join(f"- {alert.title}" for alert in alerts)[:_LONGEST_BODY]
    return Alert(f"ampwatch: {count_text(len(alerts), 'alert')}", body, gravest)


def _paragraph(finding: Finding) -> Iterator[str]:
    where = "" if finding.first_step is None else f", since step {finding.first_step:,}"
    layer = f", layer {finding.layer}" if finding.layer else ""
    because = f", because of {finding.because_of}" if finding.because_of else ""
    head = f"{finding.severity.value}: {title_of(finding)} ({finding.code} {finding.name}"
    yield _line(f"{head}{where}{layer}{because})")
    yield _cut(finding.summary)
    if finding.cause:
        yield f"Why: {_cut(finding.cause)}"
    if finding.action:
        yield f"Do: {_cut(finding.action)}"


def _cut(text: str) -> str:
    return cut(_line(text), _LONGEST_PART)


def _line(text: str) -> str:
    return printable(" ".join(text.split()))


def _quoted(place: str) -> str:
    return f'"{_line(place)}"' if " " in place else _line(place)
