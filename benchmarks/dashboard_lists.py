"""What many runs cost: to list them in a fresh process and again, to see and scroll their table."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from dashboard_parts import VIEW, browser
from dashboard_runs import write_short_runs

from ampwatch.cli.dashboard import Server

# Prints how long the first listing of a process took, the next, and one in haste.
_LISTING = """
import sys, time
from pathlib import Path
from ampwatch.store import Catalogue
listing = Catalogue([Path(sys.argv[1])])
for thorough in (True, True, False):
    began = time.perf_counter()
    found = listing.runs(thorough=thorough)
    print(time.perf_counter() - began)
assert len(found) == int(sys.argv[2])
"""

Row = tuple[str, str, str]


def listing(folder: Path, quick: bool) -> Iterator[Row]:
    """Runs of 1,000 steps each, on a disk that has them cached."""
    for count in (100, 200) if quick else (1_000, 100_000):
        place = folder / str(count)
        place.mkdir()
        write_short_runs(place, count)
        yield from of_folder(place, count)


def of_folder(place: Path, count: int) -> Iterator[Row]:
    """What these runs cost."""
    first, _, _ = listed(place, count)
    again, next_one, hasty = listed(place, count)
    yield f"list {count:,} runs for the first time ever, s", f"{first:.2f}", ""
    yield f"list {count:,} runs in a new process, s", f"{again:.2f}", "1 (of 1,000)"
    yield f"list {count:,} runs again, s", f"{next_one:.3f}", ""
    yield f"list {count:,} runs again, ended ones taken on trust, s", f"{hasty:.3f}", ""
    opened, whole, far, sent = seen(place, count)
    yield f"page of {count:,} runs, from a new tab to its first row, s", f"{opened:.2f}", ""
    yield f"page of {count:,} runs, until it has them all, s", f"{whole:.2f}", ""
    yield f"page of {count:,} runs, from a leap to its end to the last row, s", f"{far:.2f}", ""
    yield f"rows in the browser, of {count:,}", f"{sent}", ""


def listed(folder: Path, count: int) -> list[float]:
    """The times of three listings in a process of their own."""
    command = [sys.executable, "-c", _LISTING, str(folder), str(count)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [float(line) for line in printed.split()]


_ROW = ".aw-runs.all tbody tr[data-go]"
_LEAP = "() => { const box = document.querySelector('.aw-box'); box.scrollTop = box.scrollHeight; }"


_HAS_ALL = "rows => document.querySelector('.aw-runs.all').ariaRowCount == rows"


def seen(folder: Path, count: int) -> tuple[float, float, float, int]:
    """How long a tab of a fresh server takes to show a row, all, and the end; and the rows sent."""
    with Server([folder]) as server, browser() as (one, _):
        page = one.new_page(viewport=VIEW)
        began = time.perf_counter()
        page.goto(f"{server.url}/runs")
        page.locator(_ROW).first.wait_for(timeout=300_000)
        opened = time.perf_counter() - began
        page.wait_for_function(_HAS_ALL, arg=count + 1, timeout=300_000)
        whole = time.perf_counter() - began
        began = time.perf_counter()
        page.evaluate(_LEAP)
        page.locator(f"{_ROW}[aria-rowindex='{count + 1}']").wait_for(timeout=300_000)
        return opened, whole, time.perf_counter() - began, page.locator(_ROW).count()
