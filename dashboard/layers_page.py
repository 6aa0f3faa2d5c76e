"""The layers: a heatmap over steps, usable loss scales, data types; and one layer."""

from __future__ import annotations

import html
from functools import partial

import address
import browser
import layer_samples
import live_chart
import navigate
import run_list
import small_charts
import streamlit as st
from chart_points import thinned_lines
from findings_page import words_of
from formatting import said, short_dtype, shortened
from layer_samples import QUANTITIES, Branch, Exponents, is_within
from open_runs import Look
from problems import guarded, problem

from ampwatch.report.number_format_text import formats_text
from ampwatch.report.overview_chart import column_panel
from ampwatch.report.painter import PALETTE
from ampwatch.report.painter.message import Picture, pack
from ampwatch.rows import Table

_EVERY_S = 2.0
_HEATMAP, _WINDOWS, _TREE = "heatmap", "layer windows", "layer tree"
_NOTHING = (
    "This run has no layer rows: it was attached without a model, or has not reached its first "
    "sampled step. ampwatch.attach(scaler, model) records them."
)
_LAYERS = partial(column_panel, Table.LAYERS)
_PANELS = (
    _LAYERS("grad_norm", "norm"),
    _LAYERS("act_amax", "ink"),
    _LAYERS("log2_headroom", "scale", aside="octaves below fp16's maximum", height=76),
    _LAYERS("underflow_share", "skip", aside="share of the gradient's values", height=76, unit=""),
    _LAYERS("update_ratio", "rate", aside="update / weights", height=76),
)


def show(path: str, *, follow: bool) -> None:
    """The page of layers, kept up to date while the run goes on."""
    look = run_list.look(path)
    label = st.segmented_control(
        "Quantity", [quantity.label for quantity in QUANTITIES], key="quantity",
        default=QUANTITIES[0].label, label_visibility="collapsed",
    )  # fmt: skip
    st.fragment(_now, run_every=_EVERY_S if look.is_live and follow else None)(path, label)


@guarded
def _now(path: str, label: str | None) -> None:
    look, where = run_list.look(path), address.read()
    if not layer_samples.layer_names(look):
        problem(_NOTHING)
        return
    if where.layer:
        _one_layer(look, where.layer, where.step)
    wide, narrow = st.columns([2.2, 1], gap="medium")
    with wide:
        _heatmap(look, label, where)
        if not where.layer:
            _suspect(look, where.step)
    scales = live_chart.scale_windows(look, where.step)
    with narrow:
        if scales is not None:
            browser.component(scales, key=_WINDOWS, on_layer_change=_window_chosen)
        browser.html(_dtypes(layer_samples.tree(look)), key=_TREE, on_go=_tree_chosen)
    navigate.follow()


# --- all layers ----------------------------------------------------------------------------------


def _heatmap(look: Look, label: str | None, where: address.Address) -> None:
    quantity = next((q for q in QUANTITIES if q.label == label), QUANTITIES[0])
    grid = layer_samples.grid(look, quantity, where.span)
    if not grid.layers:
        st.html(f'<div class="aw-muted">This run holds no {said(quantity.label)} of layers.</div>')
        return
    header = {
        "component": "heatmap",
        "layers": list(grid.layers),
        "label": quantity.label + _of_ranks(look),
        "unit": quantity.aside,
        "log": quantity.is_log,
        "lowIsWorst": quantity.worst_is_low,
        "layer": where.layer,
        "step": where.step,
        "palette": PALETTE,
    }
    message = pack(header, {"edges": grid.edges, "values": grid.values.ravel()})
    browser.component(message, key=_HEATMAP, on_cell_change=_cell_chosen)


def _of_ranks(look: Look) -> str:
    is_one = look.rank is not None or len(look.ranks) < 2
    return "" if is_one else f", the worst of {len(look.ranks)} ranks"


def _cell_chosen() -> None:
    cell = st.session_state[_HEATMAP].cell
    if cell:
        address.change(layer=str(cell["layer"]), step=int(cell["step"]))


def _window_chosen() -> None:
    layer = st.session_state[_WINDOWS].layer
    if layer:
        address.change(layer=str(layer))


