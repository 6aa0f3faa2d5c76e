"""Options that several commands share, and what each does: --to, --notify, --publish, --text."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ampwatch.cli.terminal import say

if TYPE_CHECKING:
    from ampwatch.alerts import Delivery
    from ampwatch.fleet.background_publisher import BackgroundPublisher
    from ampwatch.mirrors import MirrorWorker

LEAVING_WAIT_S = 20.0  # how long to wait when the user leaves: for a mirror, for a place


# --- --to PLACE: mirrors the run in other tools ---------------------------------------------------

TO_OPTION = typer.Option(
    None,
    "--to",
    metavar="PLACE",
    help="Also show scalars and findings in PLACE; may be repeated.",
    show_default=False,
)

THIN_OPTION = typer.Option(
    1, "--thin", metavar="N", min=1, help="With --to: only every N-th step, and every skipped one."
)

TO_HELP = """Mirrors: --to shows the scale, skips, loss, rate, norms, step time, memory and findings
in another tool, through that tool's own client.

\b
    tensorboard:DIR                   event files in DIR/RUN
    prometheus://:9464                an endpoint to scrape on this machine, or HOST:9464
                                      (pip install prometheus-client)
    otlp://HOST:4318                  an OpenTelemetry collector; otlps:// with TLS
    wandb:PROJECT                     a run there; this and the next two use their own
    mlflow:EXPERIMENT                 client and that client's settings (WANDB_MODE,
    trackio:PROJECT                   MLFLOW_TRACKING_URI, ...)
"""


@contextlib.contextmanager
def mirroring(
    places: Sequence[str] | None,
    thin: int,
    say: Callable[[str], None] = say,
    *,
    wait_s: float | None = None,
) -> Iterator[list[MirrorWorker]]:
    """Mirror to the places of `--to`, a worker each; at the end each has `wait_s` for the rest."""
    if not places:
        yield []
        return
    from ampwatch.mirrors import MirrorWorker, close_workers, open_mirrors

    mirrors = open_mirrors(places, is_inside=False)
    workers = [MirrorWorker(mirror, say, thin=thin) for mirror in mirrors]
    say(f"Mirrored to {', '.join(mirror.label for mirror in mirrors)}.")
    try:
        yield workers
    except BaseException:
        close_workers(workers, LEAVING_WAIT_S)
        raise
    close_workers(workers, wait_s)


# --- --notify URL: sends alerts -------------------------------------------------------------------

NOTIFY_OPTION = typer.Option(
    None,
    "--notify",
    metavar="URL",
    envvar="AMPWATCH_NOTIFY",
    help="Send warnings and errors to URL; may be repeated.",
    show_default=False,
)

NOTIFY_HELP = """Alerts: --notify sends each warning and error once, with what to do, and again if
it gets worse. Alerts within a minute are sent as one message. To install: `pip install
'ampwatch[notify]'`. To keep passwords out of the command line, set AMPWATCH_NOTIFY; addresses are
never shown. `ampwatch alerts` keeps them for every recorder and dashboard.

\b
    slack://TOKEN_A/TOKEN_B/TOKEN_C/#channel
    discord://WEBHOOK_ID/WEBHOOK_TOKEN
    mailto://user:password@mail.example.com
    json://my.server/hook             (and a hundred more: https://appriseit.com/services/)
"""


@contextlib.contextmanager
def delivering(
    addresses: Sequence[str] | None, say: Callable[[str], None] = say
) -> Iterator[Delivery | None]:
    """Deliver alerts to the addresses of `--notify` within the block; None without addresses."""
    if not addresses:
        yield None
        return
    from ampwatch.alerts import Delivery, open_services

    services = open_services(addresses)
    with Delivery(services, on_note=say) as delivery:
        say(f"Alerts go to {', '.join(service.label for service in services)}.")
        yield delivery


# --- --publish PLACE: publishes the recorded runs -------------------------------------------------

PUBLISH_OPTION = typer.Option(
    None,
    "--publish",
    metavar="PLACE",
    help="Publish runs to PLACE when they end or are lost, and runs in DIR that PLACE lacks.",
    show_default=False,
)
PUBLISH_LIVE_OPTION = typer.Option(
    None,
    "--publish-live",
    metavar="EVERY",
    help="With --publish: also publish live runs, at this interval (such as 5m).",
    show_default=False,
)

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_SHORTEST_S = 5.0


@contextlib.contextmanager
def publishing(
    folder: Path, place: str | None, every: str | None
) -> Iterator[list[BackgroundPublisher]]:
    """Publish the folder's runs in the background if `--publish` gives a place."""
    if place is None:
        if every is not None:
            raise typer.BadParameter("--publish-live needs --publish PLACE.")
        yield []
        return
    from ampwatch.fleet.background_publisher import BackgroundPublisher

    every_s = None if every is None else _seconds(every)
    publisher = BackgroundPublisher(folder, place, live_every_s=every_s, on_note=say)
    try:
        yield [publisher]
    finally:
        is_whole = publisher.close(LEAVING_WAIT_S)
        what = "1 run" if publisher.published == 1 else f"{publisher.published:,} runs"
        rest = "" if is_whole else (
            f" Not all that have ended: `ampwatch publish {folder} {place}` publishes the rest."
        )  # fmt: skip
        say(f"{what} published to {place}.{rest}")


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
    seconds = float(match[1]) * _SECONDS[match[2]] if match else 0.0
    if seconds < _SHORTEST_S:
        raise typer.BadParameter(
            f"--publish-live {text!r}: give a number and s, m or h, at least 5s, such as 5m."
        )
    return seconds


# --- --text FILE: follows another trainer's log as a run ------------------------------------------

TEXT_OPTION = typer.Option(
    None, "--text", metavar="FILE|-", show_default=False,
    help="Follow another trainer's log; - reads a pipe and passes it on.",
)  # fmt: skip


@contextlib.contextmanager
def following(path: str, source: str | None) -> Iterator[Path]:
    """Follow the log that `--text` names; the folder of its run, once a line is understood."""
    from ampwatch.importers import ImportOptions, TextLogFollower, nothing_known
    from ampwatch.store import default_log_dir

    log = TextLogFollower(path, default_log_dir(), ImportOptions(source=source)).start()
    try:
        if not log.wait_until_known():
            raise nothing_known(path)
        read = "standard input" if path == "-" else path
        say(f"Reading {read} into the run {log.folder}.")
        yield log.folder
    finally:
        log.stop()
