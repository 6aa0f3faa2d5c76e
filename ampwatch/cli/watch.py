"""`ampwatch watch RUN`: a live view in the terminal, for people on ssh."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from ampwatch.cli.find import open_named, open_newest
from ampwatch.cli.mirror import LEAVING_WAIT_S, THIN_OPTION, TO_HELP, TO_OPTION, mirroring
from ampwatch.cli.notify import NOTIFY_HELP, NOTIFY_OPTION, posting
from ampwatch.cli.pulse import Pulse
from ampwatch.cli.terminal import answers, asides, say
from ampwatch.cli.text_feed import TEXT_OPTION, following
from ampwatch.text import printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from ampwatch.alerts import Follower
    from ampwatch.diagnosis import Diagnosis
    from ampwatch.store import Run

NAME = "watch"
HELP = f"""A live view of a run in the terminal, for people on ssh.

Shows the scale, skips, loss, gradient norm and findings. Ends when the run ends, or by Ctrl-C,
which does not touch the training. Where the output is no terminal it prints plain lines. Without
RUN it takes the newest run.

\b
Examples:
  ampwatch watch
  ampwatch watch ampwatch-runs/train-1204
  ampwatch watch train-1204 --notify slack://…        be told of warnings and errors
  ampwatch watch train-1204 --to tensorboard:tb       and see its curves elsewhere
  ampwatch watch --text train.log                     another trainer's log, as it grows
  some-trainer 2>&1 | ampwatch watch --text -         the same from a pipe, passed on

