"""The panels of the user's values below a run's chart: which are chosen, and how they are drawn."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence

import address
import streamlit as st
from open_runs import RunSnapshot
from step_curves import TIME
from user_value_curves import UserValue, group_names

from ampwatch.diagnosis.value_text import count_text
from ampwatch.metric_names import Metric, known_metric, metric_of
from ampwatch.printable_text import printable
from ampwatch.report.painter.message import Arrays, Axis, Panel, Stroke, odd_arrays

AT_FIRST = 3  # drawn before anything is chosen
MOST = 24
_KEY = "own values"
_LONGEST = 60  # characters of a name in a title; the chooser has all of it


def column_of_value(name: str) -> str:
    """The column of a user's value in a chart's message, apart from the run's own columns."""
    return f"own.{name}"


def chosen_names(run: RunSnapshot, text: str | None) -> list[str]:
    """The names of the user's values to draw: those that the address names, else the first."""
    names = list(run.values.read())
    if text is None:
        return sorted(names, key=_rank)[:AT_FIRST]
    wanted = set(address.names_in(text))
    return [name for name in names if name in wanted][:MOST]


def value_panels(run: RunSnapshot, names: list[str]) -> Iterator[Panel]:
    """A panel of the chart for each user's value, with its newest number in the title."""
    found = run.values.read()
    for name in names:
        value, title = found[name], _named(name)
        if value.last is not None:
            step, number = value.last
            title.append((f", {number:.4g} at step {step:,}", "muted"))
        if value.odd_count:
            first = f"{count_text(value.odd_count, 'value')} not finite, first at step"
            title += [(", ", "muted"), (f"{first} {int(value.odd.first[0]):,}", "skip")]
        strokes = (Stroke(column_of_value(name), _isolated(name), "ink"),)
        unit = _unit(name)
        if unit == "%":  # it is logged, and drawn, as a share
            yield Panel(tuple(title), strokes, kind="share", height=84)
        else:
            yield Panel(tuple(title), strokes, height=84, unit=unit)


def _named(name: str) -> list[tuple[str, str]]:
    """The parts of a title that say what is drawn, in plain words where the name is known."""
    known = known_metric(name)
    if known is None:
        return [(_short(name), "ink")]
    unit = f", {known.unit}" if known.unit not in {"", "%"} else ""
    words = f"{known.title[0].upper()}{known.title[1:]}"
    return [(words, "ink"), (f"{unit} ({_short(name)})", "muted")]


def _unit(name: str) -> str:
    known = known_metric(name)
    return "" if known is None else known.unit


def value_arrays(run: RunSnapshot, names: list[str], span: tuple[int, int] | None) -> Arrays:
    """The curves of the user's values as arrays of a message, sent whole: they are thinned."""
    found: Arrays = {}
    values = run.values.read()
    for name in names:
        line = run.values.line(name, span)
        found[f"whole.{column_of_value(name)}.x"], found[f"whole.{column_of_value(name)}.y"] = (
            line.x,
            line.y,
        )
        found |= odd_arrays(
            column_of_value(name), values[name].odd.within(*(span or run.curves.ends))
        )
    return found


def value_axes(run: RunSnapshot, names: list[str]) -> Iterator[Axis]:
    """The axes offered instead of the step: the time, and user's values that never fall."""
    if TIME in run.curves.present:
        yield Axis(TIME, "time", "second")
    for name, value in run.values.read().items():
        if name in names and _is_axis(value):
            yield Axis(column_of_value(name), _short(name))


def choose_values(run: RunSnapshot) -> None:
    """Let the reader choose which of the user's values to draw; a prefix stands for all."""
    names = list(run.values.read())
    drawn = chosen_names(run, address.read().values)
    choose_among_names(names, drawn, _KEY)
    wanted = set(address.names_in(address.read().values or "")).intersection(names)
    if len(wanted) > len(drawn):
        words = f"{len(drawn)} of the {len(wanted):,} chosen values are drawn, the most at once."
        st.html(f'<div class="aw-muted">{words}</div>')


def choose_among_names(
    names: Sequence[str], drawn: Sequence[str], key: str, more: str = ""
) -> None:
    """Draw the list in which the user's values are chosen; `more` is added to its help."""
    if not names:
        return
    groups = {
        f"{g.prefix}/": g.names for g in group_names(list(names)) if g.prefix and len(g.names) > 1
    }
    if st.session_state.get(key) != list(drawn):
        st.session_state[key] = list(drawn)
    logged = f"{count_text(len(names), 'name')} logged by `watch.log`; at most {MOST} are drawn."
    st.multiselect(
        "Your values", [*names, *groups], key=key, on_change=_chosen, args=(key, groups),
        format_func=lambda one: f"{one} (all {len(groups[one])})" if one in groups else one,
        placeholder="what your code gave to watch.log()", help=f"{logged} {more}".strip(),
    )  # fmt: skip


def _chosen(key: str, groups: dict[str, tuple[str, ...]]) -> None:
    picked = st.session_state[key]
    names = [name for one in picked for name in groups.get(one, (one,))]
    address.change(values=address.names_text(dict.fromkeys(names)))


def _rank(name: str) -> tuple[bool, bool]:
    """Which of the user's values are drawn first: a goal, then what else says how it trains."""
    return metric_of(name) is not Metric.GOAL, metric_of(name) is None


def _is_axis(value: UserValue) -> bool:
    """Whether a user's value grows with the run, as tokens or samples do."""
    return value.never_falls and value.count > 1 and not value.odd_count


def _short(name: str) -> str:
    half = _LONGEST // 2
    return _isolated(name if len(name) <= _LONGEST else f"{name[:half]}…{name[-half + 1 :]}")


def _isolated(name: str) -> str:
    """A name that cannot change the direction of the text beside it."""
    text = printable(name)
    turns = any(unicodedata.bidirectional(letter) in {"R", "AL", "AN"} for letter in text)
    return f"\u2068{text}\u2069" if turns else text
