"""The letter, like a good doctor's: how it stands, what it is and since when, what to do, what
follows from it and what it is not, then the facts. On one screen.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from ampwatch.diagnosis.code_to_paste import words_and_lines
from ampwatch.diagnosis.words import count_text, limit_text, restart_text
from ampwatch.report.facts import facts_of, powers, ruled_out
from ampwatch.text import printable

if TYPE_CHECKING:
    from ampwatch.diagnosis import Advice, Diagnosis, Finding, Record, Together

STYLES = {
    "failing": "bold #C8401E",
    "error": "bold #C8401E",
    "warning": "bold #C98A00",
    "incomplete": "bold #6B7280",
    "info": "#6B7280",
    "healthy": "bold #0E8A6D",
}
MARKS = {"error": "x", "warning": "!", "info": "-"}
Write = Callable[[str], str]


class Named(Protocol):
    """What a letter's title needs."""

    @property
    def name(self) -> str: ...  # noqa: D102


def to_json(diagnosis: Diagnosis | Together) -> str:
    """The text that `report --json` prints."""
    return json.dumps(diagnosis.to_json(), indent=2, allow_nan=False, ensure_ascii=False)


def print_letter(console: Console, name: str, run: Record, diagnosis: Diagnosis) -> None:
    """Print the letter, as this console can show it."""
    fancy = console.is_terminal and "utf" in console.encoding.lower()
    console.print(letter(name, run, diagnosis, fancy=fancy), highlight=False, soft_wrap=False)


def letter(
    name: str, run: Record, diagnosis: Diagnosis, *, fancy: bool, curves: bool = True
) -> RenderableType:
    """The whole letter; `fancy` writes powers as superscripts and draws small curves, if wanted."""

    def write(text: str) -> str:
        return powers(printable(text)) if fancy else printable(text)

    head = _shown_head(diagnosis)
    parts: list[RenderableType] = [title(name, diagnosis), *_headline(diagnosis, head, write)]
    others = _Tree(diagnosis.findings).below(head)
    if others:
        parts += [Text(), _lines(others, write)]
    parts += [Text(), _bearings(run, diagnosis, head, write)]
    parts += [Text(), _facts(run, diagnosis, write, fancy=fancy, curves=fancy and curves)]
    return Group(*parts)


def title(name: str, diagnosis: Diagnosis) -> Text:
    """The verdict and the run's name."""
    verdict = diagnosis.verdict.value
    facts = diagnosis.run
    ranks = "" if len(facts.ranks) < 2 else f", {len(facts.ranks)} ranks"
    return Text.assemble(
        (verdict.upper(), STYLES[verdict]),
        ("  ", ""),
        (printable(name), "bold"),
        (f"  {count_text(facts.steps, 'step')}{ranks}", "dim"),
    )


def _shown_head(diagnosis: Diagnosis) -> Finding | None:
    """The headline, unless the verdict is calm and it is only information."""
    head, calm = diagnosis.headline, diagnosis.calm is not None
    return None if head is None or (calm and head.severity.value == "info") else head


def _headline(diagnosis: Diagnosis, head: Finding | None, write: Write) -> list[RenderableType]:
    if head is None:
        return [Text(write(diagnosis.calm or ""))]
    since = "" if head.first_step is None else f", since step {head.first_step}"
    words, lines = words_and_lines(head.action)
    rows = [("why", head.cause), ("do", words)]
    shown: list[RenderableType] = [
        Text(write(head.summary), "bold"),
        Text(f"{head.code} {head.name}{since}", "dim"),
        Padding(labelled(rows, write), (0, 0, 0, 2)),
    ]
    if lines:  # flush left and unbroken, or they could not be pasted
        code = Text(_printable_lines(lines), "cyan", no_wrap=True, overflow="ignore")
        shown += [Text(), code]
    return shown


def _printable_lines(lines: str) -> str:
    """Lines of code whose names are data, still on their lines."""
    return "\n".join(printable(line) for line in lines.split("\n"))


def labelled(rows: Sequence[tuple[str, str]], write: Write, width: int = 4) -> Grid:
    """Texts beside their labels."""
    grid = Grid.grid(padding=(0, 1))
    grid.add_column(style="dim", min_width=width, no_wrap=True)
    grid.add_column()
    for label, text in rows:
        grid.add_row(label, Text(write(text)))
    return grid


