"""The layers as a tree with their data types, and that tree as HTML with like neighbours folded."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.compute as pc
from html_text import said, short_dtype, shortened
from open_runs import RunSnapshot

from ampwatch.report.format_losses import formats_text
from ampwatch.rows import Table

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
