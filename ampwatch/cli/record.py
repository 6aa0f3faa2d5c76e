"""`ampwatch record`: receives runs over the network and stores them here."""

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

from ampwatch.cli.options import (
    LEAVING_WAIT_S,
    NOTIFY_OPTION,
    PUBLISH_LIVE_OPTION,
    PUBLISH_OPTION,
    RUNS_FOLDER_OPTION,
    TO_EVERY_OPTION,
    TO_OPTION,
    delivering,
    mirroring,
    publishing,
)
from ampwatch.cli.terminal import say
from ampwatch.errors import EndpointTakenError, FeedError

if TYPE_CHECKING:
    from ampwatch.alerts import AlertSender
    from ampwatch.fleet.background_publisher import BackgroundPublisher
    from ampwatch.follow import FollowThread
    from ampwatch.recorder import Recorder

HELP = """Receive runs from trainers and store them, until Ctrl-C.

  ampwatch record
  ampwatch record --any-port                  if a dashboard has the usual port
  ampwatch record --bind tcp://0.0.0.0:5797 -o /data/runs
  ampwatch record --notify slack://...        a message when a run goes wrong
  ampwatch record --to prometheus://:9464     metrics for Prometheus
  ampwatch record --publish s3://team/runs    copy each run at its end

To record a script: ampwatch run train.py. To let other machines send: ampwatch
keys. For --notify: ampwatch alerts -h. An unknown TOOL lists all.
"""


def command(
    script: str = typer.Argument(None, hidden=True),
    bind: str = typer.Option(
        None,
        metavar="ENDPOINT",
        help="Where to listen.  [default: tcp://127.0.0.1:5797]",
        show_default=False,
    ),
    folder: Path = RUNS_FOLDER_OPTION,
    any_port: bool = typer.Option(
        False, "--any-port", help="If the port is taken, listen on a free one."
    ),
    insecure: bool = typer.Option(
        False, "--insecure", help="No encryption and no keys: anybody may send."
    ),
    notify: list[str] = NOTIFY_OPTION,
    to: list[str] = TO_OPTION,
    to_every: int = TO_EVERY_OPTION,
    publish: str = PUBLISH_OPTION,
    publish_live: str = PUBLISH_LIVE_OPTION,
) -> None:
    """Record runs until interrupted."""
    from ampwatch import feed
    from ampwatch.recorder import Recorder
    from ampwatch.store import default_log_dir

    if script is not None:
        raise typer.BadParameter(
            f"record receives runs from trainers. To train and record: `ampwatch run {script}`."
        )
    where = folder or default_log_dir()
    with (
        _warnings_as_sentences(),
        _told_to_end() as ended,
        _flag_named(),
        _alerts(notify) as alerts,
        mirroring(to, to_every, wait_s=LEAVING_WAIT_S) as workers,
        publishing(where, publish, publish_live) as publishers,
    ):
        threads = [*alerts, *(worker.thread for worker in workers)]
        recorder = Recorder(
            bind or feed.DEFAULT_ENDPOINT, where, insecure=insecure, fallback=any_port,
            on_rows=partial(_wake, [*threads, *publishers]), on_note=say,
        )  # fmt: skip
        with recorder:
            say(f"Recording from {recorder.endpoint} into {where}. Press Ctrl-C to end.")
            _wait(recorder, ended, threads)
    _say_what_came(recorder)


def _wait(
    recorder: Recorder, ended: threading.Event, threads: Sequence[FollowThread | AlertSender]
) -> None:
    """Wait for the end of the recording; meanwhile tell the threads whose trainers are alive."""
    while not ended.wait(0.5):  # an endless wait would keep Windows from noticing Ctrl-C
        for thread in threads:
            thread.hear(_alive(recorder))
        if not recorder.is_running:
            raise FeedError("Nothing is recorded any more; the reason is printed above.")


def _say_what_came(recorder: Recorder) -> None:
    stats, runs = recorder.stats, len(recorder.runs)
    what = "1 run" if runs == 1 else f"{runs} runs"
    say(f"{stats.rows:,} rows of {what} received; all of them are on disk.")


def _wake(
    threads: Sequence[FollowThread | AlertSender | BackgroundPublisher], folder: Path
) -> None:
    """Wake everybody who follows a recorded run for which rows have arrived."""
    for thread in threads:
        thread.wake(folder)


@contextlib.contextmanager
def _alerts(addresses: list[str] | None) -> Iterator[list[FollowThread | AlertSender]]:
    """Send alerts on recorded runs: to these addresses, and as `ampwatch alerts` is set."""
    from ampwatch.alerts import AlertSender, alert_session

    with delivering(addresses) as delivery, contextlib.closing(AlertSender(on_note=say)) as sender:
        if delivery is None:
            yield [sender]
            return
        with contextlib.closing(alert_session(delivery, on_note=say)) as session:
            yield [session, sender]


def _alive(recorder: Recorder) -> frozenset[str]:
    """The ids of recorded runs whose trainers have sent something lately."""
    runs = recorder.runs.values()
    return frozenset(run.id for run in runs if any(rank.is_alive for rank in run.ranks))


@contextlib.contextmanager
def _flag_named() -> Iterator[None]:
    """If the recorder's port is taken, add to the error which flag uses another."""
    try:
        yield
    except EndpointTakenError as error:
        raise EndpointTakenError(f"{error} Or use --any-port to listen on a free one.") from None


@contextlib.contextmanager
def _told_to_end() -> Iterator[threading.Event]:
    """An event that ends the recording: set by Ctrl-C or SIGTERM, instead of an exception."""
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
    """Show the recorder's warnings as one line, without the source line that raised them."""
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *_, **__: say(f"warning: {message}")
        yield
