"""The layers: a heatmap over steps, usable loss scales, data types; and one layer."""

from __future__ import annotations

import html
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import address
import browser_component
import layer_chart_data
import layer_choices
import layer_dtypes
import live_chart
import navigate
import numpy as np
import open_runs
import refresh_pace
import small_charts
import streamlit as st
from chart_points import thinned_lines
from findings_page import words_of
from formatting import said, shortened
from layer_chart_data import Exponents, Grid
from layer_choices import Shown, choices, shown
from layer_dtypes import dtypes_html, is_within
from layer_what_if import what_if_table
from numpy.typing import NDArray
from open_runs import Look
from problems import guarded, problem

from ampwatch.report.format_losses import ROLES, STALENESS, formats_text
from ampwatch.report.layer_views import FP8, WHAT_IF, fault_of
from ampwatch.report.overview_chart import column_panel
from ampwatch.report.painter import PALETTE
from ampwatch.report.painter.message import Arrays, Panel, Picture, Stroke, pack
from ampwatch.rows import Table

_EVERY_S = 2.0
_HEATMAP, _VIEW, _TREE = "heatmap", "layer view", "layer tree"
_SENT = "sent grid"
_TITLE_LETTERS = 90  # of a name; the mouse over it shows the others
_NOTHING = (
    "This run has no layer rows: it was attached without a model, or has not reached its first "
    "sampled step. ampwatch.attach(scaler, model) records them."
)
_LAYERS = partial(column_panel, Table.LAYERS)
_PANELS = (
    _LAYERS("grad_norm", "norm"),
    _LAYERS("act_amax", "ink"),
    _LAYERS("log2_headroom", "scale", aside="octaves below the format's maximum", height=76),
    _LAYERS("underflow_share", "skip", aside="share of the gradient's values", height=76, unit=""),
    _LAYERS("update_ratio", "rate", aside="update / weights", height=76),
)


_ROLE_COLORS = {"input": "scale", "weight": "advice", "grad": "norm"}


def _of_roles(ending: str, title: str) -> Panel:
    strokes = tuple(
        Stroke(f"{role}_{ending}", word, _ROLE_COLORS[role]) for role, word in ROLES.items()
    )
    words = ((title, "ink"), (", share of the values that are not zero", "muted"))
    return Panel(words, strokes, kind="share", height=76)


_CAST_PANELS = (
    _of_roles("flushed_share", "Flushed to zero by the cast"),
    _of_roles("saturated_share", "Cut off by the cast"),
    _LAYERS(STALENESS, "skip", aside="newest maximum over what the scale can hold", height=76),
)


def show(path: str, *, follow: bool) -> None:
    """The page of layers, kept up to date while the run goes on."""
    st.session_state.pop(_SENT, None)  # the browser may have lost it with the page before
    look = open_runs.look_at(path)
    choices(layer_choices.views(look), address.read())
    st.fragment(
        _now, run_every=refresh_pace.every_s(_EVERY_S) if look.is_live and follow else None
    )(path)


@guarded
def _now(path: str) -> None:
    look, where = open_runs.look_at(path), address.read()
    chosen = shown(layer_choices.views(look), where)
    names = layer_chart_data.layer_names(look, chosen.quantity)
    if not names:
        problem(_NOTHING)
        return
    facts = layer_dtypes.facts_of(look)
    wide, narrow = st.columns([2.2, 1], gap="medium")
    with wide:
        grid = layer_chart_data.grid(look, chosen.quantity, where.span, chosen.role)
        _heatmap(look, _Map(grid, chosen, names, facts), where)
        layer = where.layer or _at_fault(look)
        if layer is None:
            st.html('<div class="aw-muted">Choose a layer to see its numbers and findings.</div>')
        else:
            _layer(look, layer, names, grid, where)
    layers = layer_choices.layer_view(look, where, switch=False)
    with narrow:
        if layers is not None:
            browser_component.draw(layers, key=_VIEW, on_layer_change=_view_chosen)
        fault = (fault_of(look.diagnosis) or {}).get("layer")
        types = dtypes_html(layer_dtypes.tree(names, facts), fault)
        browser_component.html(types, key=_TREE, on_go=_tree_chosen)
    navigate.follow()


# --- all layers ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Map:
    """What the map shows."""

    grid: Grid
    chosen: Shown
    names: tuple[str, ...]  # of all layers
    facts: dict[str, dict[str, Any]]

    def recipes(self) -> tuple[list[str], NDArray[np.int32]]:
        """In which formats layers multiply, in words, and the number of each layer's among them."""
        told = [formats_text(self.facts.get(name, {})) for name in self.grid.layers]
        words = sorted({*told} - {""})
        return words, np.array([words.index(one) if one else -1 for one in told], np.int32)


def _heatmap(look: Look, drawn: _Map, where: address.Address) -> None:
    grid, quantity, names = drawn.grid, drawn.chosen.quantity, drawn.names
    if not grid.layers:
        st.html(f'<div class="aw-muted">This run holds no {said(quantity.label)} of layers.</div>')
        return
    recipes, recipe = drawn.recipes()
    base = f"{grid.id} {len(names)} {hash((*recipes, *recipe.tolist()))}"
    whole = st.session_state.get(_SENT) != base
    header = {
        "component": "heatmap",
        "name": look.name,
        "base": base,
        "hasBase": whole,
        "label": drawn.chosen.label + _of_ranks(look),
        "unit": quantity.aside,
        "log": quantity.is_log,
        "lowIsWorst": quantity.worst_is_low,
        "least": quantity.least,
        "axis": list(grid.axis),
        "isMerged": grid.is_merged,
        "layer": where.layer,
        "fault": fault_of(look.diagnosis),
        "recipes": recipes,
        "step": where.step,
        "view": where.map,
        "heard": int(_told().get("count", 0)),
        "palette": PALETTE,
    }
    arrays: Arrays = {"edges": grid.edges, "steps": grid.steps, "values": grid.values.ravel()}
    arrays["recipe"] = recipe
    browser_component.draw(
        pack({**header, **_named(grid, names)}, arrays) if whole else pack(header, {}),
        key=_HEATMAP,
        on_look_change=_look_changed,
        on_lost_change=_forget_sent,
    )
    st.session_state[_SENT] = base


