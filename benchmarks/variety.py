"""How right is the diagnosis on cases that nobody wrote, composed from one number?

    python benchmarks/variety.py --seed N [--cases N] [--split fit|choose|blind] [--trained N]
    python benchmarks/variety.py --draw --first-look     a number nobody has seen, written down

`--misses FILE` writes what was wrong, case by case, of the fit and choose splits: look at it after
the first look stands in `results/first_looks.md`, which is only ever added to.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path

for _threads in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_threads, "1")

from parts.first_looks import FIRST_LOOKS, add_options, looked_at, started, tell  # noqa: E402
from parts.machine import ROOT  # noqa: E402
from parts.options import command_line  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.progress import track  # noqa: E402

sys.path.insert(0, str(ROOT))

from examples.gallery.variety.composing import numbers  # noqa: E402
from examples.gallery.variety.families import SPLITS  # noqa: E402
from examples.gallery.variety.performing import Result, perform_all  # noqa: E402
from examples.gallery.variety.table import misses, table  # noqa: E402


def main(arguments: Sequence[str] | None = None) -> int:
    """Compose, show, judge, print."""
    options = read_options(arguments)
    seed = secrets.randbelow(10**9) if options.draw else options.seed
    if options.first_look and (when := looked_at(options.book, seed)):
        print(f"The number {seed} has been looked at before ({when}): draw another.",
              file=sys.stderr)  # fmt: skip
        return 2
    begun, results = started(), results_of(options, seed)
    only = f" of {options.split} only" if options.split else ""
    trained = sum(result.is_trained for result in results)
    about = f"{begun}: {len(results)} cases{only}, {trained} of them trained."
    text = tell(
        options, options.book, f"Number {seed}", about, table(results), list(misses(results))
    )
    if options.out:
        options.out.write_text(text, encoding="utf-8")
    return 0


def results_of(options: argparse.Namespace, seed: int) -> list[Result]:
    """The composed ones, then those that are really trained."""
    results: list[Result] = []
    for what, count in (("cases", options.cases), ("trainings", options.trained)):
        wanted = list(numbers(count, options.split))
        work = perform_all(seed, wanted, options.jobs, trained=what == "trainings")
        results += track(
            work, what, total=len(wanted), console=Console(stderr=True),
            disable=not sys.stderr.isatty(),
        )  # fmt: skip
    return results


def read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = command_line(__doc__)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=int, help="the number that all cases follow from")
    which.add_argument("--draw", action="store_true", help="draw the number at random")
    parser.add_argument("--cases", type=int, default=600)
    parser.add_argument("--split", choices=SPLITS, default=None)
    parser.add_argument("--trained", type=int, default=0, help="how many cases are really trained")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--book", type=Path, default=FIRST_LOOKS, help=argparse.SUPPRESS)
    add_options(parser)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
