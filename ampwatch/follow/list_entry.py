"""A run's entry in a list: its verdict, its gravest finding and its figures.

A diagnosis is too slow for a list, so the entries of runs that are over are kept in the user's
state folder until the run's files or the diagnosis code change.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from ampwatch.diagnosis import Diagnosis, Severity
from ampwatch.diagnosis.column_arrays import numbers
from ampwatch.diagnosis.earlier_runs import (
    Outcome,
    Signature,
    outcome_of,
    rate_told,
    signature_of,
    steps_held,
)
from ampwatch.diagnosis.verdict import verdict_text
from ampwatch.rows import Table
from ampwatch.store import OWN_SOURCE, Reading, Run, RunSummary
from ampwatch.store.kept_facts import KeptFacts

_POINTS = 48  # of the scale's course, for a small chart
MODEL_SETTINGS = ("model", "model_name", "model_name_or_path", "arch", "architecture")
_LONGEST_NAME = 200


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
    last_step, highest_rate, course = _curve_facts(run)
    advice, made = diagnosis.learning_rate, signature_of(run)
    is_grave = head is not None and head.severity is not Severity.INFO
    return ListEntry(
        verdict=diagnosis.verdict.value,
        words=verdict_text(diagnosis),
        finding=f"{head.code} {head.name}" if head is not None and is_grave else "",
        steps=facts.steps,
        last_step=last_step,
        skipped=facts.skipped,
        final_scale=facts.final_scale,
        highest_rate=highest_rate,
        model=_model(run)[:_LONGEST_NAME],
        course=course,
        damage=next((note for note in notes if "damaged" in note or "missing" in note), ""),
        run_id=run.info.id,
        started_ns=run.info.started_ns,
        signature=made.text if made else "",
        outcome=outcome_of(diagnosis.verdict.value, advice.action.value).value,
        rate=rate_told(advice.current, advice.group, highest_rate),
        steps_held=steps_held(diagnosis),
    )


def _curve_facts(run: Run) -> tuple[int, float | None, str]:
    """For a list entry: the last step, the highest learning rate and the scale's course."""
    reading, taken = Reading(run), 0
    last_step, highest = 0, -np.inf
    parts: list[np.ndarray] = []
    rank = min(run.ranks, default=None)
    for _ in reading.portions():
        rows = reading.read(Table.STEPS, ("step", "lr", "scale"), rank, taken)
        taken += rows.num_rows
        step, rate, scale = (_finite(rows, name) for name in ("step", "lr", "scale"))
        last_step = max(last_step, int(step.max(initial=0)))
        highest = max(highest, float(rate.max(initial=-np.inf)))
        parts.append(_lowest(scale, max(_POINTS, len(scale) // 1000)))
    course = _lowest(np.concatenate(parts) if parts else np.empty(0), _POINTS)
    powers = " ".join(f"{power:.3g}" for power in np.log2(course[course > 0]))
    return last_step, float(highest) if np.isfinite(highest) else None, powers


def _finite(rows: Any, name: str) -> np.ndarray:
    values = numbers(rows, name)
    return values[np.isfinite(values)]


def _lowest(values: np.ndarray, most: int) -> np.ndarray:
    if not len(values):
        return values
    starts = np.linspace(0, len(values), min(most, len(values)), endpoint=False)
    lowest: np.ndarray = np.minimum.reduceat(values, starts.astype(np.int64))
    return lowest


def _model(run: Run) -> str:
    rows = run.read(Table.LAYER_INFO, ("name", "kind")).to_pylist()
    kinds = dict.fromkeys(row["kind"] for row in rows if row["name"] == "" and row["kind"])
    named = (run.info.config.get(name) for name in MODEL_SETTINGS)
    return ", ".join(kinds) or next((name for name in named if isinstance(name, str)), "")


Kept = tuple[str, str, ListEntry]  # a run's name, the stamp that its files had, its entry


# --- kept ----------------------------------------------------------------------------------------


class KeptEntries:
    """The list entries of finished runs, kept on disk; `save` writes new ones."""

    def __init__(self) -> None:
        self._kept: dict[Path, KeptFacts] = {}

    def of(self, run: RunSummary) -> ListEntry | None:
        """The kept list entry of this run, if the run has not changed since."""
        return _valid_entry(self._folder(run).of(run.path.name, run.stamp))

    def add(self, run: RunSummary, entry: ListEntry) -> None:
        """Keep the list entry of a run that is over."""
        facts = [getattr(entry, name) for name in _NAMES]
        self._folder(run).add(run.path.name, run.stamp, facts)

    def similar(self, folder: Path, made: Signature, most: int) -> Iterator[Kept]:
        """The kept list entries of similar runs in a folder, at most `most`.

        Those that are alike come first, then by age, so that few of many thousands are checked.
        """
        found = []
        for name, stamp, facts in self._of_folder(folder).every():
            text, started_ns = _signature_and_start(facts)
            if made.family in text:
                found.append((made.key in text, started_ns, name, stamp, facts))
        for _, _, name, stamp, facts in sorted(found, key=_rank, reverse=True)[:most]:
            entry = _valid_entry(facts)
            if entry is not None:
                yield name, stamp, entry

    def save(self) -> None:
        """Write new list entries to disk; errors are ignored."""
        for kept in self._kept.values():
            kept.save()

    def _folder(self, run: RunSummary) -> KeptFacts:
        return self._of_folder(run.path.parent)

    def _of_folder(self, folder: Path) -> KeptFacts:
        if folder not in self._kept:
            self._kept[folder] = KeptFacts("entries", folder, _code_version())
        return self._kept[folder]


_NAMES = [field.name for field in fields(ListEntry)]
_TEXT, _NUMBER, _MAYBE = (str,), (int,), (int, float, type(None))
_KINDS: dict[str, tuple[type, ...]] = {
    "verdict": _TEXT, "words": _TEXT, "finding": _TEXT, "model": _TEXT, "damage": _TEXT,
    "steps": _NUMBER, "last_step": _NUMBER, "skipped": _NUMBER,
    "final_scale": _MAYBE, "highest_rate": _MAYBE, "course": _TEXT,
    "run_id": _TEXT, "started_ns": _NUMBER, "signature": _TEXT, "outcome": _TEXT,
    "rate": _MAYBE, "steps_held": _NUMBER,
}  # fmt: skip


def _signature_and_start(facts: Any) -> tuple[str, int]:
    """The signature and start in a kept list entry, without further checks."""
    if isinstance(facts, list) and len(facts) == len(_NAMES):
        text, started_ns = facts[_NAMES.index("signature")], facts[_NAMES.index("started_ns")]
        if isinstance(text, str) and isinstance(started_ns, int):
            return text, started_ns
    return "", 0


def _rank(found: tuple[bool, int, str, str, Any]) -> tuple[bool, int]:
    return found[:2]


def _valid_entry(facts: Any) -> ListEntry | None:
    """The list entry in kept facts, if they are valid."""
    if not isinstance(facts, list) or len(facts) != len(_NAMES):
        return None
    values = dict(zip(_NAMES, facts, strict=True))
    if not all(isinstance(values[name], _KINDS[name]) for name in _NAMES):
        return None
    return ListEntry(**values)


@functools.cache
def _code_version() -> str:
    """A hash of the diagnosis code, so that list entries of another version are not used."""
    import ampwatch.diagnosis

    files = [*_sources(Path(ampwatch.diagnosis.__file__).parent), Path(__file__)]
    marks = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(repr(marks).encode()).hexdigest()[:16]


def _sources(folder: Path) -> Iterator[Path]:
    yield from sorted(path for path in folder.rglob("*") if path.suffix in {".py", ".md"})
