"""The chart of a run: its panels, findings and guides. The dashboard and the report share it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ampwatch.diagnosis import Action, Advice, Diagnosis, Finding, Severity
from ampwatch.diagnosis.column_arrays import flags, integers, known, numbers
from ampwatch.diagnosis.scale_history import EstablishedScale
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
    StepNote,
    Stroke,
    odd_arrays,
)
from ampwatch.report.thinning import (
    EMPTY,
    Floats,
    Line,
    Rug,
    Steps,
    Stretches,
    broken_line,
    held_line,
    merged,
    not_finite,
    stepped_line,
)
from ampwatch.rows import Table, column

if TYPE_CHECKING:
    from ampwatch.diagnosis import Record

MOST_MARKS = 4
MOST_RANKS = 8  # over one another
SCALE = "log2_scale"  # the scale as its power of two
HELD = "log2_scale_held"  # where a log does not tell it: as it was told last
TIME = "time_s"  # since the first row
CLOCK = "clock"
LINES = ("loss", "grad_norm", "grad_norm_applied", "lr", "step_time_ms")
CLIPPED = "grad_norm_applied"
CLIP_SHARE = 1e-3  # a norm that clipping changed by less looks the same


# --- panels --------------------------------------------------------------------------------------


def column_panel(table: Table, name: str, color: str, *, aside: str = "", **look: Any) -> Panel:
    """A panel of one column, with its label and unit for a title; `aside` is said in grey."""
    values = column(table, name)
    words = aside or values.unit
    title = (values.label.capitalize(), color), (f", {words}" if words else "", "muted")
    return Panel(title, (Stroke(name, values.label, color),), **{"unit": values.unit, **look})


_GRAD_NORM = column_panel(Table.STEPS, "grad_norm", "norm", aside="unscaled")
_CLIPPED_LINE = Stroke(CLIPPED, column(Table.STEPS, CLIPPED).label, "norm", faint=True)
_SCALE = column_panel(Table.STEPS, "scale", "scale", kind="power", height=140, rug=True)
_SCALE_LINE = replace(_SCALE.strokes[0], column=SCALE, stepped=True)
_HELD_LINE = replace(_SCALE_LINE, column=HELD, label="not logged, held", faint=True)
PANELS = (
    replace(_SCALE, strokes=(_HELD_LINE, _SCALE_LINE)),
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
    established: EstablishedScale | None
    ranks: tuple[int, ...] = ()  # whose lines are drawn, the lowest first


def panels_of(shown: Shown) -> Iterator[Panel]:
    """The panels that have something to show; some logs state skips and no scale."""
    for panel in _panels_of_lowest_rank(shown):
        yield _with_lines_of_ranks(shown, panel)


def _panels_of_lowest_rank(shown: Shown) -> Iterator[Panel]:
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


def _with_lines_of_ranks(shown: Shown, panel: Panel) -> Panel:
    """The panel with a line for each rank that differs from the lowest."""
    if len(shown.ranks) < 2 or not panel.strokes:
        return panel
    line, lowest = panel.strokes[-1], shown.ranks[0]
    columns = {rank: rank_column(line.column, rank) for rank in shown.ranks[1:]}
    drawn = {lowest: line.column} | {r: c for r, c in columns.items() if c in shown.present}
    if len(drawn) == 1:
        return replace(panel, title=(*panel.title, (", the same on all ranks", "muted")))
    strokes = []
    for rank, name in drawn.items():
        color, dash = line_style(shown.ranks.index(rank))
        label = f"{line.label}, rank {rank}"
        group = group_of(f"rank {rank}")  # one label hides and lights it in all panels
        strokes.append(replace(line, column=name, label=label, color=color, dash=dash, group=group))
    return replace(panel, strokes=tuple(strokes))


def rank_column(name: str, rank: int) -> str:
    """The name of the column that holds a rank's values, such as `loss@1`."""
    return f"{name}@{rank}"


def ranks_to_draw(ranks: Sequence[int], diagnosis: Diagnosis | None) -> tuple[int, ...]:
    """The lowest rank, those that findings name apart from the others, and more if they fit."""
    findings = () if diagnosis is None else diagnosis.findings
    named = [
        rank
        for finding in findings
        if finding.severity is not Severity.INFO
        and diagnosis is not None
        and finding.ranks != diagnosis.run.ranks
        for rank in finding.ranks
        if rank in ranks
    ]
    first = dict.fromkeys([*ranks[:1], *named, *ranks])
    return tuple(sorted(list(first)[:MOST_RANKS]))


