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
import numpy as np
import open_runs
import run_chart
import small_charts
import streamlit as st
from findings_page import finding_html
from html_text import said, shortened
from layer_chart_data import ExponentHistogram, HeatmapGrid
from layer_choices import ShownQuantity, draw_choices, shown_quantity
from layer_dtypes import dtypes_html, is_within
from numpy.typing import NDArray
from open_runs import RunSnapshot
from page_parts import refresh_run_part, show_problem
from run_chart import thinned_lines

from ampwatch.diagnosis.value_text import percent_text
from ampwatch.report.format_losses import (
    FORMAT_NAMES,
    ROLES,
    STALENESS,
    WhatIfLayer,
    formats_text,
    what_if_layers,
)
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


def show(path: str) -> None:
    """Draw the Layers page, and keep it up to date while the run goes on."""
    st.session_state.pop(_SENT, None)  # the browser may have lost it with the page before
    run = open_runs.snapshot(path)
    draw_choices(layer_choices.layer_views(run), address.read())
    refresh_run_part(_draw_layers, path, _EVERY_S)


def _draw_layers(path: str) -> None:
    run, where = open_runs.snapshot(path), address.read()
    chosen = shown_quantity(layer_choices.layer_views(run), where)
    names = layer_chart_data.layer_names(run, chosen.quantity)
    if not names:
        show_problem(_NOTHING)
        return
    facts = layer_dtypes.last_dtypes(run)
    wide, narrow = st.columns([2.2, 1], gap="medium")
    with wide:
        grid = layer_chart_data.heatmap_grid(run, chosen.quantity, where.span, chosen.role)
        _heatmap(run, _Heatmap(grid, chosen, names, facts), where)
        layer = where.layer or _suspect_layer(run)
        if layer is None:
            st.html('<div class="aw-muted">Choose a layer to see its numbers and findings.</div>')
        else:
            _draw_layer(run, layer, names, grid, where)
    layers = layer_choices.layer_view_message(run, where, switch=False)
    with narrow:
        if layers is not None:
            browser_component.draw(layers, key=_VIEW, acts={"layer": _choose_layer})
        fault = (fault_of(run.diagnosis) or {}).get("layer")
        types = dtypes_html(layer_dtypes.layer_tree(names, facts), fault)
        browser_component.html(types, key=_TREE, acts={"go": _choose_layer})
    address.switch_if_asked()


# --- all layers ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Heatmap:
    """What the heatmap of the Layers page shows."""

    grid: HeatmapGrid
    chosen: ShownQuantity
    names: tuple[str, ...]  # of all layers
    facts: dict[str, dict[str, Any]]

    def format_numbers(self) -> tuple[list[str], NDArray[np.int32]]:
        """The formats in which layers multiply, in words, and each layer's number among them."""
        told = [formats_text(self.facts.get(name, {})) for name in self.grid.layers]
        words = sorted({*told} - {""})
        return words, np.array([words.index(one) if one else -1 for one in told], np.int32)


def _heatmap(run: RunSnapshot, drawn: _Heatmap, where: address.Address) -> None:
    grid, quantity, names = drawn.grid, drawn.chosen.quantity, drawn.names
    if not grid.layers:
        st.html(f'<div class="aw-muted">This run holds no {said(quantity.label)} of layers.</div>')
        return
    recipes, recipe = drawn.format_numbers()
    base = f"{grid.id} {len(names)} {hash((*recipes, *recipe.tolist()))}"
    whole = st.session_state.get(_SENT) != base
    header = {
        "component": "heatmap",
        "name": run.name,
        "base": base,
        "hasBase": whole,
        "label": drawn.chosen.label + _of_ranks(run),
        "unit": quantity.aside,
        "log": quantity.is_log,
        "lowIsWorst": quantity.worst_is_low,
        "least": quantity.least,
        "axis": list(grid.axis),
        "isMerged": grid.is_merged,
        "layer": where.layer,
        "fault": fault_of(run.diagnosis),
        "recipes": recipes,
        "step": where.step,
        "view": where.map,
        "heard": int(_heatmap_choice().get("count", 0)),
        "palette": PALETTE,
    }
    arrays: Arrays = {"edges": grid.edges, "steps": grid.steps, "values": grid.values.ravel()}
    arrays["recipe"] = recipe
    browser_component.draw(
        pack({**header, **_layers_with_values(grid, names)}, arrays) if whole else pack(header, {}),
        key=_HEATMAP,
        on_look_change=_look_changed,
        acts={"lost": _forget_sent},
    )
    st.session_state[_SENT] = base


def _layers_with_values(grid: HeatmapGrid, names: tuple[str, ...]) -> dict[str, list[str]]:
    """The layers that have a value in the heatmap, and the others."""
    have = set(grid.layers)
    return {"layers": list(grid.layers), "others": [name for name in names if name not in have]}


def _of_ranks(run: RunSnapshot) -> str:
    is_one = run.rank is not None or len(run.ranks) < 2
    return "" if is_one else f", the worst of {len(run.ranks)} ranks"


