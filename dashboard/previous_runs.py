"""For each run the previous run of the same script, with its settings, to compare settings with."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import streamlit as st
from run_list import ListedRun, Origin

from ampwatch.errors import AmpwatchError
from ampwatch.report.settings import run_before, whole_settings
from ampwatch.store import RUN_FILE, RunInfo, open_run, read_info

MOST_READ = 2_000  # runs, the newest ones: each is a file to open, 0.2 ms
_MOST_KEPT = 24  # runs whose settings are held


@dataclass(frozen=True, slots=True)
class PreviousRun:
    """The previous run of the same script, and its settings."""

    choice: ListedRun
    info: RunInfo
    settings: dict[str, str]


class PreviousRuns:
    """Finds the previous run of a script; keeps what was read of runs while their files stay."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._infos: dict[str, tuple[int, RunInfo]] = {}
        self._settings: dict[tuple[str, int], dict[str, str]] = {}

    def previous_run(self, info: RunInfo, choices: Sequence[ListedRun]) -> PreviousRun | None:
        """The last of these runs of the same script that started before this one."""
        newest = sorted(choices, key=lambda choice: choice.last_time_ns, reverse=True)
        with self._lock:
            known = {choice.path: one for choice, one in self._known(newest[:MOST_READ])}
            self._infos = {path: kept for path, kept in self._infos.items() if path in known}
            path = run_before(info, known.items())
            if path is None:
                return None
            choice = next(one for one in choices if one.path == path)
            return PreviousRun(choice, known[path], self._settings_of(choice))

    def _known(self, choices: Sequence[ListedRun]) -> Iterator[tuple[ListedRun, RunInfo]]:
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

    def _settings_of(self, choice: ListedRun) -> dict[str, str]:
        key = choice.path, choice.last_time_ns
        if key not in self._settings:
            self._settings[key] = whole_settings(open_run(choice.path))
            while len(self._settings) > _MOST_KEPT:
                self._settings.pop(next(iter(self._settings)))
        return self._settings[key]


@st.cache_resource(show_spinner=False)
def all_previous_runs() -> PreviousRuns:
    """What is known of previous runs, shared by all tabs."""
    return PreviousRuns()


def _without_settings(info: RunInfo) -> RunInfo:
    """What identifies a run, without its settings, which may be large."""
    return replace(info, config={}, environment={}, versions={}, scaler={}, marks={}, notes=())
