"""`ampwatch record`: receive runs over the network and file them here."""

from __future__ import annotations

import contextlib
import signal
import threading
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ampwatch.cli.find import usual_folder
from ampwatch.cli.mirror import LEAVING_WAIT_S, THIN_OPTION, TO_HELP, TO_OPTION, mirroring
from ampwatch.cli.notify import NOTIFY_HELP, NOTIFY_OPTION, delivering
from ampwatch.cli.terminal import say
from ampwatch.errors import EndpointTakenError, FeedError

if TYPE_CHECKING:
    from ampwatch.follow import FollowThread
    from ampwatch.recorder import Recorder

NAME = "record"
HELP = f"""Receive what trainers send and file it here, until Ctrl-C. No browser, no dashboard.

What is missed while it is down comes later, as long as the trainer lives: trainers keep their own
log and send from it. `ampwatch keys` lets other machines in.

\b
Examples:
  ampwatch record
  ampwatch record --fallback                    beside a dashboard that has the usual port
  ampwatch record --bind tcp://0.0.0.0:5797 --dir /data/runs
  ampwatch record --notify slack://…            be told of what goes wrong in any run
  ampwatch record --to prometheus://:9464       have every run scraped

{NOTIFY_HELP}
{TO_HELP}"""


def command(
    bind: str = typer.Option(
        None,
        metavar="ENDPOINT",
        help="Where to listen.  [default: tcp://127.0.0.1:5797]",
        show_default=False,
    ),
    folder: Path = typer.Option(
        None,
        "--dir",
        metavar="DIR",
        help="Where runs go.  [default: ./ampwatch-runs]",
        show_default=False,
    ),
    fallback: bool = typer.Option(
        False,
        "--fallback/--no-fallback",
        help="Where the port is taken, listen on a free one: trainers started later find it.",
    ),
    insecure: bool = typer.Option(
        False, "--insecure", help="No encryption and no keys: anyone who reaches the port may send."
    ),
    notify: list[str] = NOTIFY_OPTION,
    to: list[str] = TO_OPTION,
    thin: int = THIN_OPTION,
) -> None:
    """Record until interrupted."""
    from ampwatch import feed
    from ampwatch.recorder import Recorder

    where = folder or usual_folder()
    with (
        _warnings_as_sentences(),
        _told_to_end() as ended,
        _flag_named(),
        _alerts(notify) as alerts,
        mirroring(to, thin, wait_s=LEAVING_WAIT_S) as workers,
    ):
        threads = [*alerts, *(worker.thread for worker in workers)]
        recorder = Recorder(
            bind or feed.DEFAULT_ENDPOINT, where, insecure=insecure, fallback=fallback,
            on_rows=partial(_wake, threads), on_note=say,
        )  # fmt: skip
        with recorder:
            say(f"Recording from {recorder.endpoint} into {where}; Ctrl-C ends.")
            while not ended.wait(0.5):  # a wait without end would keep Windows from seeing Ctrl-C
                for thread in threads:
                    thread.hear(_alive(recorder))
                if not recorder.is_running:
                    raise FeedError("Nothing is recorded any more: the reason is above.")
    _say_what_came(recorder)


def _say_what_came(recorder: Recorder) -> None:
    stats, runs = recorder.stats, len(recorder.runs)
    what = "1 run" if runs == 1 else f"{runs} runs"
    say(f"{stats.rows:,} rows of {what} received; all of them are on disk.")


def _wake(threads: Sequence[FollowThread], folder: Path) -> None:
    """Rows have come for a run: whoever follows it hears of them."""
    for thread in threads:
        thread.wake(folder)


@contextlib.contextmanager
def _alerts(addresses: list[str] | None) -> Iterator[list[FollowThread]]:
    """What sends alerts of the runs, if anybody is to be told of them."""
    with delivering(addresses) as delivery:
        if delivery is None:
            yield []
            return
        from ampwatch.alerts import alert_session

        session = alert_session(delivery, on_note=say)
        try:
            yield [session]
        finally:
            session.close()


def _alive(recorder: Recorder) -> frozenset[str]:
    """The ids of the runs whose trainers were heard of lately."""
    runs = recorder.runs.values()
    return frozenset(run.id for run in runs if any(rank.is_alive for rank in run.ranks))


@contextlib.contextmanager
def _flag_named() -> Iterator[None]:
    """Say of a taken port which flag takes another."""
    try:
        yield
    except EndpointTakenError as error:
        raise EndpointTakenError(f"{error} Or give --fallback to listen on a free one.") from None


@contextlib.contextmanager
def _told_to_end() -> Iterator[threading.Event]:
    """What is set by Ctrl-C or a polite request to end, instead of an exception anywhere."""
    ended = threading.Event()
    before = {
        number: signal.signal(number, lambda *_: ended.set())
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield ended
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _warnings_as_sentences() -> Iterator[None]:
    """Show a warning as a line of ours, without the source line that raised it."""
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *_, **__: say(f"warning: {message}")
        yield