def is_change(advice: Advice) -> bool:
    """Whether another rate is advised, which the chart then shows."""
    return advice.action in {Action.LOWER, Action.RAISE} and advice.recommended is not None


def _guides(shown: Shown, name: str) -> Iterator[Guide]:
    """The established scale, and the recommended rate with its interval."""
    stood = shown.established
    if name == SCALE and stood is not None and 0 < stood.scale < math.inf:
        value, note = math.log2(stood.scale), ", dotted: established scale"
        yield Guide(value, value, value, "scale", note, since_step=stood.since_step)
    advice = None if shown.diagnosis is None else shown.diagnosis.learning_rate
    if name == "lr" and advice is not None and is_change(advice):
        assert advice.recommended is not None
        low, high = advice.low or advice.recommended, advice.high or advice.recommended
        if all(map(math.isfinite, (low, advice.recommended, high))):
            band = f"; band: {advice.interval_name}"
            note = f", dotted: recommended{band if advice.has_interval else ''}"
            yield Guide(advice.recommended, low, high, "advice", note, fits=True)


def marks_of(shown: Shown) -> Iterator[Mark]:
    """The steps of the findings that matter, the headline's first."""
    first, last = shown.ends
    named = _named(shown.diagnosis)
    for finding in named:
        if finding.first_step is None:
            continue
        until = finding.last_in(last)
        if finding.first_step > first or until < last:  # a mark of the whole run shows nothing
            color = SEVERITY_COLOR[finding.severity.value]
            label = f"{finding.code} {finding.name.replace('-', ' ')}"
            steps = tuple(sorted({finding.first_step, *finding.steps})) if finding.steps else ()
            yield Mark(finding.first_step, until, label, color, finding is named[0], steps)


def _named(diagnosis: Diagnosis | None) -> list[Finding]:
    """The findings that stand at the top of a run's page: no code on its chart is unexplained.

    They are the headline, what it leads to first, and those that are not its consequence.
    """
    if diagnosis is None or diagnosis.calm is not None or diagnosis.headline is None:
        return []
    head = diagnosis.headline
    grave = [f for f in diagnosis.findings if f.severity is not Severity.INFO and f is not head]
    follows = [finding for finding in grave if finding.because_of == head.code]
    rest = [finding for finding in grave if finding.code not in diagnosis.effects]
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
    ranks: tuple[int, ...] = ()
    began_ns: int = 0  # when the first step ended that tells; 0 if none does

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


@dataclass(frozen=True, slots=True)
class _RankRows:
    """One rank's rows: its steps, what each column holds, nan where that is not finite."""

    step: Steps
    values: Mapping[str, Floats]
    odd: Mapping[str, Stretches]
    seconds: Floats
    began_ns: int

    def line(self, name: str) -> Line:
        """The thinned line of a column."""
        make = stepped_line if name == SCALE else broken_line
        return make(self.step, self.values[name])

    def differs(self, other: _RankRows, name: str) -> bool:
        """Whether a column differs at any step that both ranks have."""
        _, mine, theirs = np.intersect1d(self.step, other.step, return_indices=True)
        one, two = self.values[name][mine], other.values[name][theirs]
        return not np.array_equal(one, two, equal_nan=True)


def _rows_of_rank(run: Record, rank: int) -> _RankRows:
    names = ("step", "time_ns", "scale", "scale_after", *LINES)
    rows = rows_of_optimizer(run, names, rank=rank)
    step: Steps = integers(rows, "step")
    values = {name: _single(rows, name) for name in LINES} | {SCALE: _log2_scale(rows)}
    odd = {name: _odd(rows, name, step) for name in LINES}
    return _RankRows(step, values, odd, *_seconds(rows))