{NOTIFY_HELP}
{TO_HELP}"""

PLAIN_EVERY_S = 5.0
_END_EVERY_S = 0.5  # however seldom it is shown, nobody waits longer to hear that a run has ended
PAUSE_S = 5.0  # silent for longer than this is worth a word


def command(
    run: str = typer.Argument(
        None,
        metavar="RUN",
        show_default=False,
        help="A run's folder, or its name in ./ampwatch-runs.",
    ),
    every: float = typer.Option(
        1.0, metavar="SECONDS", min=0.1, max=3600.0, help="How long between two looks."
    ),
    notify: list[str] = NOTIFY_OPTION,
    to: list[str] = TO_OPTION,
    thin: int = THIN_OPTION,
    text: str = TEXT_OPTION,
    as_: str = typer.Option(
        None, "--as", metavar="FORMAT", show_default=False, help="The format of that log."
    ),
) -> None:
    """Watch until the run ends."""
    asked = Asked(every, tuple(notify or ()), tuple(to or ()), thin)
    if text is not None:
        if run is not None:
            raise typer.BadParameter("name a RUN or a log with --text, not both")
        with following(text, as_) as grown:
            _watch(grown, asides() if text == "-" else answers(), asked)
        return
    _watch(open_named(run) if run else open_newest(say), answers(), asked)


@dataclass(frozen=True, slots=True)
class Asked:
    """How often to look, and who else is to hear of it."""

    every_s: float
    notify: tuple[str, ...]
    to: tuple[str, ...]
    thin: int


def _watch(run: Run, console: Console, asked: Asked) -> None:
    from ampwatch.alerts import Follower

    aside = _aside(console)
    with posting(asked.notify, aside) as post, mirroring(asked.to, asked.thin, aside) as lines:
        for line in lines:
            line.follow(run.path)
        follower = Follower(run)

        def tell(look: Look) -> None:
            if post is not None:
                for letter in follower.news(look.diagnosis, is_over=look.is_over):
                    post.put(letter)

        show = _show_live if console.is_terminal else _show_plain
        try:
            show(console, follower, asked.every_s, tell)
        except KeyboardInterrupt:  # whoever watches may leave at any time
            if not follower.run.clean_end:
                say("You stopped watching; the training was not touched.")
            for line in lines:
                line.close(LEAVING_WAIT_S)


def _aside(console: Console) -> Callable[[str], None]:
    """How to say something meanwhile: above a live view, else on stderr."""
    if not console.is_terminal:
        return say
    return lambda sentence: console.print(printable(sentence), style="dim", soft_wrap=True)


@dataclass(frozen=True, slots=True)
class Look:
    """The run as it stands at one moment."""

    diagnosis: Diagnosis
    is_new: bool  # rows have come since the last look
    is_over: bool
    silent_s: float  # how long ago the run grew


def _looks(follower: Follower, every_s: float) -> Iterator[Look]:
    """A look now and after each pause, until the run has ended or nobody writes it."""
    run = follower.run
    pulse, diagnosis, is_new = Pulse(run), follower.look(), True
    while True:
        is_lost = not run.clean_end and pulse.is_lost()
        if is_lost and run.refresh():  # its last words, written as we looked
            diagnosis, is_new = follower.look(), True
        is_over = run.clean_end or is_lost
        shown = diagnosis if is_over else diagnosis.while_running()
        yield Look(shown, is_new, is_over, pulse.silent_s)
        if is_over:
            return
        is_new = _grows(run, pulse, every_s)
        if is_new:
            pulse.moved()
            diagnosis = follower.look()


def _grows(run: Run, pulse: Pulse, pause_s: float) -> bool:
    """Whether rows come within a pause; it is over early where the run is."""
    until_s, grown = time.monotonic() + pause_s, False
    while (left_s := until_s - time.monotonic()) > 0:
        time.sleep(min(left_s, _END_EVERY_S))
        grown |= run.refresh()
        if run.clean_end or pulse.is_lost():
            break
    return grown


def _show_live(
    console: Console, follower: Follower, every_s: float, tell: Callable[[Look], None]
) -> None:
    from rich.live import Live

    with Live(console=console, auto_refresh=False) as live:
        for look in _looks(follower, every_s):
            live.update(_view(console, follower.run, look), refresh=True)
            tell(look)
    _say_how_it_ended(follower.run)


def _view(console: Console, run: Run, look: Look) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    from ampwatch.report import letter

    status = Text(_status(look), "dim")
    if not look.diagnosis.run.steps and not look.is_over:
        return Group(Text(run.info.name, "bold"), status)
    body = letter(run.info.name, run, look.diagnosis, fancy="utf" in console.encoding.lower())
    return body if look.is_over else Group(body, Text(), status)


def _status(look: Look) -> str:
    """What is going on now, for the last line of the view."""
    leave = "Ctrl-C leaves; the training goes on."
    if not look.diagnosis.run.steps:
        return f"The run has begun; its first step has not ended yet. {leave}"
    if look.silent_s < PAUSE_S:
        return f"Live. {leave}"
    pause = f"{look.silent_s:.0f} s" if look.silent_s < 120 else f"{look.silent_s / 60:.0f} min"
    return f"Nothing new for {pause}. {leave}"


def _show_plain(
    console: Console, follower: Follower, every_s: float, tell: Callable[[Look], None]
) -> None:
    said: set[tuple[str, str]] = set()
    for look in _looks(follower, max(every_s, PLAIN_EVERY_S)):
        if look.is_new:
            console.print(line_of(follower.run, look.diagnosis), soft_wrap=True)
        for finding in look.diagnosis.findings:
            severity = finding.severity.value
            if (finding.code, severity) not in said:
                said.add((finding.code, severity))
                text = f"  {severity}: {finding.code} {finding.name}: {finding.summary}"
                console.print(text, soft_wrap=True)
        tell(look)
    _say_how_it_ended(follower.run)


def _say_how_it_ended(run: Run) -> None:
    if run.info.source != "ampwatch":
        say("The log has ended, or nobody reads it any more.")
    elif not run.clean_end:
        say("Nobody writes this run any more, and it has no end mark.")
    say(f"The run is over. `ampwatch report {run.path}` shows this again.")


def line_of(run: Run, diagnosis: Diagnosis) -> str:
    """The state of a run in one plain line."""
    from ampwatch.diagnosis.words import scale_text
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
