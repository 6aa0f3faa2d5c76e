"""One rerun: the run's own command with a change, until its outcome is known."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ampwatch.diagnosis import Action, Advice, Diagnosis
from ampwatch.diagnosis.column_arrays import integers, known, numbers
from ampwatch.diagnosis.findings import State, Verdict
from ampwatch.errors import AmpwatchError
from ampwatch.follow import Follower, follow
from ampwatch.recovery.change import (
    CHANGE,
    NOTHING,
    RATE,
    Change,
    Cure,
    Value,
    changes_text,
    switch_text,
)
from ampwatch.recovery.proof import TIME_WAS_UP, WINDOW, Try, highest_loss
from ampwatch.recovery.switches import Trouble, trouble_of
from ampwatch.rows import Table
from ampwatch.store import Run, list_runs

LOOK_EVERY_S = 0.3
_UPDATE_SHARE = 5  # an update waits at least so many times as long as the last one took
_STEPS_TO_RECOVER = 50  # at least, and as many as it took to fail; see `RerunRequest.ceiling`
_WEIGHTS_LOST = "AMP207"  # not finite: nothing comes back
_LEAVING_S = 10.0  # to end by itself once it was asked to
_LAST_WORDS = 400  # characters of what a rerun printed before it died
_LOSS_AT, _SMOOTH = 12, 8  # steps whose losses are kept, each over an eighth of those before it
_RATE_SHARE = 0.02  # a rate that differs by less is the one that was asked for
_SAME_START = 1e-3  # of a first step's numbers: kernels may sum in another order

Command = Callable[[Path], tuple[Sequence[str], Mapping[str, str]]]
"""Arguments and environment that start a rerun whose runs go to a folder."""


@dataclass(frozen=True, slots=True)
class Record:
    """Losses, rates and gradient norms by step, where they are known, and how long a step takes."""

    losses: Mapping[int, float]
    rates: Mapping[int, float]
    norms: Mapping[int, float]
    without_loss: frozenset[int] = frozenset()  # the steps whose loss is not finite
    step_s: float = 0.0  # the median

    @property
    def first_step(self) -> int:
        """Of those that have either."""
        return min((*self.losses, *self.rates), default=0)


@dataclass(frozen=True, slots=True)
class RerunRequest:
    """What a rerun changes and is to show."""

    name: str
    value: Value
    base: float | None  # the highest rate of the run in so many steps: a changed one is its factor
    steps: int
    until_s: float  # by the monotonic clock
    own: Record  # the run's
    trouble: str | None  # the code of what is to be gone; None: trouble with the rate
    died_by: str | None  # the exception that ended the run
    from_step: int  # of the checkpoint that the rerun is to load
    ceiling: float | None = None  # of the loss: a rate with which it stands above is too high
    kept: Cure | None = None  # what is changed besides the rate
    trouble_begins: int = 0  # after so many steps: a rerun that ends before shows none of it

    def changes(self, outputs: str) -> list[Change]:
        """What the process that trains is told."""
        named = [] if self.kept is None else [self.kept]
        named.append((self.name, self.value if self.factor is None else self.factor))
        return [Change(name, value, outputs) for name, value in named]

    @property
    def factor(self) -> float | None:
        """What the rates are to be multiplied by; None where they are to stay."""
        if self.name != RATE:
            return None
        assert isinstance(self.value, float)
        assert self.base is not None
        return self.value / self.base


@dataclass(frozen=True, slots=True)
class RerunResult:
    """What a rerun has shown by its end."""

    done: Try
    repeats: bool  # it began as the run did; a training that is not deterministic does not
    trouble: Trouble  # its own
    advised_rate: float | None  # the lower one that its own diagnosis asks for


def rerun(command: Command, cwd: Path, folder: Path, asked: RerunRequest) -> RerunResult:
    """Train again with one thing changed, in a folder of its own."""
    folder.mkdir(parents=True)
    arguments, environment = command(folder / "runs")
    changes = asked.changes(str((folder / "outputs").resolve()))
    with (folder / "printed.txt").open("wb") as printed:
        child = subprocess.Popen(
            list(arguments), cwd=cwd, env={**environment, CHANGE: changes_text(changes)},
            stdin=subprocess.DEVNULL, stdout=printed, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        try:
            shown = _until_shown(child, folder / "runs", asked)
        finally:
            left_by_itself = child.poll()
            _end(child)
    if shown is None:
        kind = NoStepInTimeError if left_by_itself is None else NotStartedError
        raise kind(_without_a_step(left_by_itself, folder))
    follower, diagnosis = shown
    with follower.reading() as run:
        record, trouble = record_of(run), trouble_of(run, diagnosis)
    _refuse_other_death(diagnosis, left_by_itself, asked, folder)
    _refuse_unchanged(changes, record, asked)
    return RerunResult(
        _judged(str(follower.path), diagnosis, record, left_by_itself, asked),
        _repeats(record, asked), trouble,
        _advised(diagnosis),
    )  # fmt: skip


def _until_shown(
    child: subprocess.Popen[bytes], runs: Path, asked: RerunRequest
) -> tuple[Follower, Diagnosis] | None:
    """Follow the rerun until it has trained enough steps, fails, ends, or time is up.

    Returns its diagnosis of this moment, taken before we end the process.
    """
    follower: Follower | None = None
    failing_at: int | None = None
    while True:
        is_over = child.poll() is not None or time.monotonic() >= asked.until_s
        follower = follower or _found(runs)
        began = time.monotonic()
        if follower is not None:
            diagnosis = follower.update().diagnosis
            steps = diagnosis.run.steps
            fails = _fails(diagnosis)
            failing_at = (steps if failing_at is None else failing_at) if fails else None
            if is_over or steps >= asked.steps or _is_clear(follower, diagnosis, failing_at, asked):
                return follower, diagnosis
        if is_over:
            return None
        time.sleep(max(LOOK_EVERY_S, _UPDATE_SHARE * (time.monotonic() - began)))


def _is_clear(
    follower: Follower, diagnosis: Diagnosis, failing_at: int | None, asked: RerunRequest
) -> bool:
    """Whether a failing rerun can come to no other end.

    At a high rate a loss often leaps in the first steps and comes back: it is given all its steps
    to do so, until its loss stands where a rate is too high whatever follows.
    """
    if failing_at is None:
        return False
    if _has_lost_weights(diagnosis):
        return True
    if asked.name != RATE:
        return diagnosis.run.steps >= failing_at + max(_STEPS_TO_RECOVER, failing_at)
    if asked.ceiling is None:
        return False
    with follower.reading() as run:
        highest = highest_loss(record_of(run).losses)
    return highest is not None and highest > asked.ceiling


def _found(runs: Path) -> Follower | None:
    known = [run for run in list_runs(runs) if run.problem is None and run.steps]
    return follow(known[0].path) if known else None


def _end(child: subprocess.Popen[bytes]) -> None:
    """End the process and its children: first by a signal, so that its log is complete."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_LEAVING_S)
            break
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)  # what it left behind


