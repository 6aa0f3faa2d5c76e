"""From a verdict to what a launcher does next: continue, restart with changes, or stop.

A restart consists only of what a launcher and its script can do by themselves: load a checkpoint,
multiply the rates, skip batches, set the scaler, keep layers in float32. A mistake in the program
cannot be fixed that way.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ampwatch.diagnosis import Action, Diagnosis, Finding, Severity
from ampwatch.diagnosis.column_arrays import integers
from ampwatch.diagnosis.findings import CUT_OFF, LIVE
from ampwatch.diagnosis.rule import title_of
from ampwatch.diagnosis.value_text import evidence_text
from ampwatch.exit_codes import ExitCode
from ampwatch.follow import diagnose
from ampwatch.recovery.change import FLOAT32, LAYERS_BY, RATE, ROOT, switch_text
from ampwatch.recovery.proof import Proof, Try, kept_proof, with_proof, words_of
from ampwatch.report.restart_place import Checkpoint, last_clean_save, restart_place
from ampwatch.report.scaler_settings import worthwhile_settings
from ampwatch.report.timeline import attempts_of
from ampwatch.rows import Table
from ampwatch.store import Run, open_run

SCHEMA = 1
MOST_RESTARTS = 5  # of one run: a cure that did not help so often will not help
_OUTPUT_LEAVES_FORMAT = "AMP203"
_BAD_BATCH = ("AMP206", "AMP209")
_OF_THE_SCALE = ("AMP103", "AMP104", "AMP108")
_MOST_TO_WATCH = 3
_MOST_SKIPPED = 20  # stretches of batches: more is no accident of the data


class Next(str, enum.Enum):
    """What to do."""

    CONTINUE = "continue"
    RESTART = "restart"
    STOP = "stop"


_WORDS = {Next.CONTINUE: "Go on.", Next.RESTART: "Start again.", Next.STOP: "Stop."}
EXIT_CODES = {
    Next.CONTINUE: ExitCode.DONE,
    Next.RESTART: ExitCode.RESTART,
    Next.STOP: ExitCode.PERSON,
}


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do next, and with which changes; empty fields change nothing."""

    action: Next
    because: str
    checkpoint: Checkpoint | None = None  # None: from the beginning
    factor: float | None = None  # of every rate
    base_rates: tuple[float, ...] = ()  # of the groups, with the factor
    warmup_steps: int | None = None
    clip: float | None = None
    skip_steps: tuple[tuple[int, int], ...] = ()
    init_scale: float | None = None
    growth_interval: int | None = None
    restores_scaler: bool = True
    keep_in_float32: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)  # to switch for the whole run
    watch_for: tuple[str, ...] = field(default=())
    sees_saves: bool = True  # whether the record could show a checkpoint

    @property
    def exit_code(self) -> int:
        """For launchers."""
        return EXIT_CODES[self.action]

    def to_json(self) -> dict[str, Any]:
        """As `ampwatch plan --json` prints it."""
        saved = self.checkpoint
        return {
            "schema": SCHEMA,
            "action": self.action.value,
            "checkpoint": None
            if saved is None
            else {"step": saved.step, "path": saved.path, "state": saved.state},
            "learning_rate": {
                "factor": self.factor, "groups": list(self.base_rates),
                "warmup_steps": self.warmup_steps, "clip": self.clip,
            },
            "skip_steps": [list(pair) for pair in self.skip_steps],
            "scaler": {
                "init_scale": self.init_scale, "growth_interval": self.growth_interval,
                "restore": self.restores_scaler,
            },
            "keep_in_float32": list(self.keep_in_float32),
            "settings": dict(self.settings),
            "watch_for": list(self.watch_for),
            "because": self.because,
        }  # fmt: skip


def plan(run: Run | str | Path) -> Plan:
    """What a launcher should do next with a run in its current state."""
    opened = run if isinstance(run, Run) else open_run(run)
    return plan_of(opened, diagnose(opened), kept_proof(opened.path))


