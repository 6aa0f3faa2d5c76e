"""The views of a run's layers that the painter draws: usable loss scales, casts in use, or what if.

A run has the views for which it has data. The best one is shown until the reader chooses another.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ampwatch.diagnosis.rules.precision import FLUSHED_SHARE, FLUSHED_SHARE_OF_FP4
from ampwatch.diagnosis.value_text import count_text, percent_text, powers
from ampwatch.report.facts import telling_step
from ampwatch.report.format_losses import (
    CAST_COLUMNS,
    FORMAT_NAMES,
    ROLES,
    STALENESS,
    WHAT_IF_COLUMNS,
    CastLayer,
    Loss,
    WhatIfLayer,
    cast_layers,
    what_if_layers,
)
from ampwatch.report.fp16_fit import Fp16Fit, fp16_fits, fp16_sentence, value_text
from ampwatch.report.last_layer_values import FORMAT_FACTS, Readable, columns_with_values
from ampwatch.report.painter.message import pack
from ampwatch.report.scale_windows import range_text, tightest, window_title, windows_at

if TYPE_CHECKING:
    from ampwatch.diagnosis import Diagnosis

FP16, FP8, WHAT_IF = "fp16", "fp8", "what-if"
NAMES = {FP16: "fp16", FP8: "fp8", WHAT_IF: "what if"}
# What a run that has it holds, the view that fits best first: casts are there only if chosen, and
# so are loss scales; what if exists for any layer in half precision.
_COLUMNS_OF_VIEW: Mapping[str, Sequence[str]] = {
    FP8: (*FORMAT_FACTS, *CAST_COLUMNS, STALENESS),
    FP16: ("scale_high",),
    WHAT_IF: tuple(WHAT_IF_COLUMNS.values()),
}
OF_FP16 = "underflow_share"  # measured of no other format
_OF_VALUES = "act_amax"  # tells whether they would fit fp16
VIEW_COLUMNS = (
    *(name for names in _COLUMNS_OF_VIEW.values() for name in names),
    OF_FP16,
    _OF_VALUES,
)


MOST_ROWS = 24  # that fit beside the charts


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a reader chose for the layers; None is no choice."""

    view: str | None = None
    role: str | None = None
    step: int | None = None
    layer: str | None = None
    most: int = MOST_ROWS  # layers


def offered(run: Readable) -> tuple[str, ...]:
    """The views of layers for which the run has data, the best one first.

    The last rows are enough to know: each sample has all columns of its view.
    """
    return views_with(columns_with_values(run, VIEW_COLUMNS))


def views_with(columns: Collection[str]) -> tuple[str, ...]:
    """The views of layers that these columns allow, the best one first."""
    has_fit = _OF_VALUES in columns and OF_FP16 not in columns
    return tuple(
        view
        for view, needed in _COLUMNS_OF_VIEW.items()
        if any(name in columns for name in needed) or (view == WHAT_IF and has_fit)
    )


# Which view shows what a finding is about; those of the others would distract from it.
_VIEW_OF_FINDING = {
    **dict.fromkeys(("AMP103", "AMP104", "AMP105", "AMP106", "AMP201", "AMP202", "AMP208"), FP16),
    **dict.fromkeys(("AMP701", "AMP702", "AMP703", "AMP704", "AMP706"), FP8),
}


def speaks_of(diagnosis: Diagnosis) -> str | None:
    """The view of layers that shows what the headline is about; None where none does."""
    head = diagnosis.headline
    if head is None or not head.severity.weight:
        return None
    return _VIEW_OF_FINDING.get(head.code)


def chosen_view(views: Sequence[str], wanted: str | None) -> str | None:
    """The view of layers to show: the chosen one if the run has it, otherwise the best."""
    return wanted if wanted in views else next(iter(views), None)


def view_message(
    run: Readable, views: Sequence[str], wanted: Wanted, diagnosis: Diagnosis | None
) -> bytes | None:
    """The painter's message of a view of layers; None if the run has no layer data."""
    header = view_header(run, views, wanted, diagnosis)
    return None if header is None else pack(header, {})


def view_header(
    run: Readable, views: Sequence[str], wanted: Wanted, diagnosis: Diagnosis | None
) -> dict[str, Any] | None:
    """What a view of layers shows; None if the run has no layer data."""
    view = chosen_view(views, wanted.view)
    if view is None:
        return None
    step = telling_step(diagnosis) if wanted.step is None else wanted.step
    wanted = replace(wanted, step=step)
    header = {FP16: windows_header, FP8: casts_header, WHAT_IF: what_if_header}[view]
    shown = header(run, wanted, diagnosis)
    return None if shown is None else {**shown, "view": view}


