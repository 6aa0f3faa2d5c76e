"""The views of a run's layers that the painter draws: usable loss scales, casts in use, or what if.

A run has the views for which it has data. The best one is shown until the reader chooses another.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ampwatch.diagnosis.rules.cast_losses import FLUSHED_SHARE, FLUSHED_SHARE_OF_FP4
from ampwatch.diagnosis.value_text import count_text, percent_text, powers, scale_text
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
from ampwatch.report.last_layer_values import FORMAT_FACTS, Readable, has_values, last_known
from ampwatch.report.painter.message import pack

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
VIEWS = tuple(_COLUMNS_OF_VIEW)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a reader chose for the layers; None is no choice."""

    view: str | None = None
    role: str | None = None
    step: int | None = None
    layer: str | None = None


def offered(run: Readable, *, quick: bool = False) -> tuple[str, ...]:
    """The views of layers for which the run has data, the best one first.

    The last rows are enough to know: each sample has all columns of its view.
    """
    there = has_values(run, list(_COLUMNS_OF_VIEW.values()), quick=quick)
    return tuple(view for view, is_there in zip(_COLUMNS_OF_VIEW, there, strict=True) if is_there)


def chosen_view(views: Sequence[str], wanted: str | None) -> str | None:
    """The view of layers to show: the chosen one if the run has it, otherwise the best."""
    return wanted if wanted in views else next(iter(views), None)


def view_message(
    run: Readable,
    views: Sequence[str],
    wanted: Wanted,
    diagnosis: Diagnosis | None,
    level: float | None,
    *,
    switch: bool = True,
) -> bytes | None:
    """The painter's message of a view of layers; None if the run has no layer data.

    `level` is the established scale; `switch` is whether the panel itself offers the other views
    and roles.
    """
    view = chosen_view(views, wanted.view)
    if view is None:
        return None
    header = _header(run, view, wanted, diagnosis, level)
    if header is None:
        return None
    if not switch:
        return pack({**header, "view": view, "views": [], "roles": []}, {})
    offers = [[one, NAMES[one]] for one in NAMES if one in views]
    return pack({**header, "view": view, "views": offers if len(offers) > 1 else []}, {})


def _header(
    run: Readable, view: str, wanted: Wanted, diagnosis: Diagnosis | None, level: float | None
) -> dict[str, Any] | None:
    if view == FP16:
        step = telling_step(diagnosis) if wanted.step is None else wanted.step
        return windows_header(run, step, diagnosis, level, wanted.layer)
    if view == FP8:
        return casts_header(run, wanted.step, diagnosis, wanted.layer)
    return what_if_header(run, wanted.step, diagnosis, wanted.layer, wanted.role)


# --- the panels for formats below sixteen bits ----------------------------------------------------

MOST_ROWS = 24  # that fit beside the charts
_MOST_RECIPES = 2  # told by name
_NOTHING = "-"  # in a cell
WORST = "worst"  # of a layer's roles, instead of one of them


def casts_header(
    run: Readable, step: int | None, diagnosis: Diagnosis | None, chosen: str | None = None
) -> dict[str, Any] | None:
    """The panel of the casts in use; None if nothing is cast."""
    layers = cast_layers(run, step)
    if not layers:
        return None
    has_scale = any(one.staleness is not None for one in layers)
    shown, panel = _worst(layers, {one.layer: one.excess for one in layers}, diagnosis, chosen)
    return panel | {
        "title": "What the casts lose, by layer",
        "sentence": f"{_recipes(layers)} {_losses_text(layers)}".strip(),
        "columns": [*ROLES.values(), *(["scale"] if has_scale else [])],
        "isDiverging": True,
        "rows": [_cast_row(one, has_scale=has_scale) for one in shown],
        "note": "Of the values that are not zero, in %: ↓ flushed to zero, ↑ cut off; bold is more "
        "than in health. A dash: not cast, or not measured."
        + (" Scale: newest maximum over what the delayed scale can hold." if has_scale else ""),
        "step": step,
    }


def what_if_header(
    run: Readable,
    step: int | None,
    diagnosis: Diagnosis | None,
    chosen: str | None = None,
    role: str | None = None,
) -> dict[str, Any] | None:
    """The panel of alternative formats; None if they were not recorded."""
    layers = what_if_layers(run, step)
    if not layers:
        return None
    excess = {one.layer: _what_if_excess(one, role) for one in layers}
    shown, panel = _worst(layers, excess, diagnosis, chosen)
    of = "the worst of input, weight and gradient" if role is None else f"the {ROLES[role]}"
    return panel | {
        "title": "What if: what each format would lose",
        "sentence": what_if_sentence(layers),
        "columns": list(FORMAT_NAMES),
        "isDiverging": False,
        "rows": [_what_if_row(one, role) for one in shown],
        "note": f"Share of {of} that would be flushed to zero, in %, with scales from the tensor "
        f"itself. Bold: more than {100 * FLUSHED_SHARE:.0f} ({100 * FLUSHED_SHARE_OF_FP4:.0f} in "
        "NVFP4), which a layer does not survive. A dash: its rows are no whole blocks.",
        "step": step,
        "roles": [[WORST, "worst role"], *([key, word] for key, word in ROLES.items())],
        "role": role or WORST,
    }


