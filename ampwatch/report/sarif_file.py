"""Findings as SARIF 2.1.0, the format in which code hosts take findings and show them.

The finding's place in the code is the training script; where none is known it is the run's folder,
or the log that was read. The layer is its logical place.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ampwatch.diagnosis import RULES, Finding, Rule, Severity
from ampwatch.diagnosis.findings import json_value
from ampwatch.diagnosis.rule import title_of
from ampwatch.diagnosis.rule_pages import plain_page
from ampwatch.printable_text import printable
from ampwatch.report.health_check import HealthCheck

SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}


def sarif_of(checks: Sequence[tuple[str, HealthCheck]]) -> dict[str, Any]:
    """The SARIF log of runs, each with the name under which it was opened."""
    from ampwatch import __version__

    results = [one for name, check in checks for one in _results(name, check)]
    codes = {one["ruleId"] for one in results}
    driver = {
        "name": "ampwatch",
        "semanticVersion": __version__,
        "rules": [_rule(rule) for rule in RULES if rule.code in codes],
    }
    run = {"tool": {"driver": driver}, "results": results}
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.code,
        "name": rule.name,
        "shortDescription": {"text": rule.name.replace("-", " ").capitalize()},
        "fullDescription": {"text": rule.page.meaning},
        "help": {"text": plain_page(rule)},
        "defaultConfiguration": {"level": _LEVELS[rule.usual]},
    }


def _results(name: str, check: HealthCheck) -> Iterator[dict[str, Any]]:
    artifact = {"artifactLocation": {"uri": _uri_of(name, check)}, "region": {"startLine": 1}}
    for finding in check.diagnosis.findings:
        title = title_of(finding, check.diagnosis.run.ranks)
        text = f"{title} (run {check.run.info.name}). {finding.summary} {finding.action}"
        result = {
            "ruleId": finding.code,
            "level": _LEVELS[finding.severity],
            "message": {"text": printable(text)},
            "locations": [{"physicalLocation": artifact, **_logical(finding)}],
            "partialFingerprints": {"finding/v1": f"{finding.code}:{finding.layer or ''}"},
            "properties": json_value(
                {
                    "run": check.run.info.name,
                    "firstStep": finding.first_step,
                    "lastStep": finding.last_step,
                    "becauseOf": finding.because_of,
                    "evidence": finding.evidence,
                }
            ),
        }
        if finding.muted is not None:
            result["suppressions"] = [{"kind": "external", "justification": finding.muted}]
        if check.baseline is not None:
            result["baselineState"] = _state(finding, check.baseline.diagnosis.findings)
        yield result


def _logical(finding: Finding) -> dict[str, Any]:
    if not finding.layer:
        return {}
    return {"logicalLocations": [{"fullyQualifiedName": finding.layer, "kind": "object"}]}


def _state(finding: Finding, known: Sequence[Finding]) -> str:
    """Whether the baseline has the finding, too."""
    severities = [one.severity for one in known if one.code == finding.code]
    if not severities:
        return "new"
    return "unchanged" if finding.severity in severities else "updated"


def _uri_of(name: str, check: HealthCheck) -> str:
    """The training script, or what the run was read from, below its repository or this folder."""
    script = check.run.info.origin.get("script")
    path = Path(script or name)
    if script is None and not path.exists():
        path = check.run.path
    whole = path.absolute()
    tops = (folder for folder in whole.parents if (folder / ".git").exists())
    return quote(Path(os.path.relpath(whole, next(tops, Path.cwd()))).as_posix())
