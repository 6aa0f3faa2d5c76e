"""`ampwatch watch RUN`: shows a live run in the terminal, for people on ssh."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ampwatch.cli.options import (
    FORMAT_OPTION,
    LEAVING_WAIT_S,
    NOTIFY_OPTION,
    TEXT_OPTION,
    TO_EVERY_OPTION,
    TO_OPTION,
    delivering,
    following,
    mirroring,
)
from ampwatch.cli.run_argument import find_newest
from ampwatch.cli.terminal import answers, asides, say
from ampwatch.printable_text import printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from ampwatch.diagnosis import Diagnosis
    from ampwatch.follow import FollowedRun, Follower
    from ampwatch.store import Run

HELP = """Show a live view of a run in the terminal.

  ampwatch watch                                   the newest run
  ampwatch watch train-1204
  ampwatch watch train-1204 --notify slack://...   send warnings and errors
  ampwatch watch train-1204 --to tensorboard:tb    also write its curves there
  ampwatch watch --text train.log                  a log, as it grows
  some-trainer 2>&1 | ampwatch watch --text -      a pipe, passed on

It ends when the run ends, or with Ctrl-C, which does not affect the training.
Addresses for --notify: ampwatch alerts -h. An unknown TOOL lists all.
"""

PLAIN_EVERY_S = 5.0
_END_EVERY_S = 0.5  # the end of a run is noticed this soon, however rarely the view is updated
PAUSE_S = 5.0  # a longer silence is mentioned


def command(
    run: str = typer.Argument(
        None,
        metavar="RUN",
        show_default=False,
        help="A run's folder, or its name in ./ampwatch-runs.",
    ),
    every: float = typer.Option(
        1.0, metavar="SECONDS", min=0.1, max=3600.0, help="Seconds between two updates."
    ),
    notify: list[str] = NOTIFY_OPTION,
    to: list[str] = TO_OPTION,
    to_every: int = TO_EVERY_OPTION,
    text: str = TEXT_OPTION,
    format_: str = FORMAT_OPTION,
) -> None:
    """Watch a run until it ends."""
    from ampwatch.store import find_run

    asked = Asked(every, tuple(notify or ()), tuple(to or ()), to_every)
    if text is not None:
        if run is not None:
            raise typer.BadParameter("pass a RUN or a log with --text, not both")
        with following(text, format_) as folder:
            _watch(folder, asides() if text == "-" else answers(), asked)
        return
    _watch(find_run(run) if run else find_newest(say, "Watching"), answers(), asked)


@dataclass(frozen=True, slots=True)
class Asked:
    """How often to update the watched run's view, and where else to send what is found."""

    every_s: float
    notify: tuple[str, ...]
    to: tuple[str, ...]
    to_every: int | None


def _watch(path: Path, console: Console, asked: Asked) -> None:
    from ampwatch.alerts import RunAlerts
    from ampwatch.follow import State, follow

    aside = _aside(console)
    with (
        delivering(asked.notify, aside) as delivery,
        mirroring(asked.to, asked.to_every, aside) as workers,
    ):
        follower, alerts = follow(path), RunAlerts(path)
        for worker in workers:
            worker.follow(path)

        def tell(followed: FollowedRun) -> None:
            if delivery is not None:
                for alert in alerts.of(followed):
                    delivery.put(alert)

        show = _show_live if console.is_terminal else _show_plain
        try:
            show(console, follower, asked.every_s, tell)
        except KeyboardInterrupt:  # leaving is possible at any time
            if follower.state() is State.LIVE:
                say("You stopped watching; the training goes on.")
            for worker in workers:
                worker.close(LEAVING_WAIT_S)


def _aside(console: Console) -> Callable[[str], None]:
    """How to print a remark while watching: above the live view, else on stderr."""
    if not console.is_terminal:
        return say
    return lambda sentence: console.print(printable(sentence), style="dim", soft_wrap=True)


