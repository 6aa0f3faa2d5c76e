"""The layers: a heatmap over steps, usable loss scales, a tree of data types; and one layer.

In the tree neighbours that are alike are folded into one row.
"""

from __future__ import annotations

import html
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import address
import browser_component
import layer_chart_data
import layer_choices
import numpy as np
import open_runs
import pyarrow.compute as pc
import run_chart
import small_charts
import streamlit as st
from findings_page import finding_html
from html_text import said, short_dtype, shortened
from layer_chart_data import ExponentHistogram, HeatmapGrid
from layer_choices import ShownQuantity, draw_choices, shown_quantity
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
    browser_component.forget_base(_HEATMAP)  # it may be lost with the page before
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
    facts = last_dtypes(run)
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
        types = dtypes_html(layer_tree(names, facts), fault)
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
    header = {
        "component": "heatmap",
        "name": run.name,
        "base": base,
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
        "heard": run_chart.choice_count(_HEATMAP),
        "palette": PALETTE,
    }
    arrays: Arrays = {"edges": grid.edges, "steps": grid.steps, "values": grid.values.ravel()}
    arrays["recipe"] = recipe
    more = _layers_with_values(grid, names)
    browser_component.draw_on_base(
        lambda whole: (
            pack({**header, "hasBase": True, **more}, arrays)
            if whole
            else pack({**header, "hasBase": False}, {})
        ),
        base,
        key=_HEATMAP,
        on_look_change=_look_changed,
    )


def _layers_with_values(grid: HeatmapGrid, names: tuple[str, ...]) -> dict[str, list[str]]:
    """The layers that have a value in the heatmap, and the others."""
    have = set(grid.layers)
    return {"layers": list(grid.layers), "others": [name for name in names if name not in have]}


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


# --- data types -----------------------------------------------------------------------------------


_OPEN_ROWS = 40  # a tree with more begins folded
_LETTERS = 22  # of a name
ROOT = "(root)"
_TAIL_ROWS = 20_000  # tell every layer's data types
_DTYPES = ("input_dtype", "param_dtype", "output_dtype", "out_grad_dtype", "autocast", "kind",
           "input_format", "weight_format", "grad_format")  # fmt: skip
_PARTS = ("input", "param", "output", "out_grad")


def is_within(name: str, layer: str) -> bool:
    """Whether a layer's name is this layer's or lies inside it; the root holds all."""
    return layer in {name, ROOT} or name.startswith(f"{layer}.")


@dataclass(slots=True)
class LayerBranch:
    """A layer of the tree, with the layers inside it."""

    name: str
    facts: dict[str, Any]
    inside: dict[str, LayerBranch]


def last_dtypes(run: RunSnapshot) -> dict[str, dict[str, Any]]:
    """The data types and number formats of each layer as they were last seen."""
    rows = run.last_rows(Table.LAYERS, ("layer", *_DTYPES), _TAIL_ROWS)
    return {row["layer"] or "": row for row in _last_rows_of_layers(rows).to_pylist()}


def layer_tree(names: Sequence[str], latest: Mapping[str, dict[str, Any]]) -> LayerBranch:
    """The layers as a tree, as the model nests them, with their data types."""
    root = LayerBranch("", {}, {})
    for layer in names:
        if layer == ROOT:
            root.facts = latest.get(layer, {})
            continue
        branch = root
        for part in layer.split("."):
            branch = branch.inside.setdefault(part, LayerBranch(part, {}, {}))
        branch.facts = latest.get(layer, {})
    return root


def _last_rows_of_layers(rows: Any) -> Any:
    """The last row of each layer."""
    coded = pc.dictionary_encode(pc.cast(rows.column("layer"), "string")).combine_chunks()
    codes = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    _, from_end = np.unique(codes[::-1], return_index=True)
    return rows.take(len(codes) - 1 - from_end)


# --- the tree as HTML -----------------------------------------------------------------------------


