"""The causes that a diagnosis weighs, each with its probability, what speaks for it and against.

What the probe saw done, and what no learning rate can bring about, needs no weight. A trouble that
the learning rate may be behind is weighed in the table of evidence, against the data, an operation
that overflows and a change of the objective.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.causes import TIES
from ampwatch.diagnosis.evidence_text import evidence_text
from ampwatch.diagnosis.finding_titles import title_of
from ampwatch.diagnosis.findings import Finding, Outcome, Severity, WeighedCause
from ampwatch.diagnosis.learning_rate.advice import Action, Advice
from ampwatch.diagnosis.learning_rate.attribution import WEIGHED, Attribution, Cause, chances_of
from ampwatch.diagnosis.rule import RATE

_LEAST = 0.05  # a cause less likely than this is not listed
_MOST_SIGNS = 4
_OTHERS = frozenset(WEIGHED) - {Cause.RATE}
# A bad outcome that was announced: in rounds 4 to 6 of the strangers' cases, which came after this
# sign, the learning rate was at fault in 10 of 11.
ANNOUNCED = 0.9
_ANNOUNCEMENT = "gradients or the learning rate had been rising before it"


def causes_of(
    case: Case, findings: Sequence[Finding], outcome: Outcome, advice: Advice
) -> tuple[WeighedCause, ...]:
    """The causes of what is wrong, the likeliest first; none for a run without trouble."""
    roots = [f for f in findings if f.because_of is None and f.severity is not Severity.INFO]
    # What is certain beside a learning rate that is to be lowered is another trouble.
    is_rate = advice.action is Action.LOWER
    sure = [f for f in roots if TIES[f.code].excludes_rate(case, f) and not is_rate]
    found = [_certain(finding) for finding in sure]
    if roots and not sure:
        attribution = case.judgement.attribution
        # What announced a bad outcome decides where the table of evidence does not.
        by_outcome = is_rate and advice.probability is None
        if by_outcome and outcome.is_announced:
            found.append(WeighedCause(Cause.RATE.value, None, ANNOUNCED, (_ANNOUNCEMENT,)))
        elif attribution is not None:
            found += _weighed(attribution, roots)
    return tuple(sorted(found, key=lambda cause: -cause.probability))


def _certain(finding: Finding) -> WeighedCause:
    signs = tuple(evidence_text(piece) for piece in finding.evidence)
    return WeighedCause(title_of(finding), finding.code, 1.0, signs[:_MOST_SIGNS])


def _weighed(attribution: Attribution, roots: Sequence[Finding]) -> Iterator[WeighedCause]:
    """The causes of the table of evidence, with the signs that speak for each and against it."""
    if attribution.fact:
        yield WeighedCause(Cause.STATIC.value, None, 1.0, (attribution.fact,))
        return
    code = next((finding.code for finding in roots if finding.code in RATE), None)
    chances = dict(zip(WEIGHED, chances_of(attribution.table), strict=True))
    if attribution.cause in _OTHERS:  # nothing by which a rate acts was seen: it is out
        del chances[Cause.RATE]
    total = sum(chances.values())
    for cause, share in chances.items():
        chance = share / total
        if chance < _LEAST:
            continue
        said = [(row.speaks_for(cause), row.told) for row in attribution.table]
        yield WeighedCause(
            cause.value,
            code if cause is Cause.RATE else None,
            round(min(max(chance, 0.01), 0.99), 2),
            tuple(sign for says, sign in sorted(said, reverse=True) if says > 0)[:_MOST_SIGNS],
            tuple(sign for says, sign in sorted(said) if says < 0)[:_MOST_SIGNS],
        )
