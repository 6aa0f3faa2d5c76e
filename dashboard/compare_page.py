"""Runs compared: where they diverge, which settings differ, and their outcomes."""

from __future__ import annotations

import html
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import address
import browser_component
import run_chart
import run_list
import streamlit as st
from compare_loader import MOST, MOST_VALUES, OWN, CompareLoader, LoadedRun
from html_text import said, shortened
from page_parts import follows_live, guarded, show_as_text
from settings_page import previous_run

from ampwatch.diagnosis.value_text import count_text, list_text
from ampwatch.errors import AmpwatchError, RunError
from ampwatch.printable_text import printable
from ampwatch.report.compared_run import LOSS, Outline
from ampwatch.report.comparison import BEST, END, Asked, Comparison, compared
from ampwatch.report.comparison_text import grouped_partings, parting_parts, parting_sentences
from ampwatch.report.divergence import Divergence
from ampwatch.report.overview_chart import compared_panels, group_of
from ampwatch.report.painter import VERDICT_COLOR, line_style
from ampwatch.report.painter.message import Arrays, Panel, Picture, Stroke, odd_arrays, pack
from ampwatch.report.sweep import Sweep, besides_text, parallel_html, sweep_html
from ampwatch.report.thinning import Line, coarser, hole_of
from ampwatch.store import read_info

_KEY, _ADDED, _BY, _OUTCOME = "compared runs", "added run", "swept by", "came of them"
_BASELINE = "compare-with"
_VALUES = "compared values"
_TABLE, _SWEEP, _CHART = "compare table", "compare sweep", "compare chart"
_WAITS = "compared runs are read"
_EVERY_S, _SOON_S, _WATCH_S = 2.0, 1.0, 3.0
_WAIT_S = 0.8  # for runs that are read soon: nothing is then drawn twice
_LEAST_SWEPT = 3  # runs of a sweep: two points show no course
_MOST_POINTS = 16_000  # of all runs' lines of one quantity: a browser draws them in one frame
_OWN_AT_FIRST = 3  # of the user's values, before any are chosen
_LEAST_ALIKE = 3  # runs whose names begin alike are offered together
_LONGEST = 60  # letters of a value's name over its panel


def show() -> None:
    """Draw the Compare page."""
    st.html('<p class="aw-title" role="heading" aria-level="1">Compare</p>')
    choices = _choices()
    names, gone = _chosen_runs(choices)
    base = _base_of(names)
    _choose_runs(choices, names, base)
    if gone:
        st.html(f'<div class="aw-muted">No longer there: {said(list_text(gone, MOST))}.</div>')
    if len(names) < 2:
        st.html(f'<div class="aw-muted">Choose two runs or more, at most {MOST}.</div>')
    else:
        _compare([choices[name] for name in names], base)
    asked = [*names, *gone]
    watch = st.fragment(_rerun_on_change, run_every=_WATCH_S)
    watch(asked, _liveness(asked, choices))


def _choices() -> dict[str, run_list.ListedRun]:
    return {choice.name: choice for choice in run_list.current_list().choices}


def _compare(chosen: Sequence[run_list.ListedRun], base: str) -> None:
    names = [one.name for one in chosen]
    shown = _shown_runs(chosen, base, _WAIT_S)
    waits = shown.waiting or shown.unparted
    st.session_state[_WAITS] = bool(waits)
    is_live = follows_live() and any(choice.live for choice in chosen)
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
    """The runs to compare: those that the address names, and which are gone; else two."""
    where = address.read()
    if where.runs is None:
        first = run_list.find_run(where.run)
        before = [name for name in st.session_state.get(_KEY, []) if name in choices]
        if len(before) > 1 and (first is None or first.name in before):
            return before, []  # a run that appears changes nothing
        if first is None:
            return list(choices)[:2], []
        return list(dict.fromkeys([first.name, *_partner(first, choices), *choices]))[:2], []
    named = list(dict.fromkeys(address.names_in(where.runs)))
    there = [one for one in named if one in choices][:MOST]
    return there, [one for one in named if one not in choices]


def _partner(first: run_list.ListedRun, choices: Mapping[str, run_list.ListedRun]) -> list[str]:
    """The run that another is compared with at first: the last one of the same script before it."""
    try:
        earlier = previous_run(read_info(Path(first.path)), list(choices.values()))
    except (AmpwatchError, OSError):
        return []
    return [] if earlier is None else [earlier.choice.name]


