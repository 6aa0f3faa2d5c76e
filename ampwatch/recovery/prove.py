"""Search for the highest stable rate: the advised one first, then by bisection."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ampwatch.diagnosis import Action, Diagnosis
from ampwatch.errors import AmpwatchError
from ampwatch.follow import follow
from ampwatch.recovery.proof import Proof, Try
from ampwatch.recovery.rerun import Asked, Command, rerun
from ampwatch.rows import Table

WIDE_ENOUGH = 1.0  # octaves: what is left between a rate that holds and one that does not
MOST_TRIES = 8
FIRST_GUESS = 0.1  # of the run's rate, where no rate is advised
DOWN = 0.25  # below a rate that failed, where none holds yet
LEAST_STEPS, MOST_STEPS, LONGER = 100, 5000, 1.5  # of a rerun, by the step of the first trouble


@dataclass(frozen=True, slots=True)
class Budget:
    """What the search may cost."""

    seconds: float
    steps: int | None = None  # of a rerun; None: half as many again as the run took to fail


def prove(
    path: Path,
    command: Callable[[float], Command],
    cwd: Path,
    place: Callable[[], Path],
    budget: Budget,
    *,
    first: float | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Proof:
    """Rerun until the highest stable rate is known within an octave, or the budget is spent.

    `command` returns the command of a rerun with a rate, `place` the folder of the reruns; `first`
    is the rate to try first.
    """
    until_s = time.monotonic() + budget.seconds
    look = follow(path).look()
    base = base_rate(look.diagnosis, is_asked=first is not None)
    rates = _rates(path)
    steps = budget.steps or steps_to_survive(look.diagnosis)
    proof, folder = Proof(str(path), base, steps, ()), place()
    advised = look.diagnosis.learning_rate.recommended
    rate: float | None = first or advised or base * FIRST_GUESS
    while rate is not None and len(proof.tries) < MOST_TRIES and time.monotonic() < until_s:
        tell(f"rerun {len(proof.tries) + 1}: {steps:,} steps with a rate of {rate:.3g}")
        asked = Asked(rate, base, steps, until_s, rates)
        done = rerun(command(rate), cwd, folder / f"try-{len(proof.tries) + 1}", asked)
        if not done.is_stable and done.told == "time was up":
            break  # it shows nothing
        proof = Proof(proof.run, base, steps, (*proof.tries, done))
        proof.keep(path)
        tell(_said(done))
        rate = next_rate(proof)
    return proof


def next_rate(proof: Proof) -> float | None:
    """The rate to try next; None once the limit is known well enough."""
    low, high = proof.interval
    if low is None:
        return None if high is None else high * DOWN
    if high is None or math.log2(high / low) <= WIDE_ENOUGH:
        return None
    return math.sqrt(low * high)


def base_rate(diagnosis: Diagnosis, *, is_asked: bool) -> float:
    """The rate that the advice refers to: the one that the script was given."""
    advice = diagnosis.learning_rate
    if advice.action is not Action.LOWER and not is_asked:
        raise AmpwatchError(
            f"A lower rate is not what this run needs: {advice.because} "
            "To try a rate all the same, pass --set lr=RATE."
        )
    if advice.current is None or not advice.current > 0:
        raise AmpwatchError("The run recorded no learning rate: there is none to change.")
    return advice.current


def steps_to_survive(diagnosis: Diagnosis) -> int:
    """1.5 times as many steps as the run took until trouble began."""
    head = diagnosis.headline
    begun = diagnosis.run.steps if head is None or head.severity.weight == 0 else head.first_step
    return int(min(MOST_STEPS, max(LEAST_STEPS, math.ceil(LONGER * (begun or 0)))))


def _rates(path: Path) -> dict[int, float]:
    with follow(path).reading() as run:
        rows = run.read(Table.STEPS, columns=("step", "lr"))
    step = np.asarray(rows.column("step").fill_null(-1).to_numpy(), np.int64)
    rate = np.asarray(rows.column("lr").to_numpy(), float)
    known = np.isfinite(rate) & (rate > 0)
    return dict(zip(step[known].tolist(), rate[known].tolist(), strict=True))


def _said(done: Try) -> str:
    if done.is_stable:
        return f"  {done.value:.3g} held for {done.steps:,} steps"
    return (
        f"  {done.value:.3g} did not hold: {done.told or done.verdict} within {done.steps:,} steps"
    )
