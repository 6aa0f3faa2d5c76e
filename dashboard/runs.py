"""Where the page's runs come from: the folders on this disk, and the feed."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import streamlit as st
from charts import Course

from ampwatch import store
from ampwatch.errors import AmpwatchError
from ampwatch.recorder import Recorder

LIVE_S = 10.0  # a run that wrote something this lately, and no end mark, is live


@dataclass(frozen=True, slots=True)
class Choice:
    """A run that can be chosen."""

    path: str
    label: str


def folders() -> list[Path]:
    """The folders given to `ampwatch dashboard`, else the usual one."""
    given = os.environ.get("AMPWATCH_DASHBOARD_DIRS")
    return [Path(text) for text in given.split(os.pathsep)] if given else [store.default_log_dir()]


@st.cache_resource(show_spinner=False)
def recorder() -> tuple[Recorder | None, str]:
    """The one recorder of this server, and what to say of it."""
    endpoint = os.environ.get("AMPWATCH_ENDPOINT") or "tcp://127.0.0.1:5797"
    if endpoint == "off":
        return None, "The feed is off; runs on this disk are shown."
    try:
        started = Recorder(endpoint, folders()[0], fallback=True).start()
    except AmpwatchError as error:
        return None, f"No feed: {error}"
    return started, f"feed on {started.endpoint.removeprefix('tcp://')}"


def choices() -> list[Choice]:
    """The runs there are, live ones first, then the newest."""
    given = os.environ.get("AMPWATCH_DASHBOARD_DIRS")
    found = (
        [run for folder in folders() for run in store.list_runs(folder)]
        if given
        else store.list_runs()
    )
    readable = [run for run in found if run.problem is None]
    readable.sort(key=lambda run: not is_live(run.last_time_ns, ended=run.ended))
    return [Choice(str(run.path), _label(run)) for run in readable]


def is_live(last_time_ns: int, *, ended: bool) -> bool:
    """Whether a run is going on as we look."""
    return not ended and time.time_ns() - last_time_ns < LIVE_S * 1e9


def _label(run: store.RunSummary) -> str:
    live = is_live(run.last_time_ns, ended=run.ended)
    name = (
        run.path.name if len(run.path.name) < 36 else f"{run.path.name[:20]}…{run.path.name[-14:]}"
    )
    # A label is Markdown to Streamlit, and a name is data.
    escaped = "".join(f"\\{c}" if c in r"\`*_{}[]()#+-.!|~:$<>" else c for c in name)
    return f"● {escaped} live" if live else escaped


def course_of(run: store.Run) -> Course:
    """The columns that the overview draws."""
    names = ("step", "scale", "loss", "grad_norm", "lr", "skipped")
    rows = run.read("steps", columns=names, rank=min(run.ranks, default=0))
    numbers = [np.array(rows.column(name).to_numpy(), np.float64) for name in names[1:5]]
    skipped = np.array(rows.column("skipped").fill_null(False).to_numpy(), np.bool_)  # noqa: FBT003
    step = np.array(rows.column("step").to_numpy(), np.int64)
    return Course(step, *numbers, skipped)
