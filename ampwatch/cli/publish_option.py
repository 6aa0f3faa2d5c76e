"""The option `--publish PLACE` of `ampwatch record`: publishes the recorded runs."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ampwatch.cli.terminal import say

if TYPE_CHECKING:
    from ampwatch.fleet.background_publisher import BackgroundPublisher

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

_LEAVING_WAIT_S = 20.0
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
    is_whole = False
    try:
        yield [publisher]
    finally:
        is_whole = publisher.close(_LEAVING_WAIT_S)
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
