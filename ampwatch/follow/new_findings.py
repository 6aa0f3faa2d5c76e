"""The findings of a run that are new since the last update: each is reported once."""

from __future__ import annotations

from collections.abc import Mapping

from ampwatch.diagnosis import Diagnosis, Finding, Severity


class NewFindings:
    """Remembers which of a run's findings were reported: each once, and again when it worsens.

    A finding is known by its code: which layer leads may change from update to update. `reported`
    are those that another process has reported.
    """

    def __init__(
        self,
        *,
        least: Severity = Severity.WARNING,
        reported: Mapping[str, Severity] | None = None,
    ) -> None:
        self._least = least
        self._reported: dict[str, Severity] = dict(reported or {})

    def of(self, diagnosis: Diagnosis) -> tuple[Finding, ...]:
        """The findings that are new or worse, gravest first; they count as reported from now on."""
        fresh = tuple(finding for finding in diagnosis.findings if self._is_new(finding))
        self._reported.update((finding.code, finding.severity) for finding in fresh)
        return fresh

    def _is_new(self, finding: Finding) -> bool:
        known = self._reported.get(finding.code)
        return finding.severity.weight >= self._least.weight and (
            known is None or finding.severity.weight > known.weight
        )
