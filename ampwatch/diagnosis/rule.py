"""What a rule is: one function with its code, name and page.

The page is what `ampwatch explain` prints. A rule reads a `Case` and returns what it saw, or
nothing; it stays silent if its signals are absent. To add one, write the function in a module of
`rules/`, with everything that is true of it alone, give it a row in `causes` and test it.
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


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: its finding's code, name, usual severity and page, and its function."""

    code: str
    name: str
    usual: Severity
    page: Page
    check: Check

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


def rule(code: str, name: str, usual: Severity, page: Page) -> Callable[[Check], Rule]:
    """Make a function a rule, with its code, name, usual severity and page."""

    def make(check: Check) -> Rule:
        return Rule(code, name, usual, page, check)

    return make
