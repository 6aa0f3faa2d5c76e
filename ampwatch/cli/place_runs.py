"""The list of runs in a place, for `ampwatch runs PLACE`."""

from __future__ import annotations

import time
from collections import Counter

from ampwatch.cli.terminal import answer, answers
from ampwatch.printable_text import printable

COLUMNS = ("run", "state", "steps", "ranks", "started", "id")
MOST = 50  # lines; more than that nobody reads


def print_place(place: str, *, every: bool) -> None:
    """Print the newest runs in a place, or all."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from ampwatch.cli.runs import age_text
    from ampwatch.fleet import list_published

    found = list_published(place)
    shown = found if every else found[:MOST]
    names = Counter(run.name for run in found)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in COLUMNS:
        numeric = name in {"steps", "ranks", "started"}
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for run in shown:
        age_s = time.time() - run.started.timestamp() if run.started else 0.0
        started = f"{age_text(age_s)} ago" if run.started and run.started.timestamp() else ""
        # Of several with one name, each is opened by its id.
        told = run.id[:8] if names[run.name] > 1 else ""
        state = "cut off" if run.state == "lost" else run.state
        cells = (run.name, state, f"{run.steps:,}", f"{run.ranks:,}", started, told)
        table.add_row(*map(printable, cells))
    answers().print(table)
    if len(shown) < len(found):
        answer(f"{len(found) - len(shown):,} older runs: ampwatch runs {place} --all.")
