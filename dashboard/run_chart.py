"""Draws the chart of a run and of the user's values; its reader's view of it is in the address.

The points of a live chart are a *base*, thinned once for the span in view and kept by the browser,
and a *tail*: all rows after the base. Each message holds the whole tail, so a lost message costs
nothing.
"""

from __future__ import annotations

import unicodedata
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock
from typing import Any

import address
import browser_component
import streamlit as st
from open_runs import RunSnapshot
from step_curves import StepCurves
from user_value_curves import UserValue, group_names

from ampwatch.diagnosis.value_text import count_text
from ampwatch.metric_names import Metric, known_metric, metric_of
from ampwatch.printable_text import printable
from ampwatch.report import step_notes, thinning
from ampwatch.report.overview_chart import (
    HELD,
    SCALE,
    TIME,
    Shown,
    marks_of,
    panels_of,
    restart_of,
    time_axes,
    verdict_sentence,
)
from ampwatch.report.painter.message import (
    Arrays,
    Axis,
    Panel,
    Picture,
    StepNote,
    Stroke,
    odd_arrays,
    pack,
    still_message,
)
from ampwatch.rows import Table

KEY = "chart"


def drawing(run: RunSnapshot, shares: browser_component.Acts) -> Callable[[], None]:
    """Make a run's chart for the span in the address; what is returned draws it without delay.

    `shares` is more in its Share menu.
    """
    where = address.read()
    if not len(run.curves):
        return partial(st.html, '<div class="aw-muted">No step was logged yet.</div>')
    if run.curves.present <= {TIME} and not run.values.read():
        none = '<div class="aw-muted">The run holds no numbers to draw, or none yet.</div>'
        return partial(st.html, none)
    base = thinned_bases().base_for(run.name, run.curves, where.span)
    picture = replace(picture_of(run, where), shares=("link", *shares))
    own = extra_arrays(run, where)
    return lambda: browser_component.draw_on_base(
        lambda whole: live_message(picture, run.curves, base, own, whole=whole),
        (run.name, base.id),
        key=KEY,
        acts=shares,
        on_look_change=partial(keep_choice, KEY),
    )


def picture_of(run: RunSnapshot, where: address.Address) -> Picture:
    """A run's chart without its points: panels, marks, axes and span."""
    curves = run.curves
    shown = Shown(
        curves.present | ({HELD} if len(held_scale(run).x) else set()),
        curves.ends,
        curves.skip_count,
        curves.clips,
        run.diagnosis_as_told(),
        run.established_scale,
        run.shown,
    )
    own = chosen_names(run, where.values)
    return Picture(
        name=run.path,
        panels=[*panels_of(shown), *value_panels(run, own)],
        ends=curves.ends,
        marks=list(marks_of(shown)),
        restart=restart_of(run.diagnosis),
        span=where.span,
        picked=where.step,
        rows=len(curves),
        axes=list(value_axes(run, own)),
        view=where.view,
        heard=choice_count(KEY),
        title=run.info.name,
        verdict=verdict_sentence(run.diagnosis),
        notes=run.once("step notes", lambda: notes_of(run)),
    )


def notes_of(run: RunSnapshot) -> list[StepNote]:
    """The steps of a run that its chart marks: where attempts begin, and what was steered."""
    events = run.read_table(Table.EVENTS, step_notes.COLUMNS)
    return step_notes.step_notes(run.attempts(), events)


def scene_of(run: RunSnapshot, where: address.Address) -> tuple[Picture, Arrays]:
    """A run's chart as it is drawn now: its picture, and its points for the span in view."""
    base = thinned_base(run.name, run.curves, where.span)
    own = extra_arrays(run, where)
    return picture_of(run, where), {**base.arrays, **odd_lines(run.curves, where.span), **own}


def extra_arrays(run: RunSnapshot, where: address.Address) -> Arrays:
    """The lines of a run's chart that are sent whole: the user's values, and a scale as held."""
    arrays = value_arrays(run, chosen_names(run, where.values), where.span)
    held = held_scale(run)
    if len(held.x):
        arrays |= {f"whole.{HELD}.x": held.x, f"whole.{HELD}.y": held.y}
    return arrays


def held_scale(run: RunSnapshot) -> thinning.Line:
    """The loss scale across the steps at which a log of skips does not tell it."""
    return run.once("held scale", lambda: _held(run.curves))


def _held(curves: StepCurves) -> thinning.Line:
    logged = curves.logged
    if logged is None:
        return thinning.NO_LINE
    return thinning.held_line(*curves.points(SCALE), logged)


def show_still(picture: Picture, arrays: Arrays, key: str) -> None:
    """Draw a chart that the browser alone zooms; its lines are sent whole."""
    browser_component.draw(still_message(picture, arrays), key=key)


def reader_choice(key: str) -> dict[str, Any]:
    """What the reader chose last in a chart, as the browser sent it."""
    return getattr(st.session_state.get(key), "look", None) or {}


def choice_count(key: str) -> int:
    """How many choices of its reader the chart in the browser has sent so far."""
    return int(reader_choice(key).get("count", 0))


def keep_choice(key: str) -> None:
    """Keep in the address the span, step and view that the reader chose in a chart."""
    told = reader_choice(key)
    span, step, view = told.get("span"), told.get("step"), told.get("view")
    address.change(
        span=None if span is None else (int(span[0]), int(span[1])),
        step=None if step is None else int(step),
        view=str(view) if view else None,
    )


# --- points ---------------------------------------------------------------------------------------