def _choose_runs(choices: Mapping[str, run_list.ListedRun], names: list[str], base: str) -> None:
    """Let the reader choose the runs to compare; a beginning stands for all names that begin so."""
    st.session_state[_KEY] = names
    groups = _common_beginnings(list(choices))
    chips, adding = st.columns([5, 1], vertical_alignment="center")
    with chips:
        browser_component.html(chips_html(names, base), key="compare chips", acts={"go": _act})
    with adding:
        st.selectbox(
            "Add a run", [one for one in (*choices, *groups) if one not in names], index=None,
            key=_ADDED, on_change=_add_run, args=(names, groups), placeholder="+ add run",
            format_func=lambda one: f"{one}… (all {len(groups[one])})" if one in groups else one,
            label_visibility="collapsed",
        )  # fmt: skip


def _add_run(names: Sequence[str], groups: Mapping[str, Sequence[str]]) -> None:
    added = st.session_state[_ADDED]
    st.session_state[_ADDED] = None
    if added is not None:
        _keep_runs([*names, *groups.get(added, (added,))])


def _keep_runs(names: Sequence[str]) -> None:
    address.change(runs=address.names_text(list(dict.fromkeys(names))[:MOST]))


def _act(choice: object) -> None:
    """Do what a button of a run's chip says: compare with it, or leave it out."""
    what, _, name = str(choice).partition(" ")
    if what == _BASELINE:
        address.change(base=name)
    else:
        _keep_runs([one for one in st.session_state[_KEY] if one != name])


def chips_html(names: Sequence[str], base: str) -> str:
    """The compared runs as HTML, each with its line in the charts; a star marks the baseline."""
    chips = "".join(_chip(number, name, name == base) for number, name in enumerate(names))
    return f'<div class="aw-run-chips" role="list" aria-label="Compared runs">{chips}</div>'


def _chip(number: int, name: str, is_base: bool) -> str:  # noqa: FBT001
    label = _attribute(printable(name))
    star = "★" if is_base else "☆"
    compare = "compared with this run" if is_base else "compare with this run"
    return (
        f'<span class="aw-run-chip" role="listitem" {lit(name)} title="{label}">'
        f"{line_key(number)}<bdi>{said(shortened(name, _NAME_LETTERS))}</bdi>"
        f'<button type="button" data-go="{_BASELINE} {_attribute(name)}" title="{compare}" '
        f'aria-pressed="{str(is_base).lower()}" aria-label="{compare}: {label}">{star}</button>'
        f'<button type="button" data-go="drop {_attribute(name)}" title="leave it out" '
        f'aria-label="leave out {label}">&times;</button></span>'
    )


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


def _base_of(names: Sequence[str]) -> str:
    """The run that the others are compared with."""
    wanted = address.read().base
    return wanted if wanted is not None and wanted in names else next(iter(names), "")


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
    address.switch_if_asked()
    if shown.comparison is not None:
        _draw_parts(shown, shown.comparison, {one.name for one in chosen if one.live})
    if st.session_state[_WAITS] and not shown.waiting and not shown.unparted:
        st.session_state[_WAITS] = False
        st.rerun()  # what is not live is not looked at again


def _draw_parts(shown: ShownRuns, comparison: Comparison, live: Set[str]) -> None:
    answer = answer_html(comparison, shown.unparted)
    browser_component.html(answer, key="compare partings")
    _chart(shown)
    _choose_values(shown.runs)
    _sweep(comparison)
    table = runs_html(comparison, shown.styles, live, address.read().order)
    browser_component.html(table, key=_TABLE, acts={"go": _open_run, "sort": _sort})
    settings = settings_html(comparison, shown.styles)
    browser_component.html(settings, key="compare settings")
    show_as_text(answer, table, settings)


def _problems(chosen: Sequence[run_list.ListedRun]) -> list[str]:
    ready = _loader().loaded(chosen, 0.0)
    return [one.problem for one in ready.values() if one.problem]


def _open_run(name: object) -> None:
    address.ask_for_page("Overview", address.read().of_run(str(name)))


def _sort(order: object) -> None:
    address.change(order=str(order) or None)


# --- the sweep -----------------------------------------------------------------------------------


