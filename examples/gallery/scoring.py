"""How right a tool's findings are, given the labels. Pure; knows nothing of any tool.

A finding counts as made when it is a warning or an error. One that a label neither demands nor
allows is false. What a label only allows is neither a hit nor a miss.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from examples.gallery.vocabulary import Label

_ALARMS = ("warning", "error")


@dataclass(frozen=True, slots=True)
class Finding:
    """What a tool says of a case."""

    case: str
    code: str
    severity: str  # info, warning or error
    layer: str | None = None
    found_at: int | None = None  # the step at which a live reader would have been told

    @property
    def is_alarm(self) -> bool:
        """Whether it is more than information."""
        return self.severity in _ALARMS


@dataclass(frozen=True, slots=True)
class Answers:
    """All that a tool says."""

    findings: tuple[Finding, ...]
    advice: Mapping[str, str]  # by case
    judged: frozenset[str]  # the cases it was shown: what it is silent about counts, too


@dataclass(frozen=True, slots=True)
class Tally:
    """Hits, misses and false alarms; as a share, none where nothing was counted."""

    hits: int = 0
    misses: int = 0
    false: int = 0

    @property
    def precision(self) -> float | None:
        """The share of what was found that is true."""
        return _share(self.hits, self.hits + self.false)

    @property
    def recall(self) -> float | None:
        """The share of what is true that was found."""
        return _share(self.hits, self.hits + self.misses)

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.hits + other.hits, self.misses + other.misses, self.false + other.false)


@dataclass(slots=True)
class Score:
    """What adds up over some cases."""

    codes: dict[str, Tally] = field(default_factory=dict)
    told: dict[str, Tally] = field(default_factory=dict)  # codes due at any severity
    healthy: int = 0
    healthy_with_warning: list[str] = field(default_factory=list)
    healthy_with_error: list[str] = field(default_factory=list)
    culprits: Tally = field(default_factory=Tally)
    advice: Tally = field(default_factory=Tally)  # where there is a fault
    healthy_advice: Tally = field(default_factory=Tally)
    delays: dict[str, list[int]] = field(default_factory=dict)  # steps from onset, by code
    wrong: list[str] = field(default_factory=list)  # each miss and false alarm, in words

    @property
    def total(self) -> Tally:
        """All codes together."""
        return sum(self.codes.values(), Tally())


def read_answers(lines: Iterable[str]) -> Answers:
    """One JSON object a line: a finding has `code`; `advice` and a bare `case` stand alone."""
    findings, advice, judged = [], {}, set()
    for line in filter(str.strip, lines):
        said: dict[str, Any] = json.loads(line)
        judged.add(said["case"])
        if "advice" in said:
            advice[said["case"]] = said["advice"]
        if "code" in said:
            known = {key: said.get(key) for key in ("layer", "found_at")}
            findings.append(Finding(said["case"], said["code"], said["severity"], **known))
    return Answers(tuple(findings), advice, frozenset(judged))


def score(labels: Mapping[str, Label], answers: Answers) -> Score:
    """Hold what a tool says against the labels of the cases it was shown."""
    found: defaultdict[str, list[Finding]] = defaultdict(list)
    for finding in answers.findings:
        found[finding.case].append(finding)
    total = Score()
    for name in (name for name in labels if name in answers.judged):
        _score_codes(total, name, labels[name], found[name])
        _score_health(total, name, labels[name], found[name])
        _score_culprit(total, name, labels[name], found[name])
        _score_advice(total, name, labels[name], answers.advice.get(name))
    return total


def _score_codes(total: Score, name: str, label: Label, found: Sequence[Finding]) -> None:
    alarms = {finding.code for finding in found if finding.is_alarm}
    said = {finding.code for finding in found}
    for code in label.must:
        _count(total.codes, code, Tally(1) if code in alarms else Tally(0, 1))
        if code not in alarms:
            total.wrong.append(f"{name}: {code} missed" + (" (told as info)" * (code in said)))
        _note_delay(total, label, [f for f in found if f.code == code and f.is_alarm])
    for code in label.tells:
        _count(total.told, code, Tally(1) if code in said else Tally(0, 1))
        if code not in said:
            total.wrong.append(f"{name}: {code} not told")
    for code in sorted(alarms - {*label.must, *label.may, *label.tells}):
        _count(total.codes, code, Tally(0, 0, 1))
        total.wrong.append(f"{name}: {code} false")


def _count(table: dict[str, Tally], code: str, tally: Tally) -> None:
    table[code] = table.get(code, Tally()) + tally


def _note_delay(total: Score, label: Label, found: Sequence[Finding]) -> None:
    steps = [f.found_at for f in found if f.found_at is not None]
    if steps and label.onset is not None:
        total.delays.setdefault(found[0].code, []).append(max(0, min(steps) - label.onset))


def _score_health(total: Score, name: str, label: Label, found: Sequence[Finding]) -> None:
    if not label.is_healthy:
        return
    total.healthy += 1
    severities = Counter(finding.severity for finding in found)
    if severities["warning"]:
        total.healthy_with_warning.append(name)
    if severities["error"]:
        total.healthy_with_error.append(name)


def _score_culprit(total: Score, name: str, label: Label, found: Sequence[Finding]) -> None:
    """The layer of the first demanded finding that names one."""
    named = [f.layer for f in found if f.code in label.must and f.layer is not None]
    if label.layer is None or not any(f.code in label.must for f in found):
        return
    right = label.layer in named[:1]
    total.culprits += Tally(1) if right else Tally(0, 1)
    if not right:
        total.wrong.append(f"{name}: culprit {', '.join(named) or 'none'}, not {label.layer}")


def _score_advice(total: Score, name: str, label: Label, advice: str | None) -> None:
    if label.advice is None or advice is None:
        return
    tally = Tally(1) if advice == label.advice else Tally(0, 1)
    if label.is_healthy:
        total.healthy_advice += tally
    else:
        total.advice += tally
    if advice != label.advice:
        total.wrong.append(f"{name}: advice {advice}, not {label.advice}")


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