# Rows after which the base is thinned anew: a share of the run, so that a run of any length is
# thinned a few dozen times, within what a message may carry.
TAIL_SHARE, TAIL_LEAST, TAIL_MOST = 0.02, 400, 2000
_BASES_KEPT = 32

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class ThinnedBase:
    """The thinned points of a span of a live chart, and how many rows they were made of."""

    id: str
    rows: int
    hole: float
    arrays: Arrays


class ThinnedBases:
    """The thinned points in use, shared by all tabs that look at the same span of the same run."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._kept: OrderedDict[tuple[str, Span | None], tuple[int, ThinnedBase]] = OrderedDict()

    def base_for(self, name: str, curves: StepCurves, span: Span | None) -> ThinnedBase:
        """The thinned points for a span, thinned anew once the tail after them is too long."""
        key = (name, span)
        with self._lock:
            epoch, base = self._kept.get(key, (-1, None))
        if base is None or epoch != curves.epoch or _is_long(curves, base, span):
            base = thinned_base(name, curves, span)
            with self._lock:
                self._kept[key] = (curves.epoch, base)
                self._kept.move_to_end(key)
                while len(self._kept) > _BASES_KEPT:
                    self._kept.popitem(last=False)
        return base


@st.cache_resource(show_spinner=False)
def thinned_bases() -> ThinnedBases:
    """The thinned points of live charts, shared by all tabs."""
    return ThinnedBases()


_RECENT_ROWS = 4096  # that tell the usual interval between logged steps


def thinned_base(name: str, curves: StepCurves, span: Span | None) -> ThinnedBase:
    """The thinned points of a live chart for a span, or for the whole run."""
    first, last = span or curves.ends
    near = curves.within(span)
    rug = near.rug(first, last)
    arrays = {
        **thinned_lines(near, span),
        "base.skips.first": rug.first,
        "base.skips.last": rug.last,
        "base.skips.count": rug.count,
    }
    named = "all" if span is None else f"{first}-{last}"
    recent = curves.step[-_RECENT_ROWS:]
    hole = max(curves.hole, thinning.hole_of(first, last), thinning.usual_hole(recent))
    return ThinnedBase(f"{name} {curves.epoch}.{len(curves)}.{named}", len(curves), hole, arrays)


def thinned_lines(curves: StepCurves, span: Span | None = None, prefix: str = "") -> Arrays:
    """The thinned lines of a run's chart, as arrays of a message to the browser."""
    near = curves.within(span)
    arrays: Arrays = {}
    logged = curves.logged
    for name in curves.present:
        step, values = near.points(name, span)
        if name in curves.stepped:
            line = thinning.stepped_line(step, values, logged)
        else:
            line = thinning.broken_line(step, values, curves.hole, inf_breaks=True)
        arrays[f"base.{prefix}{name}.x"], arrays[f"base.{prefix}{name}.y"] = line.x, line.y
    return arrays


def live_message(
    picture: Picture, curves: StepCurves, base: ThinnedBase, more: Arrays, *, whole: bool
) -> bytes:
    """The points of a growing run's chart as a message; with the thinned base if it is `whole`."""
    tail = _tail(curves, base, picture.span)
    header = picture.header(base.id, base.hole, whole=whole)
    odd = odd_lines(curves, picture.span)
    return pack(header, {**(base.arrays if whole else {}), **tail, **odd, **more})


def odd_lines(curves: StepCurves, span: Span | None = None, prefix: str = "") -> Arrays:
    """Where a chart's lines are not finite, as arrays of a message to the browser."""
    arrays: Arrays = {}
    for name, odd in curves.odd.items():
        arrays |= odd_arrays(f"{prefix}{name}", odd.within(*(span or curves.ends)))
    return arrays


def _is_long(curves: StepCurves, base: ThinnedBase, span: Span | None) -> bool:
    added = len(curves) - base.rows
    most = min(TAIL_MOST, max(TAIL_LEAST, int(base.rows * TAIL_SHARE)))
    if added <= most:
        return False
    if base.rows < curves.first_row:  # they are no longer held
        return True
    return span is None or int(curves.step[curves.since(base.rows)].min()) <= span[1]


def _tail(curves: StepCurves, base: ThinnedBase, span: Span | None) -> Arrays:
    rows: Any = curves.since(base.rows)
    if span is not None:
        rows = curves.rows_within(*span, start=base.rows)
    step = curves.step[rows]
    arrays: Arrays = {"tail.step": step}
    for name in curves.present:
        arrays[f"tail.{name}"] = curves.columns[name][rows]
    since = curves.skips[curves.skips >= step.min()] if len(step) else step
    arrays["tail.skips"] = since
    return arrays


# --- the user's values ----------------------------------------------------------------------------


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
        yield from time_axes(run.curves.began_ns)
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
        f"{prefix}/": inside
        for prefix, inside in group_names(names).items()
        if prefix and len(inside) > 1
    }
    if st.session_state.get(key) != list(drawn):
        st.session_state[key] = list(drawn)
    logged = f"{count_text(len(names), 'name')} logged by `watch.log`; at most {MOST} are drawn."
    st.multiselect(
        "Your values", [*names, *groups], key=key, on_change=_chosen, args=(key, groups),
        format_func=lambda one: f"{one} (all {len(groups[one])})" if one in groups else one,
        placeholder="what your code gave to watch.log()", help=f"{logged} {more}".strip(),
    )  # fmt: skip


def _chosen(key: str, groups: dict[str, list[str]]) -> None:
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