# --- what it has shown ----------------------------------------------------------------------------


def record_of(run: Run) -> Record:
    """What is known of a run's steps."""
    names = ("loss", "lr", "grad_norm", "step_time_ms")
    rows = run.read(Table.STEPS, ("step", *names), min(run.ranks, default=0))
    step = integers(rows, "step")
    losses, rates, norms, times_ms = (numbers(rows, name) for name in names)

    def by_step(values: NDArray[np.float64]) -> dict[int, float]:
        told = np.isfinite(values)
        return dict(zip(step[told].tolist(), values[told].tolist(), strict=True))

    recorded = known(rows, "loss")
    without = frozenset(step[recorded & ~np.isfinite(losses)].tolist())
    taken_ms = times_ms[np.isfinite(times_ms)]
    step_s = float(np.median(taken_ms)) / 1e3 if len(taken_ms) else 0.0
    return Record(by_step(losses), by_step(rates), by_step(norms), without, step_s)


def _judged(
    path: str, diagnosis: Diagnosis, record: Record, code: int | None, asked: RerunRequest
) -> Try:
    steps = diagnosis.run.steps
    came_far = steps >= asked.steps or (code == 0 and steps > 0)
    is_lost = not came_far or _ends_without_loss(record) or _has_lost_weights(diagnosis)
    is_over = not _fails(diagnosis) and not _is_troubled(diagnosis, asked)
    return Try(
        change=asked.name, value=asked.value, steps=steps, verdict=diagnosis.verdict.value,
        is_stable=came_far and is_over, told=_told(diagnosis, came_far=came_far),
        loss_at=_some_losses(record, steps), run=path,
        is_lost=is_lost, highest=highest_loss(record.losses), kept=asked.kept,
        is_cured=_is_cured(diagnosis, asked),
    )  # fmt: skip


def _fails(diagnosis: Diagnosis) -> bool:
    """Whether anything speaks against a rerun, be its loss ever so good; a crash alone does not."""
    crashed = diagnosis.outcome.state is State.EXCEPTION
    return (diagnosis.verdict is Verdict.FAILING and not crashed) or diagnosis.fails_by_rules


def _lowers(diagnosis: Diagnosis) -> list[Advice]:
    """What asks for a lower rate, by the outcome or by the rate's own numbers alone."""
    both = (diagnosis.learning_rate, diagnosis.rate_by_rules)
    return [one for one in both if one is not None and one.action is Action.LOWER]


def _advised(diagnosis: Diagnosis) -> float | None:
    """The lower rate that a rerun asks for."""
    return next((one.recommended for one in _lowers(diagnosis)), None)


def _has_lost_weights(diagnosis: Diagnosis) -> bool:
    return any(one.code == _WEIGHTS_LOST for one in diagnosis.findings)


def _ends_without_loss(record: Record) -> bool:
    """Whether most of the last losses are not finite."""
    last = sorted({*record.losses, *record.without_loss})[-WINDOW:]
    return 2 * len(record.without_loss.intersection(last)) > len(last)


