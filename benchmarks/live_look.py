"""What does somebody read on the page of a training that goes on? Takes the pictures for that.

    python benchmarks/live_look.py FOLDER [NAME...]

FOLDER holds trainings by an author who knows neither code nor rules, each a script that calls
`ampwatch.attach(..., log_dir=os.environ["AMPWATCH_DIR"], run=NAME)`, and labels.json:
{NAME: {"moments": [{"at": STEP or "end", ...}, ...]}}. Two train at a time beside a dashboard, each
in a tab of its own; FOLDER/pictures gets the screen of each moment, a few seconds after its step,
in steps of the run. A reader who sees the pictures alone writes down cause, layer and next action;
another person holds that against the labels. Results: results/dashboard.md.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dashboard_parts import browser
from parts.machine import keep_state_in
from parts.options import command_line

import ampwatch
from ampwatch.cli.dashboard import Server
from ampwatch.errors import AmpwatchError
from ampwatch.rows import Table

AT_ONCE, VIEW = 2, {"width": 1400, "height": 900}
DRAWN_S, ENDED_S = 2.5, 10.0


@dataclass
class Training:
    """One training that goes on, its tab, and the moments that are still to come."""

    name: str
    process: subprocess.Popen[bytes]
    moments: list[tuple[int, int | str]]
    tab: Any = None
    since: dict[str, float] = field(default_factory=dict)  # when the step, or the end, was seen

    def is_due(self, run: Path) -> bool:
        """Whether the next moment has come, and the page has had its time to show it."""
        _, at = self.moments[0]
        has_ended = self.process.poll() is not None
        if at == "end":
            return has_ended and self._lasts("end", ENDED_S)
        return (has_ended or last_step(run) >= int(at)) and self._lasts(f"step {at}", DRAWN_S)

    def _lasts(self, what: str, seconds: float) -> bool:
        return time.monotonic() - self.since.setdefault(what, time.monotonic()) > seconds


def main() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # one that is ignored is inherited
    parser = command_line(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    folder = options.folder.resolve()
    labels = json.loads((folder / "labels.json").read_text(encoding="utf-8"))
    keep_state_in(folder / "state")
    runs, pictures = folder / "runs", folder / "pictures"
    for place in (runs, pictures):
        place.mkdir(exist_ok=True)
    waiting, training = list(options.names or sorted(labels)), []
    with Server([runs]) as server, browser() as (chromium, _):
        while waiting or training:
            if waiting and len(training) < AT_ONCE:
                name = waiting.pop(0)
                moments = [moment["at"] for moment in labels[name]["moments"]]
                training.append(started(folder, name, moments, runs))
            for one in list(training):
                if not looked_at(one, runs / one.name, server.url, chromium, pictures):
                    training.remove(one)
            time.sleep(0.2)


def started(folder: Path, name: str, moments: Sequence[int | str], runs: Path) -> Training:
    """The training, which prints into a file."""
    command = [sys.executable, f"{name}.py"]
    environment = {**os.environ, "AMPWATCH_DIR": str(runs), "OMP_NUM_THREADS": "1"}
    with (folder / f"{name}.txt").open("wb") as printed:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=printed, stderr=subprocess.STDOUT,
        )  # fmt: skip
    return Training(name, process, list(enumerate(moments, 1)))


def looked_at(one: Training, run: Path, url: str, chromium: Any, pictures: Path) -> bool:
    """Take a picture if a moment has come; whether any is left."""
    if one.tab is None:
        if not run.exists():
            if one.process.poll() is not None:
                raise SystemExit(f"{one.name} ended without a run: see {one.name}.txt.")
            return True
        one.tab = chromium.new_page(viewport=VIEW)
        one.tab.goto(f"{url}/?run={one.name}")
    if one.moments and one.is_due(run):
        number, at = one.moments.pop(0)
        one.tab.screenshot(path=str(pictures / f"{one.name}_{number}.png"))
        print(f"{one.name}, moment {number} ({at}): step {last_step(run)}", file=sys.stderr)
    one.tab.wait_for_timeout(100)  # what the browser tells of the page is heard in here
    if one.moments or one.process.poll() is None:
        return True
    one.tab.close()
    return False


def last_step(run: Path) -> int:
    """The last step in the run's log; -1 while there is none."""
    try:
        rows = ampwatch.open_run(run).last_rows(Table.STEPS, ("step",), 1)
    except AmpwatchError:
        return -1
    return int(rows.column("step")[-1].as_py()) if rows.num_rows else -1


if __name__ == "__main__":
    main()
