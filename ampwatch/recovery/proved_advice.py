"""The advice on the learning rate once reruns have shown more than the run's own record does.

Every view takes its advice from here: an estimate gives way to what was tried. `judge` puts
together what a report says of a run: its own rows, what earlier runs showed, what reruns showed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ampwatch.diagnosis import Action, Advice, Diagnosis, Engine, conclude
from ampwatch.diagnosis.earlier_runs import EarlierRun, LessonOfEarlierRuns, with_lesson
from ampwatch.diagnosis.rules.rate import how_to_change_rate
from ampwatch.follow import KeptEntries, as_it_stands, keep_for_later, lesson_for
from ampwatch.recovery.change import NOTHING, RATE
from ampwatch.recovery.proof import Proof, besides_rate, kept_proof, sentence_of
from ampwatch.store import Run

PROVED_CONFIDENCE = 0.9  # all of 67 proved rates trained (`benchmarks/results/prove.md`)


@dataclass(frozen=True, slots=True)
class JudgedRun:
    """A run's diagnosis as every report gives it, and what went into it beside the run's rows."""

    diagnosis: Diagnosis
    established_scale: float | None
    lesson: LessonOfEarlierRuns | None
    proof: Proof | None


def judge(run: Run, others: Sequence[EarlierRun] = ()) -> JudgedRun:
    """Judge a run as it stands now, by its rows, by earlier runs like it, and by its reruns.

    Earlier runs are those of its folder and `others`. Its facts are kept for lessons of later runs.
    """
    case, kept = Engine().feed(run).case(), KeptEntries()
    judged = as_it_stands(run, conclude(case))
    lesson, proof = lesson_for(run, others, kept), kept_proof(run.path)
    keep_for_later(run, judged, kept)
    diagnosis = with_proof(with_lesson(judged, lesson), proof)
    return JudgedRun(diagnosis, case.scale.level, lesson, proof)


def with_proof(diagnosis: Diagnosis, proof: Proof | None) -> Diagnosis:
    """The diagnosis, its advice on the rate replaced by what reruns have shown of rates.

    Its findings and verdict stay, except for the rate that a finding's action names.
    """
    old = diagnosis.learning_rate
    new = None if proof is None else proved_advice(old, proof)
    if new is None:
        return diagnosis
    findings = diagnosis.findings
    if old.factor is not None and new.factor is not None:
        was, now = how_to_change_rate(old), how_to_change_rate(new)
        findings = tuple(replace(one, action=now) if one.action == was else one for one in findings)
    return replace(diagnosis, learning_rate=new, findings=findings)


def proved_advice(advice: Advice, proof: Proof) -> Advice | None:
    """The advice by what reruns have shown; None if they have shown nothing about this rate."""
    if not any(one.change == RATE for one in proof.tries):
        return None
    if advice.action is not Action.LOWER and not _came_back(proof):
        return None
    current, (low, high) = advice.current or proof.base, proof.interval
    if not current:
        return None
    best, rate = proof.proved, proof.proved_rate
    if best is not None and rate is not None and rate < current:
        return replace(
            advice, action=Action.LOWER, because=sentence_of(proof), current=current,
            recommended=rate, factor=rate / current, low=low, high=high,
            confidence=PROVED_CONFIDENCE, leapt_at_step=None, explained_by=None,
            proved_steps=proof.steps, group=0 if advice.group is None else advice.group,
            besides=besides_rate(best),
        )  # fmt: skip
    if rate is None and advice.recommended is not None and high is not None:
        return _refuted(advice, proof, high)
    return None


def _refuted(advice: Advice, proof: Proof, failed: float) -> Advice | None:
    """Where every rate that was tried failed: an estimate that is no lower is not advised."""
    assert advice.recommended is not None
    if advice.recommended < failed:
        return None
    return replace(
        advice, because=sentence_of(proof), recommended=None, factor=None, low=None, high=failed,
        confidence=None,
    )  # fmt: skip


def _came_back(proof: Proof) -> bool:
    """Whether the trouble came back with nothing changed, so that a rate that ends it is a cure."""
    return any(one.change == NOTHING and not one.is_stable for one in proof.tries)
