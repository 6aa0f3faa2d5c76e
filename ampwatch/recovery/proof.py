"""What the reruns of a run have proved: each one's outcome, all together, and the advice by them.

A verdict is made of one run alone. Where several were trained alike but for their rate, the losses
at equal steps say more: a rate is too high if the training is lost with it, if its loss stood far
above where it began, or if it learnt much less than with a lower rate.

The proof is saved in the run's folder. Every view takes its advice on the rate from here: an
estimate gives way to what was tried. `judge` puts together what a report says of a run: its own
rows, what earlier runs showed, what reruns showed.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ampwatch.diagnosis import Action, Advice, Diagnosis, Engine, conclude
from ampwatch.diagnosis.causes import RATE as RATE_CODES
from ampwatch.diagnosis.earlier_runs import EarlierRun, LessonOfEarlierRuns, with_lesson
from ampwatch.diagnosis.learning_rate.judgement import Cause
from ampwatch.diagnosis.rules.rate import how_to_change_rate
from ampwatch.diagnosis.scale_history import EstablishedScale
from ampwatch.errors import AmpwatchError
from ampwatch.files import read_at_most, replace_file
from ampwatch.follow import KeptEntries, as_it_stands, keep_for_later, lesson_for
from ampwatch.recovery.change import FLOAT32, LAYERS_BY, NOTHING, RATE, Cure, Value, switch_text
from ampwatch.store import Run

LEARNT = 0.5  # of the progress of a lower rate: less is above the limit, though it lives
AS_GOOD = 0.9  # of its progress: with the script's own rate and a cure, nothing else is changed
STOOD_ABOVE = 0.5  # of that progress above the first loss, for WINDOW steps: it has diverged
WINDOW = 20  # steps whose median is one loss: a leap of a few steps does no harm
_LEAST_TO_COMPARE = 40  # steps: enough to have learnt
_SAME_RATE = 0.99  # of the run's own
_HARDLY = 0.03  # of the first loss: what came down by less has not learnt, what rose by more lost


@dataclass(frozen=True, slots=True)
class Try:
    """One rerun: what was changed, and how many steps it trained."""

    change: str
    value: Value
    steps: int
    verdict: str
    is_stable: bool  # it came as far as asked, and the run's trouble was not found
    told: str  # its headline, or why it ended
    loss_at: Mapping[str, float]  # by step
    run: str  # its folder
    is_lost: bool = False  # it ended before its time, or with losses or weights that are not finite
    highest: float | None = None  # the highest median of WINDOW losses
    kept: Cure | None = None  # what was changed besides the rate
    # Whether the run's named trouble is gone, whatever else came; None: not asked, or not known.
    is_cured: bool | None = None

    @property
    def rate(self) -> float:
        """The rate that was tried; 0 where something else was changed."""
        return self.value if self.change == RATE and isinstance(self.value, float) else 0.0

    @property
    def cure(self) -> Cure:
        """What was changed that is no rate: alone, or besides one."""
        return (self.change, self.value) if self.kept is None else self.kept


def failed_rates(rates: Sequence[Try]) -> set[float]:
    """The rates, of these reruns, of which one came out badly."""
    return {one.rate for one in rates if not _came_out_well(one, rates)}


def ceiling(rates: Sequence[Try], rate: float) -> float | None:
    """The loss above which a rate is too high; None where no lower one has shown how far it is."""
    lower = [one for one in rates if one.rate < rate and not one.is_lost]
    spans = [(first, first - last) for one in lower for first, last in [_ends(one)]]
    first, progress = max(spans, key=lambda span: span[1], default=(math.nan, math.nan))
    return first + STOOD_ABOVE * progress if progress > 0 else None


def highest_loss(losses: Mapping[int, float]) -> float | None:
    """The highest median of WINDOW losses; None of fewer."""
    course = [losses[step] for step in sorted(losses)]
    windows = range(len(course) - WINDOW + 1)
    return max((statistics.median(course[at : at + WINDOW]) for at in windows), default=None)


def is_doubtful(one: Try) -> bool:
    """Whether its loss stood above its first: only a lower rate shows what it might have learnt."""
    first, _ = _ends(one)
    return one.highest is not None and one.highest - first > _HARDLY * abs(first)


def has_learnt(one: Try) -> bool:
    """Whether its loss came down; true where none is known."""
    first, last = _ends(one)
    return not first - last <= _HARDLY * abs(first)


def _rose(one: Try) -> bool:
    """Whether its loss ended above where it began."""
    first, last = _ends(one)
    return last - first > _HARDLY * abs(first)


def _ends(one: Try) -> tuple[float, float]:
    """The first loss and the last; nan where they are not known."""
    steps = sorted(map(int, one.loss_at))
    if len(steps) < 2:
        return math.nan, math.nan
    return one.loss_at[str(steps[0])], one.loss_at[str(steps[-1])]


def _came_out_well(one: Try, rates: Sequence[Try]) -> bool:
    if one.is_lost or _rose(one):
        return False
    compared = [found for other in rates if (found := _compared(one, other)) is not None]
    if not compared:
        return one.is_stable
    if any(progress < LEARNT * best for progress, best in compared):
        return False
    most = ceiling(rates, one.rate)
    return one.highest is None or most is None or one.highest <= most


def _compared(one: Try, other: Try) -> tuple[float, float] | None:
    """The progress of a rerun, and of one at a lower rate, by the last step that both have."""
    shared = sorted(map(int, set(one.loss_at) & set(other.loss_at)))
    if other.rate >= one.rate or other.is_lost:
        return None
    if not shared or shared[-1] < shared[0] + _LEAST_TO_COMPARE:
        return None
    first, last = str(shared[0]), str(shared[-1])
    return one.loss_at[first] - one.loss_at[last], other.loss_at[first] - other.loss_at[last]


# -- the results of all reruns of a run ------------------------------------------------------------


PROOF_FILE = "proved.json"
_MOST_BYTES = 1 << 20
SCHEMA = 1
TIME_WAS_UP = "time was up"
LEARNT_LITTLE = "it learnt too little"
_CONTRACT = ("change", "value", "steps", "verdict", "loss_at", "run")  # of a try, as printed


@dataclass(frozen=True, slots=True)
class Proof:
    """All reruns of one run, and their conclusion."""

    run: str
    base: float | None  # the rate that the run was started with, and that failed
    steps: int  # that a rerun was to survive
    tries: tuple[Try, ...]
    notes: tuple[str, ...] = ()  # sentences on how far to trust it
    kept: Cure | None = None  # what ended the named trouble, and is changed besides the rate
    # The run's rate rose for longer than the reruns lasted: a rate is proved by so many steps.
    needs_steps: int | None = None

    @property
    def proved(self) -> Try | None:
        """The best, if the reruns were long enough to prove it."""
        best = self.best
        is_short = self.needs_steps is not None and best is not None and best.change == RATE
        return None if is_short else best

    @property
    def best(self) -> Try | None:
        """Of the rates that held the one whose loss is lowest; else the first other cure.

        One that the diagnosis finds fault with, though it held, comes after the others.
        """
        safe = self._safe(self.interval[1])
        held = [one for one in safe if one.is_stable] or safe
        at = _common_step(held)
        if at is None:
            others = (one for one in self.cures if one.is_stable)
            return max(held, key=_rate, default=None) or next(others, None)
        lowest = min(held, key=lambda one: (one.loss_at[at], -one.rate))
        return self._own_with_cure(held, lowest) or lowest

    def _own_with_cure(self, held: Sequence[Try], lowest: Try) -> Try | None:
        """The rerun with a cure and the run's own rate, where another one gains hardly more."""
        for one in held:
            if one.kept is None or self.base is None or one.rate < _SAME_RATE * self.base:
                continue
            progress = _compared(one, lowest)
            if progress is None or progress[0] >= AS_GOOD * progress[1]:
                return one
        return None

    @property
    def proved_rate(self) -> float | None:
        """The rate that is proved, if what is proved is a rate."""
        best = self.proved
        return best.rate or None if best is not None else None

    @property
    def keeps_rate(self) -> bool:
        """Whether a cure is proved with which the run's own rate holds."""
        proved = self.proved
        if proved is None or proved.kept is None or self.base is None:
            return False
        return proved.rate >= _SAME_RATE * self.base

    @property
    def cures(self) -> list[Try]:
        """The reruns in which something else than the rate was changed."""
        return [one for one in self.tries if one.change not in (RATE, NOTHING)]

    @property
    def interval(self) -> tuple[float | None, float | None]:
        """The lowest rate that failed, after the highest below it that held; None if none."""
        rates = [one.rate for one in self.rates]
        # The run's own rate failed; where higher ones were asked for, that is not what is searched.
        own = {self.base} if self.base and rates and self.base > max(rates) else set()
        high = min(self._failed | own, default=None)
        return max((one.rate for one in self._safe(high)), default=None), high

    def _safe(self, high: float | None) -> list[Try]:
        return [one for one in self.held if high is None or one.rate < high]

    @property
    def rates(self) -> list[Try]:
        """The reruns in which the rate was changed, and nothing else than what is kept with it."""
        return [one for one in self.tries if one.change == RATE and one.kept == self.kept]

    @property
    def held(self) -> list[Try]:
        """The reruns whose rate came out well in each of its tries."""
        failed = self._failed
        return [one for one in self.rates if one.rate not in failed]

    def holds(self, one: Try) -> bool:
        """Whether what this rerun changed helps, as far as all reruns show."""
        return one in self.held if one in self.rates else one.is_stable

    @property
    def _failed(self) -> set[float]:
        return failed_rates(self.rates)

    def to_json(self) -> dict[str, Any]:
        """As `ampwatch prove --json` prints it."""
        best = self.proved
        held = None
        if best is not None:
            held = _told(best, ("change", "value", "steps", "verdict"))
        tries = [_told(one, _CONTRACT) for one in self.tries]
        return {"schema": SCHEMA, "proved": held, "interval": list(self.interval), "tries": tries}

    def keep(self, run_folder: Path) -> None:
        """Write it beside the run; readers see the old one or the new one, whole."""
        text = json.dumps({"schema": SCHEMA, **asdict(self)}, indent=1, ensure_ascii=False)
        try:
            replace_file(run_folder / PROOF_FILE, text.encode())
        except OSError as problem:
            reason = f"cannot be written to {run_folder} ({problem.strerror or problem})"
            raise AmpwatchError(f"What was proved {reason}.") from None


