"""Which findings nobody was told of yet."""

from __future__ import annotations

from ampwatch.diagnosis import Diagnosis, Finding, Severity


class News:
    """Remembers what was told of a run: each finding once, and again when it has become worse.

    A finding is known by its code: which layer leads may change from look to look.
    """

    def __init__(self, *, least: Severity = Severity.WARNING) -> None:
        self._least = least
        self._told: dict[str, Severity] = {}

    def of(self, diagnosis: Diagnosis) -> tuple[Finding, ...]:
        """The findings that are new or worse, gravest first; from now on they are told."""
        fresh = tuple(finding for finding in diagnosis.findings if self._is_news(finding))
        self._told.update((finding.code, finding.severity) for finding in fresh)
        return fresh

    def _is_news(self, finding: Finding) -> bool:
        told = self._told.get(finding.code)
        return finding.severity.weight >= self._least.weight and (
            told is None or finding.severity.weight > told.weight
        )