def _sweep(comparison: Comparison) -> None:
    """Draw the compared runs over a setting that differs, and all such settings side by side."""
    sweep = _sweep_of(comparison)
    if sweep is None:
        return
    _choose_sweep(comparison, sweep)
    charts = [
        sweep_html(sweep, comparison.names, partial(_link, comparison)),
        parallel_html(comparison.swept_by, sweep, comparison.names, partial(_link, comparison)),
    ]
    beside = "".join(chart for chart in charts if chart)
    text = f'<section aria-label="Sweep"><div class="aw-sweep-charts">{beside}</div></section>'
    browser_component.html(text, key=_SWEEP, acts={"go": _open_run})


def _sweep_of(comparison: Comparison) -> Sweep | None:
    return comparison.sweep if len(comparison.names) >= _LEAST_SWEPT else None


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
    return run_attributes(comparison.names[run])


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
        heard=run_chart.choice_count(_CHART),
    )  # fmt: skip
    base = repr([(name, run.version) for name, run in runs])

    def message(whole: bool) -> bytes:  # noqa: FBT001
        header = picture.header(base, hole_of(first, last), whole=whole)
        return pack(header, _chart_arrays(prepared) if whole else {})

    browser_component.draw_on_base(
        message, base, key=_CHART, on_look_change=partial(run_chart.keep_choice, _CHART)
    )


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
    return [name for name in names if name in chosen][: run_chart.MOST]


def _own_panel(name: str) -> Panel:
    column = f"{OWN}{name}"
    title = ((shortened(name, _LONGEST), "ink"),)
    return Panel(title, (Stroke(column, column, "ink"),), height=84)


def _choose_values(runs: Sequence[LoadedRun]) -> None:
    names = _user_value_names(runs)
    more = f"Only the first {MOST_VALUES} of each run can be chosen."
    run_chart.choose_among_names(names, _drawn_names(names), _VALUES, more)


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


# --- the tables as HTML ---------------------------------------------------------------------------


_BORDERS = {"solid": "solid", "dot": "dotted", "dash": "dashed"}
_NAME_LETTERS = 40
_MOST_NAMED = 8  # runs in a line that is folded; unfolded it names all
_NO_COLUMN = frozenset({"verdict", "headline", LOSS})  # told in another one
_NOT_LOGGED = '<span class="aw-muted">not logged</span>'


def run_attributes(name: str) -> str:
    """The HTML attributes of an element that leads to a compared run and is lit with it."""
    target = html.escape(address.link("", address.read().of_run(name)))
    return f'href="{target}" data-go="{_attribute(name)}" {lit(name)}'


def lit(name: str) -> str:
    """The HTML attribute of an element that is lit with a compared run."""
    return f'data-light="{_attribute(group_of(name))}"'


def _attribute(text: str) -> str:
    return html.escape(text, quote=True)


# --- where they part -----------------------------------------------------------------------------


def answer_html(comparison: Comparison, unparted: int) -> str:
    """What a comparison says, as HTML: whether it is of one model, the sweep, where runs part."""
    sweep = _sweep_of(comparison)
    told = [] if comparison.not_together is None else [(comparison.not_together, "")]
    told += [] if sweep is None else [(sweep.sentence, besides_text(sweep))]
    words = "".join(f"<p><b>{said(head)}</b> {said(more)}</p>" for head, more in told)
    words += _partings(comparison, unparted)
    return f'<section class="aw-partings" aria-label="Answer">{words}</section>'


def _partings(comparison: Comparison, unparted: int) -> str:
    """The divergences of compared runs in words, as HTML: where each parts and by what."""
    first, *others = comparison.names
    if unparted:
        part = "parts" if unparted == 1 else "part"
        words = f"Looking for the step where {count_text(unparted, 'run')} {part} from {first}."
        return f'<p role="status">{said(words)}</p>'
    each = [
        list(parting_sentences(one, first, name))
        for one, name in zip(comparison.partings, others, strict=True)
    ]
    if len(others) == 1:
        head, *more = parting_parts(comparison.partings[0], first, others[0])
        rest = [" ".join(more), " ".join(each[0][1:])]
        told = f"<p><b>{said(head)}</b></p>" + "".join(f"<p>{said(t)}</p>" for t in rest if t)
    else:
        told = _divergence_groups(comparison, each)
    about = f'<p class="aw-muted">{said(_about(comparison))}</p>' if comparison.uncounted else ""
    return told + about