def _tree_chosen() -> None:
    layer = st.session_state[_TREE].go
    if layer:
        address.change(layer=str(layer))


def _dtypes(root: Branch) -> str:
    """The data types as a tree to fold, and where autocast is off."""
    head = (
        '<div class="aw-chart-title"><b>Data types</b>input, parameters, output, gradient; '
        "fp16 and bf16 in colour</div>"
    )
    inside = "".join(_branch(one, one.name) for one in root.inside.values())
    return f'{head}<div class="aw-tree">{inside}</div>'


def _branch(branch: Branch, path: str) -> str:
    name = (
        f'<span class="aw-leaf" role="button" tabindex="0" data-go="{html.escape(path)}" '
        f'title="{html.escape(path)}">'
        f"{said(shortened(branch.name, 22))}</span>{_types(branch)}"
    )
    if not branch.inside:
        return f'<div class="aw-tree-row">{name}</div>'
    inside = "".join(_branch(one, f"{path}.{one.name}") for one in branch.inside.values())
    return (
        f'<details data-key="{html.escape(path)}" open>'
        f'<summary class="aw-tree-row">{name}</summary>'
        f'<div class="aw-tree-inside">{inside}</div></details>'
    )


def _types(branch: Branch) -> str:
    names = [branch.facts.get(f"{part}_dtype") for part in ("input", "param", "output", "out_grad")]
    chips = "".join(_chip(name) for name in names)
    off = (
        '<span class="aw-off">autocast off</span>' if branch.facts.get("autocast") is False else ""
    )
    cast = formats_text(branch.facts)
    narrow = f'<span class="aw-off" title="{said(cast)}">{said(cast)}</span>' if cast else ""
    return f'<span class="aw-types">{off}{narrow}{chips}</span>'


def _chip(dtype: str | None) -> str:
    if not dtype:
        return '<i class="aw-dtype none">-</i>'
    short = short_dtype(dtype)
    half = " half" if short in {"fp16", "bf16", "fp8"} else ""
    return f'<i class="aw-dtype{half}">{said(short)}</i>'


# --- one layer -----------------------------------------------------------------------------------


def _suspect(look: Look, step: int | None) -> None:
    """The layer at fault, as the overview names it, until the reader has chosen one."""
    layer = _at_fault(look)
    if layer is None or layer not in layer_samples.layer_names(look):
        st.html(
            '<div class="aw-muted">Click a layer to see its history, histogram and findings.</div>'
        )
        return
    st.html(f'<p class="aw-title" role="heading" aria-level="2">{said(layer)}</p>')
    _history(look, layer, step)
    _facts(look, layer, step)


def _at_fault(look: Look) -> str | None:
    suspect = None if look.diagnosis is None else look.diagnosis.suspect
    return None if suspect is None else suspect.layer


def _one_layer(look: Look, layer: str, step: int | None) -> None:
    head, close = st.columns([6, 1])
    head.html(f'<p class="aw-title" role="heading" aria-level="2">{said(layer)}</p>')
    if close.button("All layers", width="stretch"):
        address.change(layer=None)
        st.rerun(scope="fragment")
    if layer not in layer_samples.layer_names(look):
        st.html(f'<div class="aw-problem">This run has no layer named {said(layer)}.</div>')
        return
    past, now = st.columns([2.2, 1], gap="medium")
    with past:
        _history(look, layer, step)
    with now:
        _facts(look, layer, step)


def _history(look: Look, layer: str, step: int | None) -> None:
    curves = layer_samples.history(look, layer)
    picture = Picture(
        name=f"{look.path} {layer}", ends=curves.ends,
        panels=[panel for panel in _PANELS if panel.strokes[0].column in curves.present],
        picked=step, rows=len(curves), reports=False,
    )  # fmt: skip
    live_chart.show_still(picture, thinned_lines(curves), key="layer chart")


def _facts(look: Look, layer: str, step: int | None) -> None:
    at = live_chart.moment(look, step)
    browser.html(_histogram(look, layer, at) + _findings(look, layer), key="layer facts")


def _histogram(look: Look, layer: str, step: int | None) -> str:
    found = layer_samples.exponents(look, layer, step)
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
