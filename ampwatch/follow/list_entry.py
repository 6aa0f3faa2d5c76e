"""A run's entry in a list: its verdict, its gravest finding and its figures.

A diagnosis is too slow for a list, so the entries of runs that are over are kept in the user's
state folder until the run's files or the diagnosis code change. Later runs learn from them which
learning rates held: a run counts once it was judged, by `ampwatch list`, by a page, or by its own
report; no other run is opened.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ampwatch.diagnosis import Diagnosis, Severity
from ampwatch.diagnosis.column_arrays import numbers
from ampwatch.diagnosis.earlier_runs import (
    EarlierRun,
    LessonOfEarlierRuns,
    Outcome,
    Signature,
    lesson_of,
    outcome_of,
    rate_told,
    signature_of,
    steps_held,
)
from ampwatch.diagnosis.verdict import verdict_text
from ampwatch.rows import Table
from ampwatch.store import OWN_SOURCE, Reading, Run, RunSummary
from ampwatch.store.kept_facts import KeptFacts, stamp_of

_POINTS = 48  # of the scale's course, for a small chart
MODEL_SETTINGS = ("model", "model_name", "model_name_or_path", "arch", "architecture")
_LONGEST_NAME = 200
_MOST_SIMILAR = 200  # the newest runs, which are checked to be unchanged since they were judged


@dataclass(frozen=True, slots=True)
class ListEntry:
    """What a list of runs shows of a run besides its name and age."""

    verdict: str
    words: str  # the verdict, and whether the run was cut off
    finding: str  # code and name of the gravest finding; empty if nothing is wrong
    steps: int
    last_step: int
    skipped: int
    final_scale: float | None
    highest_rate: float | None  # of all learning rates
    model: str  # its class, else what the settings call it
    course: str  # of the scale: the lowest power of two of each part, so that no fall is lost
    loss: float | None = None  # the last one; NaN if that is not finite
    loss_course: str = ""  # the highest finite loss of each part
    damage: str = ""  # what is unreadable in the run's files
    # Facts for later runs, see `diagnosis.earlier_runs`.
    run_id: str = ""
    started_ns: int = 0
    signature: str = ""  # empty if the run has no signature
    outcome: str = Outcome.NEITHER.value
    rate: float | None = None
    steps_held: int = 0


def entry_of(run: Run, diagnosis: Diagnosis) -> ListEntry:
    """The list entry of a run with this diagnosis."""
    facts, head = diagnosis.run, diagnosis.headline
    notes = run.notes if run.info.source == OWN_SOURCE else ()
    curves = _curve_facts(run)
    advice, signature = diagnosis.learning_rate, signature_of(run)
    is_grave = head is not None and head.severity is not Severity.INFO
    return ListEntry(
        verdict=diagnosis.verdict.value,
        words=verdict_text(diagnosis),
        finding=f"{head.code} {head.name}" if head is not None and is_grave else "",
        steps=facts.steps,
        last_step=curves.last_step,
        skipped=facts.skipped,
        final_scale=facts.final_scale,
        highest_rate=curves.highest_rate,
        model=_model(run)[:_LONGEST_NAME],
        course=curves.scale_course,
        loss=curves.loss,
        loss_course=curves.loss_course,
        damage=next((note for note in notes if "damaged" in note or "missing" in note), ""),
        run_id=run.info.id,
        started_ns=run.info.started_ns,
        signature=signature.text if signature else "",
        outcome=outcome_of(diagnosis.verdict.value, advice.action.value).value,
        rate=rate_told(advice.current, advice.group, curves.highest_rate),
        steps_held=steps_held(diagnosis),
    )


class _CurveFacts(NamedTuple):
    """What a list entry tells of a run's curves."""

    last_step: int
    highest_rate: float | None
    scale_course: str
    loss: float | None
    loss_course: str


