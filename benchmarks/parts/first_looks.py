"""Pages of first looks: figures on cases nobody had read, added for good and never replaced."""

from __future__ import annotations

import argparse
import datetime as dt
import re
from collections.abc import Iterable
from pathlib import Path

from parts.machine import ROOT, commit

RESULTS = ROOT / "benchmarks" / "results"
FIRST_LOOKS = RESULTS / "first_looks.md"


def started() -> str:
    """When, and of which commit: asked before the work, for later commits were not looked at."""
    return f"{dt.datetime.now(dt.timezone.utc):%Y-%m-%d %H:%M} UTC, commit `{commit()}`"


def looked_at(book: Path, seed: int | str) -> str | None:
    """When this number, or this part of one, was looked at, if it was."""
    if not book.exists():
        return None
    found = re.search(rf"^## Number {seed}\n\n([^,]*),", book.read_text("utf-8"), re.MULTILINE)
    return found[1] if found else None


def add_options(parser: argparse.ArgumentParser) -> None:
    """What every command with first looks has."""
    parser.add_argument("--first-look", action="store_true", help="write the figures down for good")
    parser.add_argument("--note", default="", help="a sentence that stands with the figures")
    parser.add_argument("--misses", type=Path, help="write what was wrong to this file")


def tell(
    options: argparse.Namespace, book: Path, head: str, about: str, figures: str, wrong: list[str]
) -> str:
    """Print the figures; write them, and what was wrong, where that was asked for."""
    text = f"## {head}\n\n{f'{about} {options.note}'.strip()}\n\n{figures}\n"
    print(text)
    if options.misses:
        options.misses.write_text("\n".join(wrong) + "\n", encoding="utf-8")
    if options.first_look:
        title = f"# {book.stem.replace('_', ' ').capitalize()}\n"
        before = book.read_text("utf-8") if book.exists() else title
        book.write_text(f"{before.rstrip()}\n\n{text}", encoding="utf-8")
    return text


def share(marks: Iterable[bool | None]) -> str:
    """How many of those that are known are so."""
    known = [bool(mark) for mark in marks if mark is not None]
    return f"{sum(known) / len(known):.3f} ({sum(known)}/{len(known)})" if known else "-"