def _divergence_groups(comparison: Comparison, each: Sequence[Sequence[str]]) -> str:
    """Compared runs that part alike in one line as HTML; each run's own sentences are folded."""
    names = comparison.names
    parts = []
    for text, numbers in grouped_partings(comparison.partings):
        runs = ", ".join(_named(names[number]) for number in numbers[:_MOST_NAMED])
        more = len(numbers) - _MOST_NAMED
        runs += f" and {more:,} more" if more > 0 else ""
        full = "".join(
            f"<dt>{_named(names[number])}</dt><dd>{said(' '.join(each[number - 1]))}</dd>"
            for number in numbers
        )
        parts.append(
            f'<details data-key="{_attribute(text)}"><summary>'
            f"{count_text(len(numbers), 'run')}: {said(text)} ({runs})</summary>"
            '<div class="aw-each" tabindex="0" role="region" aria-label="Each of them">'
            f"<dl>{full}</dl></div></details>"
        )
    return f"<p>Compared with {_named(names[0])}:</p>{''.join(parts)}"


def _named(name: str) -> str:
    short = said(shortened(name, _NAME_LETTERS))
    return f'<bdi class="aw-named" title="{_attribute(printable(name))}" {lit(name)}>{short}</bdi>'


def _about(comparison: Comparison) -> str:
    return f"The steps of {', '.join(comparison.uncounted)} are counted: their log has no numbers."


# --- figures -------------------------------------------------------------------------------------


def runs_html(
    comparison: Comparison, styles: Mapping[str, int], live: Set[str], order: str | None = None
) -> str:
    """The table of compared runs as HTML, the best loss first; numbers with their difference.

    `order` is the column by which they are sorted instead; "-" before it is from the end.
    """
    names = sorted(
        (name for name in comparison.figures if name not in _NO_COLUMN and not _is_an_end(name)),
        key=lambda name: (END, BEST, name).index(name),
    )
    columns = ("run", "verdict", *names)
    chosen = order if order is not None and order.removeprefix("-") in columns else None
    heads = "".join(_heading(name, chosen) for name in columns)
    rows = "".join(
        f"<tr {lit(comparison.names[run])}>{''.join(_cells(comparison, run, names, styles, live))}"
        "</tr>"
        for run in _in_order(comparison, chosen)
    )
    how = "by the loss at the end, the best first" if END in comparison.numbers else "as chosen"
    if chosen is not None:
        how = f"by {chosen.removeprefix('-')}"
        how += ", the greatest first" if chosen.startswith("-") else ""
    base = _named(comparison.names[0])
    return (
        f'<p class="aw-muted aw-order">Sorted {said(how)}; differences are to {base}.</p>'
        '<div class="aw-compared" tabindex="0" role="region" '
        f'aria-label="Runs, {_attribute(printable(how))}">'
        f'<table class="aw-runs"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'
    )


def _is_an_end(name: str) -> bool:
    """Whether a figure is an end of a user's value: the chart shows it, the table its best."""
    return name.endswith((", lowest", ", highest", ", last"))


def _heading(name: str, order: str | None) -> str:
    """A heading of the table of compared runs; clicks sort up, then down, then as before."""
    now = {name: "ascending", f"-{name}": "descending"}.get(order or "", "none")
    after = {"none": name, "ascending": f"-{name}", "descending": ""}[now]
    mark = {"none": "", "ascending": " ▲", "descending": " ▼"}[now]
    return (
        f'<th scope="col" aria-sort="{now}"><button type="button" data-sort="{_attribute(after)}" '
        f'data-key="sort {_attribute(name)}">{said(name)}{mark}</button></th>'
    )


def _in_order(comparison: Comparison, order: str | None) -> list[int]:
    """The compared runs in the order of a column; those without a value come last, either way."""
    by_outcome = comparison.by_outcome
    if order is None:
        return by_outcome
    values = _column_values(comparison, order.removeprefix("-"))
    known = [run for run in by_outcome if values[run] not in (None, "")]
    rest = [run for run in by_outcome if run not in known]
    return (
        sorted(known, key=lambda run: _sort_key(values[run]), reverse=order.startswith("-")) + rest
    )


