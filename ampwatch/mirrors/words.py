"""Findings as text, for places that show texts."""

from __future__ import annotations

import textwrap

from ampwatch.alerts.letters import letter_of
from ampwatch.diagnosis import Diagnosis


def findings_text(name: str, place: str, diagnosis: Diagnosis) -> str:
    """What was found so far, as Markdown that shows it as it is."""
    text = f"ampwatch: {name} is {diagnosis.verdict.value}"
    if diagnosis.findings:
        letter = letter_of(name, place, diagnosis, diagnosis.findings)
        text = f"{letter.title}\n\n{letter.body}"
    return textwrap.indent(text, "    ")
