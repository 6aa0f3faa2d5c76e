"""The option `--text FILE` of `ampwatch watch`: follows another trainer's log as a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from ampwatch.cli.run_argument import usual_folder
from ampwatch.cli.terminal import say

TEXT_OPTION = typer.Option(
    None, "--text", metavar="FILE|-", show_default=False,
    help="Follow another trainer's log; - reads a pipe and passes it on.",
)  # fmt: skip


@contextmanager
def following(path: str, source: str | None) -> Iterator[Path]:
    """Follow the log that `--text` names; the folder of its run, once a line is understood."""
    from ampwatch.importers import ImportOptions, TextLogFollower, nothing_known

    log = TextLogFollower(path, usual_folder(), ImportOptions(source=source)).start()
    try:
        if not log.wait_until_known():
            raise nothing_known(path)
        read = "standard input" if path == "-" else path
        say(f"Reading {read} into the run {log.folder}.")
        yield log.folder
    finally:
        log.stop()
