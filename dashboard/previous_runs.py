"""Of each run the one of the same script before it, and what its settings were."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import streamlit as st
from run_list import Choice, Origin

from ampwatch.errors import AmpwatchError
from ampwatch.report.settings import run_before, whole_settings
from ampwatch.store import RUN_FILE, RunInfo, open_run, read_info

MOST_READ = 2_000  # runs, the newest ones: each is a file to open, 0.2 ms
_MOST_KEPT = 24  # runs whose settings are held


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """The last run of the same script."""

    choice: Choice
    info: RunInfo
    settings: dict[str, str]


class EarlierRuns:
    """Finds them; what was read of a run is kept while its files stay as they are."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._infos: dict[str, tuple[int, RunInfo]] = {}
        self._settings: dict[tuple[str, int], dict[str, str]] = {}

    def before(self, info: RunInfo, choices: Sequence[Choice]) -> EarlierRun | None:
        """The last run of the same script among these that started before this one."""
        newest = sorted(choices, key=lambda choice: choice.last_time_ns, reverse=True)
        with self._lock:
            known = {choice.path: one for choice, one in self._known(newest[:MOST_READ])}
            self._infos = {path: kept for path, kept in self._infos.items() if path in known}
            path = run_before(info, known.items())
            if path is None:
                return None
            choice = next(one for one in choices if one.path == path)
            return EarlierRun(choice, known[path], self._settings_of(choice))

    def _known(self, choices: Sequence[Choice]) -> Iterator[tuple[Choice, RunInfo]]:
        for choice in choices:
            if choice.origin is Origin.PUBLISHED:
                continue  # each would have to be fetched
            try:
                stamp = (Path(choice.path) / RUN_FILE).stat().st_mtime_ns
                kept = self._infos.get(choice.path)
                if kept is None or kept[0] != stamp:
                    kept = stamp, _without_settings(read_info(Path(choice.path)))
                    self._infos[choice.path] = kept
            except (AmpwatchError, OSError):
                continue  # the list of runs says what is wrong with it
            yield choice, kept[1]

    def _settings_of(self, choice: Choice) -> dict[str, str]:
        key = choice.path, choice.last_time_ns
        if key not in self._settings:
            self._settings[key] = whole_settings(open_run(choice.path))
            while len(self._settings) > _MOST_KEPT:
                self._settings.pop(next(iter(self._settings)))
        return self._settings[key]


@st.cache_resource(show_spinner=False)
def all_earlier_runs() -> EarlierRuns:
    """What is known of runs that others are compared with, shared by all tabs."""
    return EarlierRuns()


def _without_settings(info: RunInfo) -> RunInfo:
    """What tells a run: a configuration may be as large as its file."""
    return replace(info, config={}, environment={}, versions={}, scaler={}, marks={}, notes=())