class _Tree:
    """Findings by their causes: what follows from one stands below it."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        self._findings = findings
        self._codes = {finding.code for finding in findings}

    def below(self, head: Finding | None) -> list[tuple[int, Finding]]:
        """All but the head, each with its depth: first what follows from it."""
        seen: set[int] = set() if head is None else {id(head)}
        found = [] if head is None else list(self._following(head, 0, seen))
        for root in self._findings:  # what has no cause here, and what only circles
            if root.because_of not in self._codes:
                found += self._with_following(root, 0, seen)
        for rest in self._findings:
            found += self._with_following(rest, 0, seen)
        return found

    def _with_following(
        self, finding: Finding, depth: int, seen: set[int]
    ) -> Iterator[tuple[int, Finding]]:
        if id(finding) not in seen:
            seen.add(id(finding))
            yield depth, finding
            yield from self._following(finding, depth + 1, seen)

    def _following(
        self, cause: Finding, depth: int, seen: set[int]
    ) -> Iterator[tuple[int, Finding]]:
        for finding in self._findings:
            if finding.because_of == cause.code:
                yield from self._with_following(finding, depth, seen)


def _lines(findings: Sequence[tuple[int, Finding]], write: Write) -> Group:
    """The other findings, a line each; a consequence says so or stands below its cause."""
    rows = []
    for depth, finding in findings:
        style = STYLES[finding.severity.value]
        follows = finding.because_of is not None and depth == 0  # the headline's, which is above
        because = f" (because of {finding.because_of})" if follows else ""
        text = finding.summary if finding.code != "AMP901" else finding.cause
        grid = Grid.grid(padding=(0, 1))
        grid.add_row(
            Text(MARKS[finding.severity.value], style),
            Text.assemble(
                (f"{finding.code} {finding.name}", style), f": {write(text)}", (because, "dim")
            ),
        )
        rows.append(Padding(grid, (0, 0, 0, 2 * depth)))
    return Group(*rows)


def _bearings(run: Record, diagnosis: Diagnosis, head: Finding | None, write: Write) -> Grid:
    """What to do with the rate and why, and what else it is not."""
    advice = diagnosis.learning_rate
    because = _not_again(advice.because, diagnosis.findings)
    rows = [("learning rate", f"{advised(advice)}. {because}".rstrip())]
    cleared = ruled_out(run, diagnosis) if head is not None else []
    if cleared:
        rows.append(("ruled out", "; ".join(cleared)))
    return labelled(rows, write, width=13)


def _not_again(because: str, findings: Sequence[Finding]) -> str:
    """The reason without what a finding of the letter has said already."""
    for finding in findings:
        if because == f"{finding.code} {finding.name} explains what happened: {finding.summary}":
            return f"{finding.code} explains what happened."
    course = findings[0].cause[1:] if findings else ""  # the advice begins it in mid-sentence
    at = because.find(course)
    return because if at < 0 or not course else because[at + len(course) :].lstrip()


def advised(advice: Advice) -> str:
    """The action, the rate and where to restart, as far as they are known."""
    action = advice.action.value.replace("-", " ")
    parts = [action]
    if advice.recommended is not None and advice.current is not None:
        now, then = f"{advice.current:.3g}", f"{advice.recommended:.3g}"
        parts[0] = f"{action} {now}" if now == then else f"{action} to {then} (now {now}"
        if advice.low is not None and advice.high is not None and now != then:
            parts[0] += f"; {limit_text(advice.low, advice.high, advice.recommended)}"
        parts[0] += "" if now == then else ")"
    restart = restart_text(advice.restart_checkpoint_step, advice.restart_from_step)
    if restart is not None:
        parts.append(restart.lower())
    return ", ".join(parts)


def _facts(run: Record, diagnosis: Diagnosis, write: Write, *, fancy: bool, curves: bool) -> Grid:
    arrow = "→" if fancy else "to"
    facts = facts_of(run, diagnosis, arrow=arrow, curves=curves)
    return labelled([(fact.label, fact.text) for fact in facts], write, width=13)
