"""The current numbers of a run in one line, as HTML: what is absent is not there."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from open_runs import Look
from rank_course import column_of
from texts import bytes_text, rate_text, said, short_dtype

from ampwatch.diagnosis.words import count_text, scale_text, share_text
from ampwatch.rows import Table

_RECENT = 100  # steps whose median is the step time
_LINES = {"loss": "loss", "gradient norm": "grad_norm", "learning rate": "lr"}


def strip(look: Look) -> str:
    """Scale, skips, loss, gradient norm, learning rate, step time, memory, autocast."""
    cells = [
        f'<div class="aw-number"><span>{said(label)}</span><b>{said(text)}</b></div>'
        for label, text in _numbers(look)
    ]
    return f'<div class="aw-strip">{"".join(cells)}</div>'


def _numbers(look: Look) -> Iterator[tuple[str, str]]:
    course = look.course
    if look.diagnosis is not None:
        yield from _scale(look)
    else:
        yield "steps", f"{len(course):,}"
    for label, column in _LINES.items():
        if column in course.present:
            differs = any(column_of(column, rank) in course.present for rank in look.shown)
            who = f", rank {look.shown[0]}" if differs else ""
            yield label + who, _latest(look, column)
    times = course.columns["step_time_ms"][-_RECENT:]
    if np.isfinite(times).any():
        yield "step time", _time(float(np.nanmedian(times)))
    memory = _memory(look)
    if memory:
        yield "GPU memory", memory
    if course.autocast_dtype:
        yield "autocast", short_dtype(course.autocast_dtype)


def _scale(look: Look) -> Iterator[tuple[str, str]]:
    assert look.diagnosis is not None
    facts = look.diagnosis.run
    if facts.final_scale is None:
        yield "steps", f"{facts.steps:,}"
        return
    scale = scale_text(facts.final_scale)
    small = scale.startswith("2^") and abs(int(scale[2:])) <= 4
    yield "loss scale", f"{scale} = {facts.final_scale:.4g}" if small else scale
    share = f" · {share_text(facts.skipped, facts.steps)}" if facts.skipped else ""
    yield "skipped", f"{facts.skipped:,} of {facts.steps:,}{share}"


def _latest(look: Look, column: str) -> str:
    value, since = look.course.latest(column)
    if value is None:
        return "never finite"
    if since and column != "lr" and _is_logged_every_step(look, column):
        return f"not finite for {count_text(since, 'step')}"
    return rate_text(value) if column == "lr" else f"{value:.4g}"


def _is_logged_every_step(look: Look, column: str) -> bool:
    """Whether a missing number means one that was not finite, not one that was not logged."""
    return look.course.early_share(column) > 0.5


def _time(milliseconds: float) -> str:
    return f"{milliseconds / 1000:.3g} s" if milliseconds >= 1000 else f"{milliseconds:.3g} ms"


def _memory(look: Look) -> str:
    last = look.last_rows(Table.DEVICES, ("used_bytes", "total_bytes"), 1).to_pylist()
    if not last or not last[0]["used_bytes"] or not last[0]["total_bytes"]:
        return ""
    return bytes_text(last[0]["used_bytes"], last[0]["total_bytes"])