# --- the panels for formats below sixteen bits ----------------------------------------------------

_MOST_RECIPES = 2  # told by name
_NOTHING = "-"  # in a cell
WORST = "worst"  # of a layer's roles, instead of one of them


def casts_header(
    run: Readable, wanted: Wanted, diagnosis: Diagnosis | None = None
) -> dict[str, Any] | None:
    """The panel of the casts in use; None if nothing is cast."""
    layers = cast_layers(run, wanted.step)
    if not layers:
        return None
    has_scale = any(one.staleness is not None for one in layers)
    shown, panel = _worst(layers, {one.layer: one.excess for one in layers}, diagnosis, wanted)
    return panel | {
        "title": f"{_recipes(layers)} {_losses_text(layers)}".strip(),
        "columns": [*ROLES.values(), *(["scale"] if has_scale else [])],
        "isDiverging": True,
        "rows": [_cast_row(one, has_scale=has_scale) for one in shown],
        "note": "Of the values that are not zero, in %: ↓ flushed to zero, ↑ cut off; bold is more "
        "than in health. A dash: not cast, or not measured."
        + (" Scale: newest maximum over what the delayed scale can hold." if has_scale else ""),
        "step": wanted.step,
    }


def what_if_header(
    run: Readable, wanted: Wanted, diagnosis: Diagnosis | None = None
) -> dict[str, Any] | None:
    """The panel of alternative formats; None if they were not recorded."""
    role = wanted.role
    layers = what_if_layers(run, wanted.step)
    fits = {one.layer: one for one in fp16_fits(run, wanted.step)}
    formats = list(FORMAT_NAMES) if layers else []
    named = {one.layer for one in layers}
    layers += [WhatIfLayer(name, one.order, {}) for name, one in fits.items() if name not in named]
    layers.sort(key=lambda one: (one.order, one.layer))
    if not layers:
        return None
    excess = {one.layer: _what_if_excess(one, role, fits.get(one.layer)) for one in layers}
    shown, panel = _worst(layers, excess, diagnosis, wanted)
    of = "the worst of input, weight and gradient" if role is None else f"the {ROLES[role]}"
    return panel | {
        "title": powers(fp16_sentence(list(fits.values()))) or what_if_sentence(layers),
        "more": what_if_sentence(layers) if fits else "",
        "columns": [*(_FP16_COLUMNS if fits else ()), *formats],
        "isDiverging": False,
        "rows": [
            {"layer": one.layer, "says": "", "cells": [
                *(_fp16_cells(fits.get(one.layer)) if fits else ()),
                *(_what_if_cell(one, name, role) for name in formats),
            ]}
            for one in shown
        ],
        "note": (_FP16_NOTE if fits else "") + (
            f"The formats: share of {of} that would be flushed to zero, in %, with scales from the "
            f"tensor itself. Bold: more than {100 * FLUSHED_SHARE:.0f} "
            f"({100 * FLUSHED_SHARE_OF_FP4:.0f} in NVFP4), with which training usually degrades. "
            "A dash: the layer's shape does not fit the blocks of the format." if formats else ""
        ),
        "step": wanted.step,
    }  # fmt: skip


_FP16_COLUMNS = ("fp16 room", "scales")
_FP16_NOTE = (
    "fp16 room: octaves from the layer's largest value to 65,504, where fp16 ends. Scales: the "
    "loss scales in fp16 that would suit its gradients; where small gradients were not recorded, "
    "only the largest one. "
)


def fault_of(diagnosis: Diagnosis | None) -> dict[str, str] | None:
    """The layer that a view marks because findings name it, and the text for it."""
    suspect = None if diagnosis is None else diagnosis.suspect
    if suspect is None:
        return None
    return {"layer": suspect.layer or "", "words": f"named by {suspect.code}"}


# --- sentences -----------------------------------------------------------------------------------


def _recipes(layers: Sequence[CastLayer]) -> str:
    """The formats in which the layers multiply."""
    told = Counter(one.recipe for one in layers if one.recipe).most_common()
    if not told:
        return ""
    first, count = told[0]
    text = f"{count_text(count, 'layer multiplies', 'layers multiply')} in {first}"
    text += "".join(f", {count:,} in {recipe}" for recipe, count in told[1:_MOST_RECIPES])
    rest = sum(count for _, count in told[_MOST_RECIPES:])
    return text + (f", {rest:,} in others." if rest else ".")


