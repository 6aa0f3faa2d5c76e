"""The views of a run's layers: usable loss scales, casts in use, or the losses of other formats.

A run has the views for which it has data. The best one is shown until the reader chooses another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ampwatch.report.format_losses import CAST_COLUMNS, STALENESS, WHAT_IF_COLUMNS
from ampwatch.report.last_known import Readable, has_values
from ampwatch.report.loss_panels import casts_header, what_if_header
from ampwatch.report.number_format_text import FORMAT_FACTS
from ampwatch.report.painter.message import pack
from ampwatch.report.scale_windows import telling_step, windows_header

if TYPE_CHECKING:
    from ampwatch.diagnosis import Diagnosis

FP16, FP8, WHAT_IF = "fp16", "fp8", "what-if"
NAMES = {FP16: "fp16", FP8: "fp8", WHAT_IF: "what if"}
# What a run that has it holds, the view that fits best first: casts are there only if chosen, and
# so are loss scales; what if exists for any layer in half precision.
_TOLD_BY: Mapping[str, Sequence[str]] = {
    FP8: (*FORMAT_FACTS, *CAST_COLUMNS, STALENESS),
    FP16: ("scale_high",),
    WHAT_IF: tuple(WHAT_IF_COLUMNS.values()),
}
VIEWS = tuple(_TOLD_BY)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a reader chose for the layers; None is no choice."""

    view: str | None = None
    role: str | None = None
    step: int | None = None
    layer: str | None = None


def offered(run: Readable, *, quick: bool = False) -> tuple[str, ...]:
    """The views for which the run has data, the best one first.

    The last rows are enough to know: each sample has all columns of its view.
    """
    there = has_values(run, list(_TOLD_BY.values()), quick=quick)
    return tuple(view for view, is_there in zip(_TOLD_BY, there, strict=True) if is_there)


def chosen_view(views: Sequence[str], wanted: str | None) -> str | None:
    """The view to show: the chosen one if the run has it, otherwise the best."""
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
    """The message for the painter; None if the run has no layer data.

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
