"""A run's numbers by step, as its charts draw them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ampwatch.report.facts import rows_of_first_optimizer
from ampwatch.report.thinning import Floats, Line, Rug, Steps, broken_line, merged, stepped_line
from ampwatch.rows import Table

if TYPE_CHECKING:
    from ampwatch.diagnosis import Record

SCALE = "log2_scale"
LINES = ("loss", "grad_norm", "lr", "step_time_ms")


@dataclass(frozen=True, slots=True)
class Curves:
    """Thinned lines of the columns that hold any number, and every skipped step as a tick."""

    ends: tuple[int, int]
    lines: Mapping[str, Line]
    skips: Rug
    skipped: int


def curves_of(run: Record) -> Curves | None:
    """The curves of a run; None of a run without steps."""
    rows = rows_of_first_optimizer(run, ("step", "scale", "scale_after", *LINES))
    if not rows.num_rows:
        return None
    step: Steps = np.asarray(rows.column("step").fill_null(-1).to_numpy(), np.int64)
    ends = int(step.min()), int(step.max())
    lines = {name: broken_line(step, _single(rows, name)) for name in LINES}
    lines[SCALE] = stepped_line(step, _log2_scale(rows))
    skips = _skipped_steps(run)
    present = {name: line for name, line in lines.items() if len(line.x)}
    return Curves(ends, present, merged(skips, *ends), len(skips))


def _skipped_steps(run: Record) -> Steps:
    """The steps that any optimizer of any rank skipped."""
    rows = run.read(Table.STEPS, columns=("step", "skipped"))
    skipped = rows.column("skipped").fill_null(False).to_numpy()  # noqa: FBT003
    return np.unique(np.asarray(rows.column("step").fill_null(-1).to_numpy(), np.int64)[skipped])


def _log2_scale(rows: Any) -> Floats:
    """What each step was scaled with; in logs that tell only what it became, that."""
    scale = rows.column("scale").to_numpy()
    scale = np.where(np.isnan(scale), rows.column("scale_after").to_numpy(), scale)
    with np.errstate(divide="ignore", invalid="ignore"):
        return _finite(np.log2(scale).astype(np.float32))


def _single(rows: Any, name: str) -> Floats:
    with np.errstate(over="ignore"):
        return _finite(np.array(rows.column(name).to_numpy(), np.float32))


def _finite(values: Floats) -> Floats:
    values[~np.isfinite(values)] = np.nan
    return values
