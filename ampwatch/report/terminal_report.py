"""The report for the terminal: the letter, and with --all every number. On several runs: a line or
two each.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
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
from ampwatch.report.letter import Letter, Listed, letter_of
from ampwatch.report.painter import LIGHT, SEVERITY_COLOR, VERDICT_COLOR
from ampwatch.report.scaler_settings import worthwhile_settings

if TYPE_CHECKING:
    from ampwatch.diagnosis import Advice, Diagnosis, Finding, Record, SeveralDiagnoses

# The page's colours. A terminal may be dark or pale: the palette for pale ones shows on both.
STYLES = {
    word: f"{'' if word == 'info' else 'bold '}{LIGHT[tone]}"
    for word, tone in {**VERDICT_COLOR, **SEVERITY_COLOR}.items()
}
_INDENT = "  "
_WIDEST = 100
_LEAST_WIDTH, _LEAST_BESIDE = 30, 24
_LONGEST_NAME = 60
_GAP = 3  # blanks between the words of the first line
_MOST_LISTED = 5
_MORE = "More"
_SAME_STEP = " "  # stands in place of a step that was said in the line above


@dataclass(frozen=True, slots=True)
class LetterPart:
    """A part of the letter: its heading, and its lines; numbered if they are steps to do."""

    heading: str
    lines: tuple[tuple[str, str], ...]  # what stands at the left, and the text beside it


def parts_of(letter: Letter) -> Iterator[LetterPart]:
    """The parts of a letter below its first lines, as texts."""
    to_do = tuple((f"{at}.", str(one)) for at, one in enumerate(letter.to_do, start=1))
    yield LetterPart("What to do", to_do)
    happened = tuple(
        ("" if one.step is None else f"step {one.step}", str(one.words)) for one in letter.happened
    )
    yield LetterPart("What happened", _of_one_step(happened))
    yield LetterPart("How sure", tuple(("", str(one)) for one in letter.how_sure))
    also = list(_consequences(letter.follows))
    also += [f"{text}." for text in _sentences(letter.separate)]
    unseen = [("", str(one)) for one in letter.unseen]
    yield LetterPart("Also", (*(("", text) for text in also), *unseen))
    yield LetterPart(_MORE, letter.next)


def _of_one_step(lines: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Lines of which the step stands before the first one only."""
    facts: list[tuple[str, str]] = []
    last = ""
    for left, text in lines:
        facts.append((_SAME_STEP if left and left == last else left, text))
        last = left
    return tuple(facts)


def _consequences(found: Sequence[Listed]) -> Iterator[str]:
    """What follows from the main finding, by names and codes, the gravest first."""
    texts = list(dict.fromkeys(one.text for one in _by_gravity(found)))
    if texts:
        more = len(texts) - _MOST_LISTED
        rest = f"; and {more} more" if more > 0 else ""
        yield f"Consequences: {'; '.join(texts[:_MOST_LISTED])}{rest}."


def _sentences(found: Sequence[Listed]) -> Iterator[str]:
    """The findings that do not follow from the main one, a sentence each, the gravest first."""
    texts = list(dict.fromkeys(one.sentence for one in _by_gravity(found)))
    yield from texts[:_MOST_LISTED]
    if len(texts) > _MOST_LISTED:
        yield f"And {len(texts) - _MOST_LISTED} more"


def _by_gravity(found: Sequence[Listed]) -> Sequence[Listed]:
    return sorted(found, key=lambda one: -one.finding.severity.weight)


def first_line(letter: Letter) -> tuple[str, str, str]:
    """The verdict, the run's name, and what the run is."""
    return letter.verdict.upper(), _short(letter.name), str(letter.about)


def shown_name(name: str) -> str:
    """A run's name, as a title shows it; a log from a pipe has none."""
    return "standard input" if name == "-" else printable(name)


def _short(name: str) -> str:
    shown = shown_name(name)
    return shown if len(shown) <= _LONGEST_NAME else f"{shown[: _LONGEST_NAME - 1]}…"


# --- terminal -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LetterView:
    """A letter that wraps to the width of its console; no line ends in blanks."""

    letter: Letter

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = max(_LEAST_WIDTH, min(options.max_width, _WIDEST))
        yield from letter_lines(self.letter, width)


def letter_lines(letter: Letter, width: int) -> Iterator[Text]:
    """The letter's lines for a terminal of this width."""
    verdict, name, about = first_line(letter)
    words = ((verdict, STYLES[letter.verdict]), (name, "bold"), (about, "dim"))
    if len(verdict) + len(name) + len(about) + 2 * _GAP <= width:
        yield Text(" " * _GAP).join(Text(*word) for word in words)
    else:
        for word, style in words:
            yield from _wrapped(word, width, style=style)
    yield Text()
    if letter.title:
        codes = " ".join(letter.codes)
        yield from _wrapped(f"{letter.title}  ({codes})", width, style="bold")
    for sentence in letter.opening:
        yield from _wrapped(str(sentence), width)
    for part in parts_of(letter):
        if part.lines:
            yield Text()
            yield from _part_lines(part, width)


def _part_lines(part: LetterPart, width: int) -> Iterator[Text]:
    if part.heading != _MORE:
        yield Text(part.heading, "bold")
        yield from _rows(part, width, _INDENT)
        return
    beside = " " * (len(_MORE) + len(_INDENT))
    for at, line in enumerate(_rows(part, width, beside)):
        head = (_MORE, "bold") if not at else (" " * len(_MORE), "")
        yield Text.assemble(head, line.plain[len(_MORE) :])


def _rows(part: LetterPart, width: int, indent: str) -> Iterator[Text]:
    column = max((len(left) for left, _ in part.lines), default=0)
    fits = column <= width - len(indent) - _LEAST_BESIDE
    for left, text in part.lines:
        if left and fits:
            begin = f"{indent}{printable(left):{column}}{' ' if left.endswith('.') else _INDENT}"
            yield from _wrapped(text, width, begin, " " * len(begin))
        elif part.heading == _MORE:  # what stands beside a long command is left out
            yield from _wrapped(left, width, indent, indent)
        else:
            yield from _wrapped(f"{left} {text}".strip(), width, indent, indent)


def _wrapped(
    text: str, width: int, begin: str = "", beside: str = "", style: str = ""
) -> Iterator[Text]:
    lines = textwrap.wrap(
        printable(text), width, initial_indent=begin, subsequent_indent=beside,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    for line in lines:
        yield Text(line.rstrip(), style, no_wrap=True, overflow="ignore")  # a long name is whole


# --- the report -----------------------------------------------------------------------------------

Write = Callable[[str], str]


def to_json(diagnosis: Diagnosis | SeveralDiagnoses, **more: Any) -> str:
    """The text that `report --json` prints."""
    body = {**diagnosis.to_json(), **more}
    return json.dumps(body, indent=2, allow_nan=False, ensure_ascii=False)


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
    rate_text = "" if rate is None else f"Learning rate {rate:.3g}. "
    head = diagnosis.headline
    if head is None or head.severity.value == "info":
        return rate_text + (diagnosis.calm or "")
    return rate_text + head.summary


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
    evidence = "; ".join(evidence_text(piece) for piece in finding.evidence)
    rows = [("what", finding.summary), ("why", finding.cause), ("seen", evidence)]
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
            parts.append(f"the learning rate before step {advice.leapt_at_step:,}")
    return ", ".join(parts)