def last_clean_checkpoint(run: Run | str | Path) -> Checkpoint | None:
    """The last save from before the run's trouble."""
    opened = run if isinstance(run, Run) else open_run(run)
    return last_clean_save(opened, diagnose(opened), None)


def checkpoint_before_trouble(run: Run | str | Path) -> Checkpoint | None:
    """The last save of a run from before what is wrong with it began."""
    opened = run if isinstance(run, Run) else open_run(run)
    return restart_place(opened, diagnose(opened)).checkpoint


def plan_of(run: Run, diagnosis: Diagnosis, proof: Proof | None = None) -> Plan:
    """The plan for a run in its current state; a rate proved by reruns precedes an estimate."""
    diagnosis = with_proof(diagnosis, proof)
    head = diagnosis.headline
    if head is None or diagnosis.worst() is not Severity.ERROR:
        return _without_error(run, diagnosis, None if proof is None else proof.proved)
    cured = _cure(run, diagnosis, head, proof)
    if cured is not None and run.info.source != "ampwatch":
        cured = replace(cured, sees_saves=False)
    if cured is None:
        return Plan(Next.STOP, f"{head.summary} A restart cannot fix that: {head.action}")
    restarts = len(attempts_of(run, min(run.ranks, default=0), goes_on=False)) - 1
    if restarts >= MOST_RESTARTS:
        why = f"{title_of(head)}. The run was started again {restarts} times: a person must look."
        return Plan(Next.STOP, why)
    return cured


def _without_error(run: Run, diagnosis: Diagnosis, best: Try | None) -> Plan:
    state, raised = diagnosis.run.state, diagnosis.run.exception
    if state == LIVE or not (raised or state == CUT_OFF):
        calm = diagnosis.calm or "No error stands at the end of the log."
        if best is not None:  # of a warning
            said = _proved_changes(run, diagnosis, best)
            if said:
                because = f"{calm} At the next start, as proved by a rerun of {best.steps:,} steps:"
                return Plan(Next.CONTINUE, f"{because} {words_of(best)}.", **said)
        better = worthwhile_settings(run, diagnosis)
        if better is None:
            return Plan(Next.CONTINUE, calm)
        return Plan(
            Next.CONTINUE, f"{calm} At the next start: {better.text}",
            init_scale=better.init_scale, growth_interval=better.growth_interval,
        )  # fmt: skip
    saved = last_clean_save(run, diagnosis, None)
    if raised:
        return Plan(Next.STOP, f"The program ended by {raised}, which its numbers do not explain.")
    because = "The run was cut off while nothing was wrong with its numbers: nothing is changed."
    return Plan(Next.RESTART, because, saved)


def _cure(run: Run, diagnosis: Diagnosis, head: Finding, proof: Proof | None) -> Plan | None:
    """The changes that fix this error; None if a launcher cannot fix it."""
    advice = diagnosis.learning_rate
    best = None if proof is None else proof.best
    if advice.action is Action.LOWER and advice.factor is not None:
        return _lower_rate(run, diagnosis, head, best)
    if best is not None and proof is not None and (best.change != RATE or proof.keeps_rate):
        proved = _as_proved(run, diagnosis, head, best)
        if proved is not None:
            return proved
    saved = restart_place(run, diagnosis).checkpoint
    watch_for = _watch_for(head)
    if head.code == _OUTPUT_LEAVES_FORMAT and head.layer and head.layer != ROOT:
        because = f"{title_of(head)}. Run {head.layer} in float32."
        return Plan(Next.RESTART, because, saved, keep_in_float32=(head.layer,),
                    watch_for=watch_for, **_scaler(run, saved, head))  # fmt: skip
    batches = _bad_batches(diagnosis)
    if batches and (head.code in _BAD_BATCH or head.because_of in _BAD_BATCH):
        because = f"{title_of(head)}. Leave these batches out."
        return Plan(Next.RESTART, because, saved, skip_steps=batches,
                    watch_for=watch_for, **_scaler(run, saved, head))  # fmt: skip
    return None


