"""Two to eight runs over one another, and their figures side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import address
import chart
import live
import numpy as np
import runs
import streamlit as st
from course import SCALE
from drawing import Arrays, Panel, Picture, Stroke, thinned_lines
from edge import guarded
from open_runs import Look
from texts import bytes_text, said, short_dtype
from theme import VERDICT_COLOR

from ampwatch.diagnosis.words import share_text
from ampwatch.rows import Table

MOST = 8
_EVERY_S = 2.0
# A run has one colour and, where colours come round again, one kind of line, on all panels.
_COLORS = ("scale", "skip", "norm", "rate")
_DASHES = ("solid", "dot")
_PANELS = (
    ("Loss", "loss", "number", 130, ""),
    ("Loss scale", SCALE, "power", 110, ""),
    ("Gradient norm", "grad_norm", "number", 96, ""),
    ("Step time", "step_time_ms", "number", 80, "ms"),
)


def show(*, follow: bool) -> None:
    """The page of comparison."""
    choices = {choice.name: choice for choice in runs.shelf().choices}
    first = runs.chosen(address.read().run)
    usual = list(dict.fromkeys([*([first.name] if first else []), *choices]))[:2]
    names = st.multiselect(
        "Runs to compare", list(choices), default=usual, max_selections=MOST,
        placeholder="Choose two to eight runs",
    )  # fmt: skip
    if len(names) < 2:
        st.html('<div class="aw-muted">Choose two to eight runs.</div>')
        return
    chosen = [choices[name] for name in names]
    live_one = any(choice.live for choice in chosen)
    st.fragment(_now, run_every=_EVERY_S if live_one and follow else None)(chosen)


@guarded
def _now(chosen: Sequence[runs.Choice]) -> None:
    looks = [(choice.name, _of_lowest_rank(choice)) for choice in chosen]
    live.html(_table(looks), key="compare table")
    arrays: Arrays = {}
    for number, (_, look) in enumerate(looks):
        arrays |= thinned_lines(look.course, prefix=f"{number}.")
    picture = Picture(
        name=" ".join(choice.path for choice in chosen),
        panels=list(_panels([look for _, look in looks], [name for name, _ in looks])),
        ends=_ends([look for _, look in looks]),
        rows=sum(len(look.course) for _, look in looks),
        reports=False,
    )
    chart.show_still(picture, arrays, key="compare chart")


def _of_lowest_rank(choice: runs.Choice) -> Look:
    return runs.open_runs().look(choice.path, min(choice.ranks, default=None))


def _ends(looks: Sequence[Look]) -> tuple[int, int]:
    ends = [look.course.ends for look in looks]
    return min(first for first, _ in ends), max(last for _, last in ends)


def _panels(looks: Sequence[Look], names: Sequence[str]) -> Iterator[Panel]:
    for title, column, kind, height, unit in _PANELS:
        strokes = tuple(
            Stroke(
                f"{number}.{column}", names[number], _COLORS[number % len(_COLORS)],
                stepped=column == SCALE, dash=_DASHES[number // len(_COLORS)],
            )
            for number, look in enumerate(looks)
            if column in look.course.present
        )  # fmt: skip
        if strokes:
            words = [(title, "ink"), (f", {unit}" if unit else "", "muted")]
            yield Panel(tuple(words), strokes, kind=kind, height=height, unit=unit)


def _table(looks: Sequence[tuple[str, Look]]) -> str:
    heads = (
        "run", "verdict", "autocast", "steps", "last loss", "skipped", "ms a step", "peak memory",
    )  # fmt: skip
    head = "".join(f"<th>{name}</th>" for name in heads)
    rows = "".join(
        f"<tr>{''.join(f'<td>{cell}</td>' for cell in _cells(number, name, look))}</tr>"
        for number, (name, look) in enumerate(looks)
    )
    return f'<table class="aw-runs"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'


def _cells(number: int, name: str, look: Look) -> list[str]:
    color = _COLORS[number % len(_COLORS)]
    style = "dashed" if number >= len(_COLORS) else "solid"
    line = f'<i class="aw-key" style="border-top:3px {style} var(--aw-{color})"></i>'
    course, diagnosis = look.course, look.diagnosis
    loss, _ = course.latest("loss")
    time_ms = course.median_step_time
    verdict = "reading" if diagnosis is None else diagnosis.verdict.value
    tone = VERDICT_COLOR.get(verdict, "muted")
    return [
        f"{line}<b>{said(name)}</b>",
        f'<span class="aw-chip" style="--aw-tone:var(--aw-{tone})">{verdict}</span>',
        said(short_dtype(course.autocast_dtype or "off")),
        f"{len(course):,}",
        "" if loss is None else f"{loss:.4g}",
        share_text(course.skip_count, len(course)),
        "" if time_ms is None else f"{time_ms:.3g}",
        _peak(look),
    ]


def _peak(look: Look) -> str:
    rows = look.read(Table.DEVICES, ("peak_bytes", "used_bytes", "host_rss_bytes"))
    for column, where in (("peak_bytes", ""), ("used_bytes", ""), ("host_rss_bytes", " (host)")):
        known = rows.column(column).drop_null()
        if len(known):
            return bytes_text(int(np.max(known.to_numpy()))) + where
    return ""
