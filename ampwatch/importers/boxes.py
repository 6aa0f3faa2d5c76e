"""Boxes of names and values between two rules, as Stable-Baselines3 and OpenAI's logger print.

    ------------------------
    | loss      | 13.8     |
    | step      | 10       |
    ------------------------

The step may stand anywhere in its box, so a whole box is read as one line.
"""

from __future__ import annotations

import re

from ampwatch.importers.line_splitter import Lines

_RULE = re.compile(rb"\s*[-=+]{5,}\s*")
_ROW = re.compile(rb"\s*\|[^|]{1,80}\|[^|]{0,80}\|\s*")
_MOST_ROWS = 60


def box_around(lines: Lines, at: int, after: int) -> tuple[str, int] | None:
    """The whole box that a line is a row of, as one line, and where it ends; None without one.

    A box begins after line `after`.
    """
    if _ROW.fullmatch(lines.line(at)) is None:
        return None
    first = last = at
    while first > after + 1 and at - first < _MOST_ROWS and _ROW.fullmatch(lines.line(first - 1)):
        first -= 1
    while last - at < _MOST_ROWS and _ROW.fullmatch(lines.line(last + 1)):
        last += 1
    is_whole = _RULE.fullmatch(lines.line(first - 1)) and _RULE.fullmatch(lines.line(last + 1))
    if not is_whole:
        return None
    rows = [lines.line(row).strip() for row in range(first, last + 1)]
    return b" ".join(rows).decode("utf-8", "replace"), last