def _lower_rate(run: Run, diagnosis: Diagnosis, head: Finding, best: Try | None) -> Plan | None:
    """The advised rate, with what its reruns changed besides; None if a plan cannot say that."""
    advice = diagnosis.learning_rate
    assert advice.factor is not None
    how, said = "as estimated", dict[str, Any](clip=advice.clip)
    if advice.proved_steps is not None:
        how = f"as proved by reruns of {advice.proved_steps:,} steps"
    if advice.besides is not None and best is not None and best.kept is not None:
        name, value = best.kept
        if name not in SAID_BY_PLAN:
            return None
        how = f"with {advice.besides}, {how}"
        said |= SAID_BY_PLAN[name](value)
    saved = restart_place(run, diagnosis).checkpoint
    rates = tuple(rate * advice.factor for rate in _base_rates(run, head))
    said = _scaler(run, saved, head) | said
    return Plan(
        Next.RESTART, f"{title_of(head)}. Lower the learning rate, {how}.", saved,
        factor=advice.factor, base_rates=rates, warmup_steps=advice.warmup_steps,
        watch_for=_watch_for(head), **said,
    )  # fmt: skip


# How a change that reruns have proved is said in a plan.
SAID_BY_PLAN: Mapping[str, Callable[[Any], dict[str, Any]]] = {
    FLOAT32: lambda layers: {"keep_in_float32": tuple(layers.split(LAYERS_BY))},
    "clip": lambda norm: {"clip": norm},
    "init_scale": lambda scale: {"init_scale": scale, "restores_scaler": False},
    "growth_interval": lambda steps: {"growth_interval": int(steps)},
    "autocast-off": lambda _: {"settings": {"autocast": "off"}},
    "bfloat16": lambda _: {"settings": {"autocast": "bfloat16"}},
    "scaler-off": lambda _: {"settings": {"scaler": "off"}},
    "plain-optimizer": lambda _: {"settings": {"foreach": "off", "fused": "off"}},
    "deterministic": lambda _: {"settings": {"deterministic": "on"}},
    "compile-off": lambda _: {"settings": {"compile": "off"}},
    "tf32-off": lambda _: {"settings": {"tf32": "off"}},
}


def _proved_changes(run: Run, diagnosis: Diagnosis, best: Try) -> dict[str, Any]:
    """What a rerun has proved to help, as a plan says it; nothing if a plan cannot say it."""
    advice, (name, value) = diagnosis.learning_rate, best.cure
    if name == RATE:
        said = dict[str, Any]()
    elif name in SAID_BY_PLAN:
        said = SAID_BY_PLAN[name](value)
    else:
        return {}
    head = diagnosis.headline
    if best.change == RATE and advice.proved_steps is not None and advice.factor and head:
        rates = tuple(rate * advice.factor for rate in _base_rates(run, head))
        said |= {"factor": advice.factor, "base_rates": rates}
    return said


def _as_proved(run: Run, diagnosis: Diagnosis, head: Finding, best: Try) -> Plan | None:
    """What a rerun has shown to be a cure; None if a plan cannot say it."""
    name, value = best.cure
    if name not in SAID_BY_PLAN:
        return None
    saved = restart_place(run, diagnosis).checkpoint
    said = _scaler(run, saved, head) | SAID_BY_PLAN[name](value)
    because = (
        f"{title_of(head)}. A rerun of {best.steps:,} steps has proved that the trouble is gone "
        f"with {switch_text(name, value)}."
    )
    return Plan(Next.RESTART, because, saved, watch_for=_watch_for(head), **said)


# --- what the record tells ------------------------------------------------------------------------


def _base_rates(run: Run, head: Finding) -> list[float]:
    """Each group's base rate when the trouble began."""
    rows = run.read(Table.STEPS, ("step", "lr_bases"), min(run.ranks, default=0))
    until = head.first_step
    rates: list[float] = []
    for step, told in zip(*(rows.column(n).to_pylist() for n in ("step", "lr_bases")), strict=True):
        if told and (until is None or not rates or (step is not None and step <= until)):
            rates = told
    return rates


