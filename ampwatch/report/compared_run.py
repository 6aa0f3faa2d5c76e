"""A run's outline: what a comparison shows of it, independent of the run's length."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ampwatch.diagnosis import Diagnosis, Engine, ForSeveralRuns, conclude
from ampwatch.diagnosis.column_arrays import Floats, Integers, integers, known, numbers, texts
from ampwatch.follow import as_it_stands
from ampwatch.report import happenings
from ampwatch.report.facts import rows_of_optimizer
from ampwatch.report.letter_facts import FactReader, optimizer_of
from ampwatch.report.letter_to_do import is_lowered
from ampwatch.report.settings import settings_of
from ampwatch.rows import Mark, Table

if TYPE_CHECKING:
    from ampwatch.store import Run

LOSS = "loss"
_FINAL_VALUES = 30  # whose median is the value at the end: single batches differ
_COLUMNS = ("step", "loss", "grad_norm", "step_time_ms")
# What is better is known by a value's name; of others both ends are shown.
_LOWER = frozenset(
    ["loss", "err", "error", "ppl", "perplexity", "wer", "cer", "mse", "mae", "rmse", "nll", "bpb",
     "bpc", "fid", "kl", "ce", "bce"]
)  # fmt: skip
_HIGHER = frozenset(
    ["acc", "accuracy", "f1", "bleu", "rouge", "rougel", "auc", "auroc", "map", "iou", "miou",
     "dice", "precision", "recall", "psnr", "ssim", "reward", "score", "r2", "top1", "top5", "em"]
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class At:
    """A value, and the step at which it was logged."""

    value: float
    step: int


@dataclass(frozen=True, slots=True)
class ValueCourse:
    """The course of one value over a run. Values that are not finite are counted, not compared."""

    count: int
    first: float | None  # the first and the last finite one
    last: float | None
    lowest: At | None
    highest: At | None
    at_the_end: float | None  # the median of the last finite ones; None where it ends without
    lost: int  # values at the end that are not finite
    higher_is_better: bool | None  # None where its name does not tell

    @property
    def best(self) -> At | None:
        """The best value; None where it is not known which is better."""
        if self.higher_is_better is None:
            return None
        return self.highest if self.higher_is_better else self.lowest


@dataclass(frozen=True, slots=True)
class Outline:
    """The compared facts of a run."""

    name: str
    diagnosis: Diagnosis
    for_several: ForSeveralRuns
    settings: Mapping[str, str]
    values: Mapping[str, ValueCourse]  # the loss, and what the user's own code logged
    grad_norm: float | None  # the median, as of the next
    step_time_ms: float | None
    peak_bytes: int | None
    is_host_memory: bool  # of the process, where no card tells
    is_uncounted: bool  # its log does not number its steps
    broke_down_at: int | None = None  # of too high a learning rate: as its letter says

    @property
    def rate(self) -> float | None:
        """The base learning rate."""
        return self.diagnosis.learning_rate.current


def outline_of(run: Run) -> Outline:
    """The outline of a run in its current state; diagnoses it."""
    case = Engine().feed(run).case()
    judged = conclude(case)
    return outline_as(run, as_it_stands(run, judged), ForSeveralRuns.of(case, judged))


def outline_as(run: Run, diagnosis: Diagnosis, for_several: ForSeveralRuns) -> Outline:
    """The outline of a run with this diagnosis."""
    rows = rows_of_optimizer(run, _COLUMNS)
    told = known(rows, "loss")
    loss = course_of(integers(rows, "step")[told], numbers(rows, "loss")[told], LOSS)
    peak, is_host = peak_bytes(run)
    return Outline(
        name=run.info.name,
        diagnosis=diagnosis,
        for_several=for_several,
        settings=settings_of(run),
        values=({LOSS: loss} if loss else {}) | dict(_own_values(run)),
        grad_norm=_median(rows, "grad_norm"),
        step_time_ms=_median(rows, "step_time_ms"),
        peak_bytes=peak,
        is_host_memory=is_host,
        is_uncounted=any(Mark.PLACED.value in marks for marks in run.info.marks.values()),
        broke_down_at=_broke_down_at(run, diagnosis),
    )


def _broke_down_at(run: Run, diagnosis: Diagnosis) -> int | None:
    """The step at which too high a learning rate broke the training down, as its letter says."""
    head = diagnosis.headline
    if head is None or not is_lowered(diagnosis):
        return None
    begin = happenings.course_of(FactReader(run, optimizer_of(run, head)), diagnosis).begin
    return None if begin is None else int(begin.value)


def course_of(step: Integers, values: Floats, name: str) -> ValueCourse | None:
    """The course of one value of a compared run, as logged; None where none was."""
    if not len(values):
        return None
    at = np.flatnonzero(np.isfinite(values))
    lost = len(values) - int(at[-1]) - 1 if len(at) else len(values)

    def found(place: np.intp) -> At:
        return At(float(values[place]), int(step[place]))

    finite = values[at]
    return ValueCourse(
        count=len(values),
        first=float(finite[0]) if len(at) else None,
        last=float(finite[-1]) if len(at) else None,
        lowest=found(at[np.argmin(finite)]) if len(at) else None,
        highest=found(at[np.argmax(finite)]) if len(at) else None,
        at_the_end=None if lost else float(np.median(finite[-_FINAL_VALUES:])),
        lost=lost,
        higher_is_better=higher_is_better(name),
    )


def higher_is_better(name: str) -> bool | None:
    """Whether higher values of that name are better; None where it does not tell."""
    words = set(re.split(r"[^a-z0-9]+", name.lower()))
    if words & _LOWER or any(word.endswith(("loss", "error")) for word in words):
        return False
    return True if words & _HIGHER else None


def _own_values(run: Run) -> Iterator[tuple[str, ValueCourse]]:
    """A compared run's own values, given to `watch.log`, from the lowest rank that logged any."""
    rows = run.read(Table.EXTRAS, columns=("rank", "step", "name", "value"))
    if not rows.num_rows:
        return
    ranks, (names, codes) = integers(rows, "rank"), texts(rows, "name")
    told = np.flatnonzero((ranks == ranks.min()) & (codes >= 0) & known(rows, "value"))
    told = told[np.argsort(codes[told], kind="stable")]
    step, values = integers(rows, "step"), numbers(rows, "value")
    for part in np.split(told, np.flatnonzero(np.diff(codes[told])) + 1) if len(told) else ():
        name = names[codes[part[0]]]
        course = course_of(step[part], values[part], name)
        if course is not None:
            yield (f"{name} (logged)" if name == LOSS else name), course


def _median(rows: Any, name: str) -> float | None:
    values = numbers(rows, name)
    values = values[np.isfinite(values)]
    return float(np.median(values)) if len(values) else None


def peak_bytes(run: Run) -> tuple[int | None, bool]:
    """A compared run's peak memory: of the device by torch, else in use, else of the process."""
    rows = run.read(Table.DEVICES, ("peak_bytes", "used_bytes", "host_rss_bytes"))
    for column in rows.column_names:
        peak = int(integers(rows, column).max(initial=-1))
        if peak >= 0:
            return peak, column == "host_rss_bytes"
    return None, False