def kept_proof(run_folder: Path) -> Proof | None:
    """The saved proof of a run; None if there is none, or it cannot be read."""
    try:
        told = json.loads(read_at_most(run_folder / PROOF_FILE, _MOST_BYTES))
        tries = tuple(Try(**one | {"kept": _cure_of(one)}) for one in told["tries"])
        notes = tuple(str(one) for one in told.get("notes", ()))
        run, base, steps = str(told["run"]), told["base"], int(told["steps"])
        return Proof(run, base, steps, tries, notes, _cure_of(told), told.get("needs_steps"))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _told(one: Try, names: Sequence[str]) -> dict[str, Any]:
    """A rerun as printed: a reader that knows of one change must not take two for one."""
    told = {name: getattr(one, name) for name in names}
    if one.kept is not None:
        name, value = one.kept
        told |= {"change": f"{name}+{one.change}", "value": {name: value, one.change: one.value}}
    return told


def _cure_of(told: dict[str, Any]) -> Cure | None:
    if "kept" not in told or told["kept"] is None:  # an older version wrote none
        return None
    name, value = told["kept"]
    return str(name), value


def _rate(one: Try) -> float:
    return one.rate


# --- in words -------------------------------------------------------------------------------------


def sentence_of(proof: Proof) -> str:
    """What the reruns have shown, in words."""
    return " ".join([_shown(proof), *proof.notes])


