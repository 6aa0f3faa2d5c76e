"""Public training programs, healthy and broken, alone and under `ampwatch run`.

python benchmarks/programs.py CLONES                    two tables of all, in markdown
python benchmarks/programs.py CLONES --jobs 2           two programs at a time
python benchmarks/programs.py CLONES --only MAE --broken none --rounds 3

CLONES is a folder with a clone of each repository of the recipes, under its own name; nothing is
downloaded. What the programs need beside torch: benchmarks/public_programs.md. Ends with 1 where
ampwatch changed a program; what it says of it is in the tables. Results: results/programs.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path

from parts.options import command_line
from parts.tables import table
from programs_recipes import HEALTHY, PROGRAMS, Broken, Program, RecipeError
from programs_running import Ran, prepare, python, run

VERDICTS = ("failing", "warning", "incomplete", "healthy")  # the worst first


@dataclass(frozen=True, slots=True)
class Told:
    """What ampwatch's report says first."""

    verdict: str
    code: str
    name: str
    layer: str
    runs: int

    def is_among(self, right: Sequence[str], layer: str) -> bool:
        if right == HEALTHY:
            return self.verdict in right
        return self.code in right and layer in self.layer

    def __str__(self) -> str:
        more = f"; {self.runs} runs" if self.runs != 1 else ""
        found = f"{self.code} {self.name} {self.layer}".strip()
        return f"{self.verdict}: {found or 'nothing'}{more}"


@dataclass(frozen=True, slots=True)
class Seen:
    """What a program's runs came to, as it is or broken in one way."""

    program: Program
    broken: Broken | None
    alone: tuple[Ran, ...]
    watched: tuple[Ran, ...]
    told: Told

    @property
    def differs(self) -> tuple[str, ...]:
        """What of the program was not the same in all runs."""
        others = (*self.alone[1:], *self.watched)
        return tuple(sorted({name for one in others for name in self.alone[0].differs_in(one)}))

    @property
    def right(self) -> bool:
        if self.broken is None:
            return self.told.is_among(self.program.right, "")
        return self.told.is_among(self.broken.right, self.broken.layer)


def main(arguments: Sequence[str] | None = None) -> int:
    options = read_options(arguments)
    asked = [one for one in PROGRAMS if options.only is None or one.name in options.only]
    with ThreadPoolExecutor(options.jobs) as pool:
        seen = [one for some in pool.map(lambda it: look(it, options), asked) for one in some]
    print(table_of_programs([one for one in seen if one.broken is None]))
    print()
    print(table_of_faults([one for one in seen if one.broken is not None]))
    print(f"\n{sum(one.right for one in seen)} of {len(seen)} verdicts are right.")
    return int(any(one.differs for one in seen))


def look(program: Program, options: argparse.Namespace) -> list[Seen]:
    """A program as it is and broken, with a line of progress each."""
    seen = []
    for broken in variants(program, options.broken):
        began = time.monotonic()
        name = f"{program.name}, {broken.how if broken else 'as it is'}"
        try:
            one = measure(program, broken, options.clones, options.rounds)
        except RecipeError as error:
            print(f"{name}: not run. {error}", file=sys.stderr, flush=True)
            if broken is None:
                break  # what does not run as it is does not run broken
            continue
        seen.append(one)
        said = "" if one.right else "NOT RIGHT: "
        print(
            f"{name}: {same(one)}, {said}{one.told} ({time.monotonic() - began:.0f} s)",
            file=sys.stderr, flush=True,
        )  # fmt: skip
        if "output" in one.differs:
            print("\n".join(first_lines_that_differ(one)), file=sys.stderr, flush=True)
    return seen


def first_lines_that_differ(one: Seen) -> Iterator[str]:
    """Alone, and watched: so that a time that is not blanked can be told from a change."""
    pairs = zip_longest(one.alone[0].printed, one.watched[0].printed, fillvalue="nothing")
    for alone, watched in islice((pair for pair in pairs if pair[0] != pair[1]), 1):
        yield f"    alone:   {alone[:200]}"
        yield f"    watched: {watched[:200]}"