def fault_of(diagnosis: Diagnosis | None) -> dict[str, str] | None:
    """The layer that a view marks because findings name it, and the text for it."""
    suspect = None if diagnosis is None else diagnosis.suspect
    if suspect is None or diagnosis is None:
        return None
    symptom = " (symptom)" if diagnosis.is_symptom(suspect) else ""
    return {"layer": suspect.layer or "", "words": f"named by {suspect.code}{symptom}"}


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
    layers: Sequence[Any],
    excess: Mapping[str, float],
    diagnosis: Diagnosis | None,
    chosen: str | None,
) -> tuple[list[Any], dict[str, Any]]:
    """The layers to show, of too many those named and those that lose most; and their panel."""
    fault = fault_of(diagnosis)
    named = {chosen, fault["layer"] if fault else None}
    ranked = sorted(layers, key=lambda one: (one.layer not in named, -excess[one.layer]))
    kept = {one.layer for one in ranked[:MOST_ROWS]}
    shown = [one for one in layers if one.layer in kept]
    hidden = len(layers) - len(shown)
    return shown, {"component": "losses", "fault": fault, "chosen": chosen, "hidden": hidden}


def _what_if_excess(layer: WhatIfLayer, role: str | None) -> float:
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


def _what_if_row(one: WhatIfLayer, role: str | None) -> dict[str, Any]:
    cells = [_what_if_cell(one, name, role) for name in FORMAT_NAMES]
    return {"layer": one.layer, "says": "", "cells": cells}


def _what_if_cell(one: WhatIfLayer, name: str, role: str | None) -> dict[str, Any]:
    found = one.worst(name, role)
    if found is None:
        return _cell(_NOTHING, f"{name}: its rows are no whole blocks, or it was not sampled")
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

_NO_LOW = -24.0  # of a layer without a lower limit; no scale is smaller


@dataclass(frozen=True, slots=True)
class Window:
    """One layer's window, as powers of two; `low` is None if it has no lower limit."""

    layer: str
    order: int
    low: float | None
    high: float

    @property
    def is_empty(self) -> bool:
        """Whether no scale is usable."""
        return self.low is not None and self.low > self.high


def windows_at(run: Readable, step: int | None) -> tuple[Window, ...]:
    """Each layer's window at a step (else at the end), in forward order."""
    found = last_known(run, ("order", "scale_low", "scale_high"), step)
    return tuple(_innermost(list(_windows(found))))


@dataclass(frozen=True, slots=True)
class Marked:
    """The one layer that stands out among the windows, and what is said of it."""

    layer: str
    caps: bool  # whether its bar ends where the scale had worked: only that one is red
    words: str


def windows_header(
    run: Readable,
    step: int | None,
    diagnosis: Diagnosis | None,
    level: float | None,
    chosen: str | None = None,
) -> dict[str, Any] | None:
    """What the painter draws, a layer that was chosen too; None where the run has no windows."""
    windows = windows_at(run, step)
    if not windows:
        return None
    marked = marked_layer(run, step, windows, diagnosis, level)
    shown = tightest(windows, {marked.layer if marked else None, chosen})
    final = None if diagnosis is None else diagnosis.run.final_scale
    return {
        "component": "windows",
        "sentence": powers(windows_sentence(windows, final if level is None else level)),
        "rows": [_row(window, marked) for window in shown],
        "calm": diagnosis is None or diagnosis.calm is not None,
        "marked": marked.words if marked else "",
        "chosen": chosen,
        "hidden": len(windows) - len(shown),
        "scale": _log2(final),
        "level": _log2(level),
        "step": step,
    }


def windows_sentence(windows: Sequence[Window], scale: float | None) -> str:
    """How many layers can live with the loss scale, and which one can not."""
    known = _log2(scale)
    if known is None:
        return ""
    above = [one for one in windows if one.is_empty or one.high < known]
    fitting = (one for one in windows if not one.is_empty and one.high >= known)
    below = [one for one in fitting if one.low is not None and one.low > known]
    fits = len(windows) - len(above) - len(below)
    layers = count_text(len(windows), "layer")
    live = f"All {layers}" if fits == len(windows) > 1 else f"{fits:,} of {layers}"
    text = f"{live} can live with a loss scale of {scale_text(scale)}"
    if above:
        first = min(above, key=lambda one: one.high)
        text += f"; {count_text(len(above), 'overflows', 'overflow')}, {first.layer} first"
    if below:
        text += f"; {count_text(len(below), 'loses', 'lose')} small gradients"
    return f"{text}."