def _column_values(comparison: Comparison, column: str) -> Sequence[str | float | None]:
    """What a column of the comparison holds for each run: numbers where it has them."""
    if column == "run":
        return comparison.names
    if column in comparison.numbers:
        return comparison.numbers[column]
    return comparison.figures[column]


def _sort_key(value: str | float | None) -> tuple[int, float, str]:
    """By what cells of the comparison are sorted: numbers, then nan, then words by the alphabet."""
    try:
        number = float(value or 0.0)
    except ValueError:
        return 2, 0.0, str(value).casefold()
    return (1, 0.0, "") if math.isnan(number) else (0, number, "")


def _cells(
    comparison: Comparison,
    run: int,
    names: Sequence[str],
    styles: Mapping[str, int],
    live: Set[str],
) -> Iterator[str]:
    name = comparison.names[run]
    badge = ' <span class="aw-live">live</span>' if name in live else ""
    short = said(shortened(name, _NAME_LETTERS))
    yield (
        f"<td>{line_key(styles[name])}<a {run_attributes(name)} "
        f'title="{_attribute(printable(name))}"><bdi>{short}</bdi></a>{badge}</td>'
    )
    verdict = comparison.figures["verdict"][run]
    tone = VERDICT_COLOR.get(verdict.partition(",")[0], "muted")
    head = comparison.figures.get("headline", ("",) * len(comparison.names))[run]
    yield (
        f'<td><span class="aw-chip" style="--aw-tone:var(--aw-{tone})">{said(verdict)}</span> '
        f'<span class="aw-muted">{said(head)}</span></td>'
    )
    for figure in names:
        apart = comparison.differences.get(figure, ())
        more = f' <span class="aw-muted">{said(apart[run])}</span>' if run and apart else ""
        text = comparison.figures[figure][run]
        yield f"<td>{said(text) + more if text else _NOT_LOGGED}</td>"


def line_key(number: int) -> str:
    """A small sample of a compared run's line in the chart, as HTML: its colour and dashes."""
    color, dash = line_style(number)
    return f'<i class="aw-key" style="border-top:3px {_BORDERS[dash]} var(--aw-{color})"></i>'


# --- settings ------------------------------------------------------------------------------------


def settings_html(comparison: Comparison, styles: Mapping[str, int]) -> str:
    """The settings of compared runs as HTML; those that are the same in all are folded."""
    title = '<h2 class="aw-part">Settings that differ</h2>'
    if comparison.settings:
        differ = title + _differing_settings(comparison, styles)
    else:
        differ = '<p class="aw-muted">No recorded setting differs.</p>'
    same = ""
    if comparison.same_settings:
        rows = "".join(
            f"<tr><th>{said(name)}</th><td>{said(text)}</td></tr>"
            for name, text in comparison.same_settings.items()
        )
        count = count_text(len(comparison.same_settings), "setting")
        verb = "is" if len(comparison.same_settings) == 1 else "are"
        same = (
            f'<details data-key="same"><summary>{count} {verb} the same in all</summary>'
            f'<div class="aw-compared"><table class="aw-runs aw-settings">{rows}</table></div>'
            "</details>"
        )
    return f'<section aria-label="Settings">{differ}{same}</section>'


def _differing_settings(comparison: Comparison, styles: Mapping[str, int]) -> str:
    """The table of settings in which compared runs differ: a row a setting, or a row a run."""
    runs = [f"{line_key(styles[name])}{_named(name)}" for name in comparison.names]
    names = [said(name) for name in comparison.settings]
    values = [[_value(value) for value in row] for row in comparison.settings.values()]
    if len(runs) > len(names):
        heads, labels, cells = names, runs, [list(row) for row in zip(*values, strict=True)]
        marks = [f" {lit(name)}" for name in comparison.names]
    else:
        heads, labels, cells, marks = runs, names, values, [""] * len(names)
    head = "".join(f"<th>{text}</th>" for text in ("", *heads))
    body = "".join(
        f"<tr{mark}><th>{label}</th>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>"
        for mark, label, row in zip(marks, labels, cells, strict=True)
    )
    return (
        '<div class="aw-compared" tabindex="0" role="region" aria-label="Settings that differ">'
        f'<table class="aw-runs aw-settings"><thead><tr>{head}</tr></thead><tbody>{body}</tbody>'
        "</table></div>"
    )


def _value(text: str | None) -> str:
    return '<span class="aw-muted">-</span>' if text is None else said(text)
