"""What can be changed in a training from outside, one thing at a time.

Which of them may cure a finding stands in the finding's row of `diagnosis.causes`; how each is done
in the process that trains stands in `integrations.rerun_process`, under the same name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from ampwatch.diagnosis import Diagnosis, Finding
from ampwatch.diagnosis.causes import row_of
from ampwatch.diagnosis.column_arrays import Floats, Integers, integers, numbers
from ampwatch.recovery.change import FLOAT32, ROOT, Value
from ampwatch.report.scaler_settings import ScalerSettings, scaler_settings
from ampwatch.rows import Table
from ampwatch.store import Run

_MOST_NORMS = 200  # steps before the trouble whose median norm is the usual one


@dataclass(frozen=True, slots=True)
class Trouble:
    """What is wrong with a run, and what there is to change in it."""

    finding: Finding | None
    layer: str | None  # where it shows
    scales: bool
    autocast: str  # "" for none
    norm: float | None  # the usual gradient norm before the trouble
    scaler: ScalerSettings | None  # what the layers' windows suggest
    has_gpu: bool


@dataclass(frozen=True, slots=True)
class Switch:
    """One change. `value_of` gives what is set, True where nothing is to be chosen, or None where
    the run has no such thing."""

    value_of: Callable[[Trouble], Value]
    is_in_bisect: bool = True


def _init_scale(trouble: Trouble) -> Value:
    return None if trouble.scaler is None else trouble.scaler.init_scale


def _growth_interval(trouble: Trouble) -> Value:
    return None if trouble.scaler is None else trouble.scaler.growth_interval


# By the names of `change.WORDS`, in the order of `--bisect`.
SWITCHES: Mapping[str, Switch] = {
    "autocast-off": Switch(lambda it: bool(it.autocast) or None),
    "scaler-off": Switch(lambda it: it.scales or None),
    FLOAT32: Switch(lambda it: it.layer if it.autocast else None),
    "bfloat16": Switch(lambda it: it.autocast == "float16" or None),
    "plain-optimizer": Switch(lambda _: True),
    "deterministic": Switch(lambda _: True),
    "compile-off": Switch(lambda _: True),
    "tf32-off": Switch(lambda it: it.has_gpu or None),
    "init_scale": Switch(_init_scale, is_in_bisect=False),
    "growth_interval": Switch(_growth_interval, is_in_bisect=False),
    "clip": Switch(lambda it: it.norm, is_in_bisect=False),
}


def trouble_of(run: Run, diagnosis: Diagnosis) -> Trouble:
    """What is wrong with a run."""
    head, suspect = diagnosis.headline, diagnosis.suspect
    layer = suspect.layer if suspect is not None and suspect.layer != ROOT else None
    rank = min(run.ranks, default=0)
    rows = run.read(Table.STEPS, ("step", "autocast_dtype", "grad_norm"), rank)
    kinds = sorted(kind for kind in rows.column("autocast_dtype").unique().to_pylist() if kind)
    until = None if head is None else head.first_step
    return Trouble(
        finding=head if head is not None and head.severity.weight else None,
        layer=layer,
        scales=bool(run.info.scaler.get("enabled")),
        autocast=next(iter(kinds), ""),
        norm=_usual_norm(integers(rows, "step"), numbers(rows, "grad_norm"), until),
        scaler=scaler_settings(run, diagnosis),
        has_gpu="+cpu" not in run.info.versions.get("torch", "+cpu"),
    )


def cures_of(trouble: Trouble) -> list[tuple[str, Value]]:
    """What the rule of the finding names, as far as this run has it."""
    found = trouble.finding
    return [] if found is None else _asked(row_of(found.code).cures, trouble)


def bisect_of(trouble: Trouble) -> list[tuple[str, Value]]:
    """Everything that can be switched, one at a time."""
    return _asked((name for name, one in SWITCHES.items() if one.is_in_bisect), trouble)


def _asked(names: Iterable[str], trouble: Trouble) -> list[tuple[str, Value]]:
    found = ((name, SWITCHES[name].value_of(trouble)) for name in names)
    return [(name, value) for name, value in found if value is not None]


def _usual_norm(step: Integers, norm: Floats, until: int | None) -> float | None:
    """The median gradient norm of the last steps before the trouble; None where none is known."""
    known = norm[np.isfinite(norm) & (norm > 0) & (step < (math.inf if until is None else until))]
    return float(np.median(known[-_MOST_NORMS:])) if len(known) else None
