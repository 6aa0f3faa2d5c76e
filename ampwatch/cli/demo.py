"""`ampwatch demo`: trains a small model in half precision and shows how it goes wrong.

The scenarios are ordinary scripts (examples/demo in a checkout, ampwatch/_demo in a wheel), run as
child processes. The demo reads their progress from their runs, as any view does.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ampwatch.cli.dashboard import Server, installed_folder, missing_parts, search_path
from ampwatch.cli.options import RUNS_FOLDER_OPTION
from ampwatch.cli.terminal import answer, answers, asides, say
from ampwatch.errors import AmpwatchError

if TYPE_CHECKING:
    from rich.console import Console

    from ampwatch.store import RunSummary

HELP = """Train a small model that fails, and explain it.

  ampwatch demo                       shows it in the browser while it trains
  ampwatch demo --no-dashboard        prints the report instead
  ampwatch demo --list                the other scenarios
  ampwatch demo --scenario healthy

The demo trains in fp16 on this machine, in less than a minute. Its learning
rate is too high on purpose, so the loss scale collapses.
"""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A training of the demo, which shows one thing."""

    name: str
    script: str
    steps: int
    shows: str
    ranks: int = 1


SCENARIOS = (
    Scenario(
        "lr-too-high", "lr_too_high.py", 320, "the learning rate is too high: the scale collapses"
    ),
    Scenario("healthy", "healthy.py", 360, "healthy: the scale grows, overflows and recovers"),
    Scenario(
        "forward-overflow", "forward_overflow.py", 80, "an activation exceeds the range of fp16"
    ),
    Scenario("underflow", "underflow.py", 200, "no scaler: small gradients are lost in fp16"),
    Scenario("one-bad-rank", "one_bad_rank.py", 200, "two processes, one of them with bad data", 2),
)
_LOOK_EVERY_S = 0.3


def command(
    scenario: str = typer.Option("lr-too-high", metavar="NAME", help="Which training to run."),
    listing: bool = typer.Option(False, "--list", help="List the scenarios."),
    dashboard: bool = typer.Option(
        True,
        "--dashboard/--no-dashboard",
        help="Only print the report, without a browser.",
    ),
    seed: int = typer.Option(0, metavar="N", help="Seed of the training."),
    folder: Path = RUNS_FOLDER_OPTION,
) -> None:
    """Run a scenario of the demo and show its run."""
    if listing:
        for one in SCENARIOS:
            answer(f"{one.name:18}{one.shows}")
        return
    from ampwatch.store import default_log_dir

    chosen, where = _find(scenario), folder or default_log_dir()
    absent = missing_parts() if dashboard else None
    if absent:
        say(f"{absent} The report is printed instead.")
    if dashboard and not absent:
        with Server([where]) as server:
            path = free_path(chosen, where)
            say(f"The dashboard is at {server.url}/?run={path.name}")
            server.open_browser(path.name)
            _report(train(chosen, path, seed))
            say(f"The dashboard stays at {server.url} until Ctrl-C.")
            server.wait()
    else:
        _report(train(chosen, free_path(chosen, where), seed))


def free_path(scenario: Scenario, folder: Path) -> Path:
    """The folder for the demo's next run of a scenario."""
    name = f"demo-{scenario.name}"
    numbers = (name if n == 1 else f"{name}-{n}" for n in range(1, 10_000))
    return next(folder / free for free in numbers if not (folder / free).exists())


def train(scenario: Scenario, path: Path, seed: int) -> Path:
    """Train the demo's scenario with a progress bar; return its run's folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    options = ["--seed", str(seed), "--steps", str(scenario.steps), "--run", path.name]
    child = subprocess.Popen(
        [sys.executable, *_program(scenario), *options],
        env=_environment(path.parent),
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
    )
    try:
        _follow(child, path, scenario)
    except KeyboardInterrupt:
        child.wait()  # it got the same Ctrl-C
        raise
    finally:
        if child.poll() is None:
            child.terminate()
            child.wait()
    if child.returncode:
        raise AmpwatchError(
            f"the demo's training ended with exit code {child.returncode}; its message is above."
        )
    return path


def _program(scenario: Scenario) -> list[str]:
    """The scenario's script, started by torch's launcher if several processes train together."""
    script = str(scripts_folder() / scenario.script)
    if scenario.ranks == 1:
        return [script]
    processes = f"--nproc-per-node={scenario.ranks}"
    return ["-m", "torch.distributed.run", "--standalone", processes, "--", script]


def scripts_folder() -> Path:
    """Where the demo's scripts are."""
    first = SCENARIOS[0].script
    return installed_folder("_demo", "examples/demo", first, "the demo's scripts are")


def _find(name: str) -> Scenario:
    for one in SCENARIOS:
        if one.name == name:
            return one
    known = ", ".join(one.name for one in SCENARIOS)
    raise AmpwatchError(f"there is no scenario {name!r}; there are {known}.")


def _environment(folder: Path) -> dict[str, str]:
    """The environment of a demo's training: its run's folder, this ampwatch, and one thread.

    The model is small: on a busy machine several threads wait for each other and take ten times
    longer than one.
    """
    return {
        "OMP_NUM_THREADS": "1",
        **os.environ,
        "AMPWATCH_DIR": str(folder.resolve()),
        "AMPWATCH_QUIET": "1",  # the demo says itself where the run is
        "PYTHONPATH": search_path(),
    }


def _follow(child: subprocess.Popen[bytes], path: Path, scenario: Scenario) -> None:
    """Show the progress of a demo's training, read from its run, until it ends."""
    from rich.progress import BarColumn, Progress, TextColumn

    from ampwatch.store import summarize

    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.completed:.0f} of {task.total:.0f} steps"),
        TextColumn("{task.fields[scale]}", markup=False),
        console=asides(),
        transient=True,
    ) as bar:
        task = bar.add_task(f"training: {scenario.name}", total=scenario.steps, scale="")
        while child.poll() is None:
            time.sleep(_LOOK_EVERY_S)
            run = summarize(path)
            bar.update(task, completed=run.steps, scale=_scale_of(run))


def _scale_of(run: RunSummary) -> str:
    from ampwatch.diagnosis.value_text import powers, scale_text

    text = "" if run.final_scale is None else f"scale {scale_text(run.final_scale)}"
    return powers(text) if "utf" in asides().encoding.lower() else text


def _report(path: Path) -> None:
    from ampwatch.follow import diagnose
    from ampwatch.report import print_report
    from ampwatch.store import open_run

    run = open_run(path)
    console: Console = answers()
    print_report(console, run.info.name, run, diagnose(run))
    say("")
    say(f"The run is in {path}. To see this again: ampwatch report {path}")
