"""Several runs side by side: figures, settings that differ, first differences, learning rate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ampwatch.diagnosis import Action
from ampwatch.diagnosis.findings import SCHEMA, Advice, Diagnosis, plain, verdict_text
from ampwatch.diagnosis.words import bytes_text, scale_text, share_text, time_text
from ampwatch.errors import DifferentModelsError
from ampwatch.follow import diagnose, diagnose_together
from ampwatch.report.divergence import Divergence, divergence_of
from ampwatch.report.facts import course_text, rows_of_first_optimizer
from ampwatch.report.settings import settings_of
from ampwatch.rows import Mark, Table

if TYPE_CHECKING:
    import pyarrow as pa

    from ampwatch.store import Run

_FINAL_STEPS = 30  # at the end, whose median is the final loss
_FIGURES = (
    "verdict", "headline", "steps", "learning rate", "loss scale", "skipped", "loss",
    "loss at the end", "gradient norm", "step time", "peak memory",
)  # fmt: skip
_COLUMNS = ("step", "loss", "grad_norm", "lr", "step_time_ms")


class HasTables(Protocol):
    """A run, or the dashboard's view of one."""

    def read(self, table: Table, columns: Sequence[str], /) -> pa.Table:
        """These columns of a table."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What differs between runs; each tuple holds one value a run, in the order given."""

    names: tuple[str, ...]
    figures: Mapping[str, tuple[str, ...]]
    settings: Mapping[str, tuple[str | None, ...]]  # those that differ
    partings: tuple[Divergence, ...]  # of each run but the first, compared with the first
    uncounted: tuple[str, ...]  # runs whose log does not number its steps
    learning_rate: Advice | None  # for all, where they differ in their rate
    not_together: str | None = None  # why there is no advice for all

    def to_json(self) -> dict[str, Any]:
        """The object that `compare --json` prints."""
        body = plain(self)
        assert isinstance(body, dict)
        return {"schema": SCHEMA, **body}


def compare(runs: Sequence[Run]) -> Comparison:
    """Compare two runs or more; the others are compared with the first."""
    diagnoses, advice, refusal = _judged(runs)
    rates = {d.learning_rate.current for d in diagnoses} - {None}
    differ = len(rates) > 1
    settings = differing([settings_of(run) for run in runs])
    if differ and not any(name.endswith(".lr") for name in settings):  # no optimizer was recorded
        told = (d.learning_rate.current for d in diagnoses)
        settings["learning rate"] = tuple(None if r is None else f"{r:.4g}" for r in told)
    return Comparison(
        names=tuple(run.info.name for run in runs),
        figures=_side_by_side([_figures(r, d) for r, d in zip(runs, diagnoses, strict=True)]),
        settings=settings,
        partings=tuple(divergence_of(runs[0], run) for run in runs[1:]),
        uncounted=tuple(run.info.name for run in runs if _is_uncounted(run)),
        learning_rate=advice if differ else None,
        not_together=refusal if differ else None,
    )


def _is_uncounted(run: Run) -> bool:
    return any(Mark.PLACED.value in marks for marks in run.info.marks.values())


def _judged(runs: Sequence[Run]) -> tuple[tuple[Diagnosis, ...], Advice | None, str | None]:
    try:
        together = diagnose_together(runs)
    except DifferentModelsError as refusal:
        return tuple(diagnose(run) for run in runs), None, str(refusal)
    return together.diagnoses, together.learning_rate, None


def differing(settings: Sequence[Mapping[str, str]]) -> dict[str, tuple[str | None, ...]]:
    """The settings that differ between runs; None where a run does not have one."""
    names = dict.fromkeys(name for one in settings for name in one)
    found = {name: tuple(one.get(name) for one in settings) for name in names}
    return {name: values for name, values in found.items() if len(set(values)) > 1}


# --- figures -------------------------------------------------------------------------------------


def _side_by_side(runs: Sequence[Mapping[str, str]]) -> dict[str, tuple[str, ...]]:
    """Each figure that any run has."""
    names = [name for name in _FIGURES if any(name in one for one in runs)]
    return {name: tuple(one.get(name, "") for one in runs) for name in names}


def _figures(run: Run, diagnosis: Diagnosis) -> dict[str, str]:
    facts, head = diagnosis.run, diagnosis.headline
    found = {"verdict": verdict_text(diagnosis)}
    if head is not None and head.severity.weight:
        since = "" if head.first_step is None else f" since step {head.first_step:,}"
        found["headline"] = f"{head.code} {head.name}{since}"
    found["steps"] = f"{facts.steps:,}"
    if diagnosis.learning_rate.current is not None:
        found["learning rate"] = f"{diagnosis.learning_rate.current:.4g}"
    if facts.first_scale is not None:
        found["loss scale"] = f"{scale_text(facts.first_scale)} to {scale_text(facts.final_scale)}"
    if facts.first_scale is not None or facts.skipped:
        found["skipped"] = f"{facts.skipped:,}, {share_text(facts.skipped, facts.steps)}"
    peak = peak_memory(run)
    return found | dict(_measured(run)) | ({"peak memory": peak} if peak else {})


def _measured(run: Run) -> Iterator[tuple[str, str]]:
    rows = rows_of_first_optimizer(run, _COLUMNS)
    loss, norm, times = (_present(rows, name) for name in ("loss", "grad_norm", "step_time_ms"))
    if len(loss):
        yield "loss", course_text(loss, "to")
        finite = loss[np.isfinite(loss)]
        if len(finite) >= _FINAL_STEPS:
            yield "loss at the end", f"{np.median(finite[-_FINAL_STEPS:]):.4g}"
    norm, times = norm[np.isfinite(norm)], times[np.isfinite(times)]
    if len(norm):
        yield "gradient norm", f"{np.median(norm):.4g}"
    if len(times):
        yield "step time", time_text(float(np.median(times)))


def _present(rows: Any, name: str) -> Any:
    return np.asarray(rows.column(name).drop_null().to_numpy(), np.float64)


def peak_memory(run: HasTables) -> str:
    """The card's peak as torch counts it, else the memory in use, else the process's."""
    rows = run.read(Table.DEVICES, ("peak_bytes", "used_bytes", "host_rss_bytes"))
    for column, where in (("peak_bytes", ""), ("used_bytes", ""), ("host_rss_bytes", " (host)")):
        known = rows.column(column).drop_null()
        if len(known):
            return bytes_text(int(known.to_numpy().max())) + where
    return ""


def has_boundary(advice: Advice) -> bool:
    """Whether the runs show which rate is too high."""
    return advice.action is Action.LOWER and advice.low is not None and advice.high is not None
