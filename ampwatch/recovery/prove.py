"""Train again with one thing changed until it is known what helps.

Where the rate is the cause: the advised rate first, then halving what is left between. Where
another cause is named: the cures that the rule of the finding declares, one after the other. Where
one ends the named trouble and the training fails by its rate: rates, with that cure as soon as the
named trouble comes back without it. Where two rates fail alike: the cures of that, too, and with
the one that ends it the script's own rate. To bisect: everything that can be switched, one at a
time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from ampwatch.diagnosis import Action, Diagnosis
from ampwatch.diagnosis.value_text import count_text
from ampwatch.errors import AmpwatchError
from ampwatch.follow import follow
from ampwatch.recovery.change import (
    FLOAT32,
    LAYERS_BY,
    NOTHING,
    RATE,
    ROOT,
    Cure,
    Value,
    switch_text,
)
from ampwatch.recovery.proof import (
    LEARNT_LITTLE,
    TIME_WAS_UP,
    Proof,
    Try,
    ceiling,
    has_learnt,
    is_doubtful,
    kept_proof,
    words_of,
)
from ampwatch.recovery.rerun import (
    Command,
    NoStepInTimeError,
    NotChangedError,
    NotStartedError,
    Record,
    RerunRequest,
    RerunResult,
    record_of,
    rerun,
)
from ampwatch.recovery.switches import Trouble, bisect_of, cures_of, trouble_of

WIDE_ENOUGH = 1.0  # octaves: what is left between a rate that holds and one that does not
MOST_TRIES = 8  # for a rate
FIRST_GUESS = 0.1  # of the run's rate, where no rate is advised
MOST_LAYERS = 4  # kept in float32 one after the other, as reruns name them
DOWN = 0.25  # below a rate that failed, where none holds yet; below several, as often again
MOST_LOWER = 2  # rates tried for their loss alone, once the limit is known
LEAST_STEPS, MOST_STEPS, LONGER = 100, 5000, 1.5  # of a rerun, by the step of the first trouble
FEWEST_TRIES = 4  # for a rate: longer reruns are made where the time is enough for so many
NOT_DETERMINISTIC = (
    "The training is not deterministic, or loads what it saved itself: the first step of a rerun "
    "was another than the run's. What held was tried twice."
)


OF_THE_RATE = (
    "No cure of the named cause brought the training to learn: the learning rate was tried as well."
)
STOOD_HIGH = (
    "With the cure of the named cause the loss stood above where it began: the learning rate was "
    "tried as well."
)
KEPT = (
    "A lower learning rate alone failed, by {}: {}, which ends that, was kept while learning rates "
    "were tried."
)
STILL_RISING = (
    "The schedule was still rising: in the reruns the learning rate rises faster, up to the one "
    "that each tries."
)
_RISEN = 0.98  # of the script's rate: its schedule has come to an end of its rise


@dataclass(frozen=True, slots=True)
class Budget:
    """What the search may cost."""

    seconds: float
    steps: int | None = None  # of a rerun; None: half as many again as the run took to fail
    tries: int = MOST_TRIES


@dataclass(frozen=True, slots=True)
class Reruns:
    """How a run is trained again."""

    command: Callable[[str, Value], Command]  # what starts a rerun with this change
    cwd: Path
    place: Callable[[], Path]  # the folder of the reruns
    from_step: int = 0  # of the checkpoint that they are to load
    tell: Callable[[str], None] = lambda _: None


def prove(
    path: Path, reruns: Reruns, budget: Budget, *, first: float | None = None, bisects: bool = False
) -> Proof:
    """Rerun until it is known what helps, or the budget is spent; what was proved is kept.

    `first` is a rate to try, whatever the cause; to bisect is to switch one thing at a time.
    """
    followed = follow(path).update()
    with follow(path).reading() as run:
        own, trouble = record_of(run), trouble_of(run, followed.diagnosis)
    of_rate = first is not None or (followed.diagnosis.learning_rate.action is Action.LOWER)
    changes = bisect_of(trouble) if bisects else cures_of(trouble)
    if bisects or not of_rate:
        _refuse_what_nothing_helps(followed.diagnosis, trouble, changes)
    current = base_rate(followed.diagnosis) if of_rate and not bisects else None
    steps = budget.steps or steps_to_survive(followed.diagnosis, reruns.from_step)
    search = _Search(path, reruns, budget, Proof(str(path), None, steps, ()), own)
    search.died_by = followed.diagnosis.run.exception
    if current is not None:
        search.begin_rates(current, reruns.from_step)
        advised = followed.diagnosis.learning_rate.recommended
        return search.for_a_rate(first or advised or current * FIRST_GUESS)
    search.begin_trouble(trouble)
    proof = search.among(changes, all_of_them=bisects)
    if bisects or not search.may_be_the_rate():
        return proof
    current = followed.diagnosis.learning_rate.current or max(own.rates.values(), default=0.0)
    if not current > 0:
        return proof
    search.begin_rates(current, reruns.from_step)
    return search.for_a_rate(search.advised or current * FIRST_GUESS)


class _Search:
    """The reruns of one run, while they are made."""

    def __init__(
        self, path: Path, reruns: Reruns, budget: Budget, proof: Proof, own: Record
    ) -> None:
        self._path, self._reruns, self._budget, self._own = path, reruns, budget, own
        self._until_s = time.monotonic() + budget.seconds
        self._folder: Path | None = None
        self._count = 0
        self._proof = proof
        self._is_repeatable = True
        self._current: float | None = None  # the script's rate
        self._reached: float | None = None  # what it came to in as many steps as a rerun has
        self._shown_trouble: Trouble | None = None  # the last rerun's own
        self.advised: float | None = None  # the lower rate that the last rerun asks for
        # What may end a trouble that comes back at a lower rate; None: nobody has looked.
        self._cures: list[Cure] | None = None
        self._trouble: str | None = None  # the code of what is to be gone
        self._trouble_begins = 0  # after so many steps of a rerun
        self.died_by: str | None = None

    def begin_rates(self, current: float, from_step: int) -> None:
        """From now on rates are tried; the script's own has failed.

        A rate that holds on the way up may fail at the top: where the time is enough, a rerun goes
        on beyond it. Where its schedule is still rising in as many steps as a rerun has, a rerun
        rises faster: what it shows is the rate that it has reached.
        """
        self._current = current
        base, top = reached_rate(self._own, current), top_of_rise(self._own, current)
        beyond = math.ceil((LONGER if base == current else 1) * max(0, top + 1 - from_step))
        left_s = self._until_s - time.monotonic()
        # A log that says no times does not tell whether longer reruns fit.
        if self._budget.steps is None and 0 < FEWEST_TRIES * beyond * self._own.step_s <= left_s:
            self._proof = replace(self._proof, steps=max(self._proof.steps, beyond))
        self._reached = reached_rate(self._own, current, from_step, self._proof.steps)
        is_short = self._reached < _RISEN * base
        self._proof = replace(self._proof, base=base, needs_steps=beyond if is_short else None)
        if self._proof.tries:
            cured = any(one.is_stable and has_learnt(one) for one in self._proof.cures)
            self._note(STOOD_HIGH if cured else OF_THE_RATE)
        if self._reached < current:
            self._note(STILL_RISING)

    def begin_trouble(self, trouble: Trouble) -> None:
        """From now on a change is to end this trouble."""
        assert trouble.finding is not None
        self._trouble = trouble.finding.code
        begun = trouble.finding.first_step or 0
        self._trouble_begins = max(0, begun - self._reruns.from_step)

    def may_be_the_rate(self) -> bool:
        """Whether no cure has brought the training to learn well, though its trouble came back."""
        if not any(one.change == NOTHING and not one.is_stable for one in self._proof.tries):
            return False
        held = [one for one in self._proof.cures if one.is_stable]
        return not any(has_learnt(one) and not is_doubtful(one) for one in held)

    def for_a_rate(self, rate: float | None) -> Proof:
        """Find the highest rate that holds, within an octave; then one that learns faster.

        Where a cure ends what a lower rate alone does not, the script's own may hold with it.
        """
        went_lower = 0
        while rate is not None and len(self._proof.tries) < self._budget.tries:
            done = self._try(RATE, rate)
            if done is None:
                break
            if self._needs_a_cure(done):
                done = self._with_a_cure(rate, done)
                if self._own_is_untried():
                    rate = self._reached
                    continue
            if done.is_stable and not self._is_repeatable and not self._was_tried_twice(rate):
                continue
            rate = next_rate(self._proof)
            if rate is None and went_lower < MOST_LOWER:
                rate, went_lower = lower_rate(self._proof), went_lower + 1
        return self._proof

    def among(self, changes: Iterable[tuple[str, Value]], *, all_of_them: bool) -> Proof:
        """Try these changes one at a time, if the trouble comes back without them."""
        control = self._try(NOTHING, None)
        if control is None:
            return self._proof
        if control.is_stable:
            self._note(
                "Trained again with nothing changed, the run's trouble did not come back within "
                f"{control.steps:,} steps: it is not deterministic, or began earlier than the "
                "rerun, and one rerun that holds proves nothing. `--steps` asks for more."
            )
            return self._proof
        waiting, self._cures = list(changes), []
        while waiting and (all_of_them or len(self._proof.tries) < self._budget.tries):
            name, value = waiting.pop(0)
            try:
                done = self._try(name, value)
            except (NotChangedError, NotStartedError) as problem:
                self._reruns.tell(f"  {problem}")
                continue
            if done is None:
                break
            if not all_of_them and (done.is_stable or self.advised is not None):
                self._cures = [(name, value)] if done.is_cured else []
                break
            layer = None if self._shown_trouble is None else self._shown_trouble.layer
            more = with_next_layer(name, value, None if done.is_stable else layer)
            if more is not None:
                waiting.insert(0, (name, more))
        return self._proof

    def _needs_a_cure(self, done: Try) -> bool:
        """Whether a rate failed by what a lower one does not mend, while none has held yet."""
        if self._proof.kept is not None or self._proof.held:
            return False
        if self._cures is None and self._failed_alike(done):
            assert self._shown_trouble is not None
            self.begin_trouble(self._shown_trouble)
            self._cures = cures_of(self._shown_trouble)
            return bool(self._cures)
        return bool(self._cures) and done.is_cured is False

    def _failed_alike(self, done: Try) -> bool:
        """Whether it failed by what another rate failed by."""
        alike = [one for one in self._proof.rates if one.told == done.told]
        return len(alike) > 1 and bool(done.told) and not done.is_stable

    def _own_is_untried(self) -> bool:
        """Whether a cure is kept with which the script's own rate was not trained."""
        kept = self._proof.kept
        return kept is not None and kept not in [
            (one.change, one.value) for one in self._proof.cures
        ]

    def _with_a_cure(self, rate: float, failed: Try) -> Try:
        """Try this rate with each of the cures; the first that ends the trouble is kept."""
        cures, self._cures = self._cures or [], []
        for cure in cures:
            if len(self._proof.tries) >= self._budget.tries:
                break
            self._proof = replace(self._proof, kept=cure)
            try:
                done = self._try(RATE, rate)
            except (NotChangedError, NotStartedError) as problem:
                self._reruns.tell(f"  {problem}")
                continue
            if done is None:
                break
            if done.is_cured:
                self._note(KEPT.format(failed.told, switch_text(*cure)))
                return done
        self._keep(replace(self._proof, kept=None))
        return failed

    def _try(self, name: str, value: Value) -> Try | None:
        """One rerun; None once the time is up, and it has shown nothing."""
        if time.monotonic() >= self._until_s:
            return None
        kept = self._proof.kept
        wanted = Try(name, value, 0, "", is_stable=False, told="", loss_at={}, run="", kept=kept)
        self._count += 1
        self._reruns.tell(
            f"rerun {self._count}: {self._proof.steps:,} steps with {words_of(wanted)}"
        )
        self._folder = self._folder or self._reruns.place()
        try:
            shown = self._shown(name, value, self._folder / f"try-{self._count}")
        except NoStepInTimeError:
            if not self._proof.tries:
                raise
            self._reruns.tell("  the time was up before its first step")
            return None
        done, self._shown_trouble, self.advised = shown.done, shown.trouble, shown.advised_rate
        if not done.is_stable and done.told == TIME_WAS_UP:
            self._reruns.tell(f"  the time was up after {done.steps:,} steps")
            return None
        self._keep(replace(self._proof, tries=(*self._proof.tries, done)))
        self._reruns.tell(_said(done, is_held=self._proof.holds(done)))
        if not shown.repeats and self._is_repeatable:
            self._is_repeatable = False
            self._note(NOT_DETERMINISTIC)
        return done

    def _shown(self, name: str, value: Value, folder: Path) -> RerunResult:
        rate = value if name == RATE and isinstance(value, float) else None
        asked = RerunRequest(
            name, value, self._reached, self._proof.steps, self._until_s, self._own,
            self._trouble, self.died_by, self._reruns.from_step,
            None if rate is None else ceiling(self._proof.rates, rate),
            self._proof.kept, self._trouble_begins,
        )  # fmt: skip
        if asked.factor is not None and self._current is not None:
            value = asked.factor * self._current
        return rerun(self._reruns.command(name, value), self._reruns.cwd, folder, asked)

    def _was_tried_twice(self, rate: float) -> bool:
        return sum(one.value == rate for one in self._proof.rates) > 1

    def _note(self, sentence: str) -> None:
        self._keep(replace(self._proof, notes=(*self._proof.notes, sentence)))

    def _keep(self, proof: Proof) -> None:
        """Keep it beside the run; what was proved before stays until something else is."""
        self._proof, before = proof, kept_proof(self._path)
        if proof.proved is not None or before is None or before.proved is None:
            proof.keep(self._path)


