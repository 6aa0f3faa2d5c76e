"""Runs compared: where they diverge, which settings differ, and their outcomes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial

import address
import browser_component
import compare_tables
import live_chart
import navigate
import run_list
import streamlit as st
import user_value_panels
from compare_loader import MOST, MOST_VALUES, OWN, CompareLoader, LoadedRun
from html_text import said, shortened
from problems import guarded

from ampwatch.diagnosis.value_text import count_text, list_text
from ampwatch.errors import RunError
from ampwatch.report.compared_run import Outline
from ampwatch.report.comparison import Asked, Comparison, compared
from ampwatch.report.divergence import Divergence
from ampwatch.report.overview_chart import compared_panels
from ampwatch.report.painter.message import Arrays, Panel, Picture, Stroke, odd_arrays, pack
from ampwatch.report.sweep import Sweep, besides_text, parallel_html, sweep_html
from ampwatch.report.thinning import Line, coarser, hole_of

_KEY, _BASE, _BY, _OUTCOME = "compared runs", "compared with", "swept by", "came of them"
_VALUES = "compared values"
_TABLE, _SWEEP, _CHART = "compare table", "compare sweep", "compare chart"
_SENT, _WAITS = "compared base", "compared runs are read"
_EVERY_S, _SOON_S, _WATCH_S = 2.0, 1.0, 3.0
_WAIT_S = 0.8  # for runs that are read soon: nothing is then drawn twice
_LEAST_SWEPT = 3  # runs of a sweep: two points show no course
_MOST_POINTS = 16_000  # of all runs' lines of one quantity: a browser draws them in one frame
_OWN_AT_FIRST = 3  # of the user's values, before any are chosen
_LEAST_ALIKE = 3  # runs whose names begin alike are offered together
_LONGEST = 60  # letters of a value's name over its panel


def show(*, follow: bool) -> None:
    """Draw the Compare page."""
    choices = _choices()
    names, gone = _chosen_runs(choices)
    _choose_runs(choices, names)
    if gone:
        st.html(f'<div class="aw-muted">No longer there: {said(list_text(gone, MOST))}.</div>')
    if len(names) < 2:
        st.html(f'<div class="aw-muted">Choose two runs or more, at most {MOST}.</div>')
    else:
        _compare([choices[name] for name in names], follow=follow)
    asked = [*names, *gone]
    watch = st.fragment(_rerun_on_change, run_every=_WATCH_S)
    watch(asked, _liveness(asked, choices))


def _choices() -> dict[str, run_list.ListedRun]:
    return {choice.name: choice for choice in run_list.current_list().choices}


def _compare(chosen: Sequence[run_list.ListedRun], *, follow: bool) -> None:
    names = [one.name for one in chosen]
    base = _choose_base(names)
    shown = _shown_runs(chosen, base, _WAIT_S)
    waits = shown.waiting or shown.unparted
    st.session_state[_WAITS] = bool(waits)
    is_live = follow and any(choice.live for choice in chosen)
    every_s = _SOON_S if waits else _EVERY_S if is_live else None
    st.fragment(_draw_comparison, run_every=every_s)(names, base)


def _liveness(names: Sequence[str], choices: Mapping[str, run_list.ListedRun]) -> list[bool | None]:
    """Whether each compared run is live; None for one that is not there, or not yet."""
    return [choices[name].live if name in choices else None for name in names]


@guarded
def _rerun_on_change(names: Sequence[str], seen: Sequence[bool | None]) -> None:
    """Draw the Compare page anew when a compared run has gone, came back or ended."""
    if _liveness(names, _choices()) != seen:
        st.rerun()


# --- what is compared ----------------------------------------------------------------------------


def _chosen_runs(choices: Mapping[str, run_list.ListedRun]) -> tuple[list[str], list[str]]:
    """The runs to compare: those that the address names, and which are gone; else the first two."""
    where = address.read()
    if where.runs is None:
        first = run_list.find_run(where.run)
        before = [name for name in st.session_state.get(_KEY, []) if name in choices]
        if len(before) > 1 and (first is None or first.name in before):
            return before, []  # a run that appears changes nothing
        return list(dict.fromkeys([*([first.name] if first else []), *choices]))[:2], []
    named = list(dict.fromkeys(address.names_in(where.runs)))
    there = [one for one in named if one in choices][:MOST]
    return there, [one for one in named if one not in choices]


def _choose_runs(choices: Mapping[str, run_list.ListedRun], names: list[str]) -> None:
    """Let the reader choose the runs to compare; a beginning stands for all names that begin so."""
    groups = _common_beginnings(list(choices))
    if st.session_state.get(_KEY) != names:
        st.session_state[_KEY] = names
    st.multiselect(
        "Runs to compare", [*choices, *groups], key=_KEY, on_change=_keep_choice, args=(groups,),
        format_func=lambda one: f"{one}… (all {len(groups[one])})" if one in groups else one,
        placeholder=f"Choose two runs or more, at most {MOST}",
    )  # fmt: skip


def _common_beginnings(names: Sequence[str]) -> dict[str, list[str]]:
    """The beginnings that names of runs have in common, up to a sign that ends a word."""
    found: dict[str, list[str]] = {}
    for name in names:
        for end in re.finditer(r"[-_./=]", name):
            found.setdefault(name[: end.end()], []).append(name)
    groups = {begin: some for begin, some in found.items() if len(some) >= _LEAST_ALIKE}
    longest = {
        tuple(some): begin for begin, some in sorted(groups.items(), key=lambda g: len(g[0]))
    }
    return {begin: list(some) for some, begin in longest.items() if begin not in names}


def _keep_choice(groups: Mapping[str, Sequence[str]]) -> None:
    picked = [name for one in st.session_state[_KEY] for name in groups.get(one, (one,))]
    address.change(runs=address.names_text(list(dict.fromkeys(picked))[:MOST]))


def _choose_base(names: Sequence[str]) -> str:
    """Let the reader choose the run that the others are compared with."""
    wanted = address.read().base
    base = wanted if wanted is not None and wanted in names else names[0]
    if st.session_state.get(_BASE) != base:
        st.session_state[_BASE] = base
    st.selectbox("Compared with", names, key=_BASE, on_change=_keep_base)
    return base


def _keep_base() -> None:
    address.change(base=st.session_state[_BASE])


@st.cache_resource(show_spinner=False)
def _loader() -> CompareLoader:
    """The loader of compared runs, shared by all tabs."""
    return CompareLoader()


# --- what is shown -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ShownRuns:
    """The compared runs that can be read, the base first, and what is known of them so far."""

    runs: tuple[LoadedRun, ...]
    names: tuple[str, ...]
    comparison: Comparison | None  # None of fewer than two
    styles: Mapping[str, int]  # the line of each run: it does not change with the base
    waiting: int  # runs that are still being read,
    unparted: int  # and those whose divergence is not known yet


def _shown_runs(chosen: Sequence[run_list.ListedRun], base: str, wait_s: float) -> ShownRuns:
    """What is loaded by now of the compared runs."""
    ready = _loader().loaded(chosen, wait_s)
    there = [one for one in chosen if one.name in ready and ready[one.name].outline is not None]
    waiting = len(chosen) - len(ready)
    if len(there) < 2:
        return ShownRuns((), (), None, {}, waiting, 0)
    ordered = sorted(there, key=lambda one: one.name != base)
    partings = _loader().divergences(ordered[0], ordered[1:], ready, wait_s)
    known = [one for one in partings if one is not None]
    outlines = [
        replace(outline, name=one.name) for one in ordered if (outline := ready[one.name].outline)
    ]
    unparted = len(partings) - len(known)
    return ShownRuns(
        tuple(ready[one.name] for one in ordered),
        tuple(one.name for one in ordered),
        _compared(outlines, [] if unparted else known),
        {one.name: number for number, one in enumerate(there)},
        waiting,
        unparted,
    )


def _compared(outlines: Sequence[Outline], partings: Sequence[Divergence]) -> Comparison:
    where = address.read()
    try:
        return compared(outlines, partings, Asked(where.by, where.outcome))
    except RunError:  # these runs have no such setting, or no such value
        return compared(outlines, partings)


@guarded
def _draw_comparison(names: Sequence[str], base: str) -> None:
    choices = _choices()
    chosen = [choices[name] for name in names if name in choices]
    for problem in _problems(chosen):
        st.html(f'<div class="aw-muted">{said(problem)}</div>')
    shown = _shown_runs(chosen, base, 0.0)
    if shown.waiting:
        read = f"{len(chosen) - shown.waiting:,} of {count_text(len(chosen), 'run')}"
        st.html(f'<div class="aw-muted" role="status">Reading the runs: {read}.</div>')
    navigate.switch_if_asked()
    if shown.comparison is not None:
        _draw_parts(shown, shown.comparison, {one.name for one in chosen if one.live})
    if st.session_state[_WAITS] and not shown.waiting and not shown.unparted:
        st.session_state[_WAITS] = False
        st.rerun()  # what is not live is not looked at again


def _draw_parts(shown: ShownRuns, comparison: Comparison, live: Set[str]) -> None:
    browser_component.html(
        compare_tables.divergences_html(comparison, shown.unparted), key="compare partings"
    )
    _sweep(comparison)
    table = compare_tables.runs_html(comparison, shown.styles, live, address.read().order)
    browser_component.html(table, key=_TABLE, acts={"go": _open_run, "sort": _sort})
    browser_component.html(
        compare_tables.settings_html(comparison, shown.styles), key="compare settings"
    )
    _chart(shown)
    _choose_values(shown.runs)


def _problems(chosen: Sequence[run_list.ListedRun]) -> list[str]:
    ready = _loader().loaded(chosen, 0.0)
    return [one.problem for one in ready.values() if one.problem]


def _open_run(name: object) -> None:
    navigate.ask_for_page("Overview", address.read().of_run(str(name)))


def _sort(order: object) -> None:
    address.change(order=str(order) or None)


# --- the sweep -----------------------------------------------------------------------------------


def _sweep(comparison: Comparison) -> None:
    """Draw the compared runs over a setting that differs, and all such settings side by side."""
    sweep = comparison.sweep
    if sweep is None or len(comparison.names) < _LEAST_SWEPT:
        return
    _choose_sweep(comparison, sweep)
    besides = besides_text(sweep)
    words = f'<p class="aw-sweep-says"><b>{said(sweep.sentence)}</b> {said(besides)}</p>'
    charts = [
        sweep_html(sweep, comparison.names, partial(_link, comparison)),
        parallel_html(comparison.swept_by, sweep, comparison.names, partial(_link, comparison)),
    ]
    beside = "".join(chart for chart in charts if chart)
    text = (
        f'<section aria-label="Sweep">{words}<div class="aw-sweep-charts">{beside}</div></section>'
    )
    browser_component.html(text, key=_SWEEP, acts={"go": _open_run})


def _choose_sweep(comparison: Comparison, sweep: Sweep) -> None:
    """Let the reader choose the setting and the outcome of a sweep."""
    chosen = {_BY: sweep.setting, _OUTCOME: sweep.outcome}
    for key, value in chosen.items():
        if st.session_state.get(key) != value:
            st.session_state[key] = value
    settings = [one.name for one in comparison.swept_by]
    left, right, _ = st.columns([1, 1, 2])
    left.selectbox("Setting", settings, key=_BY, on_change=_keep_sweep)
    outcomes = list(comparison.outcomes) or [sweep.outcome]
    right.selectbox("Outcome", outcomes, key=_OUTCOME, on_change=_keep_sweep)


def _keep_sweep() -> None:
    address.change(by=st.session_state[_BY], outcome=st.session_state[_OUTCOME])


def _link(comparison: Comparison, run: int) -> str:
    return compare_tables.run_attributes(comparison.names[run])


# --- the chart -----------------------------------------------------------------------------------


def _chart(shown: ShownRuns) -> None:
    """Draw the curves of the compared runs over one another; points are sent when they are new."""
    runs = sorted(zip(shown.names, shown.runs, strict=True), key=lambda one: shown.styles[one[0]])
    names, prepared = [name for name, _ in runs], [run for _, run in runs]
    own = [_own_panel(name) for name in _drawn_names(_user_value_names(prepared))]
    panels = list(compared_panels(names, [run.columns for run in prepared], own))
    if not panels:
        st.html('<div class="aw-muted">None of these runs holds numbers to draw.</div>')
        return
    where = address.read()
    first, last = min(run.ends[0] for run in prepared), max(run.ends[1] for run in prepared)
    picture = Picture(
        name="compared", panels=panels, ends=(first, last), span=where.span, picked=where.step,
        rows=sum(run.rows for run in prepared), view=where.view,
        heard=live_chart.choice_count(_CHART),
    )  # fmt: skip
    base = repr([(name, run.version) for name, run in runs])
    whole = st.session_state.get(_SENT) != base
    header = picture.header(base, hole_of(first, last), whole=whole)
    arrays = _chart_arrays(prepared) if whole else {}
    browser_component.draw(
        pack(header, arrays), key=_CHART, on_look_change=partial(live_chart.keep_choice, _CHART),
        acts={"lost": _forget_sent},
    )  # fmt: skip
    st.session_state[_SENT] = base


def _forget_sent(_: object) -> None:
    st.session_state.pop(_SENT, None)


def _user_value_names(runs: Sequence[LoadedRun]) -> list[str]:
    """The names of the user's values in the compared runs, those that most runs have first."""
    counts = Counter(name for run in runs for name in run.columns if name.startswith(OWN))
    return [name.removeprefix(OWN) for name, _ in counts.most_common()]


