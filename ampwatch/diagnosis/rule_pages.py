"""The pages of the rules: what `ampwatch explain` prints and `docs/findings/` holds.

python -m ampwatch.diagnosis.rule_pages docs/findings      writes the folder again
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path

from ampwatch.diagnosis.causes import row_of
from ampwatch.diagnosis.rule import PARTS, Rule, titles_of
from ampwatch.diagnosis.rules import RULES

_WIDTH = 76
_RELATED = "What may have caused it"
_LISTING_HEAD = """\
# The findings

All findings of this version of ampwatch. `ampwatch explain CODE` prints the same pages, and
`ampwatch explain "a message"` finds the one that a message of another program belongs to."""
# The findings are numbered by what they are about.
_GROUPS = {
    "1": "The loss scale",
    "2": "Overflow, underflow, NaN",
    "3": "The learning rate and the loss",
    "4": "Wrong calls, half-precision weights",
    "5": "Speed and memory",
    "6": "Several ranks",
    "7": "Formats below 16 bits",
    "9": "The log itself",
}


def plain_page(rule: Rule) -> str:
    """The page of a rule as plain text."""
    lines = [f"{rule.code} {rule.name} (usually {rule.usual.value})"]
    for title, text, is_code in _sections(rule):
        lines += ["", title, textwrap.indent(text, "  ") if is_code else _filled(text)]
    if causes := _causes(rule):
        listed = ", ".join(f"{cause.name} ({cause.code})" for cause in causes)
        lines += ["", _RELATED, _filled(f"{listed}. If one of these is reported, begin there.")]
    return "\n".join(lines)


def markdown_pages(rules: Sequence[Rule] = RULES) -> dict[str, str]:
    """The pages of all rules as Markdown by file name, and the page that lists them."""
    pages = {_file_of(rule): _markdown(rule) for rule in rules}
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


def rules_for(text: str) -> list[Rule]:
    """The rules that a reader means by a code, a name, or a message of another program."""
    wanted = text.strip().casefold()
    exact = [
        rule for rule in RULES if wanted == rule.code[3:] or wanted in map(str.casefold, rule.names)
    ]
    if exact:
        return exact
    pasted = _shape(text)
    return [
        rule
        for rule in RULES
        if any(
            _shape(line) in pasted or (len(pasted) > _LEAST and pasted in _shape(line))
            for line in rule.page.messages.splitlines()
        )
    ]


def rules_like(text: str) -> list[Rule]:
    """The rules whose names are nearly this, or whose names and titles hold its words."""
    names = {rule.name: rule for rule in RULES}
    near = get_close_matches(text.strip().casefold().replace(" ", "-"), names, n=3, cutoff=0.7)
    words = {word for word in re.findall(r"[a-z0-9]+", text.casefold()) if len(word) > 2}
    holds = {rule: len(words & _words_of(rule)) for rule in RULES}
    best = max(holds.values(), default=0)
    by_words = [rule for rule in RULES if best and holds[rule] == best and 2 * best >= len(words)]
    return list(dict.fromkeys([*(names[name] for name in near), *by_words]))[:5]


_LEAST = 12  # characters of a message that say which one it is


def _shape(message: str) -> str:
    """A message without what differs from one time to the next: numbers, marks, white space."""
    words = re.sub(r"^[\w.]*error: |\d[\w.+-]*", " ", message.strip().casefold())
    return " ".join(re.findall(r"[a-z_]+", words))


def _words_of(rule: Rule) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", f"{rule.name} {titles_of(rule.code)}".casefold()))


def _sections(rule: Rule) -> Iterator[tuple[str, str, bool]]:
    """Each part that the page has: its title, its text, and whether its lines stay as they are."""
    for title, name in PARTS.items():
        if text := getattr(rule.page, name):
            yield title, text, name in {"messages", "code"}


def _causes(rule: Rule) -> list[Rule]:
    return [cause for cause in RULES if cause.code in row_of(rule.code).explained_by]


def _filled(text: str) -> str:
    return "\n".join(
        textwrap.fill(
            line, _WIDTH, initial_indent="  ", break_on_hyphens=False,
            subsequent_indent="    " if line.startswith("- ") else "  ",
        )
        for line in text.split("\n")
    )  # fmt: skip


def _file_of(rule: Rule) -> str:
    return f"{rule.code}-{rule.name}.md"


def _markdown(rule: Rule) -> str:
    parts = [f"# {rule.name} ({rule.code})", f"Usually *{rule.usual.value}*."]
    for title, text, is_code in _sections(rule):
        language = "python" if title == "In code" else "text"
        parts += [f"## {title}", f"```{language}\n{text}\n```" if is_code else _escaped(text)]
    if causes := _causes(rule):
        links = [f"- [{cause.name}]({_file_of(cause)}) ({cause.code})" for cause in causes]
        parts += [f"## {_RELATED}", "If one of these is reported, begin there:", "\n".join(links)]
    return "\n\n".join(parts) + "\n"


def _listing(rules: Sequence[Rule]) -> str:
    parts = [_LISTING_HEAD]
    for number, title in _GROUPS.items():
        rows = [
            " | ".join(
                (f"| [{rule.name}]({_file_of(rule)})", _title(rule), rule.usual.value, rule.code)
            )
            + " |"
            for rule in rules
            if rule.code[3] == number
        ]
        if rows:
            head = "| finding | in words | usually | code |\n|---|---|---|---|"
            parts.append("\n".join([f"## {title}\n", head, *rows]))
    return "\n\n".join(parts) + "\n"


def _title(rule: Rule) -> str:
    titles = titles_of(rule.code)
    title = titles.get("Unnamed", titles.get("Title", ""))
    return _escaped(title.replace("{layer}", "a layer").replace("{rank}", "a rank"))


def _escaped(text: str) -> str:
    """A page's text with the marks escaped that Markdown would read as emphasis or tags.

    What stands between backticks is code and stays.
    """
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(
        part if part.startswith("`") else re.sub(r"([\\*_<>])", r"\\\1", part) for part in parts
    )


if __name__ == "__main__":
    write_pages(Path(sys.argv[1]))
