"""The overview's chart: which panels, marks and guides a run's look calls for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from course import SCALE, Course
from drawing import Guide, Mark, Panel, Picture, Span, Stroke
from open_runs import Look
from rank_course import column_of
from theme import SEVERITY_COLOR

from ampwatch.diagnosis import Action, Advice, Finding, Severity

MOST_MARKS = 4
# A rank has one colour and, where colours come round again, one kind of line, on all panels.
RANK_COLORS = ("scale", "advice", "norm", "rate")
RANK_DASHES = ("solid", "dot")
CLIPPED = "grad_norm_applied"

PANELS = (
    Panel(
        (("Loss scale", "scale"), (" and ", "muted"), ("skipped steps", "skip")),
        (Stroke(SCALE, "loss scale", "scale", stepped=True),),
        kind="power", height=140, rug=True,
    ),
    Panel((("Loss", "ink"),), (Stroke("loss", "loss", "ink"),)),
    Panel(
        (("Gradient norm", "norm"),),
        (
            Stroke(CLIPPED, "after clipping", "norm", faint=True, said=", pale after clipping"),
            Stroke("grad_norm", "gradient norm", "norm"),
        ),
    ),
    Panel(
        (("Learning rate", "rate"),), (Stroke("lr", "learning rate", "rate"),),
        kind="rate", height=84,
    ),
    Panel(
        (("Step time", "time"), (", ms", "muted")),
        (Stroke("step_time_ms", "step time", "time"),), height=70, unit="ms",
    ),
)  # fmt: skip


def picture(look: Look, span: Span | None, step: int | None) -> Picture:
    """What of the run is drawn."""
    return Picture(
        name=look.path,
        panels=list(_panels(look)),
        ends=look.course.ends,
        marks=list(_marks(look)),
        restart=_restart(look),
        span=span,
        picked=step,
        rows=len(look.course),
    )


def is_change(advice: Advice) -> bool:
    """Whether another rate is advised."""
    return advice.action in {Action.LOWER, Action.RAISE} and advice.recommended is not None


def _panels(look: Look) -> Iterator[Panel]:
    """The panels that have something to show."""
    for panel in PANELS:
        strokes = tuple(s for s in panel.strokes if _is_shown(look.course, s))
        if strokes:
            guides = tuple(_guides(look, strokes[-1].column))
            yield _of_ranks(look, replace(panel, strokes=strokes, guides=guides))


def _of_ranks(look: Look, panel: Panel) -> Panel:
    """The panel with a line for each rank whose numbers differ from the lowest one's."""
    if len(look.shown) < 2:
        return panel
    line, lowest = panel.strokes[-1], look.shown[0]
    columns = {rank: column_of(line.column, rank) for rank in look.shown[1:]}
    drawn = {lowest: line.column} | {r: c for r, c in columns.items() if c in look.course.present}
    if len(drawn) == 1:
        return replace(panel, title=(*panel.title, (", the same on all ranks", "muted")))
    title, strokes = list(panel.title), []
    for rank, column in drawn.items():
        color, dash = _rank_style(look.shown.index(rank))
        title += [(": " if rank == lowest else ", ", "muted"), (f"rank {rank}", color)]
        label = f"{line.label}, rank {rank}"
        strokes.append(replace(line, column=column, label=label, color=color, dash=dash))
    return replace(panel, title=tuple(title), strokes=tuple(strokes))


def _rank_style(number: int) -> tuple[str, str]:
    colors = len(RANK_COLORS)
    return RANK_COLORS[number % colors], RANK_DASHES[number // colors % len(RANK_DASHES)]


def _is_shown(course: Course, stroke: Stroke) -> bool:
    return stroke.column in course.present and (stroke.column != CLIPPED or course.clips)


def _guides(look: Look, column: str) -> Iterator[Guide]:
    """The established scale, and the advised rate with its interval."""
    if look.verdict is None:
        return
    level, advice = look.verdict.established_scale, look.verdict.judged.learning_rate
    if column == SCALE and level:
        value = float(np.log2(level))
        yield Guide(value, value, value, "scale", ", dotted the established level")
    if column == "lr" and advice.recommended is not None and is_change(advice):
        low, high = advice.low or advice.recommended, advice.high or advice.recommended
        said = ", dotted the advised one, pale the 90 % interval of the highest stable one"
        yield Guide(advice.recommended, low, high, "advice", said, fits=True)


def _marks(look: Look) -> Iterator[Mark]:
    """The steps of the findings that matter, the headline's first."""
    first, last = look.course.ends
    for finding in _marked(look)[:MOST_MARKS]:
        assert finding.first_step is not None
        until = last if finding.last_step is None else finding.last_step
        if finding.first_step > first or until < last:  # all of the run would tell nothing apart
            color = SEVERITY_COLOR[finding.severity.value]
            yield Mark(finding.first_step, until, finding.code, color)


def _marked(look: Look) -> list[Finding]:
    if look.diagnosis is None:
        return []
    return [
        finding
        for finding in look.diagnosis.findings
        if finding.severity is not Severity.INFO and finding.first_step is not None
    ]


def _restart(look: Look) -> int | None:
    """The step to restart from, where a restart is advised."""
    if look.diagnosis is None or look.diagnosis.verdict.value == "healthy":
        return None
    advice = look.diagnosis.learning_rate
    if advice.restart_checkpoint_step is not None:
        return advice.restart_checkpoint_step
    return advice.restart_from_step
