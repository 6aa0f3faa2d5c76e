"""The chart of a run: its panels, findings and guides. The dashboard and the report share it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ampwatch.diagnosis import Action, Advice, Diagnosis, Finding, Severity
from ampwatch.diagnosis.column_arrays import flags, integers, known, numbers
from ampwatch.diagnosis.value_text import count_text
from ampwatch.report.facts import rows_of_optimizer
from ampwatch.report.painter import SEVERITY_COLOR, line_style
from ampwatch.report.painter.message import (
    Arrays,
    Axis,
    Guide,
    Mark,
    Panel,
    Picture,
    Stroke,
    odd_arrays,
)
from ampwatch.report.thinning import (
    Floats,
    Line,
    Rug,
    Steps,
    Stretches,
    broken_line,
    merged,
    not_finite,
    stepped_line,
)
from ampwatch.rows import Table, column

if TYPE_CHECKING:
    from ampwatch.diagnosis import Record

MOST_MARKS = 4
SCALE = "log2_scale"  # the scale as its power of two
TIME = "time_s"  # since the first row
LINES = ("loss", "grad_norm", "grad_norm_applied", "lr", "step_time_ms")
CLIPPED = "grad_norm_applied"
CLIP_SHARE = 1e-3  # a norm that clipping changed by less looks the same


# --- panels --------------------------------------------------------------------------------------


def column_panel(table: Table, name: str, color: str, *, aside: str = "", **look: Any) -> Panel:
    """A panel of one column, with its label and unit for a title; `aside` is said in grey."""
    one = column(table, name)
    words = aside or one.unit
    title = (one.label.capitalize(), color), (f", {words}" if words else "", "muted")
    return Panel(title, (Stroke(name, one.label, color),), **{"unit": one.unit, **look})


_GRAD_NORM = column_panel(Table.STEPS, "grad_norm", "norm", aside="unscaled")
_CLIPPED_LINE = Stroke(CLIPPED, column(Table.STEPS, CLIPPED).label, "norm", faint=True)
_SCALE = column_panel(Table.STEPS, "scale", "scale", kind="power", height=140, rug=True)
PANELS = (
    replace(_SCALE, strokes=(replace(_SCALE.strokes[0], column=SCALE, stepped=True),)),
    column_panel(Table.STEPS, "loss", "ink"),
    replace(_GRAD_NORM, strokes=(_CLIPPED_LINE, *_GRAD_NORM.strokes)),
    column_panel(Table.STEPS, "lr", "rate", kind="rate", height=84),
    column_panel(Table.STEPS, "step_time_ms", "time", height=70),
)


@dataclass(frozen=True, slots=True)
class Shown:
    """What there is to draw of a run, and how it was judged."""

    present: Collection[str]  # the columns that hold any number
    ends: tuple[int, int]
    skipped: int
    clips: bool  # whether any gradient was changed between its norm and its use
    diagnosis: Diagnosis | None
    level: float | None  # the scale that the run had established


def panels_of(shown: Shown) -> Iterator[Panel]:
    """The panels that have something to show; some logs state skips and no scale."""
    skips = (count_text(shown.skipped, "skipped step"), "skip")
    for panel in PANELS:
        there = (s for s in panel.strokes if s.column in shown.present)
        strokes = tuple(s for s in there if s.column != CLIPPED or shown.clips)
        title = panel.title
        if panel.rug and shown.skipped:
            title = (*title, (" and ", "muted"), skips) if strokes else (skips,)
            height = panel.height if strokes else 0
            guides = tuple(_guides(shown, SCALE)) if strokes else ()
            yield replace(panel, title=title, strokes=strokes, height=height, guides=guides)
        elif strokes:
            guides = tuple(_guides(shown, strokes[-1].column))
            yield replace(panel, strokes=strokes, guides=guides)


def is_change(advice: Advice) -> bool:
    """Whether another rate is advised, which the chart then shows."""
    return advice.action in {Action.LOWER, Action.RAISE} and advice.recommended is not None


def _guides(shown: Shown, name: str) -> Iterator[Guide]:
    """The established scale, and the recommended rate with its interval."""
    if name == SCALE and shown.level and 0 < shown.level < math.inf:
        value = math.log2(shown.level)
        yield Guide(value, value, value, "scale", ", dotted: established scale")
    advice = None if shown.diagnosis is None else shown.diagnosis.learning_rate
    if name == "lr" and advice is not None and is_change(advice):
        assert advice.recommended is not None
        low, high = advice.low or advice.recommended, advice.high or advice.recommended
        if all(map(math.isfinite, (low, advice.recommended, high))):
            band = f"; band: {advice.interval_name}"
            said = f", dotted: recommended{band if advice.has_interval else ''}"
            yield Guide(advice.recommended, low, high, "advice", said, fits=True)


def marks_of(shown: Shown) -> Iterator[Mark]:
    """The steps of the findings that matter, the headline's first."""
    first, last = shown.ends
    for finding in _named(shown.diagnosis):
        if finding.first_step is None:
            continue
        until = last if finding.last_step is None else finding.last_step
        if finding.first_step > first or until < last:  # a mark of the whole run shows nothing
            color = SEVERITY_COLOR[finding.severity.value]
            label = f"{finding.code} {finding.name.replace('-', ' ')}"
            yield Mark(finding.first_step, until, label, color)


def _named(diagnosis: Diagnosis | None) -> list[Finding]:
    """The findings that stand at the top of a run's page: no code on its chart is unexplained.

    They are the headline, what it leads to first, and those that are not its consequence.
    """
    if diagnosis is None or diagnosis.calm is not None or diagnosis.headline is None:
        return []
    head = diagnosis.headline
    grave = [f for f in diagnosis.findings if f.severity is not Severity.INFO and f is not head]
    follows = [finding for finding in grave if finding.because_of == head.code]
    rest = [finding for finding in grave if finding.because_of != head.code]
    return [head, *follows[:1], *rest][:MOST_MARKS]


