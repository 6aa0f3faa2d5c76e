"""Serve the dashboard until the process that started this one is gone; record from the start.

It holds the other end of the pipe that is stdin here: the pipe closes when that process ends,
however it ends, on every system. So a killed `ampwatch dashboard` leaves no server behind.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from importlib import import_module
from pathlib import Path

import alerts_page
import open_runs
import received_runs
from streamlit.web import cli

# What the first tab would otherwise wait for: the pages, and what pyarrow loads at first use.
_FIRST_USED = (
    "compare_page", "findings_page", "layers_page", "memory_page", "overview_page", "runs_page",
    "sidebar",
    "pandas", "pyarrow.parquet", "tsdownsample",
)  # fmt: skip


def main() -> None:
    """Start the feed's recorder, load the pages and serve the dashboard."""
    threading.Thread(target=_end_with_the_starter, daemon=True).start()
    open_runs.give_freed_memory_back()
    received_runs.server_feed()  # a tab may be opened much later, and trainings send now
    for name in _FIRST_USED:
        import_module(name)
    alerts_page.start_alerts()
    entry = Path(__file__).with_name("streamlit_app.py")
    cli.main(["run", str(entry), *sys.argv[1:]], prog_name="streamlit")


def _end_with_the_starter() -> None:
    os.read(sys.stdin.fileno(), 1)  # nothing is ever sent: this returns at the pipe's end
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # nobody reads it now: writing would fail
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