def with_next_layer(name: str, value: Value, layer: str | None) -> Value:
    """The layers to keep in float32 once a rerun names another one; None if it names none."""
    if name != FLOAT32 or not isinstance(value, str) or layer in (None, ROOT):
        return None
    layers = value.split(LAYERS_BY)
    if layer in layers or len(layers) >= MOST_LAYERS:
        return None
    return LAYERS_BY.join([*layers, str(layer)])


def next_rate(proof: Proof) -> float | None:
    """The rate to try next; None once the limit is known well enough."""
    low, high = proof.interval
    if low is None:
        return None if high is None else high * DOWN ** max(1, len(proof.rates))
    lowest = min(proof.rates, key=lambda one: one.rate)
    if lowest.rate == low and is_doubtful(lowest):
        return low * DOWN
    if high is None or math.log2(high / low) <= WIDE_ENOUGH:
        return None
    return math.sqrt(low * high)


def lower_rate(proof: Proof) -> float | None:
    """A rate below all that were tried, where the lowest of them has the lowest loss."""
    best = proof.best
    lowest = min((one.value for one in proof.rates if isinstance(one.value, float)), default=None)
    if best is None or lowest is None or best.value != lowest or not best.loss_at:
        return None
    return lowest * DOWN


def base_rate(diagnosis: Diagnosis) -> float:
    """The rate that advice is about: what the script was told."""
    current = diagnosis.learning_rate.current
    if current is None or not current > 0:
        raise AmpwatchError("The run recorded no learning rate: there is none to change.")
    return current