def _drawn_names(names: Sequence[str]) -> list[str]:
    """The names of the user's values that the comparison draws."""
    wanted = address.read().values
    if wanted is None:
        return list(names[:_OWN_AT_FIRST])
    chosen = set(address.names_in(wanted))
    return [name for name in names if name in chosen][: user_value_panels.MOST]


def _own_panel(name: str) -> Panel:
    column = f"{OWN}{name}"
    title = ((shortened(name, _LONGEST), "ink"),)
    return Panel(title, (Stroke(column, column, "ink"),), height=84)


def _choose_values(runs: Sequence[LoadedRun]) -> None:
    names = _user_value_names(runs)
    more = f"Only the first {MOST_VALUES} of each run can be chosen."
    user_value_panels.choose_among_names(names, _drawn_names(names), _VALUES, more)


def _chart_arrays(runs: Sequence[LoadedRun]) -> Arrays:
    """All compared runs' lines as arrays of a message; the more runs, the fewer points of each."""
    most = _MOST_POINTS // len(runs)
    found: Arrays = {}
    for number, run in enumerate(runs):
        for column in run.columns:
            line = coarser(Line(run.lines[f"{column}.x"], run.lines[f"{column}.y"]), most)
            found[f"base.{number}.{column}.x"] = line.x
            found[f"base.{number}.{column}.y"] = line.y
        for column, odd in run.odd.items():
            found |= odd_arrays(f"{number}.{column}", odd.within(*run.ends))
    return found