def curves_of(run: Record, ranks: Sequence[int] = ()) -> Curves | None:
    """The curves of a run's ranks, the first few if none is named; None of a run without steps.

    Another rank has lines only of what differs from the lowest one.
    """
    drawn = tuple(ranks) or ranks_to_draw(sorted(run.ranks), None) or (0,)
    lowest = _rows_of_rank(run, drawn[0])
    if not len(lowest.step):
        return None
    ends = int(lowest.step.min()), int(lowest.step.max())
    lines = {name: lowest.line(name) for name in (SCALE, *LINES)}
    lines[TIME] = broken_line(lowest.step, lowest.seconds)
    skips = _skipped_steps(run)
    scale = lowest.values[SCALE]
    if is_told_at_skips(lowest.step[np.isfinite(scale)], skips):
        logged = np.unique(lowest.step)
        lines[SCALE] = stepped_line(lowest.step, scale, logged)
        lines[HELD] = held_line(lowest.step, scale, logged)
    odd = dict(lowest.odd)
    for rank in drawn[1:]:
        rows = _rows_of_rank(run, rank)
        for name in (SCALE, *LINES):
            if rows.differs(lowest, name):
                lines[rank_column(name, rank)] = rows.line(name)
                odd[rank_column(name, rank)] = rows.odd.get(name, EMPTY)
    present = {name: line for name, line in lines.items() if len(line.x) or odd.get(name)}
    if present.keys() == {TIME}:  # there is nothing to draw over it
        present = {}
    norm = lowest.values["grad_norm"]
    moved = np.abs(lowest.values[CLIPPED] - norm) > CLIP_SHARE * norm
    rug = merged(skips, *ends)
    count = len(lowest.step)
    return Curves(
        ends, present, rug, len(skips), bool(moved.any()), count, odd, drawn, lowest.began_ns
    )


def is_told_at_skips(told: Steps, skips: Steps) -> bool:
    """Whether the steps at which a scale is logged are all skipped ones, as in some logs."""
    return 0 < len(told) <= len(skips) and bool(np.isin(told, skips).all())


def overview_of(
    curves: Curves,
    diagnosis: Diagnosis,
    established: EstablishedScale | None,
    name: str = "",
    notes: Sequence[StepNote] = (),
) -> tuple[Picture, Arrays]:
    """The whole chart of a finished run of this name."""
    shown = Shown(
        curves.lines,
        curves.ends,
        curves.skipped,
        curves.clips,
        diagnosis,
        established,
        curves.ranks,
    )
    picture = Picture(
        name="run", panels=list(panels_of(shown)), ends=curves.ends, marks=list(marks_of(shown)),
        restart=restart_of(diagnosis), rows=curves.rows, reports=False,
        axes=list(time_axes(curves.began_ns)) if TIME in curves.lines else (),
        title=name, verdict=verdict_sentence(diagnosis), notes=notes,
    )  # fmt: skip
    skips = {f"base.skips.{part}": getattr(curves.skips, part) for part in Rug.__slots__}
    return picture, {**curves.arrays(), **skips}


def time_axes(began_ns: int) -> Iterator[Axis]:
    """The time since the first step, and the clock's, where the steps tell it."""
    yield Axis(TIME, "time", "second")
    if began_ns:
        yield Axis(CLOCK, "clock", "clock", line=TIME, origin_s=began_ns / 1e9)


def verdict_sentence(diagnosis: Diagnosis | None) -> str:
    """The verdict and the headline's finding, for a chart that is taken elsewhere."""
    if diagnosis is None:
        return ""
    head, verdict = diagnosis.headline, diagnosis.verdict.value
    return verdict if head is None else f"{verdict}: {head.summary}"


def _skipped_steps(run: Record) -> Steps:
    """The steps to mark in the overview: those that any optimizer of any rank skipped."""
    rows = run.read(Table.STEPS, columns=("step", "skipped"))
    return np.unique(integers(rows, "step")[flags(rows, "skipped") == 1])


def _seconds(rows: Any) -> tuple[Floats, int]:
    """When each step ended, since the first one that tells, nan of those that do not; and that."""
    time_ns = integers(rows, "time_ns", 0)
    stamped = time_ns > 0
    began = int(time_ns[stamped][0]) if stamped.any() else 0
    return np.where(stamped, (time_ns - began) / 1e9, np.nan).astype(np.float32), began


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
    present = known(rows, name)
    return not_finite(step[present], numbers(rows, name)[present])


def _finite(values: Floats) -> Floats:
    values[~np.isfinite(values)] = np.nan
    return values
