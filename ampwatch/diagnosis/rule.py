"""What a rule is: one function with its code, its name and its page.

The page is `pages/CODE.md`: what `ampwatch explain` prints, with the thresholds filled in by name.
A rule reads a `Case` and returns what it saw, or nothing; it stays silent if its signals are
absent. To add one, write the function in a module of `rules/`, with everything that is true of it
alone, write its page, give it a row in `causes` and test it.
"""

from __future__ import annotations

import functools
import importlib
import re
import string
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ampwatch.diagnosis.blocks import Times
from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.findings import Finding, FindingStatus, Severity
from ampwatch.diagnosis.value_text import Evidence, scale_text

_PAGES = Path(__file__).parent / "pages"


class Stretch(Protocol):
    """Anything with a first and a last step."""

    @property
    def first_step(self) -> int | None: ...  # noqa: D102
    @property
    def last_step(self) -> int | None: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class RuleHit:
    """What one rule saw: a finding without the rule's own code and name."""

    summary: str
    cause: str
    action: str | None = None  # the page's remedy, unless the run itself suggests a better one
    severity: Severity | None = None  # the rule's usual one; information once it has healed
    standing: FindingStatus = FindingStatus.STANDS
    if_healed: str = "Nothing to do unless it returns."  # replaces the action
    at: Stretch | None = None  # gives the steps, if they are not given one by one
    first_step: int | None = None
    last_step: int | None = None
    layer: str | None = None
    ranks: tuple[int, ...] | None = None  # all of the run's, if not said
    evidence: Evidence | tuple[Evidence, ...] = ()
    single_steps: tuple[int, ...] = ()  # where not all between the first and the last count
    comes_and_goes: bool = False  # in some steps, with others between or after them


def counted(signal: str, times: Times, of: float | None = None, what: str = "") -> Evidence:
    """Evidence of how often something happened until its last time, held against a number."""
    against = None if of is None else float(of)
    return Evidence(signal, times.last_step, float(times.count), against, what)


# The parts of a page, in the order in which a reader needs them; a few may be missing.
PARTS = {
    "What it means": "meaning",
    "What you may see": "messages",
    "What to do": "do",
    "In code": "code",
    "Not to be confused with": "not_to_confuse",
    "Example": "example",
    "How ampwatch detects it": "looks",
}
_FENCED = {"messages", "code"}


@dataclass(frozen=True, slots=True)
class Page:
    """What `ampwatch explain CODE` prints: the parts of the page's file."""

    meaning: str
    do: str
    not_to_confuse: str
    example: str
    looks: str
    messages: str = ""  # as other programs print them, one a line
    code: str = ""


class _Names(dict[str, Any]):
    """What a page may name: `NAME` of its rule's file, `file.NAME` of another one."""

    def __missing__(self, file: str) -> Any:
        return importlib.import_module(f"ampwatch.diagnosis.{file}")


class _Thresholds(string.Formatter):
    """Python's own formats for what a page names; `scale` for a loss scale, `%` for per cent."""

    def format_field(self, value: Any, format_spec: str) -> str:
        resolved = value() if callable(value) else value
        if format_spec == "scale":
            return scale_text(resolved)
        if format_spec.startswith("%"):
            return format(100 * resolved, format_spec[1:])
        return format(resolved, format_spec)


@functools.cache
def _parts_of(code: str) -> tuple[str, dict[str, str]]:
    """What stands above the first heading of a page's file, and what below each."""
    text = (_PAGES / f"{code}.md").read_text("utf-8")
    head, *parts = re.split(r"^## (.*)$", text, flags=re.MULTILINE)
    return head, dict(zip(parts[::2], parts[1::2], strict=True))


def _joined(text: str) -> str:
    """A text with each paragraph, and each item of a list, on one line."""
    parts = re.split(r"(\n\s*\n|\n(?=- ))", text.strip())
    ends = [re.sub(r"\s*\n\s*\n", "\n\n", end) for end in parts[1::2]]
    lines = [" ".join(part.split()) for part in parts[::2]]
    return "".join(part for pair in zip(lines, [*ends, ""], strict=True) for part in pair)