def _losses_text(layers: Sequence[CastLayer]) -> str:
    told = [(loss, role, one) for one in layers for role, loss in one.losses.items()]
    stale = max((one for one in layers if one.is_stale), key=_staleness, default=None)
    if not told and stale is None:
        return "What that loses was not measured."
    if stale is not None:
        return _stale_text(stale)
    loss, role, worst = max(told, key=lambda entry: entry[0].excess)
    if loss.excess == 0:
        return "Their casts lose nothing."
    does = f"{worst.layer} {_loses(loss, ROLES[role])}"
    if not loss.is_too_much:
        return f"No cast loses more than in health; {does}, the most."
    others = sum(one.excess > 1 for one in layers) - 1
    return f"{does}." + (
        f" {count_text(others, 'other layer loses', 'other layers lose')} too much."
        if others
        else ""
    )


def _staleness(layer: CastLayer) -> float:
    return layer.staleness or 0.0


def _stale_text(layer: CastLayer) -> str:
    if math.isinf(_staleness(layer)):
        return f"The scale of {layer.layer} is frozen: its newest maximum is not finite."
    held = f"{_staleness(layer):.2g} times what its scale can hold"
    return f"The newest maximum of {layer.layer} is {held}."


def _loses(loss: Loss, what: str) -> str:
    """`flushes 12 % of its input to zero`, or the share cut off if that is worse."""
    only_cut = Loss(loss.form, 0.0, loss.cut)
    if only_cut.excess == loss.excess:
        return f"cuts off {percent_text(loss.cut)} of its {what}"
    return f"flushes {percent_text(loss.flushed)} of its {what} to zero"


def what_if_sentence(layers: Sequence[WhatIfLayer]) -> str:
    """How many layers would survive in which format, and which one would lose most."""
    usual = [(one.layer, found) for one in layers if (found := one.usual())]
    parts = []
    if usual:
        survive = sum(not loss.is_too_much for _, (_, loss) in usual)
        parts.append(f"In fp8 (E4M3, gradients E5M2) {_survivors(survive, len(usual))}")
        layer, (role, loss) = max(usual, key=lambda entry: entry[1][1].flushed)
        if loss.is_too_much:
            lost = f"{percent_text(loss.flushed)} of its {ROLES[role]}"
            parts[0] += f"; {layer} would lose {lost}"
    for name in ("MXFP8", "NVFP4"):
        losses = [worst[1] for one in layers if (worst := one.worst(name))]
        if losses:
            survive = sum(not loss.is_too_much for loss in losses)
            count = "all" if survive == len(losses) else f"{survive:,} of"
            parts.append(f"{name}: {count} {len(losses):,}")
    return ". ".join(parts) + "." if parts else ""


def _survivors(count: int, total: int) -> str:
    if count == total:
        return "all layers would survive" if total > 1 else "the layer would survive"
    return f"{count:,} of {count_text(total, 'layer')} would survive"


# --- rows ----------------------------------------------------------------------------------------


def _worst(
    layers: Sequence[Any], excess: Mapping[str, float], diagnosis: Diagnosis | None, wanted: Wanted
) -> tuple[list[Any], dict[str, Any]]:
    """The layers to show, of too many those named and those that lose most; and their panel."""
    fault = fault_of(diagnosis)
    named = {wanted.layer, fault["layer"] if fault else None}
    ranked = sorted(layers, key=lambda one: (one.layer not in named, -excess[one.layer]))
    kept = {one.layer for one in ranked[: wanted.most]}
    shown = [one for one in layers if one.layer in kept]
    hidden = len(layers) - len(shown)
    return shown, {"component": "losses", "fault": fault, "chosen": wanted.layer, "hidden": hidden}


def _what_if_excess(layer: WhatIfLayer, role: str | None, fit: Fp16Fit | None) -> float:
    if fit is not None and not fit.is_possible:
        return math.inf
    found = (layer.worst(name, role) for name in FORMAT_NAMES)
    return max((loss.excess for _, loss in filter(None, found)), default=0.0)


def _cast_row(one: CastLayer, *, has_scale: bool) -> dict[str, Any]:
    cells = [_cast_cell(one, role, word) for role, word in ROLES.items()]
    cells += [_scale_cell(one)] if has_scale else []
    return {"layer": one.layer, "says": one.recipe, "cells": cells}