def _row(window: Window, marked: Marked | None) -> dict[str, Any]:
    is_marked = marked is not None and marked.layer == window.layer
    caps = is_marked and marked is not None and marked.caps
    low = None if window.low is None else min(window.low, 128.0)  # at most what float32 holds
    return {
        "layer": window.layer, "low": low, "high": window.high, "caps": caps,
        "named": is_marked and not caps,
    }  # fmt: skip


def marked_layer(
    run: Readable,
    step: int | None,
    windows: Sequence[Window],
    diagnosis: Diagnosis | None,
    level: float | None,
) -> Marked | None:
    """The layer that the findings name; where they name none, the one whose bar ends first."""
    suspect = None if diagnosis is None else diagnosis.suspect
    if diagnosis is None or suspect is None or diagnosis.calm is not None:
        return _limit(run, step, windows, diagnosis, level)
    named = f"the layer that {suspect.code} names"
    named += " (symptom)" if diagnosis.is_symptom(suspect) else ""
    window = next((one for one in windows if one.layer == suspect.layer), None)
    if window is None:
        return None
    if _caps(window, level):
        return Marked(window.layer, caps=True, words=f"red: {named}")
    ends = "" if level is None else "; its bar ends above the established scale and caps nothing"
    return Marked(window.layer, caps=False, words=f"▸ {named}{ends}")


def _limit(
    run: Readable,
    step: int | None,
    windows: Sequence[Window],
    diagnosis: Diagnosis | None,
    level: float | None,
) -> Marked | None:
    """The layer that limits the scale where the trouble is; at another step it stays that one."""
    head = None if diagnosis is None else diagnosis.headline
    if head is not None and head.severity.weight and not _is_of_the_numbers(head.code):
        return None
    told = telling_step(diagnosis)
    then = windows if step == told else windows_at(run, told)
    limit = min(then, key=lambda window: window.high, default=None)
    if limit is None or not _caps(limit, level):
        return None
    words = "the marked bar ends first, at or below the established scale"
    now = next((one for one in windows if one.layer == limit.layer), None)
    if now is None or not _caps(now, level):
        at = "at the end" if told is None else f"at step {told:,}"
        words = f"▸ the bar that ended first {at}; here it ends above the established scale"
        return Marked(limit.layer, caps=False, words=words)
    if min(windows, key=lambda window: window.high).layer != limit.layer:
        at = "at the end" if told is None else f"at step {told:,}"
        words = f"the bar that ended first {at}; here another ends before it"
    return Marked(limit.layer, caps=True, words=words)


def _caps(window: Window, level: float | None) -> bool:
    """Whether a layer overflows at a scale that had worked, or can live with none."""
    known = _log2(level)
    return window.is_empty or (known is not None and window.high <= known)


# The cause of these is no layer's: lost state, the data.
_NO_LAYERS = frozenset({"AMP108", "AMP206", "AMP209", "AMP306"})


def _is_of_the_numbers(code: str) -> bool:
    """Whether a finding is about numbers that a layer may limit, not the loop, cards or ranks."""
    return code[:4] in {"AMP1", "AMP2", "AMP3"} and code not in _NO_LAYERS


def _log2(scale: float | None) -> float | None:
    return math.log2(scale) if scale and 0 < scale < math.inf else None


def tightest(windows: Sequence[Window], named: Collection[str | None] = ()) -> list[Window]:
    """The windows to show: where there are too many, those named and those with least room."""
    if len(windows) <= MOST_ROWS:
        return list(windows)
    by_room = sorted(windows, key=lambda w: w.high - (_NO_LOW if w.low is None else w.low))
    by_high = sorted(windows, key=lambda w: w.high)
    chosen = {w.layer for w in by_high[: MOST_ROWS // 2]}
    chosen |= {w.layer for w in windows if w.layer in named}
    for window in by_room:
        if len(chosen) < MOST_ROWS:
            chosen.add(window.layer)
    return [window for window in windows if window.layer in chosen]


def _windows(found: Mapping[str, Mapping[str, Any]]) -> Iterator[Window]:
    for layer, kept in found.items():
        high = kept.get("scale_high")
        if layer and high and 0 < high < math.inf:
            low = kept.get("scale_low")
            log2_low = math.log2(low) if low and low > 0 else None
            yield Window(layer, kept.get("order", 0), log2_low, math.log2(high))


def _innermost(windows: list[Window]) -> list[Window]:
    """The scale windows without those of containers: the layers inside are more specific."""
    names = {window.layer for window in windows}
    outer = {name.rpartition(".")[0] for name in names} | {"(root)"}
    outer |= {name.rsplit(".", deep)[0] for name in names for deep in range(1, name.count(".") + 1)}
    inner = [w for w in windows if w.layer not in outer] or windows
    return sorted(inner, key=lambda window: (window.order, window.layer))
