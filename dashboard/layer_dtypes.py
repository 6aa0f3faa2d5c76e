"""The data types of layers as a tree to fold, as HTML; neighbours that are alike are one branch."""

from __future__ import annotations

import html
from collections.abc import Iterator
from itertools import groupby

from formatting import said, short_dtype, shortened
from layer_samples import Branch

from ampwatch.report.number_format_text import formats_text

_OPEN_ROWS = 40  # a tree with more begins folded
_LETTERS = 22  # of a name
_PARTS = ("input", "param", "output", "out_grad")


def dtypes_html(root: Branch) -> str:
    """What each layer takes, holds and gives, and where autocast is off."""
    head = (
        '<div class="aw-chart-title"><b>Data types</b>input, parameters, output, gradient; '
        "fp16 and bf16 in colour; neighbours that are alike in one row</div>"
    )
    is_open = _rows(root) <= _OPEN_ROWS
    return f'{head}<div class="aw-tree">{_inside(root, "", is_open=is_open)}</div>'


def _inside(branch: Branch, path: str, *, is_open: bool) -> str:
    return "".join(_branch(alike, path, is_open=is_open) for alike in _alike(branch))


def _branch(alike: list[Branch], path: str, *, is_open: bool) -> str:
    """One branch, or several whose insides are the same: the first then stands for all."""
    first = alike[0]
    place = f"{path}.{first.name}" if path else first.name
    if not first.inside:
        return f'<div class="aw-tree-row">{_leaf(_name(alike), place)}{_types(first)}</div>'
    own = _leaf(f"open {said(shortened(first.name, _LETTERS))} itself", place)
    return (
        f'<details data-key="{html.escape(place)}"{" open" * is_open}>'
        f'<summary class="aw-tree-row"><span>{_name(alike)}</span>{_types(first)}</summary>'
        f'<div class="aw-tree-inside"><div class="aw-tree-row">{own}</div>'
        f"{_inside(first, place, is_open=is_open)}</div></details>"
    )


def _name(alike: list[Branch]) -> str:
    words = f"<bdi>{said(shortened(alike[0].name, _LETTERS))}</bdi>"
    if len(alike) == 1:
        return words
    last = said(shortened(alike[-1].name, _LETTERS))
    return f'{words} to <bdi>{last}</bdi> <span class="aw-muted">{len(alike):,} alike</span>'


def _leaf(words: str, place: str) -> str:
    title = html.escape(place)
    return (
        f'<span class="aw-leaf" role="button" tabindex="0" data-go="{title}" title="{title}">'
        f"{words}</span>"
    )


def _types(branch: Branch) -> str:
    chips = "".join(_chip(branch.facts.get(f"{part}_dtype")) for part in _PARTS)
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


def _alike(branch: Branch) -> Iterator[list[Branch]]:
    """What is inside, neighbours with numbers for names together where all else is the same."""
    for _, found in groupby(branch.inside.values(), key=_shape):
        yield list(found)


def _shape(branch: Branch) -> tuple[object, ...]:
    """What branches that are alike have in common: all, and the name unless it is a number."""
    return (None if branch.name.isdecimal() else branch.name, _contents(branch))


def _contents(branch: Branch) -> tuple[object, ...]:
    facts = branch.facts
    own = (*(facts.get(f"{part}_dtype") for part in _PARTS), facts.get("autocast"))
    own += (formats_text(facts),)
    return (own, *((one.name, _contents(one)) for one in branch.inside.values()))


def _rows(branch: Branch) -> int:
    return sum(1 + _rows(alike[0]) for alike in _alike(branch))
