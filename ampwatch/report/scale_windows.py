"""Usable loss scales by layer: below its window a layer loses gradients, above it they overflow."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ampwatch.diagnosis.value_text import count_text, powers, scale_text
from ampwatch.report.last_layer_values import Readable, last_known

if TYPE_CHECKING:
    from ampwatch.diagnosis import Diagnosis

MOST_WINDOWS = 24  # that fit beside the charts
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


def telling_step(diagnosis: Diagnosis | None) -> int | None:
    """The step whose windows explain most: where the trouble begins; None for a calm run."""
    head = None if diagnosis is None else diagnosis.headline
    return head.first_step if head is not None and head.severity.weight else None


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
    if len(windows) <= MOST_WINDOWS:
        return list(windows)
    by_room = sorted(windows, key=lambda w: w.high - (_NO_LOW if w.low is None else w.low))
    by_high = sorted(windows, key=lambda w: w.high)
    chosen = {w.layer for w in by_high[: MOST_WINDOWS // 2]}
    chosen |= {w.layer for w in windows if w.layer in named}
    for window in by_room:
        if len(chosen) < MOST_WINDOWS:
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
