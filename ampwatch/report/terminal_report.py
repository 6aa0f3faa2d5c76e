"""The report for the terminal, on one screen: the verdict, what broke and since when, what to do,
its consequences, what is ruled out, then the facts. On several runs: a line or two each.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from ampwatch.diagnosis.evidence_text import evidence_text
from ampwatch.diagnosis.findings import CUT_OFF
from ampwatch.diagnosis.value_text import count_text, limit_text, powers, restart_text
from ampwatch.printable_text import printable
from ampwatch.report.facts import facts_of, ruled_out
from ampwatch.report.painter import LIGHT, SEVERITY_COLOR, VERDICT_COLOR
from ampwatch.report.scaler_settings import worthwhile_settings

if TYPE_CHECKING:
    from ampwatch.diagnosis import Advice, Diagnosis, Finding, Record, SeveralDiagnoses

# The page's colours. A terminal may be dark or pale: the palette for pale ones shows on both.
STYLES = {
    word: f"{'' if word == 'info' else 'bold '}{LIGHT[tone]}"
    for word, tone in {**VERDICT_COLOR, **SEVERITY_COLOR}.items()
}
_MOST_EVIDENCE = 3
MARKS = {"error": "x", "warning": "!", "info": "-"}
Write = Callable[[str], str]


def to_json(diagnosis: Diagnosis | SeveralDiagnoses) -> str:
    """The text that `report --json` prints."""
    return json.dumps(diagnosis.to_json(), indent=2, allow_nan=False, ensure_ascii=False)


def print_report(console: Console, name: str, run: Record, diagnosis: Diagnosis) -> None:
    """Print the report of a run, as this console can show it."""
    text = report_text(name, run, diagnosis, fancy=is_fancy(console))
    console.print(text, highlight=False, crop=False)


def print_fact(console: Console, label: str, text: str) -> None:
    """Print one more fact below the report's; none if it has no text."""
    if text:
        write = writer(fancy=is_fancy(console))
        console.print(labelled([(label, text)], write, width=13), highlight=False)


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
    name: str, run: Record, diagnosis: Diagnosis, *, fancy: bool, curves: bool = True
) -> RenderableType:
    """The whole report for the terminal; `fancy` also draws small curves, if wanted."""
    write = writer(fancy=fancy)
    head = _shown_head(diagnosis)
    parts: list[RenderableType] = [title(name, diagnosis), *_headline(diagnosis, head, write)]
    others = _by_cause(diagnosis.findings, head)
    if others:
        parts += [Text(), _lines(others, write)]
    parts += [Text(), _advice_and_cleared(run, diagnosis, head, write)]
    parts += [Text(), _facts(run, diagnosis, write, fancy=fancy, curves=fancy and curves)]
    return Group(*parts)


def title(name: str, diagnosis: Diagnosis) -> Text:
    """The report's first line: the verdict and the run's name."""
    verdict = diagnosis.verdict.value
    facts = diagnosis.run
    ranks = "" if len(facts.ranks) < 2 else f", {len(facts.ranks)} ranks"
    cut = f", {facts.state}" if facts.state == CUT_OFF != verdict else ""
    return Text.assemble(
        (verdict.upper(), STYLES[verdict]),
        ("  ", ""),
        (printable(name), "bold"),
        (f"  {count_text(facts.steps, 'step')}{ranks}{cut}", "dim"),
    )


def _shown_head(diagnosis: Diagnosis) -> Finding | None:
    """The headline, unless the verdict is calm and it is only information."""
    head, calm = diagnosis.headline, diagnosis.calm is not None
    return None if head is None or (calm and head.severity.value == "info") else head


def _headline(diagnosis: Diagnosis, head: Finding | None, write: Write) -> list[RenderableType]:
    if head is None:
        return [Text(write(diagnosis.calm or ""))]
    since = "" if head.first_step is None else f", since step {head.first_step}"
    seen = "; ".join(evidence_text(piece) for piece in head.evidence[:_MOST_EVIDENCE])
    rows = [("why", head.cause), *([("seen", seen)] if seen else []), ("do", head.action)]
    return [
        Text(write(head.summary), "bold"),
        Text(f"{head.code} {head.name}{since}", "dim"),
        Padding(labelled(rows, write), (0, 0, 0, 2)),
    ]


def labelled(rows: Sequence[tuple[str, str]], write: Write, width: int = 4) -> Grid:
    """The report's texts beside their labels."""
    grid = Grid.grid(padding=(0, 1))
    grid.add_column(style="dim", min_width=width, no_wrap=True)
    grid.add_column()
    for label, text in rows:
        grid.add_row(label, Text(write(text)))
    return grid


def _by_cause(findings: Sequence[Finding], head: Finding | None) -> list[tuple[int, Finding]]:
    """All but the head, each with its depth below its cause: first what follows from the head."""
    found: list[tuple[int, Finding]] = []
    seen = {id(head)}

    def add(finding: Finding, depth: int) -> None:
        if id(finding) not in seen:
            seen.add(id(finding))
            found.append((depth, finding))
            add_following(finding, depth + 1)

    def add_following(cause: Finding, depth: int) -> None:
        for finding in findings:
            if finding.because_of == cause.code:
                add(finding, depth)

    if head is not None:
        add_following(head, 0)
    codes = {finding.code for finding in findings}
    # Those without a cause here, with what follows from them; then what only circles.
    for root in sorted(findings, key=lambda finding: finding.because_of in codes):
        add(root, 0)
    return found


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


def _advice_and_cleared(
    run: Record, diagnosis: Diagnosis, head: Finding | None, write: Write
) -> Grid:
    """What to do with the learning rate and the scaler, why, and what is ruled out."""
    advice = diagnosis.learning_rate
    because = advice.because
    if advice.explained_by is not None:  # the finding stands above, in full
        because = f"{advice.explained_by} explains what happened."
    rows = [("learning rate", f"{advised(advice)}. {because}")]
    settings = worthwhile_settings(run, diagnosis)
    if settings is not None:
        rows.append(("loss scaler", settings.text))
    cleared = ruled_out(run, diagnosis) if head is not None else []
    if cleared:
        rows.append(("ruled out", "; ".join(cleared)))
    return labelled(rows, write, width=13)


def advised(advice: Advice) -> str:
    """The report's words for the action, the rate and where to restart, as far as known."""
    action = advice.action.value.replace("-", " ")
    parts = [action]
    if advice.recommended is not None and advice.current is not None:
        now, then = f"{advice.current:.3g}", f"{advice.recommended:.3g}"
        parts[0] = f"{action} {now}" if now == then else f"{action} to {then} (now {now}"
        is_estimated = advice.proved_steps is None  # what reruns have shown stands in the reason
        if advice.low is not None and advice.high is not None and is_estimated and now != then:
            parts[0] += f"; {limit_text(advice.low, advice.high, advice.recommended)}"
        parts[0] += "" if now == then else ")"
        if advice.besides is not None:
            parts[0] += f" with {advice.besides}"
        if advice.leapt_at_step is not None:
            parts.append(f"the rate before step {advice.leapt_at_step:,}")
    restart = restart_text(advice.restart_checkpoint_step, advice.restart_from_step)
    if restart is not None:
        parts.append(restart.lower())
    return ", ".join(parts)


def _facts(run: Record, diagnosis: Diagnosis, write: Write, *, fancy: bool, curves: bool) -> Grid:
    arrow = "→" if fancy else "to"
    facts = facts_of(run, diagnosis, arrow=arrow, curves=curves)
    return labelled([(fact.label, fact.text) for fact in facts], write, width=13)