def _shown(proof: Proof) -> str:
    best, (low, high) = proof.best, proof.interval
    if best is None:
        return f"{_failed_text(proof)}: nothing is proved."
    if best.change != RATE:
        helped = [words_of(one) for one in proof.cures if one.is_stable]
        each = "each of " if len(helped) > 1 else ""
        found = "; ".join(helped)
        return f"Proved: the trouble is gone for {best.steps:,} steps with {each}{found}."
    if proof.keeps_rate:
        return (
            f"Proved: with {besides_rate(best)}, the run's own learning rate of {best.rate:.3g} "
            f"held for {best.steps:,} steps: it was not the cause."
        )
    rate = f"{best.value:.3g}{_with_kept(best)}"
    held = f"a learning rate of {rate} held for {best.steps:,} steps"
    if best.value != low:
        held += ", with the lowest loss of those that held"
    if proof.proved is None:
        asked = f"`--steps {proof.needs_steps}`, with a `--budget` for it, reaches its highest."
        return f"Not proved: {held}, while the run's learning rate rose for longer. {asked}"
    held = f"Proved: {held}"
    if high is None or low is None:
        return f"{held}."
    return f"{held}; the limit lies between {low:.3g} and {high:.3g}."


def _failed_text(proof: Proof) -> str:
    rates = proof.rates or [one for one in proof.tries if one.change == RATE]
    if rates:
        lowest = min(rates, key=_rate)
        return f"No learning rate down to {lowest.rate:.3g}{_with_kept(lowest)} held"
    tried = ", ".join(words_of(one) for one in proof.cures)
    if tried:
        return f"The trouble comes back with {tried}"
    is_gone = any(one.change == NOTHING and one.is_stable for one in proof.tries)
    return "The trouble did not come back" if is_gone else "No rerun came to an end"


