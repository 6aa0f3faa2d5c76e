"""Takes a pasted log out of what it arrived in: a notebook, a mail's quotes, a site's line numbers.

Only a text that is wrapped as a whole is unwrapped, and only one that a person would paste or save:
a log that is written by a program is never touched.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

MOST_BYTES = 64 << 20
_MOST_LINES = 400  # looked at to know a wrapping
_SHARE = 0.8
_LEAST_LINES = 3
_QUOTE = re.compile(r"(?m)^(?:> ?)+")
_NUMBERED = re.compile(r"[ \t]*(\d{1,7})(?:[.:|)]| ?\||[ \t])[ \t]?")
_STRING = re.compile(r'\s*(?:"text": \[\s*)?"((?:[^"\\]|\\.)*)"\s*,?\s*\]?\s*')
_OF_CELL = '"output_type": "'
_ROW, _CELL = re.compile(r"(?is)<tr\b.*?</tr>"), re.compile(r"(?is)<t[hd]\b[^>]*>(.*?)</t[hd]>")
_TAG = re.compile(r"<[^>]{0,200}>")


def unwrapped(text: str) -> str | None:
    """A pasted log's own text; None if nothing is around it."""
    inner = _of_notebook(text)
    before = text if inner is None else inner
    plain = _without_strings(before)
    plain = _without_quotes(plain)
    plain = _without_line_numbers(plain)
    plain = _without_tags(plain)
    return None if plain == text else plain


def may_be_wrapped(head: str) -> bool:
    """Whether a log's first lines look as if something were around them."""
    lines = _first_lines(head)
    is_notebook = head.lstrip().startswith("{") and '"cells"' in head
    found = (
        is_notebook
        or _OF_CELL in head
        or _shares(lines, _STRING.fullmatch)
        or _shares(lines, _QUOTE.match)
    )
    return bool(found or _offset_of_numbers(lines) is not None or "<td" in head)


# --- notebooks ------------------------------------------------------------------------------------


def _of_notebook(text: str) -> str | None:
    """The printed text of a notebook's cells; None for any other text."""
    if not text.lstrip().startswith("{") or '"cells"' not in text:
        return None
    try:
        notebook = json.loads(text)
    except (ValueError, RecursionError):
        return None
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    outputs = [part for cell in cells or () for part in _outputs_of(cell)]
    return "\n".join(outputs) if outputs else None


def _outputs_of(cell: Any) -> Iterator[str]:
    """What a cell of a notebook printed, its tables as lines."""
    outputs = cell.get("outputs") if isinstance(cell, dict) else None
    for output in outputs if isinstance(outputs, list) else ():
        if not isinstance(output, dict):
            continue
        data = output.get("data")
        rich = data if isinstance(data, dict) else {}
        for told in (output.get("text"), rich.get("text/html") or rich.get("text/plain")):
            if isinstance(told, str | list):
                yield told if isinstance(told, str) else "".join(map(str, told))


def _without_strings(text: str) -> str:
    """A piece of a notebook's file: each line is a string with its line end."""
    lines = text.split("\n")
    if _OF_CELL not in text and not _shares(lines[:_MOST_LINES], _STRING.fullmatch):
        return text
    found = [match[1] for line in lines if (match := _STRING.fullmatch(line))]
    return "".join(map(_unescaped, found))


def _unescaped(text: str) -> str:
    try:
        return str(json.loads(f'"{text}"'))
    except ValueError:
        return text


def _without_tags(text: str) -> str:
    """A text whose tables of a web page are lines with tabs."""
    if "<td" not in text:
        return text

    def line_of(row: re.Match[str]) -> str:
        cells = [html.unescape(_TAG.sub("", cell)).strip() for cell in _CELL.findall(row[0])]
        return "\n" + "\t".join(cells) + "\n"

    return _TAG.sub("", _ROW.sub(line_of, text))


# --- around each line -----------------------------------------------------------------------------


def _without_quotes(text: str) -> str:
    return _QUOTE.sub("", text) if _shares(_first_lines(text), _QUOTE.match) else text


def _without_line_numbers(text: str) -> str:
    """A text without the numbers that a site printed before its lines, whatever they say."""
    offset = _offset_of_numbers(_first_lines(text))
    if offset is None:
        return text
    return "\n".join(
        line[match.end() :] if (match := _numbered(line, at + offset)) else line
        for at, line in enumerate(text.split("\n"))
    )


def _offset_of_numbers(lines: Sequence[str]) -> int | None:
    """The number of the first line, if lines of different kinds are numbered one by one."""
    told = [(at, match) for at, line in enumerate(lines) if (match := _NUMBERED.match(line))]
    filled = sum(1 for line in lines if line.strip())
    if len(told) < max(_LEAST_LINES, _SHARE * filled):
        return None
    offsets = {int(match[1]) - at for at, match in told}
    if len(offsets) != 1:
        return None
    kinds = {re.sub(r"\d+", "0", lines[at][match.end() :])[:48] for at, match in told}
    lengths = {len(lines[at][match.end() :].split()) for at, match in told}
    return offsets.pop() if len(kinds) > 1 and len(lengths) > 1 else None


def _numbered(line: str, number: int) -> re.Match[str] | None:
    match = _NUMBERED.match(line)
    return match if match and int(match[1]) == number else None


def _first_lines(text: str) -> list[str]:
    return text.split("\n", _MOST_LINES)[:_MOST_LINES]


def _shares(lines: Sequence[str], test: Any) -> bool:
    """Whether nearly all lines that say something pass a test."""
    filled = [line for line in lines if line.strip()]
    return len(filled) >= _LEAST_LINES and sum(1 for line in filled if test(line)) >= _SHARE * len(
        filled
    )
