"""What this server was started with: folders, places, its feed's endpoint, its command.

`ampwatch dashboard` passes them on in the environment.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from ampwatch import store
from ampwatch.feed import DEFAULT_ENDPOINT, is_local

KEEP_RECEIVED = "AMPWATCH_KEEP_RECEIVED"


def shown_folders() -> list[Path]:
    """The folders of runs given to `ampwatch dashboard`, else the usual one."""
    if are_folders_given():
        given = os.environ["AMPWATCH_DASHBOARD_DIRS"]
        return [Path(text) for text in given.split(os.pathsep)]
    return [] if shown_places() else [store.default_log_dir()]


def are_folders_given() -> bool:
    """Whether `ampwatch dashboard` was given folders of runs."""
    return bool(os.environ.get("AMPWATCH_DASHBOARD_DIRS"))


def shown_places() -> list[str]:
    """The places of published runs given to `ampwatch dashboard`, by their addresses."""
    return os.environ.get("AMPWATCH_DASHBOARD_PLACES", "").split()


def feed_endpoint() -> str | None:
    """The endpoint at which this server's recorder listens; None if the feed is off."""
    endpoint = os.environ.get("AMPWATCH_ENDPOINT") or DEFAULT_ENDPOINT
    return None if endpoint == "off" else endpoint


def keeps_received_runs(endpoint: str) -> bool:
    """Whether this server keeps received runs: as it was told, else those of other machines."""
    setting = os.environ.get(KEEP_RECEIVED, "")
    return setting == "1" if setting else not is_local(endpoint)


def start_command() -> str:
    """The shell command that started this server, to be shown once it is gone."""
    given = os.environ.get("AMPWATCH_DASHBOARD_COMMAND")
    return given or shlex.join(["streamlit", "run", str(Path(__file__).parent)])
