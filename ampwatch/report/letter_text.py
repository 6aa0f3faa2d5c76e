"""The letter for a terminal, a pipe and an HTML page: the same words in each."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from ampwatch.printable_text import printable
from ampwatch.report.letter import Letter, Listed
from ampwatch.report.painter import LIGHT, SEVERITY_COLOR, VERDICT_COLOR

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
class Part:
    """A part of the letter: its heading, and its lines; numbered if they are steps to do."""

    heading: str
    lines: tuple[tuple[str, str], ...]  # what stands at the left, and the text beside it


def parts_of(letter: Letter) -> Iterator[Part]:
    """The parts of a letter below its first lines, as texts."""
    to_do = tuple((f"{at}.", str(one)) for at, one in enumerate(letter.to_do, start=1))
    yield Part("What to do", to_do)
    happened = tuple(
        ("" if one.step is None else f"step {one.step}", str(one.words)) for one in letter.happened
    )
    yield Part("What happened", _of_one_step(happened))
    yield Part("How sure", tuple(("", str(one)) for one in letter.how_sure))
    also = list(_consequences(letter.follows))
    also += [f"{text}." for text in _sentences(letter.separate)]
    unseen = [("", str(one)) for one in letter.unseen]
    yield Part("Also", (*(("", text) for text in also), *unseen))
    yield Part(_MORE, letter.next)


def _of_one_step(lines: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Lines of which the step stands before the first one only."""
    found: list[tuple[str, str]] = []
    last = ""
    for left, text in lines:
        found.append((_SAME_STEP if left and left == last else left, text))
        last = left
    return tuple(found)


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


def _part_lines(part: Part, width: int) -> Iterator[Text]:
    if part.heading != _MORE:
        yield Text(part.heading, "bold")
        yield from _rows(part, width, _INDENT)
        return
    beside = " " * (len(_MORE) + len(_INDENT))
    for at, line in enumerate(_rows(part, width, beside)):
        head = (_MORE, "bold") if not at else (" " * len(_MORE), "")
        yield Text.assemble(head, line.plain[len(_MORE) :])


def _rows(part: Part, width: int, indent: str) -> Iterator[Text]:
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


# --- HTML -----------------------------------------------------------------------------------------


def letter_html(letter: Letter) -> str:
    """The letter as HTML, word for word; nothing in it is interpreted."""
    verdict, name, about = first_line(letter)
    tone = VERDICT_COLOR[letter.verdict]
    head = (
        f'<p><b style="color:var(--aw-{tone})">{verdict}</b> &ensp;<b>{_escaped(name)}</b> &ensp;'
        f'<span class="dim">{_escaped(about)}</span></p>'
    )
    title = f"<h1>{_escaped(letter.title)} {_code(letter.codes)}</h1>" if letter.title else ""
    opening = "".join(f"<p>{_escaped(str(one))}</p>" for one in letter.opening)
    return head + title + opening + "".join(_part_html(part) for part in parts_of(letter))


def _code(codes: Sequence[str]) -> str:
    return f'<span class="dim">({" ".join(codes)})</span>'


def _part_html(part: Part) -> str:
    if not part.lines:
        return ""
    rows = "".join(
        f"<tr><th>{_escaped(left)}</th><td>{_escaped(text)}</td></tr>"
        if left
        else f'<tr><td colspan="2">{_escaped(text)}</td></tr>'
        for left, text in part.lines
    )
    return f'<h3>{part.heading}</h3><table class="lines">{rows}</table>'


def _escaped(text: str) -> str:
    return html.escape(printable(text))
