"""Which of the user's own values are drawn below the run's own charts, and how."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence

import address
import streamlit as st
from open_runs import Look
from step_curves import TIME
from user_value_curves import Value, grouped

from ampwatch.diagnosis.words import count_text
from ampwatch.printable_text import printable
from ampwatch.report.painter.message import Arrays, Axis, Panel, Stroke, odd_arrays

AT_FIRST = 3  # drawn before anything is chosen
MOST = 24
_KEY = "own values"
_LONGEST = 60  # characters of a name in a title; the chooser has all of it


def key_of(name: str) -> str:
    """The name of a value's line in a message: apart from the run's own columns."""
    return f"own.{name}"


def chosen(look: Look, text: str | None) -> list[str]:
    """The names that are drawn, those the address names if the run has them."""
    names = list(look.values.look())
    if text is None:
        return names[:AT_FIRST]
    wanted = set(address.names_in(text))
    return [name for name in names if name in wanted][:MOST]


def panels(look: Look, names: list[str]) -> Iterator[Panel]:
    """A panel a value, with its newest number in the title."""
    found = look.values.look()
    for name in names:
        value = found[name]
        title = [(_short(name), "ink")]
        if value.last is not None:
            step, number = value.last
            title.append((f", {number:.4g} at step {step:,}", "muted"))
        if value.odd_count:
            first = f"{count_text(value.odd_count, 'value')} not finite, first at step"
            title += [(", ", "muted"), (f"{first} {int(value.odd.first[0]):,}", "skip")]
        yield Panel(tuple(title), (Stroke(key_of(name), _as_data(name), "ink"),), height=84)


def arrays(look: Look, names: list[str], span: tuple[int, int] | None) -> Arrays:
    """Their lines, sent whole with each message: they are sparse, and thinned."""
    found: Arrays = {}
    values = look.values.look()
    for name in names:
        line = look.values.line(name, span)
        found[f"whole.{key_of(name)}.x"], found[f"whole.{key_of(name)}.y"] = line.x, line.y
        found |= odd_arrays(key_of(name), values[name].odd.within(*(span or look.curves.ends)))
    return found


def axes(look: Look, names: list[str]) -> Iterator[Axis]:
    """What lines may be drawn over instead of the step: the time, and values that never fall."""
    if TIME in look.curves.present:
        yield Axis(TIME, "time", "second")
    for name, value in look.values.look().items():
        if name in names and _is_axis(value):
            yield Axis(key_of(name), _short(name))


def choose(look: Look) -> None:
    """The list to choose from; a prefix stands for all of its values."""
    names = list(look.values.look())
    drawn = chosen(look, address.read().values)
    choose_among(names, drawn, _KEY)
    wanted = set(address.names_in(address.read().values or "")).intersection(names)
    if len(wanted) > len(drawn):
        words = f"{len(drawn)} of the {len(wanted):,} chosen values are drawn, the most at once."
        st.html(f'<div class="aw-muted">{words}</div>')


def choose_among(names: Sequence[str], drawn: Sequence[str], key: str, more: str = "") -> None:
    """The same of any names, of which some are drawn; `more` is said where help is asked for."""
    if not names:
        return
    groups = {
        f"{g.prefix}/": g.names for g in grouped(list(names)) if g.prefix and len(g.names) > 1
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


def _is_axis(value: Value) -> bool:
    """Whether it grows with the run, as tokens or samples do."""
    return value.never_falls and value.count > 1 and not value.odd_count


def _short(name: str) -> str:
    half = _LONGEST // 2
    return _as_data(name if len(name) <= _LONGEST else f"{name[:half]}…{name[-half + 1 :]}")


def _as_data(name: str) -> str:
    """A name that turns nothing around: what stands beside it keeps its order."""
    text = printable(name)
    turns = any(unicodedata.bidirectional(letter) in {"R", "AL", "AN"} for letter in text)
    return f"\u2068{text}\u2069" if turns else text