def _is_troubled(diagnosis: Diagnosis, asked: RerunRequest) -> bool:
    """Whether what was wrong with the run is wrong with its rerun too."""
    if asked.name == RATE and _lowers(diagnosis):
        return True
    return any(one.code == asked.trouble and one.severity.weight > 0 for one in diagnosis.findings)


def _is_cured(diagnosis: Diagnosis, asked: RerunRequest) -> bool | None:
    """Whether the named trouble is gone; what only follows from another one is not that trouble."""
    if asked.trouble is None:
        return None
    named = [one for one in diagnosis.findings if one.code == asked.trouble and one.severity.weight]
    if any(one.because_of is None for one in named):
        return False
    return True if diagnosis.run.steps > asked.trouble_begins else None


def _told(diagnosis: Diagnosis, *, came_far: bool) -> str:
    head = diagnosis.headline
    if head is not None and head.severity.weight > 0:
        return f"{head.code} {head.name}"
    return "" if came_far else TIME_WAS_UP


def _some_losses(record: Record, steps: int) -> dict[str, float]:
    """The first loss, and at some steps and the last one the median of the steps up to there."""
    known = sorted(record.losses)
    found = {str(step): record.losses[step] for step in known[:1]}
    for at in (*(10 * 2**n for n in range(_LOSS_AT)), steps):
        end = int(np.searchsorted(known, at, side="right"))
        if end and at <= known[-1] + 1:
            begin = int(np.searchsorted(known, at - max(1, at // _SMOOTH)))
            near = [record.losses[step] for step in known[min(begin, end - 1) : end]]
            found[str(at)] = float(np.median(near))
    return found


def _repeats(record: Record, asked: RerunRequest) -> bool:
    """Whether it began as the run did: a change of the rate shows only after the first step."""
    if asked.name not in (RATE, NOTHING) or asked.kept is not None:
        return True
    at, theirs = record.first_step, asked.own
    of_run = at + _offset(record, asked)
    pairs = [(record.losses.get(at), theirs.losses.get(of_run)),
             (record.norms.get(at), theirs.norms.get(of_run))]  # fmt: skip
    return all(
        abs(one - other) <= _SAME_START * max(abs(one), abs(other))
        for one, other in pairs
        if one is not None and other is not None
    )


def _offset(record: Record, asked: RerunRequest) -> int:
    """What makes a step's number that of the run: a rerun from a checkpoint may count from 0."""
    return 0 if record.first_step >= asked.from_step else asked.from_step


# --- what shows nothing ---------------------------------------------------------------------------


def _refuse_unchanged(changes: Sequence[Change], record: Record, asked: RerunRequest) -> None:
    """What was asked for is what was trained with: else nothing is proved."""
    for change in changes:
        if change.name != RATE and not change.was_done:
            told = switch_text(change.name, change.value)
            raise NotChangedError(f"the training has nothing that this is about: {told}")
    factor = asked.factor
    if factor is None:
        return
    offset = _offset(record, asked)
    wanted = {at: factor * asked.own.rates.get(at + offset, 0.0) for at in record.rates}
    shared = [step for step, rate in wanted.items() if rate]
    wrong = [at for at in shared if abs(record.rates[at] - wanted[at]) > _RATE_SHARE * wanted[at]]
    if len(wrong) > len(shared) // 10:
        step = wrong[0]
        raise AmpwatchError(
            f"The rerun was to train at {factor:.3g} times the learning rate, and did not: at "
            f"step {step} it had {record.rates[step]:.3g}, where the run had "
            f"{wanted[step] / factor:.3g}. The script sets its learning rate itself: name the "
            "argument that holds it, as in `--lr-flag=--lr`."
        )


class NoStepInTimeError(AmpwatchError):
    """The time was up before the training had a step."""


class NotChangedError(AmpwatchError):
    """The training has nothing that the change is about."""


class NotStartedError(AmpwatchError):
    """The program ended before its first step: it cannot train with this change, if with any."""


def _refuse_other_death(
    diagnosis: Diagnosis, code: int | None, asked: RerunRequest, folder: Path
) -> None:
    """A rerun that died of something else says nothing about what was changed."""
    steps, raised = diagnosis.run.steps, diagnosis.run.exception
    if code is None or code == 0 or steps >= asked.steps or _fails(diagnosis):
        return
    if raised and asked.died_by and raised.partition(":")[0] == asked.died_by.partition(":")[0]:
        return
    raise AmpwatchError(
        f"The rerun ended with {code} at step {steps:,}, for another reason than what was "
        f"changed, so it shows nothing. {_last_words(folder)}"
    )


def _without_a_step(code: int | None, folder: Path) -> str:
    said = _last_words(folder)
    if code is None:
        return (
            "The rerun had no step within the time. If it takes long to start, give it more, as in "
            f"`--budget 1h`. {said}"
        )
    if code == 0:
        return f"The rerun trained no step that could be watched. {said}"
    asks = " A rerun cannot answer what the script asks for." * ("EOFError" in said)
    return f"The rerun ended with {code} before its first step.{asks} {said}"


def _last_words(folder: Path) -> str:
    last = (folder / "printed.txt").read_text(errors="replace").strip()[-_LAST_WORDS:]
    return f"It printed last: {last}" if last else "It printed nothing."