def _curve_facts(run: Run) -> _CurveFacts:
    reading, rows_read = Reading(run), 0
    last_step, highest, loss = 0, -np.inf, None
    scales: list[np.ndarray] = []
    losses: list[np.ndarray] = []
    rank = min(run.ranks, default=None)
    for _ in reading.portions():
        rows = reading.read(Table.STEPS, ("step", "lr", "scale", "loss"), rank, rows_read)
        rows_read += rows.num_rows
        step, rate, scale = (_finite(rows, name) for name in ("step", "lr", "scale"))
        last_step = max(last_step, int(step.max(initial=0)))
        highest = max(highest, float(rate.max(initial=-np.inf)))
        scales.append(_of_parts(np.minimum, scale, max(_POINTS, len(scale) // 1000)))
        logged = rows.column("loss").drop_null()
        loss = float(logged[-1].as_py()) if len(logged) else loss
        finite = _finite(rows, "loss")
        losses.append(_of_parts(np.maximum, finite, max(_POINTS, len(finite) // 1000)))
    course, loss_course = _joined(np.minimum, scales), _joined(np.maximum, losses)
    if loss is not None and not np.isfinite(loss):
        loss = float("nan")
    return _CurveFacts(
        last_step,
        float(highest) if np.isfinite(highest) else None,
        " ".join(f"{power:.3g}" for power in np.log2(course[course > 0])),
        loss,
        " ".join(f"{value:.3g}" for value in loss_course),
    )


def _finite(rows: Any, name: str) -> np.ndarray:
    values = numbers(rows, name)
    return values[np.isfinite(values)]


def _joined(extreme: np.ufunc, parts: list[np.ndarray]) -> np.ndarray:
    return _of_parts(extreme, np.concatenate(parts) if parts else np.empty(0), _POINTS)


def _of_parts(extreme: np.ufunc, values: np.ndarray, most: int) -> np.ndarray:
    """The lowest or highest value of each part, so that no fall and no spike is lost."""
    if not len(values):
        return values
    starts = np.linspace(0, len(values), min(most, len(values)), endpoint=False)
    found: np.ndarray = extreme.reduceat(values, starts.astype(np.int64))
    return found


def _model(run: Run) -> str:
    rows = run.read(Table.LAYER_INFO, ("name", "kind")).to_pylist()
    kinds = dict.fromkeys(row["kind"] for row in rows if row["name"] == "" and row["kind"])
    named = (run.info.config.get(name) for name in MODEL_SETTINGS)
    return ", ".join(kinds) or next((name for name in named if isinstance(name, str)), "")


# --- kept on disk ---------------------------------------------------------------------------------


class KeptEntries:
    """The list entries of finished runs, kept on disk; `save` writes new ones."""

    def __init__(self) -> None:
        self._folders: dict[Path, KeptFacts] = {}

    def of(self, run: RunSummary) -> ListEntry | None:
        """The kept list entry of this run, if the run has not changed since."""
        return _entry_in(self._folder(run.path.parent).of(run.path.name, run.stamp))

    def add(self, run: RunSummary, entry: ListEntry) -> None:
        """Keep the list entry of a run that is over."""
        self._folder(run.path.parent).add(run.path.name, run.stamp, list(astuple(entry)))

    def similar(
        self, folder: Path, made: Signature, most: int
    ) -> Iterator[tuple[str, str, ListEntry]]:
        """The kept list entries of similar runs in a folder, at most `most`: name, stamp, entry.

        Those that are alike come first, then by age, so that few of many thousands are checked.
        """
        similar = []
        for name, stamp, facts in self._folder(folder).every():
            if isinstance(facts, list) and len(facts) == len(_NAMES):
                text, started_ns = str(facts[_SIGNATURE]), facts[_STARTED]
                if made.family in text and isinstance(started_ns, int):
                    similar.append((made.key in text, started_ns, name, stamp, facts))
        similar.sort(key=itemgetter(0, 1), reverse=True)
        for *_, name, stamp, facts in similar[:most]:
            if (entry := _entry_in(facts)) is not None:
                yield name, stamp, entry

    def save(self) -> None:
        """Write new list entries to disk; errors are ignored."""
        for facts in self._folders.values():
            facts.save()

    def _folder(self, folder: Path) -> KeptFacts:
        if folder not in self._folders:
            self._folders[folder] = KeptFacts("entries", folder, diagnosis_digest()[:16])
        return self._folders[folder]


_TYPES: dict[str, type | tuple[type, ...]] = {
    "str": str, "int": int, "float | None": (int, float, type(None)),
}  # fmt: skip
_NAMES = [field.name for field in fields(ListEntry)]
_KINDS = [_TYPES[str(field.type)] for field in fields(ListEntry)]
_SIGNATURE, _STARTED = _NAMES.index("signature"), _NAMES.index("started_ns")


def _entry_in(facts: Any) -> ListEntry | None:
    """The list entry in kept facts, if they are valid."""
    if not isinstance(facts, list) or len(facts) != len(_KINDS):
        return None
    return ListEntry(*facts) if all(map(isinstance, facts, _KINDS)) else None


_OUTCOMES = {outcome.value for outcome in Outcome}


@functools.cache
def diagnosis_digest() -> str:
    """A digest of the code and pages of the diagnosis, and of what is kept of a run here."""
    import ampwatch.diagnosis

    folder = Path(ampwatch.diagnosis.__file__).parent
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for path in sorted(path for path in folder.rglob("*") if path.suffix in {".py", ".md"}):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


# --- lessons on the learning rate -----------------------------------------------------------------


def lesson_for(
    run: Run, others: Sequence[EarlierRun] = (), kept: KeptEntries | None = None
) -> LessonOfEarlierRuns | None:
    """The lesson for a run from earlier runs in its folder, and from other known runs."""
    made = signature_of(run)
    if made is None:
        return None
    similar = _similar_runs(run, made, kept or KeptEntries())
    by_id = {earlier.id: earlier for earlier in (*others, *similar)}
    return lesson_of(made, by_id.values(), run_id=run.info.id, started_ns=run.info.started_ns)


def keep_for_later(run: Run, diagnosis: Diagnosis, kept: KeptEntries | None = None) -> None:
    """Keep a finished run's facts for the lessons of later runs; errors are ignored."""
    path = run.path.absolute()
    stamp = stamp_of(str(path)) if run.clean_end else None
    if stamp is None or not stamp.text or signature_of(run) is None:
        return
    summary, kept = RunSummary(path, path.name, stamp=stamp.text), kept or KeptEntries()
    if kept.of(summary) is None:
        kept.add(summary, entry_of(run, diagnosis))
        kept.save()


def _similar_runs(run: Run, made: Signature, kept: KeptEntries) -> Iterator[EarlierRun]:
    """The newest similar runs in the run's folder, if unchanged since they were judged."""
    folder = run.path.absolute().parent
    for name, stamp, entry in kept.similar(folder, made, _MOST_SIMILAR):
        now = stamp_of(str(folder / name))
        if entry.outcome in _OUTCOMES and now is not None and now.text == stamp:
            yield EarlierRun(
                id=entry.run_id,
                name=name,
                started_ns=entry.started_ns,
                signature=Signature.of_text(entry.signature),
                outcome=Outcome(entry.outcome),
                rate=entry.rate,
                steps=entry.steps_held,
            )