def besides_rate(one: Try) -> str | None:
    """What a rerun changed besides the rate, in words; None if nothing."""
    return None if one.kept is None else switch_text(*one.kept)


def _with_kept(one: Try, joined_by: str = "with") -> str:
    besides = besides_rate(one)
    return "" if besides is None else f" {joined_by} {besides}"


def words_of(one: Try) -> str:
    """What a rerun changed, in words."""
    if one.change == RATE:
        return f"learning rate {one.rate:.3g}{_with_kept(one, 'and')}"
    if one.change == NOTHING:
        return "nothing changed"
    return switch_text(one.change, one.value)


def table_of(proof: Proof) -> list[tuple[str, ...]]:
    """The reruns as cells: what was changed, steps, verdict, loss, what was told."""
    tries = sorted(proof.tries, key=_rate)
    at = _common_step(tries)
    head = ("changed", "steps", "held", "verdict", f"loss at step {at}" if at else "loss", "")
    return [head, *(_cells(one, at, is_held=proof.holds(one)) for one in tries)]


def _common_step(tries: Sequence[Try]) -> str | None:
    """The last step at which all reruns have a loss, to compare them at equal steps."""
    shared = set.intersection(*(set(one.loss_at) for one in tries)) if tries else set()
    return max(shared, key=int, default=None)


def _cells(one: Try, at: str | None, *, is_held: bool) -> tuple[str, ...]:
    loss = one.loss_at.get(at) if at else None
    return (
        words_of(one), f"{one.steps:,}", "yes" if is_held else "no", one.verdict,
        "" if loss is None else f"{loss:.4g}", one.told or ("" if is_held else LEARNT_LITTLE),
    )  # fmt: skip


# -- the advice on the rate, by what reruns have shown ---------------------------------------------


PROVED_CONFIDENCE = 0.9  # all of 67 proved rates trained (`benchmarks/results/prove.md`)


@dataclass(frozen=True, slots=True)
class JudgedRun:
    """A run's diagnosis as every report gives it, and what went into it beside the run's rows."""

    diagnosis: Diagnosis
    established_scale: EstablishedScale | None
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
    return JudgedRun(diagnosis, case.scale.established, lesson, proof)


