"""The report for the terminal: the letter, and with --all every number. On several runs: a line or
two each.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from ampwatch.diagnosis.findings import CUT_OFF
from ampwatch.diagnosis.value_text import (
    count_text,
    evidence_text,
    limit_text,
    powers,
    steps_text,
    two_digits,
)
from ampwatch.printable_text import printable
from ampwatch.report.facts import facts_of
from ampwatch.report.letter import letter_of
from ampwatch.report.letter_text import STYLES, LetterView, shown_name
from ampwatch.report.scaler_settings import worthwhile_settings

if TYPE_CHECKING:
    from ampwatch.diagnosis import Advice, Diagnosis, Finding, Record, SeveralDiagnoses

Write = Callable[[str], str]


def to_json(diagnosis: Diagnosis | SeveralDiagnoses) -> str:
    """The text that `report --json` prints."""
    return json.dumps(diagnosis.to_json(), indent=2, allow_nan=False, ensure_ascii=False)


def print_report(
    console: Console, name: str, run: Record, diagnosis: Diagnosis, *, everything: bool = False
) -> None:
    """Print the report of a run, as this console can show it."""
    print_without_padding(console, report_text(name, run, diagnosis, everything=everything))


def print_fact(console: Console, label: str, text: str) -> None:
    """Print one more fact below the report's; none if it has no text."""
    if text:
        write = writer(fancy=is_fancy(console))
        print_without_padding(console, labelled([(label, text)], write, width=13))


def print_without_padding(console: Console, text: RenderableType) -> None:
    """Print a text whose lines end where their words end; tables fill theirs up."""
    with console.capture() as shown:
        console.print(text, highlight=False, crop=False)
    lines = (line.rstrip() for line in shown.get().rstrip("\n").split("\n"))
    console.file.write("\n".join(lines) + "\n")


def print_reports(console: Console, names: Sequence[str], together: SeveralDiagnoses) -> None:
    """Print the report on several runs of one model: a line or two each, one advice for all."""
    write = writer(fancy=is_fancy(console))
    parts: list[RenderableType] = []
    for name, diagnosis in zip(names, together.diagnoses, strict=True):
        line = Text(write(_rate_and_headline(diagnosis)))
        parts += [title(name, diagnosis), Padding(line, (0, 0, 0, 2))]
    advice = together.learning_rate
    rows = [("for all runs", f"{advised(advice)}. {advice.because}")]
    console.print(Group(*parts, Text(), labelled(rows, write, width=13)), highlight=False)


def _rate_and_headline(diagnosis: Diagnosis) -> str:
    rate = diagnosis.learning_rate.current
    told = "" if rate is None else f"Learning rate {rate:.3g}. "
    head = diagnosis.headline
    if head is None or head.severity.value == "info":
        return told + (diagnosis.calm or "")
    return told + head.summary


def is_fancy(console: Console) -> bool:
    """Whether the console can show superscripts and blocks."""
    return console.is_terminal and "utf" in console.encoding.lower()


def writer(*, fancy: bool) -> Write:
    """What makes a text fit for the terminal; `fancy` writes powers as superscripts."""
    return (lambda text: powers(printable(text))) if fancy else printable


def report_text(
    name: str, run: Record, diagnosis: Diagnosis, *, everything: bool = False
) -> RenderableType:
    """The report for the terminal: the letter; with `everything` also every number."""
    letter = LetterView(letter_of(name, run, diagnosis))
    if not everything:
        return letter
    write = writer(fancy=False)
    parts: list[RenderableType] = [letter, Text(), Text("Findings in full", "bold")]
    for finding in diagnosis.findings:
        parts += _in_full(finding, write)
    parts += [Text(), labelled(list(advice_rows(run, diagnosis)), write, width=13)]
    facts = [(fact.label, fact.text) for fact in facts_of(run, diagnosis, arrow="to")]
    return Group(*parts, Text(), labelled(facts, write, width=13))


def _in_full(finding: Finding, write: Write) -> list[RenderableType]:
    """One finding with its cause, its evidence and its remedy."""
    style = STYLES[finding.severity.value]
    when = steps_text(finding.first_step, finding.last_step)
    because = f", because of {finding.because_of}" if finding.because_of else ""
    head = Text.assemble(
        (f"{finding.code} {finding.name}", style),
        (f"  {finding.severity.value}{when and ', ' + when}{because}", "dim"),
    )
    seen = "; ".join(evidence_text(piece) for piece in finding.evidence)
    rows = [("what", finding.summary), ("why", finding.cause), ("seen", seen)]
    rows += [("do", finding.action)]
    shown = [row for row in rows if row[1]]
    return [Text(), head, Padding(labelled(shown, write), (0, 0, 0, 2))]


def title(name: str, diagnosis: Diagnosis) -> Text:
    """The first line of a run among several: the verdict and the run's name."""
    verdict = diagnosis.verdict.value
    facts = diagnosis.run
    ranks = "" if len(facts.ranks) < 2 else f", {len(facts.ranks)} ranks"
    cut = f", {facts.state}" if facts.state == CUT_OFF != verdict else ""
    return Text.assemble(
        (verdict.upper(), STYLES[verdict]),
        ("  ", ""),
        (shown_name(name), "bold"),
        (f"  {count_text(facts.steps, 'step')}{ranks}{cut}", "dim"),
    )


def labelled(rows: Sequence[tuple[str, str]], write: Write, width: int = 4) -> Grid:
    """The report's texts beside their labels."""
    grid = Grid.grid(padding=(0, 1))
    grid.add_column(style="dim", min_width=width, no_wrap=True)
    grid.add_column()
    for label, text in rows:
        grid.add_row(label, Text(write(text)))
    return grid


def advice_rows(run: Record, diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    """What to do with the learning rate and the scaler, and why."""
    advice = diagnosis.learning_rate
    because = advice.because
    if advice.explained_by is not None:  # the finding stands above, in full
        because = f"{advice.explained_by} explains what happened."
    yield "learning rate", f"{advised(advice)}. {because}"
    settings = worthwhile_settings(run, diagnosis)
    if settings is not None:
        yield "loss scaler", settings.text


def _advised_text(advice: Advice) -> str:
    assert advice.recommended is not None
    if advice.proved_steps is None:
        return two_digits(advice.recommended)
    return f"{advice.recommended:.3g}"


def advised(advice: Advice) -> str:
    """The words for the action and the learning rate, as far as known."""
    action = advice.action.value.replace("-", " ")
    parts = [action]
    if advice.recommended is not None and advice.current is not None:
        now, then = f"{advice.current:.4g}", _advised_text(advice)
        then = now if advice.current == advice.recommended else then
        parts[0] = f"{action} at {now}" if now == then else f"{action} to {then} (now {now}"
        is_estimated = advice.proved_steps is None  # what reruns have shown stands in the reason
        if advice.low is not None and advice.high is not None and is_estimated and now != then:
            parts[0] += f"; {limit_text(advice.low, advice.high)}"
        parts[0] += "" if now == then else ")"
        if advice.besides is not None:
            parts[0] += f" with {advice.besides}"
        if advice.leapt_at_step is not None:
            parts.append(f"the rate before step {advice.leapt_at_step:,}")
    return ", ".join(parts)