def _scaler(run: Run, saved: Checkpoint | None, head: Finding) -> dict[str, Any]:
    """Whether to load the saved scaler; if not, the scale in use at the save."""
    interval = run.info.scaler.get("growth_interval")
    if saved is None or head.code not in _OF_THE_SCALE:
        return {"growth_interval": interval}
    rows = run.read(Table.STEPS, ("step", "scale"), min(run.ranks, default=0))
    step = integers(rows, "step")
    at = int(np.searchsorted(step, saved.step, side="right")) - 1
    scale = rows.column("scale")[max(0, at)].as_py() if len(step) else None
    return {"growth_interval": interval, "init_scale": scale, "restores_scaler": False}


def _bad_batches(diagnosis: Diagnosis) -> tuple[tuple[int, int], ...]:
    """The steps with outlying batches, as ranges; empty if they are too many to be rare."""
    found = [one for one in diagnosis.findings if one.code in _BAD_BATCH]
    steps = sorted(
        {piece.step for one in found for piece in one.evidence if piece.step is not None}
    )
    stretches: list[tuple[int, int]] = []
    for step in steps:
        if stretches and step == stretches[-1][1] + 1:
            stretches[-1] = stretches[-1][0], step
        else:
            stretches.append((step, step))
    return tuple(stretches) if len(stretches) <= _MOST_SKIPPED else ()


def _watch_for(head: Finding) -> tuple[str, ...]:
    """The numbers that showed the trouble, with what they were."""
    numbers = [piece for piece in head.evidence if isinstance(piece.value, float)]
    return tuple(evidence_text(piece) for piece in numbers[:_MOST_TO_WATCH])


def _peak_text(factor: float, base_rates: Sequence[float]) -> str:
    """Which peak to set, as a sentence; the factor where the base rates are not recorded."""
    if not base_rates:
        return f"Multiply every learning rate by {factor:.2g}."
    peak = max(base_rates)
    return f"Set the peak learning rate to {peak:.2g} (now {peak / factor:.4g})."


_NO_CHECKPOINT = {
    True: "Start from scratch: no clean checkpoint is recorded before the trouble.",
    False: "From a checkpoint saved before the trouble; a log shows none.",
}


def sentences_of(plan: Plan) -> Sequence[str]:
    """The plan in words, one sentence per line."""
    saved = plan.checkpoint
    found = [f"{_WORDS[plan.action]} {plan.because}"]
    if plan.action is not Next.RESTART:
        return found
    if saved is None:
        found.append(_NO_CHECKPOINT[plan.sees_saves])
    else:
        where = f", {saved.path}" if saved.path else ""
        found.append(f"From the checkpoint of step {saved.step:,}{where} ({saved.state}).")
    if plan.factor is not None:
        found.append(_peak_text(plan.factor, plan.base_rates))
    if plan.warmup_steps:
        found.append(f"Warm up for {plan.warmup_steps:,} steps.")
    if plan.clip:
        found.append(f"Clip the gradient norm at {plan.clip:.3g}.")
    if plan.skip_steps:
        told = ", ".join(f"{a:,}" if a == b else f"{a:,} to {b:,}" for a, b in plan.skip_steps)
        found.append(f"Leave out the batches of the steps {told}.")
    if not plan.restores_scaler:
        scale = "" if plan.init_scale is None else f" at {plan.init_scale:g}"
        found.append(f"Do not load the scaler's state; begin{scale}.")
    found += [f"Set {name}: {value}." for name, value in plan.settings.items()]
    if plan.keep_in_float32:
        found.append(f"Run {', '.join(plan.keep_in_float32)} in float32.")
    found += [
        f"Check the first 100 steps for this sign of the failed run: {text}."
        for text in plan.watch_for
    ]
    return found
