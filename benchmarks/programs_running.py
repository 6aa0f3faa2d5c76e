"""Runs a recipe in a folder of its own, alone or watched, and keeps what it came to."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from programs_recipes import Broken, Edit, Program, RecipeError

HERE = Path(__file__).resolve().parent
LONGEST_S = 300.0
OFFLINE = {
    "WANDB_MODE": "offline", "HF_HUB_OFFLINE": "1", "YOLO_OFFLINE": "true", "WANDB_SILENT": "true",
    "AMPWATCH_ENDPOINT": "off", "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "COLUMNS": "100",
}  # fmt: skip
VARYING = re.compile(  # from run to run of the same program: times, dates, addresses
    r"\d+(:\d\d)+([.,]\d+)?|\d{4}-\d\d-\d\d|0x[0-9a-f]{6,}"
    r"|[\d.]+ ?(ms|seconds|s|hours|it/s|s/it)\b|[\d.]+e-\d\d ?s\b"
)


@dataclass(frozen=True, slots=True)
class Ran:
    """One run: how it ended, what it printed, its state and files, its processor time a step."""

    code: int
    printed: tuple[str, ...]
    complained: str
    state: tuple[str, ...]  # of each rank: weights, optimizers and random numbers, as a digest
    files: tuple[str, ...]
    steps: int
    step_ms: float | None

    def differs_in(self, other: Ran) -> tuple[str, ...]:
        """What of the program another run of it changed."""
        pairs = {
            "exit code": (self.code, other.code),
            "output": (self.printed, other.printed),
            "weights": (self.state, other.state),
            "files": (self.files, other.files),
        }
        return tuple(name for name, (mine, its) in pairs.items() if mine != its)


def prepare(program: Program, broken: Broken | None, clones: Path, target: Path) -> None:
    """A copy of the clone in the target, edited, with data."""
    if program.script:
        check_version(program)
        target.mkdir(parents=True)
        shutil.copy(HERE / "programs_scripts" / program.script, target)
    else:
        clone = clones / program.repository.partition("/")[2]
        check_commit(program, clone)
        shutil.copytree(clone, target, ignore=shutil.ignore_patterns(".git"))
    folder = target / program.folder
    for edit in (*program.edits, *(broken.edits if broken else ())):
        make(edit, program, folder)
    random.seed(0)
    program.make_data(folder)


def check_commit(program: Program, clone: Path) -> None:
    command = ["git", "-C", str(clone), "rev-parse", "HEAD"]
    asked = subprocess.run(command, check=False, capture_output=True, text=True)
    if asked.stdout.strip() != program.commit:
        raise RecipeError(f"{clone} is not at {program.commit}. Clone it there, and check it out.")


def check_version(program: Program) -> None:
    try:
        version = importlib.metadata.version(program.repository)
    except importlib.metadata.PackageNotFoundError:
        version = "not installed"
    if version != program.commit:
        raise RecipeError(f"{program.repository} is {version}: install version {program.commit}.")


def make(edit: Edit, program: Program, folder: Path) -> None:
    path = folder / edit.file
    text = path.read_text()
    if edit.old not in text:
        raise RecipeError(f"{program.name}: {edit.file} holds no {edit.old!r} at this commit.")
    path.write_text(text.replace(edit.old, edit.new))


def run(
    program: Program, broken: Broken | None, prepared: Path, temporary: Path, runs: Path | None
) -> Ran:
    """One run from what was prepared, always under the same path; watched where runs may go."""
    work, told = temporary / "work", temporary / "told"
    for folder in (work, told):
        shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(prepared, work)
    told.mkdir()
    command = (*program.command, *(broken.arguments if broken else ()))
    if runs is not None:
        command = ("-m", "ampwatch", "run", "-o", str(runs), "--run", "it", *command)
    elif program.launcher:
        command = ("-m", "torch.distributed.run", *command[1:])
    code, output, complaint = python(work / program.folder, *command, STEP_CLOCK=str(told))
    ranks = [json.loads(path.read_text()) for path in sorted(told.iterdir())]
    return Ran(
        code=code,
        printed=without_varying(output, program),
        complained=complaint,
        state=tuple(rank["state"] for rank in ranks),
        files=tuple(digest(path) for glob in program.saved for path in sorted(work.glob(glob))),
        steps=len(ranks[0]["seconds"]) if ranks else 0,
        step_ms=step_ms(ranks[0]["seconds"]) if ranks else None,
    )


def without_varying(output: str, program: Program) -> tuple[str, ...]:
    """What it printed, with what varies blanked; of several ranks, which mix, the characters."""
    blanks = re.compile(f"{VARYING.pattern}|{program.times}")
    said = (blanks.sub("<...>", line) for line in output.splitlines())
    lines = tuple(line for line in said if line != "<...>")  # a bar is drawn as often as time asks
    return tuple(sorted("".join(lines))) if program.launcher else lines


def step_ms(seconds: list[float]) -> float | None:
    """Processor time a step, without the first fifth."""
    warm = seconds[len(seconds) // 5 :]
    return 1e3 * (warm[-1] - warm[0]) / (len(warm) - 1) if len(warm) > 1 else None


def digest(path: Path) -> str:
    return f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}"


def python(folder: Path, *arguments: str, **environment: str) -> tuple[int, str, str]:
    """How it ended, what it printed, and what it complained of; nothing leaves this machine."""
    paths = [str(HERE.parent)]
    if "STEP_CLOCK" in environment:
        paths.insert(0, str(HERE / "step_clock"))
    child = subprocess.Popen(
        [sys.executable, *arguments], cwd=folder, text=True, errors="replace",
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,  # so that a launcher's ranks and workers end with it
        env={
            **os.environ, **OFFLINE, "PYTHONPATH": os.pathsep.join(paths), **environment,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",  # torchrun
        },
    )  # fmt: skip
    try:
        output, complaint = child.communicate(timeout=LONGEST_S)
    except subprocess.TimeoutExpired as late:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        raise RecipeError(f"It was ended after {LONGEST_S:.0f} s.") from late
    return child.returncode, output, complaint
