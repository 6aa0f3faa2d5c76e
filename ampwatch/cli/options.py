"""Options that several commands share: --output, --format, --to, --notify, --publish, --text."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ampwatch.cli.terminal import answer, say
from ampwatch.errors import ReportError
from ampwatch.files import draft_of

if TYPE_CHECKING:
    from ampwatch.alerts import Delivery
    from ampwatch.fleet.background_publisher import BackgroundPublisher
    from ampwatch.mirrors import MirrorWorker

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}
LEAVING_WAIT_S = 20.0  # how long to wait when the user leaves: for a mirror, for a place


def seconds(text: str, option: str) -> float:
    """The time that an option gives, as 90s, 15m or 2h."""
    unit = _SECONDS.get(text[-1:])
    try:
        return float(text[:-1] if unit else text) * (unit or 1.0)
    except ValueError:
        raise typer.BadParameter(f"{option} takes 90s, 15m or 2h, not {text!r}") from None


# --- --output FILE: writes the answer to a file ---------------------------------------------------

FORMAT_OPTION = typer.Option(
    None, "--format", metavar="FORMAT", show_default=False,
    help="The log's format, if it is not recognised.",
)  # fmt: skip

RUNS_FOLDER_OPTION = typer.Option(
    None, "-o", "--output", metavar="DIR", show_default=False,
    help="Folder for runs.  [default: ./ampwatch-runs]",
)  # fmt: skip

_KINDS = {
    ".html": "html", ".htm": "html", ".json": "json", ".txt": "text", ".sarif": "sarif",
    ".xml": "junit",
}  # fmt: skip


def output_option(kinds: str) -> Any:
    """The option -o of a command that can write these kinds of files."""
    return typer.Option(
        None, "-o", "--output", metavar="FILE", show_default=False,
        help=f"Write a file: {kinds}.",
    )  # fmt: skip


def output_kind(
    path: Path | None, *, json: bool, kinds: Sequence[str] = (".html", ".json", ".txt")
) -> str:
    """What is written, such as "html"; the file's name says it, or --json."""
    if path is None:
        return "json" if json else "text"
    kind = _KINDS.get(path.suffix.lower(), "")
    if kind not in {_KINDS[each] for each in kinds}:
        names = [f"out{each}" for each in kinds]
        named = f"{', '.join(names[:-1])} or {names[-1]}"
        raise ReportError(f"-o {path}: the name says what to write: {named}.")
    if json and kind != "json":
        raise ReportError(f"--json cannot be combined with -o {path}.")
    if path.is_dir() or not path.parent.is_dir():
        raise ReportError(f"{path} cannot be written: pass a file in an existing folder.")
    return kind


@contextlib.contextmanager
def written_to(path: Path | None) -> Iterator[None]:
    """Within this, what is printed goes to the file, which appears whole or not at all."""
    if path is None:
        yield
        return
    with (
        draft_of(path) as draft,
        draft.open("w", encoding="utf-8") as file,
        contextlib.redirect_stdout(file),
    ):
        yield
    say_written(path)


def say_written(path: Path) -> None:
    """Print a written file's name and size."""
    from ampwatch.diagnosis.value_text import bytes_text

    answer(f"{path}: {bytes_text(path.stat().st_size)}")


# --- --to TOOL: mirrors the run in other tools ----------------------------------------------------

TO_OPTION = typer.Option(
    None, "--to", metavar="TOOL", show_default=False,
    help="Also show it in wandb:PROJECT, tensorboard:DIR, ...",
)  # fmt: skip

TO_EVERY_OPTION = typer.Option(
    None, "--to-every", metavar="N", min=1, show_default=False,
    help="With --to: only every N-th step, and skipped ones.",
)  # fmt: skip


@contextlib.contextmanager
def mirroring(
    places: Sequence[str] | None,
    every: int | None,
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
    workers = [MirrorWorker(mirror, say, thin=every or 1) for mirror in mirrors]
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
    help="Send warnings and errors to URL; repeatable.",
    show_default=False,
)


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
    help="Copy each run to PLACE when it has ended or is lost.",
    show_default=False,
)
PUBLISH_LIVE_OPTION = typer.Option(
    None,
    "--publish-live",
    metavar="EVERY",
    help="With --publish: live runs, too, as every 5m.",
    show_default=False,
)

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
    help="Follow a log as it grows; - reads a pipe and passes it on.",
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
