"""Findings as text, for places that show texts."""

from __future__ import annotations

import textwrap

from ampwatch.alerts.letters import Letter, letter_of
from ampwatch.diagnosis import Diagnosis, Finding
from ampwatch.mirrors.readings import Bulletin
from ampwatch.text import printable


def findings_text(name: str, place: str, diagnosis: Diagnosis) -> str:
    """What was found so far, as Markdown that shows it as it is."""
    text = f"ampwatch: {name} is {diagnosis.verdict.value}"
    if diagnosis.findings:
        letter = letter_of(name, place, diagnosis, diagnosis.findings)
        text = f"{letter.title}\n\n{letter.body}"
    return textwrap.indent(text, "    ")


def finding_line(finding: Finding) -> str:
    """One finding in a line."""
    since = "" if finding.first_step is None else f" since step {finding.first_step}"
    layer = f", layer {finding.layer}" if finding.layer else ""
    return printable(f"{finding.severity.value}{since}{layer}: {finding.summary}")


def letter_on(bulletin: Bulletin) -> Letter | None:
    """What is to be told of the findings that are fresh, if there are any."""
    if bulletin.diagnosis is None or not bulletin.fresh:
        return None
    return letter_of(bulletin.info.name, bulletin.place, bulletin.diagnosis, bulletin.fresh)