def _cast_cell(one: CastLayer, role: str, word: str) -> dict[str, Any]:
    loss = one.losses.get(role)
    if loss is None:
        says = "is not cast" if role not in one.forms else "was not measured"
        return _cell(_NOTHING, f"the {word} {says}")
    only_cut = Loss(loss.form, 0.0, loss.cut).excess
    is_cut = bool(only_cut) and only_cut == loss.excess
    sign = "↑" if is_cut else "↓" if loss.flushed else ""
    says = f"{word}: {percent_text(loss.flushed)} flushed to zero, {percent_text(loss.cut)} cut off"
    number = short_percent(loss.cut if is_cut else loss.flushed)
    return _cell(sign + number, says, loss)


def _scale_cell(one: CastLayer) -> dict[str, Any]:
    if one.staleness is None:
        return _cell(_NOTHING, "no delayed scale")
    if math.isinf(one.staleness):
        return _cell("∞", "the newest maximum is not finite: the scale is frozen", is_over=True)
    says = f"the newest maximum is {one.staleness:.2g} times what the scale can hold"
    return _cell(f"{one.staleness:.2g}x", says, is_over=one.is_stale)


def _fp16_cells(fit: Fp16Fit | None) -> list[dict[str, Any]]:
    if fit is None:
        return [_cell(_NOTHING, "fp16 would not change this layer")] * len(_FP16_COLUMNS)
    room, says = f"{fit.headroom:.1f}", f"largest value {value_text(fit.amax)}; fp16 ends at 65,504"
    if fit.window is None:
        return [_cell(room, says, is_over=fit.headroom < 0), _cell(_NOTHING, "no gradients")]
    scales = powers(range_text(fit.window))
    told = f"usable loss scales in fp16: {scales}"
    return [
        _cell(room, says, is_over=fit.headroom < 0),
        _cell(
            scales.replace("up to ", "≤ ").replace(" to ", "…"), told, is_over=fit.window.is_empty
        ),
    ]


def _what_if_cell(one: WhatIfLayer, name: str, role: str | None) -> dict[str, Any]:
    found = one.worst(name, role)
    if found is None:
        return _cell(_NOTHING, f"{name} does not fit the layer's shape, or was not sampled")
    worst, loss = found
    says = f"{name} would flush {percent_text(loss.flushed)} of the {ROLES[worst]} to zero"
    return _cell(short_percent(loss.flushed), says, loss)


def _cell(
    text: str, says: str, loss: Loss | None = None, *, is_over: bool = False
) -> dict[str, Any]:
    return {
        "text": text,
        "says": says,
        "flushed": 0.0 if loss is None else loss.flushed,
        "cut": 0.0 if loss is None else loss.cut,
        "isOver": is_over or (loss is not None and loss.is_too_much),
    }


def short_percent(share: float) -> str:
    """A share in per cent without the sign, short enough for a cell of a view."""
    percent = 100 * share
    if not percent:
        return "0"
    if percent < 0.1:
        return "<0.1"
    return f"{percent:.1f}" if percent < 1 else f"{percent:.0f}"


# --- usable loss scales ---------------------------------------------------------------------------


_WINDOWS_NOTE = (
    "A bar spans the loss scales that suit the layer. Left of it the layer loses small gradients, "
    "right of it they overflow. A bar that fades out to the left loses none. The line is the loss "
    "scale of that step. Red is the layer in the title, where that scale costs it something."
)


def windows_header(
    run: Readable, wanted: Wanted, diagnosis: Diagnosis | None = None
) -> dict[str, Any] | None:
    """The panel of usable loss scales at one step; None where the run has no windows."""
    sample = windows_at(run, wanted.step)
    if sample is None:
        return None
    fault = fault_of(diagnosis)
    suspect = None if diagnosis is None else diagnosis.suspect
    is_of_scale = suspect is not None and _VIEW_OF_FINDING.get(suspect.code) == FP16
    named = suspect.layer if suspect and is_of_scale else None  # no scale helps a forward pass
    title = window_title(sample.windows, sample.scale, named)
    marked = fault["layer"] if fault else None
    shown = tightest(sample.windows, wanted.most, {marked, wanted.layer, *title.layers})
    # Where the scale of that step suited every layer, none of them is to blame.
    is_fault = title.is_trouble and diagnosis is not None and speaks_of(diagnosis) == FP16
    return {
        "component": "windows",
        "title": powers(title.text),
        "rows": [
            {"layer": one.layer, "low": one.low, "high": one.high,
             "isFault": is_fault and one.layer in title.layers}
            for one in shown
        ],
        "fault": fault,
        "explains": title.is_trouble and (marked is None or marked in title.layers),
        "chosen": wanted.layer,
        "note": _WINDOWS_NOTE,
        "hidden": len(sample.windows) - len(shown),
        "scale": sample.scale,
        "step": sample.step,
    }  # fmt: skip
