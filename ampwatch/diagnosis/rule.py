"""What a rule is: one function with its code, name, page and relations to other findings.

The page is what `ampwatch explain` prints. A rule reads a `Case` and returns what it saw, or
nothing; it stays silent if its signals are absent. To add one, write the function in a module of
`rules/`, with everything that is true of it alone, and test it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.findings import Evidence, Finding, FindingStatus, Severity


class Stretch(Protocol):
    """Anything with a first and a last step."""

    @property
    def first_step(self) -> int | None: ...  # noqa: D102
    @property
    def last_step(self) -> int | None: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Seen:
    """What one rule saw: a finding without the rule's own code and name."""

    summary: str
    cause: str
    action: str | None = None  # the page's remedy, unless the run itself suggests a better one
    severity: Severity | None = None  # the rule's usual one; information once it has healed
    standing: FindingStatus = FindingStatus.STANDS
    if_healed: str = "Nothing to do unless it returns."  # replaces the action
    at: Stretch | None = None  # gives the steps, if they are not given one by one
    first_step: int | None = None
    last_step: int | None = None
    layer: str | None = None
    ranks: tuple[int, ...] | None = None  # all of the run's, if not said
    evidence: tuple[Evidence, ...] = ()


@dataclass(frozen=True, slots=True)
class Page:
    """What `ampwatch explain CODE` prints."""

    meaning: str
    looks: str
    not_to_confuse: str
    do: str
    example: str


Check = Callable[[Case], Iterable[Seen]]
Exclusion = Callable[[Case, Finding], bool]

# Codes that several rules are tied to.
RATE = ("AMP301", "AMP302")
# Weights, activations, the loss: the surest first.
NOT_FINITE = ("AMP207", "AMP203", "AMP204")
# Gradients of several steps are mixed: what is read from gradients then has no basis.
MIXED = ("AMP403", "AMP412")
# The optimizer received something else than this step's gradients.
NOT_ITS_GRADIENTS = ("AMP404", *MIXED)
# Reported from the first skip on; too high a rate shows only after several skips or in the loss.
FROM_THE_FIRST_SKIP = ("AMP103", "AMP104", "AMP105", "AMP202", "AMP208")


def codes(listed: str) -> tuple[str, ...]:
    """The codes of rules listed in a text."""
    return tuple(listed.split())


def never(_case: Case, _finding: Finding) -> bool:
    """The exclusion of a rule whose finding a learning rate can cause."""
    return False


def always(_case: Case, _finding: Finding) -> bool:
    """The exclusion of a rule whose finding no learning rate can cause."""
    return True


def before_any_update(case: Case, finding: Finding) -> bool:
    """The exclusion of a rule whose finding began before the first update."""
    first = case.scale.first_accepted_step
    return finding.first_step is not None and (first is None or finding.first_step <= first)


@dataclass(frozen=True, slots=True)
class Ties:
    """How a finding relates to the others and to the learning rate."""

    explained_by: tuple[str, ...] = ()  # its possible causes, the most certain first
    groundless_beside: tuple[str, ...] = ()  # beside one of these it is not reported
    excludes_rate: Exclusion = never  # whether no learning rate could have caused it
    shown_late: bool = False  # only a sample shows it, which may come after its effect
    late_to: tuple[str, ...] = ()  # it takes more steps to detect than these, its effects
    ends_the_run: bool = False  # its cause was still there then
    in_strict_order: bool = (
        False  # what stands beside it may be cause or effect: the first one is the cause
    )
    spares_weights: bool = False  # it cannot be what made weights not finite
    cures: tuple[str, ...] = ()  # changes from outside that may mend it (`recovery.switches`), the
    # likeliest first; a lower rate is none of them


_NO_TIES = Ties()


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: its finding's code, name, usual severity, page and ties, and its function."""

    code: str
    name: str
    usual: Severity
    page: Page
    check: Check
    ties: Ties = _NO_TIES

    def findings(self, case: Case) -> list[Finding]:
        """What the rule finds in a case."""
        return [self._finding(seen, case) for seen in self.check(case)]

    def _finding(self, seen: Seen, case: Case) -> Finding:
        lasting = self.usual if seen.standing.weighs else Severity.INFO
        steps: Stretch = seen if seen.at is None else seen.at
        return Finding(
            code=self.code,
            name=self.name,
            severity=lasting if seen.severity is None else seen.severity,
            first_step=steps.first_step,
            last_step=steps.last_step,
            ranks=case.record.ranks if seen.ranks is None else seen.ranks,
            layer=seen.layer,
            summary=seen.summary,
            cause=seen.cause,
            action=(seen.action or self.page.do) if seen.standing.weighs else seen.if_healed,
            evidence=seen.evidence,
        )


def rule(
    code: str, name: str, usual: Severity, page: Page, ties: Ties = _NO_TIES
) -> Callable[[Check], Rule]:
    """Make a function a rule, with its code, name, usual severity, page and ties."""

    def make(check: Check) -> Rule:
        return Rule(code, name, usual, page, check, ties)

    return make