def restart_of(diagnosis: Diagnosis | None) -> int | None:
    """The step of the checkpoint to restart from, where one is recorded and a restart advised."""
    if diagnosis is None or diagnosis.calm is not None:
        return None
    return diagnosis.learning_rate.restart_checkpoint_step


def compared_panels(
    labels: Sequence[str], present: Sequence[Collection[str]], own: Sequence[Panel] = ()
) -> Iterator[Panel]:
    """A panel a quantity that any run has, with a line a run: `0.loss`, `1.loss`.

    The lines of a run are a group, named by its label; `own` are panels of the user's values.
    """
    scale, loss, *rest = PANELS
    for panel in (loss, *own, scale, *rest):
        line, strokes = panel.strokes[-1], []
        for number, (label, columns) in enumerate(zip(labels, present, strict=True)):
            if line.column in columns:
                color, dash = line_style(number)
                name, group = f"{number}.{line.column}", group_of(label)
                strokes.append(
                    replace(line, column=name, label=label, color=color, dash=dash, group=group)
                )
        if strokes:
            title = ((panel.title[0][0], "ink"), *panel.title[1:])
            yield replace(panel, title=title, strokes=tuple(strokes), rug=False)


def group_of(label: str) -> str:
    """The name by which all that stands for a run is lit and hidden together."""
    return f"run:{label}"


# --- a finished run's points ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Curves:
    """Thinned lines of the columns that hold anything, and every skipped step as a tick."""

    ends: tuple[int, int]
    lines: Mapping[str, Line]
    skips: Rug
    skipped: int
    clips: bool
    rows: int
    odd: Mapping[str, Stretches] = field(default_factory=dict)  # where a line is not finite

    def arrays(self, prefix: str = "") -> Arrays:
        """The lines as arrays of a message."""
        arrays: Arrays = {}
        is_small = max(map(abs, self.ends)) < 2**31  # half the bytes
        for name, line in self.lines.items():
            arrays[f"base.{prefix}{name}.x"] = line.x.astype(np.int32) if is_small else line.x
            arrays[f"base.{prefix}{name}.y"] = line.y
        for name, odd in self.odd.items():
            arrays |= odd_arrays(f"{prefix}{name}", odd.within(*self.ends))
        return arrays


def curves_of(run: Record) -> Curves | None:
    """The curves of a run; None of a run without steps."""
    rows = rows_of_optimizer(run, ("step", "time_ns", "scale", "scale_after", *LINES))
    if not rows.num_rows:
        return None
    step: Steps = integers(rows, "step")
    ends = int(step.min()), int(step.max())
    values = {name: _single(rows, name) for name in LINES}
    odd = {name: _odd(rows, name, step) for name in LINES}
    lines = {name: broken_line(step, values[name]) for name in LINES}
    lines[SCALE] = stepped_line(step, _log2_scale(rows))
    lines[TIME] = broken_line(step, _seconds(rows))
    skips = _skipped_steps(run)
    moved = np.abs(values[CLIPPED] - values["grad_norm"]) > CLIP_SHARE * values["grad_norm"]
    present = {name: line for name, line in lines.items() if len(line.x) or odd.get(name)}
    if present.keys() == {TIME}:  # there is nothing to draw over it
        present = {}
    rug = merged(skips, *ends)
    return Curves(ends, present, rug, len(skips), bool(moved.any()), len(step), odd)


def overview_of(
    curves: Curves, diagnosis: Diagnosis, level: float | None
) -> tuple[Picture, Arrays]:
    """The whole chart of a finished run."""
    shown = Shown(curves.lines, curves.ends, curves.skipped, curves.clips, diagnosis, level)
    picture = Picture(
        name="run", panels=list(panels_of(shown)), ends=curves.ends, marks=list(marks_of(shown)),
        restart=restart_of(diagnosis), rows=curves.rows, reports=False,
        axes=[Axis(TIME, "time", "second")] if TIME in curves.lines else (),
    )  # fmt: skip
    skips = {f"base.skips.{part}": getattr(curves.skips, part) for part in Rug.__slots__}
    return picture, {**curves.arrays(), **skips}


def _skipped_steps(run: Record) -> Steps:
    """The steps to mark in the overview: those that any optimizer of any rank skipped."""
    rows = run.read(Table.STEPS, columns=("step", "skipped"))
    return np.unique(integers(rows, "step")[flags(rows, "skipped") == 1])


def _seconds(rows: Any) -> Floats:
    """When each step ended, since the first one that tells; nan of those that do not."""
    time_ns = integers(rows, "time_ns", 0)
    told = time_ns > 0
    began = time_ns[told][0] if told.any() else 0
    return np.where(told, (time_ns - began) / 1e9, np.nan).astype(np.float32)


def _log2_scale(rows: Any) -> Floats:
    """What each step was scaled with; in logs that state only what it became, that."""
    scale = numbers(rows, "scale")
    scale = np.where(np.isnan(scale), numbers(rows, "scale_after"), scale)
    with np.errstate(divide="ignore", invalid="ignore"):
        return _finite(np.log2(scale).astype(np.float32))


def _single(rows: Any, name: str) -> Floats:
    with np.errstate(over="ignore"):
        return _finite(numbers(rows, name).astype(np.float32))


def _odd(rows: Any, name: str, step: Steps) -> Stretches:
    told = known(rows, name)
    return not_finite(step[told], numbers(rows, name)[told])


def _finite(values: Floats) -> Floats:
    values[~np.isfinite(values)] = np.nan
    return values