def dtypes_html(root: LayerBranch, fault: str | None = None) -> str:
    """The tree of layers as HTML, with each one's data types, formats and where autocast is off.

    The layer that the findings name, `fault`, is marked and stands alone.
    """
    head = (
        '<div class="aw-chart-title"><b>Data types</b>input, parameters, output, gradient; '
        "fp16 and bf16 in colour; neighbours that are alike in one row</div>"
    )
    groups = _groups(root, {}, "", fault)
    inside = _inside(groups, "", is_open=_rows(groups) <= _OPEN_ROWS)
    return f'{head}<div class="aw-tree">{inside}</div>'


@dataclass(slots=True)
class _Group:
    """A branch and the neighbours that are alike: the first stands for all."""

    first: LayerBranch
    last: str
    count: int
    shape: int  # a number for each that differs
    inside: list[_Group]
    is_fault: bool


def _groups(
    branch: LayerBranch, shapes: dict[object, int], path: str, fault: str | None
) -> list[_Group]:
    """The layers inside a branch; neighbours with numbers for names are one group where alike."""
    found: list[_Group] = []
    for one in branch.inside.values():
        place = f"{path}.{one.name}" if path else one.name
        inside = _groups(one, shapes, place, fault)
        is_fault = place == fault
        key = (
            _own(one),
            is_fault,
            *((group.first.name, group.last, group.shape) for group in inside),
        )
        shape = shapes.setdefault(key, len(shapes))
        before = found[-1] if found else None
        numbered = before is not None and before.last.isdecimal() and one.name.isdecimal()
        if before is not None and numbered and before.shape == shape:
            before.last, before.count = one.name, before.count + 1
        else:
            found.append(_Group(one, one.name, 1, shape, inside, is_fault))
    return found


def _own(branch: LayerBranch) -> tuple[object, ...]:
    facts = branch.facts
    dtypes = (facts.get(f"{part}_dtype") for part in _PARTS)
    return (*dtypes, facts.get("autocast"), formats_text(facts))


def _rows(groups: list[_Group]) -> int:
    return sum(1 + _rows(group.inside) for group in groups)


def _inside(groups: list[_Group], path: str, *, is_open: bool) -> str:
    return "".join(_group(group, path, is_open=is_open) for group in groups)


def _group(group: _Group, path: str, *, is_open: bool) -> str:
    first = group.first
    place = f"{path}.{first.name}" if path else first.name
    if not group.inside:
        return f'<div class="aw-tree-row">{_leaf(_name(group), place)}{_types(first)}</div>'
    own = _leaf(f"{said(shortened(first.name, _LETTERS))} as a whole", place)
    return (
        f'<details data-key="{html.escape(place)}"{" open" * is_open}>'
        f'<summary class="aw-tree-row"><span>{_name(group)}</span>{_types(first)}</summary>'
        f'<div class="aw-tree-inside"><div class="aw-tree-row">{own}</div>'
        f"{_inside(group.inside, place, is_open=is_open)}</div></details>"
    )


def _name(group: _Group) -> str:
    words = f"<bdi>{said(shortened(group.first.name, _LETTERS))}</bdi>"
    if group.is_fault:
        words = f'<span class="aw-fault">✕ {words}</span>'
    if group.count == 1:
        return words
    last = said(shortened(group.last, _LETTERS))
    return f'{words} to <bdi>{last}</bdi> <span class="aw-muted">{group.count:,} alike</span>'


def _leaf(words: str, place: str) -> str:
    title = html.escape(place)
    return (
        f'<span class="aw-leaf" role="button" tabindex="0" data-go="{title}" title="{title}">'
        f"{words}</span>"
    )


def _types(branch: LayerBranch) -> str:
    chips = "".join(_chip(branch.facts.get(f"{part}_dtype")) for part in _PARTS)
    off = (
        '<span class="aw-off">autocast off</span>' if branch.facts.get("autocast") is False else ""
    )
    cast = formats_text(branch.facts)
    narrow = f'<span class="aw-recipe">{said(cast)}</span>' if cast else ""
    return f'{narrow}<span class="aw-types">{off}{chips}</span>'


def _chip(dtype: str | None) -> str:
    if not dtype:
        return '<i class="aw-dtype none">-</i>'
    short = short_dtype(dtype)
    half = " half" if short in {"fp16", "bf16", "fp8"} else ""
    return f'<i class="aw-dtype{half}">{said(short)}</i>'