def reached_rate(
    own: Record, current: float, from_step: int = 0, steps: int | None = None
) -> float:
    """The highest rate of a run, or of some of its steps; the script's own where they tell none."""
    until = math.inf if steps is None else from_step + steps
    rates = [rate for step, rate in own.rates.items() if from_step <= step < until]
    reached = max(rates, default=0.0)
    return reached if 0 < reached < _RISEN * current else current


def top_of_rise(own: Record, current: float) -> int:
    """The step at which a run's rate had risen: to the script's own, or as far as it came."""
    highest = reached_rate(own, current)
    return min((at for at, rate in own.rates.items() if rate >= _RISEN * highest), default=0)


def steps_to_survive(diagnosis: Diagnosis, from_step: int = 0) -> int:
    """Half as many again as the run took until trouble began, from its start or a checkpoint."""
    head = diagnosis.headline
    begun = diagnosis.run.steps if head is None or head.severity.weight == 0 else head.first_step
    took = max(0, (begun or 0) - from_step)
    return int(min(MOST_STEPS, max(LEAST_STEPS, math.ceil(LONGER * took))))


def _refuse_what_nothing_helps(
    diagnosis: Diagnosis, trouble: Trouble, changes: list[tuple[str, Value]]
) -> None:
    """Reruns need a trouble that a change may end."""
    found = trouble.finding
    if found is None:
        calm = diagnosis.calm or "No problems were found."
        raise AmpwatchError(
            f"{calm} There is nothing to prove. To try a learning rate all the same, pass --set "
            "lr=0.01."
        )
    if not changes:
        raise AmpwatchError(
            f"A lower learning rate is not what this run needs, and {found.code} {found.name} has "
            f"no cure that can be tried from outside: {found.action} To switch one thing at a "
            "time, pass --bisect; to try a learning rate all the same, --set lr=0.01."
        )


def _said(done: Try, *, is_held: bool) -> str:
    within = count_text(done.steps, "step")
    if not is_held:
        return f"  it did not hold: {done.told or LEARNT_LITTLE} within {within}"
    return f"  it held for {within}" + ("" if done.is_stable else f", though with {done.told}")
