"""The letter on several runs of one model: a line or two each, and one advice for all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from ampwatch.report.facts import powers
from ampwatch.report.letter import advised, labelled, title
from ampwatch.text import printable

if TYPE_CHECKING:
    from ampwatch.diagnosis import Diagnosis, Together


def print_together(console: Console, names: Sequence[str], together: Together) -> None:
    """Print the letter, as this console can show it."""
    fancy = console.is_terminal and "utf" in console.encoding.lower()

    def write(text: str) -> str:
        return powers(printable(text)) if fancy else printable(text)

    parts: list[RenderableType] = []
    for name, diagnosis in zip(names, together.diagnoses, strict=True):
        parts += [title(name, diagnosis), Padding(Text(write(_said(diagnosis))), (0, 0, 0, 2))]
    advice = together.learning_rate
    rows = [("for all runs", f"{advised(advice)}. {advice.because}")]
    console.print(Group(*parts, Text(), labelled(rows, write, width=13)), highlight=False)


def _said(diagnosis: Diagnosis) -> str:
    """The run's rate and its headline."""
    rate = diagnosis.learning_rate.current
    told = "" if rate is None else f"Learning rate {rate:.3g}. "
    head = diagnosis.headline
    if head is None or head.severity.value == "info":
        return told + (diagnosis.calm or "")
    return told + head.summary
