"""The causes that a diagnosis weighs, each with its probability, what speaks for it and against.

What the probe saw done, and what no learning rate can bring about, needs no weight. A trouble that
the learning rate may be behind is weighed in the table of evidence, against the data, an operation
that overflows and a change of the objective.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.causes import TIES
from ampwatch.diagnosis.evidence_text import evidence_text
from ampwatch.diagnosis.finding_titles import title_of
from ampwatch.diagnosis.findings import Finding, Outcome, Severity, WeighedCause
from ampwatch.diagnosis.learning_rate.attribution import WEIGHED, Attribution, Cause, chances_of
from ampwatch.diagnosis.rule import RATE

_LEAST = 0.05  # a cause less likely than this is not listed
_MOST_SIGNS = 4
# Of 46 trainings by strangers with a bad outcome, 22 had one that gradients or the learning rate
# had announced; the learning rate was at fault in 20 of those, and in 3 of the others.
_ANNOUNCED, _UNANNOUNCED = math.log(20 / 2), math.log(3 / 21)
_ANNOUNCEMENT = "gradients or the learning rate had been rising before it"


def causes_of(
    case: Case, findings: Sequence[Finding], outcome: Outcome
) -> tuple[WeighedCause, ...]:
    """The causes of what is wrong, the likeliest first; none for a run without trouble."""
    roots = [f for f in findings if f.because_of is None and f.severity is not Severity.INFO]
    sure = [f for f in roots if TIES[f.code].excludes_rate(case, f)]
    found = [_certain(finding) for finding in sure]
    attribution = case.judgement.attribution
    if roots and not sure and attribution is not None:
        found += _weighed(attribution, roots, outcome)
    elif roots and not sure and _says(outcome) > 0:
        chance = 1 / (1 + math.exp(-_ANNOUNCED))
        found.append(WeighedCause(Cause.RATE.value, None, round(chance, 2), (_ANNOUNCEMENT,)))
    return tuple(sorted(found, key=lambda cause: -cause.probability))


def _says(outcome: Outcome) -> float:
    """What the outcome adds to the logarithm of the odds that the learning rate is the cause."""
    if outcome.severity is not Severity.ERROR:
        return 0.0
    return _ANNOUNCED if outcome.is_announced else _UNANNOUNCED


def _certain(finding: Finding) -> WeighedCause:
    signs = tuple(evidence_text(piece) for piece in finding.evidence)
    return WeighedCause(title_of(finding), finding.code, 1.0, signs[:_MOST_SIGNS])


def _weighed(
    attribution: Attribution, roots: Sequence[Finding], outcome: Outcome
) -> Iterator[WeighedCause]:
    """The causes of the table of evidence, with the signs that speak for each and against it."""
    if attribution.fact:
        yield WeighedCause(Cause.STATIC.value, None, 1.0, (attribution.fact,))
        return
    code = next((finding.code for finding in roots if finding.code in RATE), None)
    rate, *others = chances_of(attribution.table)
    odds = rate * math.exp(_says(outcome))
    total = odds + sum(others)
    for cause, weight in zip(WEIGHED, (odds, *others), strict=True):
        chance = weight / total
        if chance < _LEAST:
            continue
        said = [(row.speaks_for(cause), row.told) for row in attribution.table]
        is_rate = cause is Cause.RATE
        told: tuple[str, ...] = (_ANNOUNCEMENT,) if is_rate and _says(outcome) > 0 else ()
        told += tuple(sign for says, sign in sorted(said, reverse=True) if says > 0)
        yield WeighedCause(
            cause.value,
            code if is_rate else None,
            round(min(max(chance, 0.01), 0.99), 2),
            told[:_MOST_SIGNS],
            tuple(sign for says, sign in sorted(said) if says < 0)[:_MOST_SIGNS],
        )
