"""Two to eight runs over one another, and their figures side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import address
import browser
import live_chart
import run_list
import streamlit as st
from chart_points import thinned_lines
from formatting import said, short_dtype
from open_runs import Look
from problems import guarded

from ampwatch.diagnosis.words import bytes_text, list_text, share_text
from ampwatch.report.outline import peak_bytes
from ampwatch.report.overview_chart import compared_panels
from ampwatch.report.painter import VERDICT_COLOR, line_style
from ampwatch.report.painter.message import Arrays, Picture

MOST = 8
_KEY = "compared runs"
_EVERY_S = 2.0


def show(*, follow: bool) -> None:
    """The page of comparison."""
    choices = {choice.name: choice for choice in run_list.current().choices}
    names, gone = _chosen_runs(choices)
    if st.session_state.get(_KEY) != names:
        st.session_state[_KEY] = names
    names = st.multiselect(
        "Runs to compare", list(choices), key=_KEY, max_selections=MOST, on_change=_keep_choice,
        placeholder="Choose two to eight runs",
    )  # fmt: skip
    if gone:
        st.html(f'<div class="aw-muted">No longer there: {said(list_text(gone, MOST))}.</div>')
    if len(names) < 2:
        st.html('<div class="aw-muted">Choose two to eight runs.</div>')
        return
    chosen = [choices[name] for name in names]
    live_one = any(choice.live for choice in chosen)
    st.fragment(_now, run_every=_EVERY_S if live_one and follow else None)(chosen)


def _chosen_runs(choices: Mapping[str, run_list.Choice]) -> tuple[list[str], list[str]]:
    """The runs that the address names and those of them that are gone; else the first two."""
    where = address.read()
    if where.runs is None:
        first = run_list.chosen(where.run)
        before = [name for name in st.session_state.get(_KEY, []) if name in choices]
        if len(before) > 1 and (first is None or first.name in before):
            return before, []  # a run that appears changes nothing
        return list(dict.fromkeys([*([first.name] if first else []), *choices]))[:2], []
    named = list(dict.fromkeys(address.names_in(where.runs)))[:MOST]
    return [one for one in named if one in choices], [one for one in named if one not in choices]


def _keep_choice() -> None:
    address.change(runs=address.names_text(st.session_state[_KEY]))


@guarded
def _now(chosen: Sequence[run_list.Choice]) -> None:
    looks = [(choice.name, _of_lowest_rank(choice)) for choice in chosen]
    browser.html(_table(looks), key="compare table")
    arrays: Arrays = {}
    for number, (_, look) in enumerate(looks):
        arrays |= thinned_lines(look.curves, prefix=f"{number}.")
    picture = Picture(
        name=" ".join(choice.path for choice in chosen),
        panels=list(compared_panels([n for n, _ in looks], [k.curves.present for _, k in looks])),
        ends=_ends([look for _, look in looks]),
        rows=sum(len(look.curves) for _, look in looks),
        reports=False,
    )
    live_chart.show_still(picture, arrays, key="compare chart")


def _of_lowest_rank(choice: run_list.Choice) -> Look:
    return run_list.open_runs().look(choice.path, min(choice.ranks, default=None))


def _ends(looks: Sequence[Look]) -> tuple[int, int]:
    ends = [look.curves.ends for look in looks]
    return min(first for first, _ in ends), max(last for _, last in ends)


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
    color, dash = line_style(number)
    style = {"solid": "solid", "dot": "dotted", "dash": "dashed"}[dash]
    line = f'<i class="aw-key" style="border-top:3px {style} var(--aw-{color})"></i>'
    curves, diagnosis = look.curves, look.diagnosis
    loss, _ = curves.latest("loss")
    time_ms = curves.median_step_time
    verdict = "reading" if diagnosis is None else diagnosis.verdict.value
    tone = VERDICT_COLOR.get(verdict, "muted")
    return [
        f"{line}<b>{said(name)}</b>",
        f'<span class="aw-chip" style="--aw-tone:var(--aw-{tone})">{verdict}</span>',
        said(short_dtype(curves.autocast_dtype or "off")),
        f"{len(curves):,}",
        "" if loss is None else f"{loss:.4g}",
        share_text(curves.skip_count, len(curves)),
        "" if time_ms is None else f"{time_ms:.3g}",
        _memory(look),
    ]


def _memory(look: Look) -> str:
    peak, is_host = peak_bytes(look)
    return "" if peak is None else bytes_text(peak) + (" (host)" if is_host else "")
