"""`ampwatch watch RUN`: a live view in the terminal, for people on ssh."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from ampwatch.cli.find import RUN_ARGUMENT, open_named
from ampwatch.cli.terminal import answers, say

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from ampwatch.diagnosis import Diagnosis
    from ampwatch.store import Run

NAME = "watch"
HELP = """A live view of a run in the terminal, for people on ssh.

Shows the scale, skips, loss, gradient norm and findings. Ends when the run ends, or by Ctrl-C,
which does not touch the training. Where the output is no terminal it prints plain lines.

Example: ampwatch watch ampwatch-runs/train-1204
"""

PLAIN_EVERY_S = 5.0
# A trainer on another machine cannot be seen but by its rows: it is given this long.
QUIET_S = 60.0


def command(
    run: str = RUN_ARGUMENT,
    every: float = typer.Option(
        1.0, metavar="SECONDS", min=0.1, max=3600.0, help="How long between two looks."
    ),
) -> None:
    """Watch until the run ends."""
    console = answers()
    opened = open_named(run)
    try:
        if console.is_terminal:
            _watch_live(console, opened, every)
        else:
            _watch_plain(console, opened, max(every, PLAIN_EVERY_S))
    except KeyboardInterrupt:
        return  # whoever watches may leave at any time


def _looks(run: Run, every_s: float) -> Iterator[Diagnosis]:
    """A diagnosis now and whenever there is more, until the run has ended."""
    from ampwatch.diagnosis import diagnose
    from ampwatch.store import is_written

    yield diagnose(run)
    moved_s = time.monotonic()
    while not run.clean_end:
        time.sleep(every_s)
        if run.refresh():
            moved_s = time.monotonic()
            yield diagnose(run)
        elif time.monotonic() - moved_s > QUIET_S and not is_written(run.path):
            say("Nobody writes this run any more, and it has no end mark.")
            return


def _watch_live(console: Console, run: Run, every_s: float) -> None:
    from rich.live import Live

    with Live(console=console, auto_refresh=False) as live:
        for diagnosis in _looks(run, every_s):
            live.update(_view(console, run, diagnosis), refresh=True)


def _view(console: Console, run: Run, diagnosis: Diagnosis) -> RenderableType:
    from ampwatch.report import letter

    return letter(run.info.name, run, diagnosis, fancy="utf" in console.encoding.lower())


def _watch_plain(console: Console, run: Run, every_s: float) -> None:
    said: set[str] = set()
    for diagnosis in _looks(run, every_s):
        console.print(line_of(run, diagnosis), soft_wrap=True)
        for finding in diagnosis.findings:
            if finding.code not in said:
                said.add(finding.code)
                text = (
                    f"  {finding.severity.value}: {finding.code} {finding.name}: {finding.summary}"
                )
                console.print(text, soft_wrap=True)


def line_of(run: Run, diagnosis: Diagnosis) -> str:
    """The state of a run in one plain line."""
    from ampwatch.diagnosis.words import scale_text
    from ampwatch.report import last_values
    from ampwatch.text import printable

    facts = diagnosis.run
    values = [f"{name} {value:.4g}" for name, value in last_values(run).items()]
    parts = [
        f"step {facts.steps:,}",
        f"scale {scale_text(facts.final_scale)}",
        f"skipped {facts.skipped:,}",
        *values,
        diagnosis.verdict.value,
    ]
    return printable("  ".join(parts))