def with_proof(diagnosis: Diagnosis, proof: Proof | None) -> Diagnosis:
    """The diagnosis, its advice on the rate replaced by what reruns have shown of rates.

    Its findings and verdict stay, except for the rate that a finding's action names.
    """
    old = diagnosis.learning_rate
    if proof is None:
        return diagnosis
    new = proved_advice(old, proof) or old
    if new is not old and old.factor is not None and new.factor is not None:
        was, now = how_to_change_rate(old), how_to_change_rate(new)
        findings = diagnosis.findings
        findings = tuple(replace(one, action=now) if one.action == was else one for one in findings)
        diagnosis = replace(diagnosis, findings=findings)
    if new.action is Action.NOT_THE_CAUSE is not old.action:
        diagnosis = _without_rate_as_cause(diagnosis, proof)
    diagnosis = replace(diagnosis, learning_rate=new)
    is_cure = proof.keeps_rate or (proof.proved is not None and proof.proved.change != RATE)
    is_to_lower = new.action is Action.LOWER
    return _with_cure(diagnosis, proof.proved) if is_cure and not is_to_lower else diagnosis


def _without_rate_as_cause(diagnosis: Diagnosis, proof: Proof) -> Diagnosis:
    """With the trouble at the head that came back at lower rates."""
    alone = [one for one in proof.tries if one.change == RATE and one.kept is None]
    codes = {one.told.partition(" ")[0] for one in alone}
    left = [one for one in diagnosis.findings if one.code not in RATE_CODES]
    head = next((one for one in left if one.code in codes), None)
    if head is None:
        return diagnosis
    follow = [
        replace(one, because_of=head.code)
        if one.because_of in {None, *RATE_CODES} and one.severity.weight
        else one
        for one in left
        if one is not head
    ]
    causes = tuple(one for one in diagnosis.causes if one.cause != Cause.RATE.value)
    return replace(diagnosis, findings=(replace(head, because_of=None), *follow), causes=causes)


def _with_cure(diagnosis: Diagnosis, proved: Try | None) -> Diagnosis:
    """With the cure that a rerun has proved as what is to be done."""
    head = diagnosis.headline
    if proved is None or head is None or not head.severity.weight:
        return diagnosis
    name, value = proved.cure
    advice = replace(
        diagnosis.learning_rate, proved_steps=proved.steps, besides=switch_text(name, value)
    )
    head = replace(head, action=f"{_how_to_change(name, value)} {_IS_GONE.format(proved.steps)}")
    return replace(diagnosis, learning_rate=advice, findings=(head, *diagnosis.findings[1:]))


_IS_GONE = "In a rerun of {:,} steps the trouble was gone with that."


def _how_to_change(name: str, value: Value) -> str:
    if name != FLOAT32 or not isinstance(value, str):
        return f"Train with {switch_text(name, value)}."
    layers = " and ".join(value.split(LAYERS_BY))
    return f"Run {layers} in float32 by `ampwatch.run_in_float32`, after the model is created."


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
    if best is None and proof.best is not None:
        return _held_on_the_way(advice, proof.best, current)
    if best is not None and rate is not None and rate < current:
        return replace(
            advice, action=Action.LOWER, because=sentence_of(proof), current=current,
            recommended=rate, factor=rate / current, low=low, high=high,
            confidence=PROVED_CONFIDENCE, leapt_at_step=None, explained_by=None,
            proved_steps=best.steps, group=0 if advice.group is None else advice.group,
            besides=besides_rate(best),
        )  # fmt: skip
    if proof.keeps_rate:
        return Advice(Action.NOT_THE_CAUSE, sentence_of(proof), current=current)
    if rate is None and advice.recommended is not None and high is not None:
        return _refuted(advice, proof, high)
    return None


def _held_on_the_way(advice: Advice, best: Try, current: float) -> Advice | None:
    """Where no rerun came to the top of the schedule, only a lower rate replaces an estimate."""
    bound = current if advice.recommended is None or best.kept else advice.recommended
    if best.rate >= bound:
        return None
    return replace(
        advice, action=Action.LOWER, current=current, recommended=best.rate,
        factor=best.rate / current, low=None, high=None, confidence=None,
        besides=besides_rate(best),
    )  # fmt: skip


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