def _heatmap_choice() -> dict[str, Any]:
    """What the reader chose last in the heatmap, as the browser sent it."""
    return getattr(st.session_state.get(_HEATMAP), "look", None) or {}


def _look_changed() -> None:
    told = _heatmap_choice()
    view, layer, step = told.get("view"), told.get("layer"), told.get("step")
    address.change(
        map=str(view) if view else None,
        layer=None if layer is None else str(layer),
        step=None if step is None else int(step),
    )


def _forget_sent(_: object) -> None:
    st.session_state.pop(_SENT, None)


def _choose_layer(layer: object) -> None:
    address.change(layer=str(layer))


# --- one layer -----------------------------------------------------------------------------------


def _suspect_layer(run: RunSnapshot) -> str | None:
    """The layer that the diagnosis suspects, shown until the reader has chosen one."""
    suspect = None if run.diagnosis is None else run.diagnosis.suspect
    return None if suspect is None else suspect.layer


def _draw_layer(
    run: RunSnapshot, layer: str, names: tuple[str, ...], grid: HeatmapGrid, where: address.Address
) -> None:
    """Draw one layer: its findings, its numbers and its histogram."""
    if where.layer:
        head, close = st.columns([6, 1])
        head.html(_title(layer))
        if close.button("All layers", width="stretch"):
            address.change(layer=None)
            st.rerun(scope="fragment")
    else:
        st.html(_title(layer))
    words = _findings(run, layer)
    if layer in names:
        browser_component.html(words, key="layer findings")
        _history(run, layer, grid, where)
        told = WHAT_IF in layer_choices.layer_views(run)
        facts = what_if_table(run, layer, where.step) if told else ""
        facts += _histogram(run, layer, layer_choices.step_to_show(run, where.step))
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


def _history(run: RunSnapshot, layer: str, grid: HeatmapGrid, where: address.Address) -> None:
    has_casts = FP8 in layer_choices.layer_views(run)
    curves = layer_chart_data.layer_curves(run, layer, casts=has_casts)
    panels = _CAST_PANELS + _PANELS if has_casts else _PANELS
    picture = Picture(
        name=f"{run.path} {layer} {where.span}", ends=grid.axis if grid.layers else curves.ends,
        panels=list(_filled_panels(panels, curves.present)),
        picked=where.step, rows=len(curves), reports=False,
    )  # fmt: skip
    run_chart.show_still(picture, thinned_lines(curves), key="layer chart")


def _filled_panels(panels: Sequence[Panel], present: Collection[str]) -> Iterator[Panel]:
    """The panels of a layer that have numbers, with the lines that have any."""
    for panel in panels:
        strokes = tuple(one for one in panel.strokes if one.column in present)
        if strokes:
            yield replace(panel, strokes=strokes)


def _histogram(run: RunSnapshot, layer: str, step: int | None) -> str:
    found = layer_chart_data.exponent_histogram(run, layer, step)
    if found is None:
        return '<div class="aw-muted">No histogram of this layer was logged.</div>'
    return _histogram_words(found) + small_charts.exponent_sketch(found.counts)


def _histogram_words(found: ExponentHistogram) -> str:
    total = int(found.counts.sum())
    zeros = f"{100 * found.counts[0] / total:.3g} % are zero" if total else ""
    lost = found.counts[-1]
    odd = f", {lost:,} not finite" if lost else ""
    return (
        '<div class="aw-chart-title"><b>Gradient at the output, by power of two</b>'
        f"step {found.step:,}: {zeros}{odd}; shaded: where fp16 loses digits</div>"
    )


def _findings(run: RunSnapshot, layer: str) -> str:
    if run.diagnosis is None:
        return ""
    mine = [f for f in run.diagnosis.findings if f.layer and is_within(f.layer, layer)]
    return "".join(finding_html(f, has_ranks=len(run.ranks) > 1) for f in mine)


# --- what other formats would flush ---------------------------------------------------------------


def what_if_table(run: RunSnapshot, layer: str, step: int | None) -> str:
    """What other formats would flush of a layer, as an HTML table; empty where not recorded."""
    found = next((one for one in what_if_layers(run, step) if one.layer == layer), None)
    if found is None:
        return ""
    head = "".join(f'<th scope="col">{name}</th>' for name in FORMAT_NAMES)
    rows = "".join(
        f'<tr><th scope="row">{word}</th>{_cells(found, role)}</tr>' for role, word in ROLES.items()
    )
    return (
        '<div class="aw-chart-title"><b>What if</b>share that each format would flush to zero; '
        "bold: more than a layer survives</div>"
        f'<table class="aw-table aw-what-if"><thead><tr><th></th>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table>"
    )


def _cells(layer: WhatIfLayer, role: str) -> str:
    return "".join(_cell(layer, role, name) for name in FORMAT_NAMES)


def _cell(layer: WhatIfLayer, role: str, name: str) -> str:
    loss = layer.losses.get((role, name))
    if loss is None:
        return "<td>-</td>"
    text = said(percent_text(loss.flushed))
    return f"<td><b>{text}</b></td>" if loss.is_too_much else f"<td>{text}</td>"
