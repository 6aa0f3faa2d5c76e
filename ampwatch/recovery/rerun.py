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

from ampwatch.diagnosis import Action, Diagnosis
from ampwatch.diagnosis.findings import Verdict
from ampwatch.errors import AmpwatchError
from ampwatch.follow import Follower, follow
from ampwatch.recovery.change import CHANGE, Change
from ampwatch.recovery.proof import Try
from ampwatch.rows import Table
from ampwatch.store import list_runs

LOOK_EVERY_S = 0.3
_LEAVING_S = 10.0  # to end by itself once it was asked to
_LAST_WORDS = 400  # characters of what a rerun printed before it died
_LOSS_AT = 12  # steps whose losses are kept
_RATE_SHARE = 0.02  # a rate that differs by less is the one that was asked for

Command = Callable[[Path], tuple[Sequence[str], Mapping[str, str]]]
"""Arguments and environment that start a rerun whose runs go to a folder."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The request for one rerun."""

    rate: float
    base: float  # the rate of the run's first step that the factor is of
    steps: int
    until_s: float  # by the monotonic clock
    rates: Mapping[int, float]  # the run's own, by step


def rerun(command: Command, cwd: Path, folder: Path, asked: Asked) -> Try:
    """Train again with another rate, in a folder of its own."""
    folder.mkdir(parents=True)
    arguments, environment = command(folder / "runs")
    change = Change(asked.rate / asked.base, str(folder / "outputs"))
    with (folder / "printed.txt").open("wb") as printed:
        child = subprocess.Popen(
            list(arguments), cwd=cwd, env={**environment, CHANGE: change.to_text()},
            stdin=subprocess.DEVNULL, stdout=printed, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        try:
            shown = _until_shown(child, folder / "runs", asked)
        finally:
            _end(child)
    if shown is None:
        raise AmpwatchError(_died(child.returncode, folder))
    return _judged(*shown, child.returncode, asked)


def _until_shown(
    child: subprocess.Popen[bytes], runs: Path, asked: Asked
) -> tuple[Follower, Diagnosis] | None:
    """Follow the rerun until it has trained enough steps, fails, ends, or time is up.

    Returns its diagnosis of this moment, taken before we end the process.
    """
    follower: Follower | None = None
    while True:
        is_over = child.poll() is not None or time.monotonic() >= asked.until_s
        follower = follower or _found(runs)
        if follower is not None:
            diagnosis = follower.look().diagnosis
            has_shown = diagnosis.run.steps >= asked.steps or diagnosis.verdict is Verdict.FAILING
            if has_shown or is_over:
                return follower, diagnosis
        if is_over:
            return None
        time.sleep(LOOK_EVERY_S)


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


def _judged(follower: Follower, diagnosis: Diagnosis, code: int | None, asked: Asked) -> Try:
    steps = diagnosis.run.steps
    losses, rates = _columns(follower)
    _refuse_other_rates(rates, asked)
    is_failing = diagnosis.verdict is Verdict.FAILING
    came_far = steps >= asked.steps or (code == 0 and steps > 0)
    lowers = diagnosis.learning_rate.action is Action.LOWER
    return Try(
        change="lr", value=asked.rate, steps=steps, verdict=diagnosis.verdict.value,
        is_stable=came_far and not is_failing and not lowers,
        told=_told(diagnosis, came_far=came_far, code=code),
        loss_at=losses, run=str(follower.path),
    )  # fmt: skip


def _told(diagnosis: Diagnosis, *, came_far: bool, code: int | None) -> str:
    head = diagnosis.headline
    if head is not None and head.severity.weight > 0:
        return f"{head.code} {head.name}"
    if came_far:
        return ""
    return "time was up" if code is None or code < 0 else f"it ended with {code} before"


def _columns(follower: Follower) -> tuple[dict[str, float], dict[int, float]]:
    """Sampled losses and all rates, by step."""
    with follower.reading() as run:
        rows = run.read(Table.STEPS, columns=("step", "loss", "lr"))
    step = np.asarray(rows.column("step").fill_null(-1).to_numpy(), np.int64)
    loss, rate = (np.asarray(rows.column(name).to_numpy(), float) for name in ("loss", "lr"))
    known = np.flatnonzero(np.isfinite(loss))
    losses = {}
    for at in (10 * 2**n for n in range(_LOSS_AT)):
        before = known[step[known] <= at]
        if len(before) and at <= step.max():
            losses[str(at)] = float(loss[before[-1]])
    told = np.isfinite(rate)
    return losses, dict(zip(step[told].tolist(), rate[told].tolist(), strict=True))


def _refuse_other_rates(rates: Mapping[int, float], asked: Asked) -> None:
    """Raise if the rerun did not train with the requested rate: it would prove nothing."""
    factor = asked.rate / asked.base
    shared = [step for step in rates if asked.rates.get(step)]
    wrong = [
        step for step in shared
        if abs(rates[step] - factor * asked.rates[step]) > _RATE_SHARE * factor * asked.rates[step]
    ]  # fmt: skip
    if len(wrong) > len(shared) // 10:
        step = wrong[0]
        raise AmpwatchError(
            f"The rerun was to train at {factor:.3g} times the rate, and did not: at step {step} "
            f"it had {rates[step]:.3g}, where the run had {asked.rates[step]:.3g}. The script sets "
            "its rate itself: name the argument that holds it, as in `--rate-argument --lr`."
        )


def _died(code: int | None, folder: Path) -> str:
    last = (folder / "printed.txt").read_text(errors="replace").strip()[-_LAST_WORDS:]
    how = f"ended with {code} before its first step"
    if code == 0:
        how = "trained no step that could be watched"
    elif code is None or code < 0:
        how = "had no step within the time"
    return f"The rerun {how}" + (f". It printed last: {last}" if last else ", and printed nothing.")
