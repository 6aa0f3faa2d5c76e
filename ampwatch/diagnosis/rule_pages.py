"""The pages of the rules: what `ampwatch explain` prints and `docs/findings/` holds.

python -m ampwatch.diagnosis.rule_pages docs/findings      writes the folder again
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from ampwatch.diagnosis.causes import row_of
from ampwatch.diagnosis.rule import Rule
from ampwatch.diagnosis.rules import RULES

PARTS = (
    ("What it means", "meaning"),
    ("How it looks", "looks"),
    ("What it is confused with", "not_to_confuse"),
    ("What to do", "do"),
    ("Example", "example"),
)
_WIDTH = 76
_LISTING_HEAD = """\
# The findings

All findings of this version of ampwatch, with their usual severity.
The pages are generated from the rules; `ampwatch explain CODE` prints the same text.

| code | name | usually |
|---|---|---|"""


def plain_page(rule: Rule) -> str:
    """The page of a rule as plain text."""
    lines = [f"{rule.code} {rule.name} (usually {rule.usual.value})"]
    for title, text in _sections(rule):
        body = textwrap.fill(
            text, _WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False
        )
        lines += ["", title, body]
    return "\n".join(lines)


def markdown_pages(rules: Sequence[Rule] = RULES) -> dict[str, str]:
    """The pages of all rules as Markdown by file name, and the page that lists them."""
    pages = {f"{rule.code}-{rule.name}.md": _markdown(rule) for rule in rules}
    return {"README.md": _listing(rules), **pages}


def write_pages(folder: Path) -> None:
    """Write the pages of all rules into a folder, and delete pages that no rule has any more."""
    folder.mkdir(parents=True, exist_ok=True)
    pages = markdown_pages()
    for stale in folder.glob("*.md"):
        if stale.name not in pages:
            stale.unlink()
    for name, text in pages.items():
        (folder / name).write_text(text, encoding="utf-8", newline="\n")


def _sections(rule: Rule) -> Iterator[tuple[str, str]]:
    for title, name in PARTS:
        yield title, getattr(rule.page, name)
    causes = ", ".join(row_of(rule.code).explained_by)
    if causes:
        yield (
            "What may have caused it",
            (f"{causes}: if one of these is reported, look at it first."),
        )


def _markdown(rule: Rule) -> str:
    parts = [f"# {rule.code} {rule.name}", f"Usually *{rule.usual.value}*."]
    for title, text in _sections(rule):
        parts += [f"## {title}", _escaped(text)]
    return "\n\n".join(parts) + "\n"


def _listing(rules: Sequence[Rule]) -> str:
    rows = [
        f"| [{rule.code}]({rule.code}-{rule.name}.md) | {rule.name} | {rule.usual.value} |"
        for rule in rules
    ]
    return "\n".join([_LISTING_HEAD, *rows]) + "\n"


def _escaped(text: str) -> str:
    """A page's text with the marks escaped that Markdown would read as emphasis or tags."""
    for mark in "\\`*_<>":
        text = text.replace(mark, f"\\{mark}")
    return text


if __name__ == "__main__":
    write_pages(Path(sys.argv[1]))
