"""What a list of many runs costs: in a fresh process, again, and in the page's server."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from dashboard_runs import write_short_runs

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
        first, _, _ = listed(place, count)
        again, next_one, hasty = listed(place, count)
        yield f"list {count:,} runs for the first time ever, s", f"{first:.2f}", ""
        yield f"list {count:,} runs in a new process, s", f"{again:.3f}", "1 (of 1,000)"
        yield f"list {count:,} runs again, s", f"{next_one:.3f}", ""
        yield "the same, those that have ended taken on trust, s", f"{hasty:.3f}", ""


def listed(folder: Path, count: int) -> list[float]:
    """The times of three listings in a process of their own."""
    command = [sys.executable, "-c", _LISTING, str(folder), str(count)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [float(line) for line in printed.split()]
