"""How right the diagnosis is on cases that nobody wrote: composed from one number.

    python benchmarks/variety.py --seed N [--cases N] [--split fit|choose|blind] [--trained N]
    python benchmarks/variety.py --draw --first-look     a number nobody has seen, written down

`--misses FILE` writes what was wrong, case by case, of the fit and choose splits: look at it after
the first look stands in `results/first_looks.md`, which is only ever added to.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

for _threads in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_threads, "1")

from rich.progress import track  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from examples.gallery.variety.composing import numbers  # noqa: E402
from examples.gallery.variety.families import SPLITS  # noqa: E402
from examples.gallery.variety.performing import Result, perform_all  # noqa: E402
from examples.gallery.variety.table import misses, table  # noqa: E402

FIRST_LOOKS = ROOT / "benchmarks" / "results" / "first_looks.md"
_HEAD = """# First looks

What `benchmarks/variety.py` said of the rules of a commit, on a number drawn after they were made
and before any miss was read. Added to by the command itself, never replaced.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Compose, show, judge, print."""
    options = read_options(arguments)
    seed = secrets.randbelow(10**9) if options.draw else options.seed
    if options.first_look and (known := looked_at(options.book, seed)):
        print(
            f"The number {seed} has been looked at before ({known}): draw another.", file=sys.stderr
        )
        return 2
    begun = began()  # before the work: what is committed meanwhile was not looked at
    results = _results(options, seed)
    about = f"{begun}: {_count(options, results)}. {options.note}".strip()
    text = f"## Number {seed}\n\n{about}\n\n{table(results)}\n"
    print(text)
    if options.out:
        options.out.write_text(text, encoding="utf-8")
    if options.first_look:
        write_down(options.book, text)
    if options.misses:
        options.misses.write_text("\n".join(misses(results)) + "\n", encoding="utf-8")
    return 0


def _results(options: argparse.Namespace, seed: int) -> list[Result]:
    """The composed ones, then those that are really trained."""
    found: list[Result] = []
    for what, count in (("cases", options.cases), ("trainings", options.trained)):
        wanted = list(numbers(count, options.split))
        work = perform_all(seed, wanted, options.jobs, trained=what == "trainings")
        found += track(
            work, what, total=len(wanted), console=_console(), disable=not sys.stderr.isatty()
        )
    return found


def _console() -> object:
    from rich.console import Console

    return Console(stderr=True)


def began() -> str:
    return f"{dt.datetime.now(dt.timezone.utc):%Y-%m-%d %H:%M} UTC, commit {_commit()}"


def _count(options: argparse.Namespace, results: Sequence[Result]) -> str:
    only = f" of {options.split} only" if options.split else ""
    return f"{len(results)} cases{only}, {sum(r.is_trained for r in results)} of them trained"


def _commit() -> str:
    def git(*words: str) -> str:
        done = subprocess.run(
            ("git", *words), cwd=ROOT, capture_output=True, text=True, check=False
        )
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--", "ampwatch")
    return f"`{git('rev-parse', '--short', 'HEAD') or 'unknown'}`" + (
        " with changes" * bool(changed)
    )


def looked_at(book: Path, seed: int | str) -> str | None:
    """When this number, or this part of one, was looked at, if it was."""
    if not book.exists():
        return None
    found = re.search(rf"^## Number {seed}\n\n([^,]*),", book.read_text("utf-8"), re.MULTILINE)
    return found[1] if found else None


def write_down(book: Path, text: str) -> None:
    """Add to what is there."""
    if not book.exists():
        book.write_text(_HEAD, encoding="utf-8")
    with book.open("a", encoding="utf-8") as file:
        file.write(f"\n{text}")


def read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command's own."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=int, help="the number that all cases follow from")
    which.add_argument("--draw", action="store_true", help="draw the number at random")
    parser.add_argument("--cases", type=int, default=600)
    parser.add_argument("--split", choices=SPLITS, default=None)
    parser.add_argument("--trained", type=int, default=0, help="how many cases are really trained")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--misses", type=Path, default=None)
    parser.add_argument("--first-look", action="store_true", help="write it down for good")
    parser.add_argument("--note", default="", help="a sentence that stands with the first look")
    parser.add_argument("--book", type=Path, default=FIRST_LOOKS, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