@functools.cache
def _page_of(code: str, module: str) -> Page:
    names, (_, parts) = _Names(vars(sys.modules[module])), _parts_of(code)
    texts = {PARTS[title]: text for title, text in parts.items()}
    return Page(
        **{
            name: text.strip().partition("\n")[2].removesuffix("\n```")
            if name in _FENCED
            else _joined(_Thresholds().vformat(text, (), names))
            for name, text in texts.items()
        }
    )


@functools.cache
def titles_of(code: str) -> dict[str, str]:
    """What is wrong in the words that people search for, without a number; none if unknown.

    `{layer}` and `{rank}` are filled in where the finding names them; the title under `Unnamed` is
    for findings that do not, the one under `Milder` for those that are a warning at most.
    Under `Formerly` stand the names that the finding once had.
    """
    if not (_PAGES / f"{code}.md").exists():
        return {}
    return dict(re.findall(r"^- (\w+): (.+)$", _parts_of(code)[0], flags=re.MULTILINE))


def title_of(finding: Finding, every_rank: tuple[int, ...] = ()) -> str:
    """The finding's title, with its layer and rank where it names them."""
    titles = titles_of(finding.code)
    title = titles.get("Title", finding.name.replace("-", " ").capitalize())
    if finding.severity is not Severity.ERROR:
        title = titles.get("Milder", title)
    if len(finding.steps) > 1:
        title = titles.get("Several", title)
    rank = finding.ranks[0] if len(finding.ranks) == 1 < len(every_rank) else None
    lacks = ("{layer}" in title and not finding.layer) or ("{rank}" in title and rank is None)
    title = titles["Unnamed"] if lacks else title.format(layer=finding.layer, rank=rank)
    if finding.comes_and_goes:
        return f"{title}, in some steps"
    return f"{title}{finding.standing.ending}" if finding.severity.weight else title


Check = Callable[[Case], Iterable[RuleHit]]


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: its finding's code, name and usual severity, and its function."""

    code: str
    name: str
    usual: Severity
    check: Check

    @property
    def page(self) -> Page:
        """The rule's page, with the thresholds of the file that holds its function."""
        return _page_of(self.code, self.check.__module__)

    @property
    def former_names(self) -> tuple[str, ...]:
        """The names that the finding once had."""
        return tuple(titles_of(self.code).get("Formerly", "").split())

    @property
    def names(self) -> tuple[str, ...]:
        """The code, the name and the former names."""
        return self.code, self.name, *self.former_names

    def findings(self, case: Case) -> list[Finding]:
        """What the rule finds in a case."""
        return [self.finding(hit, case) for hit in self.check(case)]

    def finding(self, hit: RuleHit, case: Case) -> Finding:
        """What the rule saw, as a finding with its code, name and page."""
        lasting = self.usual if hit.standing.weighs else Severity.INFO
        steps: Stretch = hit if hit.at is None else hit.at
        evidence = hit.evidence
        return Finding(
            code=self.code,
            name=self.name,
            severity=lasting if hit.severity is None else hit.severity,
            first_step=steps.first_step,
            last_step=steps.last_step,
            ranks=case.record.ranks if hit.ranks is None else hit.ranks,
            layer=hit.layer,
            summary=hit.summary,
            cause=hit.cause,
            action=(hit.action or self.page.do) if hit.standing.weighs else hit.if_healed,
            evidence=(evidence,) if isinstance(evidence, Evidence) else evidence,
            steps=hit.single_steps,
            former_names=self.former_names,
            comes_and_goes=hit.comes_and_goes,
            standing=hit.standing,
        )


def rule(code: str, name: str, usual: Severity) -> Callable[[Check], Rule]:
    """Make a function a rule, with its code, name and usual severity."""

    def make(check: Check) -> Rule:
        return Rule(code, name, usual, check)

    return make
