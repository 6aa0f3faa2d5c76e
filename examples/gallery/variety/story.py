"""What happens in a training, as causes; `unfolding` makes of it what a log shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from examples.gallery.variety.architectures import Task
from examples.gallery.variety.noise import Floats, Mask, Random
from examples.gallery.variety.optimizers import Optimizer


@dataclass(frozen=True, slots=True)
class Setting:
    """What was drawn for a case before anything happens in it."""

    number: int
    split: str
    architecture: str
    optimizer: str
    mechanism: str  # kind/variant
    schedule: str
    precision: str  # fp16, bf16, bf16-weights, fp32
    steps: int
    severity: float  # 0 mild to 1 grave
    onset: str  # early, late, restart
    seen: str  # attached, scalars, table, text
    is_twin: bool  # the same without the fault
    every: int = 1  # a table's or text's steps from line to line

    @property
    def has_scaler(self) -> bool:
        """Whether a loss scaler skips what overflows."""
        return self.precision == "fp16"


@dataclass(frozen=True, slots=True)
class Restart:
    """An interruption: what was restored after it."""

    step: int
    scale: float | None = None  # the scaler was made anew with this scale
    optimizer_lost: bool = False
    is_told: bool = True  # the loop loads a state, and an attached log says so


@dataclass(frozen=True, slots=True)
class Instability:
    """A direction of the loss in which steps above a limit go ever further astray."""

    limit: Floats  # the highest stable rate, at each step
    pace: float  # octaves a step, at twice the limit
    cap: float  # octaves above the loss's size at which it stays; above 60 it is not finite


@dataclass(frozen=True, slots=True)
class Partner:
    """A second rank: in what it differs from the first."""

    overflows: Mask | None = None  # in other steps
    last_step: int | None = None  # it falls silent
    has_own_data: bool = True


@dataclass(slots=True)
class Story:
    """A healthy training, until a mechanism changes it."""

    setting: Setting
    random: Random
    task: Task
    optimizer: Optimizer
    rate: Floats
    rate_base: float
    update_ratio: float  # of the first updates at the highest rate
    clip: float | None
    init_scale: float
    growth_interval: int
    excess: Floats  # what trouble adds to the loss, in units
    grad_gain: Floats
    update_gain: Floats
    ceiling_shift: Floats  # octaves by which the bearable scale changes, for itself
    overflows: Mask  # at any scale, in the backward pass
    loss_lost: Mask  # the forward pass gives no finite loss
    grad_lost: Mask  # the gradient is not finite, whatever the scale
    lost_norm: float  # what such a gradient's norm comes to
    left_out: Mask  # the loop makes no step
    input_lost: Mask
    input_gain: Floats
    restarts: list[Restart] = field(default_factory=list)
    instability: Instability | None = None
    events: list[tuple[int, str, dict[str, Any]]] = field(default_factory=list)
    layer_columns: Mapping[str, Mapping[str, Floats]] = field(default_factory=dict)
    culprit: str | None = None  # the layer that an attached log traces overflows to
    is_forward: bool = False  # ... in the forward pass
    memory_bytes: Floats | None = None
    partner: Partner | None = None
    first_step: int = 0
    cut: int | None = None  # the log ends here
    ends: bool = True

    @property
    def steps(self) -> int:
        """How many steps the record has."""
        return self.setting.steps

    def since(self, step: int) -> Floats:
        """The steps since that one, negative before it."""
        return np.arange(self.steps) - float(step)

    def part(self, share: float) -> int:
        """The step at this share of the run."""
        return min(self.steps - 1, int(self.steps * share))


def begin(
    setting: Setting,
    random: Random,
    task: Task,
    optimizer: Optimizer,
    rate: Floats,
    rate_base: float,
) -> Story:
    """A healthy story."""
    steps = setting.steps

    def none() -> Mask:
        return np.zeros(steps, np.bool_)

    clip = None
    if random.random() < task.kind.clips:
        clip = float(np.median(task.grad_norm) * 2 ** random.uniform(-3, 2))
    return Story(
        setting, random, task, optimizer, rate, rate_base,
        update_ratio=float(2 ** random.uniform(-14, -9)),
        clip=clip,
        init_scale=_init_scale(task, random),
        growth_interval=int(random.choice([2000, 2000, 2000, 1000, 500, 200])),
        excess=np.zeros(steps), grad_gain=np.ones(steps), update_gain=np.ones(steps),
        ceiling_shift=np.zeros(steps), overflows=none(), loss_lost=none(), grad_lost=none(),
        lost_norm=float(random.choice([np.nan, np.inf])),
        left_out=none(), input_lost=none(), input_gain=np.ones(steps),
    )  # fmt: skip


def _init_scale(task: Task, random: Random) -> float:
    """Torch's own as a rule; one far too high is searched down from, one far too low is a fault."""
    usual = [16, 16, 16, 16, 24, 32, int(task.ceiling) - 2, int(task.ceiling) - 4]
    return float(2.0 ** max(random.choice(usual), task.ceiling // 1 - 5))