def _updates(follower: Follower, every_s: float) -> Iterator[FollowedRun]:
    """The watched run after each pause until it is over, whose end cuts a pause short."""
    from ampwatch.follow import State

    while True:
        followed = follower.update()
        yield followed
        if followed.is_over:
            return
        until_s = time.monotonic() + every_s
        while (left_s := until_s - time.monotonic()) > 0 and follower.state() is State.LIVE:
            time.sleep(min(left_s, _END_EVERY_S))


def _show_live(
    console: Console, follower: Follower, every_s: float, tell: Callable[[FollowedRun], None]
) -> None:
    from rich.live import Live

    with Live(console=console, auto_refresh=False) as live:
        for followed in _updates(follower, every_s):
            with follower.reading() as run:
                view = _view(console, run, followed)
            live.update(view, refresh=True)
            tell(followed)
    _say_how_it_ended(follower.path, followed)


def _view(console: Console, run: Run, followed: FollowedRun) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    from ampwatch.report import report_text
    from ampwatch.report.facts import scale_curve

    status = Text(_status(followed), "dim")
    if not followed.diagnosis.run.steps and not followed.is_over:
        return Group(Text(run.info.name, "bold"), status)
    body = report_text(run.info.name, run, followed.diagnosis)
    curve = scale_curve(run) if "utf" in console.encoding.lower() else ""
    parts = [Text(), Text(f"loss scale  {curve}")] if curve else []
    return Group(body, *parts, *([] if followed.is_over else [Text(), status]))


def _status(followed: FollowedRun) -> str:
    """The watched run's state, for the last line of the view."""
    leave = "Press Ctrl-C to leave; the training goes on."
    if not followed.diagnosis.run.steps:
        return f"The run has started; its first step is not finished yet. {leave}"
    silent_s = followed.silent_s
    if silent_s < PAUSE_S:
        return f"Live. {leave}"
    pause = f"{silent_s:.0f} s" if silent_s < 120 else f"{silent_s / 60:.0f} min"
    return f"Nothing new for {pause}. {leave}"


def _show_plain(
    console: Console, follower: Follower, every_s: float, tell: Callable[[FollowedRun], None]
) -> None:
    said: set[tuple[str, str]] = set()
    rows = -1
    for followed in _updates(follower, max(every_s, PLAIN_EVERY_S)):
        if followed.rows != rows:
            rows = followed.rows
            with follower.reading() as run:
                line = line_of(run, followed.diagnosis)
            console.print(line, soft_wrap=True)
        for finding in followed.diagnosis.findings:
            severity = finding.severity.value
            if (finding.code, severity) not in said:
                said.add((finding.code, severity))
                text = f"  {severity}: {finding.code} {finding.name}: {finding.summary}"
                console.print(text, soft_wrap=True)
        tell(followed)
    _say_how_it_ended(follower.path, followed)


def _say_how_it_ended(path: Path, followed: FollowedRun) -> None:
    if followed.info.source != "ampwatch":
        say("The log has ended, or nobody reads it any more.")
    elif not followed.diagnosis.run.clean_end:
        say("The process stopped without closing the run: it was killed, or it crashed.")
    say(f"The run is over. `ampwatch report {path}` shows this again.")


def line_of(run: Run, diagnosis: Diagnosis) -> str:
    """The watched run's state in one plain line, where no live view is possible."""
    from ampwatch.diagnosis.value_text import scale_text
    from ampwatch.report import last_values

    facts = diagnosis.run
    if not facts.steps:
        return "no step yet"
    values = [f"{name} {value:.4g}" for name, value in last_values(run).items()]
    scale = [] if facts.final_scale is None else [f"scale {scale_text(facts.final_scale)}"]
    parts = [
        f"step {facts.steps:,}",
        *scale,
        f"skipped {facts.skipped:,}",
        *values,
        diagnosis.verdict.value,
    ]
    return printable("  ".join(parts))
