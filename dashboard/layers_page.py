"""The layers: one tree with data types, a heat map over steps and usable scales; and one layer."""

from __future__ import annotations

import hashlib
import html
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import address
import browser_component
import layer_chart_data
import layer_choices
import open_runs
import run_chart
import small_charts
import streamlit as st
from findings_page import finding_html
from html_text import said, shortened
from layer_chart_data import ExponentHistogram, HeatmapGrid
from layer_choices import ShownQuantity, draw_choices, shown_quantity
from layer_columns import last_dtypes, type_columns, view_columns
from open_runs import RunSnapshot
from page_parts import refresh_run_part, show_as_text, show_problem
from run_chart import thinned_lines

from ampwatch.diagnosis.value_text import percent_text
from ampwatch.report.format_losses import (
    FORMAT_NAMES,
    ROLES,
    STALENESS,
    WhatIfLayer,
    what_if_layers,
)
from ampwatch.report.html_file import layers_table
from ampwatch.report.layer_views import FP8, WHAT_IF, fault_of
from ampwatch.report.overview_chart import column_panel
from ampwatch.report.painter import PALETTE
from ampwatch.report.painter.message import Arrays, Panel, Picture, Stroke, pack
from ampwatch.rows import Table

_EVERY_S = 2.0
_HEATMAP = "heatmap"
_TITLE_LETTERS = 60  # of a name; the mouse over it shows the others
ROOT = "(root)"
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
    browser_component.forget_base(_HEATMAP)  # it may be lost with the page before
    refresh_run_part(_draw_layers, path, _EVERY_S)


def _draw_layers(path: str) -> None:
    run, where = open_runs.snapshot(path), address.read()
    chosen = shown_quantity(run, where)
    names = layer_chart_data.layer_names(run, chosen.quantity)
    if not names:
        show_problem(_without_layers(run))
        return
    draw_choices(run, where)
    grid = layer_chart_data.heatmap_grid(run, chosen.quantity, where.span, chosen.role)
    with st.container(key="layers"):
        wide, narrow = st.columns([2, 1], gap="medium")
    with wide:  # always here, with or without the drawer: it keeps its place and the focus
        _heatmap(run, grid, chosen, where)
    drawer = narrow.empty()  # replaces what was there: a fragment's rerun may leave it
    if where.layer is not None:
        with drawer.container(key="drawer"):
            _draw_layer(run, where.layer, names, grid, where)
    show_as_text(run.once(("layers", where.step), lambda: layers_table(run, where.step)))
    address.switch_if_asked()


def _without_layers(run: RunSnapshot) -> str:
    """Why a run has no layers, and what to do."""
    if run.info.source != "ampwatch":
        return (
            f"This run was imported from another trainer's log ({run.info.source}), and such a log "
            "holds no numbers of layers. To see them, train with ampwatch.attach(scaler, model)."
        )
    if run.is_live:
        return "No layers yet: the first sampled step has not come, or the run has no model."
    return "This run has no layers. Pass the model: ampwatch.attach(scaler, model)."


# --- all layers ----------------------------------------------------------------------------------


def _heatmap(
    run: RunSnapshot, grid: HeatmapGrid, chosen: ShownQuantity, where: address.Address
) -> None:
    """Draw the heat map of all layers, with what stands beside it."""
    quantity = chosen.quantity
    if not grid.layers:
        st.html(f'<div class="aw-muted">This run holds no {said(quantity.label)} of layers.</div>')
        return
    layers = grid.layers
    types, type_number = run.once(("types", layers), lambda: type_columns(layers, last_dtypes(run)))
    view, view_arrays = view_columns(layers, layer_choices.whole_view(run, where))
    base = f"{grid.id} {_digest({**types, **view}, {**type_number, **view_arrays})}"
    header = {
        "component": "heatmap",
        "name": run.name,
        "base": base,
        "label": chosen.label + _of_ranks(run),
        "unit": quantity.aside,
        "log": quantity.is_log,
        "lowIsWorst": quantity.worst_is_low,
        "limit": quantity.limit,
        "axis": list(grid.axis),
        "isMerged": grid.is_merged,
        "layer": where.layer,
        "fault": fault_of(run.diagnosis),
        **view,
        "step": where.step,
        "view": where.map,
        "heard": run_chart.choice_count(_HEATMAP),
        "palette": PALETTE,
    }
    arrays: Arrays = {"edges": grid.edges, "steps": grid.steps, "values": grid.values.ravel()}
    arrays |= type_number | view_arrays
    browser_component.draw_on_base(
        lambda whole: (
            pack({**header, "hasBase": True, "layers": list(layers), **types}, arrays)
            if whole
            else pack({**header, "hasBase": False}, {})
        ),
        base,
        key=_HEATMAP,
        on_look_change=_look_changed,
    )


def _digest(header: Mapping[str, Any], arrays: Arrays) -> str:
    """A short text that differs where what stands beside the map does."""
    return hashlib.blake2b(pack(header, arrays), digest_size=12).hexdigest()


def _of_ranks(run: RunSnapshot) -> str:
    is_one = run.rank is not None or len(run.ranks) < 2
    return "" if is_one else f", the worst of {len(run.ranks)} ranks"


def _look_changed() -> None:
    told = run_chart.reader_choice(_HEATMAP)
    view, layer, step = told.get("view"), told.get("layer"), told.get("step")
    address.change(
        map=str(view) if view else None,
        layer=None if layer is None else str(layer),
        step=None if step is None else int(step),
    )


# --- one layer -----------------------------------------------------------------------------------


def _draw_layer(
    run: RunSnapshot, layer: str, names: tuple[str, ...], grid: HeatmapGrid, where: address.Address
) -> None:
    """Draw one layer: its findings, its numbers and its histogram."""
    with st.container(horizontal=True, vertical_alignment="center"):
        st.html(_title(layer))
        if st.button("", icon=":material/close:", help="Close", key="close layer", type="tertiary"):
            address.change(layer=None)
            st.rerun(scope="fragment")
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


def is_within(name: str, layer: str) -> bool:
    """Whether a layer's name is this layer's or lies inside it; the root holds all."""
    return layer in {name, ROOT} or name.startswith(f"{layer}.")


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
    diagnosis = run.diagnosis_as_told()
    told = () if diagnosis is None else diagnosis.findings
    mine = [one for one in told if one.layer and is_within(one.layer, layer)]
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