def _named(grid: Grid, names: tuple[str, ...]) -> dict[str, list[str]]:
    """The layers that have a value, and the others."""
    have = set(grid.layers)
    return {"layers": list(grid.layers), "others": [name for name in names if name not in have]}


def _of_ranks(look: Look) -> str:
    is_one = look.rank is not None or len(look.ranks) < 2
    return "" if is_one else f", the worst of {len(look.ranks)} ranks"


def _told() -> dict[str, Any]:
    """What the reader chose last, as the heat map told it."""
    return getattr(st.session_state.get(_HEATMAP), "look", None) or {}


def _look_changed() -> None:
    told = _told()
    view, layer, step = told.get("view"), told.get("layer"), told.get("step")
    address.change(
        map=str(view) if view else None,
        layer=None if layer is None else str(layer),
        step=None if step is None else int(step),
    )


def _forget_sent() -> None:
    st.session_state.pop(_SENT, None)


def _view_chosen() -> None:
    layer = st.session_state[_VIEW].layer
    if layer:
        address.change(layer=str(layer))


def _tree_chosen() -> None:
    layer = st.session_state[_TREE].go
    if layer:
        address.change(layer=str(layer))


# --- one layer -----------------------------------------------------------------------------------


def _at_fault(look: Look) -> str | None:
    """The layer that the overview names, shown until the reader has chosen one."""
    suspect = None if look.diagnosis is None else look.diagnosis.suspect
    return None if suspect is None else suspect.layer


def _layer(
    look: Look, layer: str, names: tuple[str, ...], grid: Grid, where: address.Address
) -> None:
    """One layer: what is said of it, then its numbers under the map's steps."""
    if where.layer:
        head, close = st.columns([6, 1])
        head.html(_title(layer))
        if close.button("All layers", width="stretch"):
            address.change(layer=None)
            st.rerun(scope="fragment")
    else:
        st.html(_title(layer))
    words = _findings(look, layer)
    if layer in names:
        browser_component.html(words, key="layer findings")
        _history(look, layer, grid, where)
        told = WHAT_IF in layer_choices.views(look)
        facts = what_if_table(look, layer, where.step) if told else ""
        facts += _histogram(look, layer, layer_choices.moment(look, where.step))
        browser_component.html(facts, key="layer facts")
        return
    inside = sum(is_within(name, layer) for name in names)
    if inside or words:
        said_of = _holds(inside) if inside else "No numbers of this layer were logged."
        st.html(f'<div class="aw-muted">{said_of}</div>')
        browser_component.html(words, key="layer findings")
    else:
        st.html(f'<div class="aw-problem">This run has no layer named {said(layer)}.</div>')


def _title(layer: str) -> str:
    title = html.escape(layer)
    words = said(shortened(layer, _TITLE_LETTERS))
    return (
        f'<p class="aw-title" role="heading" aria-level="2" title="{title}"><bdi>{words}</bdi></p>'
    )


def _holds(count: int) -> str:
    return (
        f"This is a part of the model that holds {count:,} {'layer' if count == 1 else 'layers'}. "
        "It has no numbers of its own; choose a layer inside it."
    )


def _history(look: Look, layer: str, grid: Grid, where: address.Address) -> None:
    has_casts = FP8 in layer_choices.views(look)
    curves = layer_chart_data.history(look, layer, casts=has_casts)
    picture = Picture(
        name=f"{look.path} {layer} {where.span}", ends=grid.axis if grid.layers else curves.ends,
        panels=list(_present(_CAST_PANELS + _PANELS if has_casts else _PANELS, curves.present)),
        picked=where.step, rows=len(curves), reports=False,
    )  # fmt: skip
    live_chart.show_still(picture, thinned_lines(curves), key="layer chart")


def _present(panels: Sequence[Panel], present: Collection[str]) -> Iterator[Panel]:
    """The panels of which there are numbers, with the lines that have any."""
    for panel in panels:
        strokes = tuple(one for one in panel.strokes if one.column in present)
        if strokes:
            yield replace(panel, strokes=strokes)


def _histogram(look: Look, layer: str, step: int | None) -> str:
    found = layer_chart_data.exponents(look, layer, step)
    if found is None:
        return '<div class="aw-muted">No histogram of this layer was logged.</div>'
    return _histogram_words(found) + small_charts.exponent_sketch(found.counts)


def _histogram_words(found: Exponents) -> str:
    total = int(found.counts.sum())
    zeros = f"{100 * found.counts[0] / total:.3g} % are zero" if total else ""
    lost = found.counts[-1]
    odd = f", {lost:,} not finite" if lost else ""
    return (
        '<div class="aw-chart-title"><b>Gradient at the output, by power of two</b>'
        f"step {found.step:,}: {zeros}{odd}; shaded: where fp16 loses digits</div>"
    )


def _findings(look: Look, layer: str) -> str:
    if look.diagnosis is None:
        return ""
    mine = [f for f in look.diagnosis.findings if f.layer and is_within(f.layer, layer)]
    return "".join(words_of(f, has_ranks=len(look.ranks) > 1) for f in mine)
