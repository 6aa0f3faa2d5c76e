"""What a rule is: one function with its code, its name and the page that `ampwatch explain` prints.

A rule reads a `Case` and returns what it saw, or nothing; it abstains where its signals are absent.
To add one: write the function in `rules/`, name it in `rules/__init__.py`, test it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.findings import Evidence, Finding, Severity


@dataclass(frozen=True, slots=True)
class Seen:
    """What one rule saw: a finding without the rule's own code and name."""

    severity: Severity
    summary: str
    cause: str
    action: str
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
    """A finding's code, name, usual severity, page, and the function that finds it."""

    code: str
    name: str
    usual: Severity
    page: Page
    check: Check

    def findings(self, case: Case) -> list[Finding]:
        """What this rule finds in the case."""
        return [self._finding(seen, case) for seen in self.check(case)]

    def _finding(self, seen: Seen, case: Case) -> Finding:
        return Finding(
            code=self.code,
            name=self.name,
            severity=seen.severity,
            first_step=seen.first_step,
            last_step=seen.last_step,
            ranks=case.record.ranks if seen.ranks is None else seen.ranks,
            layer=seen.layer,
            summary=seen.summary,
            cause=seen.cause,
            action=seen.action,
            evidence=seen.evidence,
        )


def rule(code: str, name: str, usual: Severity, page: Page) -> Callable[[Check], Rule]:
    """Make a function a rule."""

    def make(check: Check) -> Rule:
        return Rule(code, name, usual, page, check)

    return make
