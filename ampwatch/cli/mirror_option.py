"""The option `--to PLACE` of commands that watch: mirrors the run in other tools."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import typer

from ampwatch.cli.terminal import say

if TYPE_CHECKING:
    from ampwatch.mirrors import MirrorWorker

TO_OPTION = typer.Option(
    None,
    "--to",
    metavar="PLACE",
    help="Also show scalars and findings in PLACE; may be repeated.",
    show_default=False,
)

LEAVING_WAIT_S = 20.0  # how long to wait for a mirror when the user leaves

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