def variants(program: Program, asked: str) -> Iterator[Broken | None]:
    if asked != "only":
        yield None
    if asked != "none":
        yield from program.broken


def measure(program: Program, broken: Broken | None, clones: Path, rounds: int) -> Seen:
    """Run it alone and watched, by turns."""
    with tempfile.TemporaryDirectory() as folder:
        temporary = Path(folder)
        prepared, runs = temporary / "prepared", temporary / "runs"
        prepare(program, broken, clones, prepared)
        alone, watched = [], []
        for number in range(rounds):
            alone.append(run(program, broken, prepared, temporary, None))
            watched.append(run(program, broken, prepared, temporary, runs / str(number)))
        if broken is None and alone[0].code:
            raise RecipeError(f"Alone it ends with {alone[0].code}: {alone[0].complained[-2000:]}")
        return Seen(program, broken, tuple(alone), tuple(watched), read_report(runs / "0"))


def read_report(runs: Path) -> Told:
    """What stands first in the report of the worst of a program's runs."""
    found = sorted(runs.iterdir()) if runs.is_dir() else []
    said = []
    for path in found:
        code, output, complaint = python(path, "-m", "ampwatch", "report", str(path), "--json")
        if not output:
            return Told(f"no report ({code}): {complaint[-80:]}", "", "", "", len(found))
        said.append(json.loads(output))
    if not said:
        return Told("no run", "", "", "", 0)
    worst = min(said, key=lambda one: VERDICTS.index(one["verdict"]))
    for finding in worst["findings"]:
        if finding["because_of"] is None:
            named = (finding["code"], finding["name"], finding["layer"] or "")
            return Told(worst["verdict"], *named, len(found))
    return Told(worst["verdict"], "", "", "", len(found))


def table_of_programs(seen: Sequence[Seen]) -> str:
    """Each program as it is."""
    return table(
        "program | at | trains by | edits | steps | the program | as it is | CPU ms | added",
        (
            (one.program.name, place(one.program), one.program.trains, len(one.program.edits),
             f"{one.alone[0].steps:,}", same(one), f"{mark(one)}{one.told}", *costs(one))
            for one in seen
        ),
    )  # fmt: skip


def table_of_faults(seen: Sequence[Seen]) -> str:
    """Each program broken."""
    return table(
        "program | broken by | ends with | steps | the program | should be | got",
        (
            (one.program.name, broken.how, one.alone[0].code, f"{one.alone[0].steps:,}", same(one),
             f"{' or '.join(broken.right)} {broken.layer}".rstrip(), f"{mark(one)}{one.told}")
            for one in seen
            if (broken := one.broken) is not None
        ),
    )  # fmt: skip


def same(one: Seen) -> str:
    return f"**{', '.join(one.differs)} differ**" if one.differs else "the same"


def mark(one: Seen) -> str:
    return "" if one.right else "✗ "


def place(program: Program) -> str:
    if program.script:
        return f"{program.repository} {program.commit}"
    return f"{program.repository} `{program.commit[:7]}`"


def costs(one: Seen) -> tuple[str, str]:
    """Processor time a step alone, and what watching added: medians over the rounds."""
    pairs = [
        (early.step_ms, late.step_ms)
        for early, late in zip(one.alone, one.watched, strict=True)
        if early.step_ms is not None and late.step_ms is not None
    ]
    if not pairs:
        return "", ""
    alone = statistics.median(early for early, _ in pairs)
    added = statistics.median(late - early for early, late in pairs)
    return f"{alone:.1f}", f"{added:+.2f}"


def read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = command_line(__doc__)
    names = [program.name for program in PROGRAMS]
    parser.add_argument("clones", type=Path, help="a folder with the clones")
    parser.add_argument("--only", action="append", choices=names, help="this one; may be repeated")
    parser.add_argument("--broken", choices=["also", "only", "none"], default="also")
    parser.add_argument("--rounds", type=int, default=1, help="of alone and watched, by turns")
    parser.add_argument("--jobs", type=int, default=1, help="programs at a time")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
