"""What docs/fleet.md prints, and the runs that its snippets are tried on."""

from __future__ import annotations

import re
from pathlib import Path

from written_runs import more, write_run

import ampwatch
from ampwatch.fleet import publish

ROOT = Path(ampwatch.__file__).parents[1]
PAGE = (ROOT / "docs" / "fleet.md").read_text("utf-8")
PROGRAMS = ROOT / "examples" / "fleet"  # that the page names


def query() -> str:
    """The program of the page, as it is printed."""
    code = re.search(r"<!-- query -->\n```python\n(.*?)```", PAGE, re.DOTALL)
    assert code is not None
    return code[1]


def written(runs: Path) -> None:
    """Two runs that skipped 8 steps and none."""
    write_run(runs, "train-1204", accepted=60, skipped=8)
    write_run(runs, "train-1205", accepted=50)


def published_again(runs: Path, place: str) -> None:
    """One more, published twice: rows of an earlier edition must not count."""
    write_run(runs, "resumed", accepted=20, skipped=2, ended=False)
    publish(runs, place)
    more(runs / "resumed", 30, skipped=3, first=22, ended=True)
    publish(runs, place)
