"""Public training programs as they are, alone and under `ampwatch run`, by turns.

python benchmarks/real_programs.py CLONES                a table of all
python benchmarks/real_programs.py CLONES --only nanoGPT --rounds 5

CLONES is a folder with a clone of each repository of `real_programs_list.py`, under its own name;
nothing is downloaded. What the programs need beside torch: docs/real_programs.md.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from real_programs_list import PROGRAMS, Program

ROOT = Path(__file__).resolve().parents[1]
CLOCK = Path(__file__).resolve().parent / "step_clock"


@dataclass(frozen=True, slots=True)
class Ran:
    """One run: its processor time from step to step, and the weights each rank ended with."""

    step_ms: float
    weights: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Seen:
    """What a program's runs came to."""

    program: Program
    alone: tuple[Ran, ...]
    watched: tuple[Ran, ...]
    steps: int
    verdict: str
    headline: str

    @property
    def same(self) -> bool:
        """Whether all runs ended with the same weights, bit for bit."""
        return len({run.weights for run in (*self.alone, *self.watched)}) == 1


def main(arguments: Sequence[str] | None = None) -> int:
    options = read_options(arguments)
    seen = [
        measure(program, options.clones, options.rounds)
        for program in PROGRAMS
        if options.only in (None, program.name)
    ]
    print(report(seen))
    return int(not all(one.same for one in seen))


def measure(program: Program, clones: Path, rounds: int) -> Seen:
    """Run it alone and watched, by turns."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = prepare(program, clones, Path(temporary))
        alone, watched = [], []
        for _ in range(rounds):
            alone.append(run(program, folder, watch=False))
            watched.append(run(program, folder, watch=True))
        told = json.loads(python(folder, "-m", "ampwatch", "report", "it", "--json"))
    headline = next((one for one in told["findings"] if one["because_of"] is None), None)
    return Seen(
        program=program,
        alone=tuple(alone),
        watched=tuple(watched),
        steps=told["run"]["steps"],
        verdict=told["verdict"],
        headline="nothing" if headline is None else f"{headline['code']} {headline['name']}",
    )


def prepare(program: Program, clones: Path, temporary: Path) -> Path:
    """A copy of the clone, edited, with data; returns where it runs."""
    clone = clones / program.repository.partition("/")[2]
    command = ["git", "-C", str(clone), "rev-parse", "HEAD"]
    head = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    if head != program.commit:
        raise SystemExit(f"{clone} is at {head}: git -C {clone} checkout {program.commit}")
    copy = shutil.copytree(clone, temporary / "copy", ignore=shutil.ignore_patterns(".git"))
    folder = copy / program.folder
    for edit in program.edits:
        path = folder / edit.file
        text = path.read_text()
        if edit.old not in text:
            raise SystemExit(f"{program.name}: {edit.file} holds no {edit.old!r} at this commit.")
        path.write_text(text.replace(edit.old, edit.new))
    random.seed(0)
    program.make_data(folder)
    return folder


def run(program: Program, folder: Path, *, watch: bool) -> Ran:
    """One run, from what the clones of a fresh checkout would be."""
    shutil.rmtree(folder / "ampwatch-runs", ignore_errors=True)
    (folder / "gpt_snapshot.pt").unlink(missing_ok=True)  # minGPT-ddp would go on from it
    with tempfile.TemporaryDirectory() as told:
        before = ("-m", "ampwatch", "run", "--run", "it") if watch else ()
        command = program.command
        if program.launcher and not watch:
            command = ("-m", "torch.distributed.run", *command[1:])
        python(folder, *before, *command, STEP_CLOCK=told)
        ranks = [json.loads(path.read_text()) for path in sorted(Path(told).iterdir())]
    warm = ranks[0]["seconds"][len(ranks[0]["seconds"]) // 5 :]
    step_ms = 1e3 * (warm[-1] - warm[0]) / (len(warm) - 1)
    return Ran(step_ms, tuple(rank["weights"] for rank in ranks))


def python(folder: Path, *arguments: str, **environment: str) -> str:
    """What it printed; nothing leaves this machine."""
    offline = {"WANDB_MODE": "offline", "HF_HUB_OFFLINE": "1", "AMPWATCH_ENDPOINT": "off"}
    paths = os.pathsep.join([str(CLOCK), str(ROOT)] if "STEP_CLOCK" in environment else [str(ROOT)])
    child = subprocess.run(
        [sys.executable, *arguments], cwd=folder, check=False, capture_output=True, text=True,
        env={**os.environ, **offline, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths, **environment},
    )  # fmt: skip
    if child.returncode:
        raise SystemExit(f"{' '.join(arguments)} ended with {child.returncode}:\n{child.stderr}")
    return child.stdout


def report(seen: Sequence[Seen]) -> str:
    """The figures, in markdown."""
    lines = [
        "| program | edits | steps | weights | verdict | reported | CPU ms a step | added |",
        "|---|---:|---:|---|---|---|---:|---:|",
    ]
    for one in seen:
        alone = statistics.median(run.step_ms for run in one.alone)
        added = statistics.median(
            late.step_ms - early.step_ms for early, late in zip(one.alone, one.watched, strict=True)
        )
        lines.append(
            f"| {one.program.name} | {len(one.program.edits)} | {one.steps:,} "
            f"| {'same bits' if one.same else '**differ**'} | {one.verdict} | {one.headline} "
            f"| {alone:.1f} | {added:+.2f} |"
        )
    return "\n".join(lines)


def read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("clones", type=Path, help="a folder with the clones")
    parser.add_argument("--only", choices=[program.name for program in PROGRAMS])
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
