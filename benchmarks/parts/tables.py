"""A table in Markdown, as the results pages have them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def table(head: str, rows: Iterable[Iterable[object]]) -> str:
    """`head` names the columns, with | between them; a cell is what `str` makes of it."""
    columns = [column.strip() for column in head.split("|")]
    lines = [columns, ["---"] * len(columns), *([str(cell) for cell in row] for row in rows)]
    return "\n".join(
        "|".join(["", *line, ""]) if line[0] == "---" else f"| {' | '.join(line)} |"
        for line in lines
    )


def page(
    title: str, about: str, head: str, rows: Iterable[Iterable[object]], out: Path | None
) -> None:
    """Print a results page of one table; write it to a file, too, where one is asked for."""
    text = f"# {title}\n\n{about}\n\n{table(head, rows)}\n"
    print(text)
    if out:
        out.write_text(text, encoding="utf-8")
