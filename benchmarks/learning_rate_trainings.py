"""The learning-rate benchmark's small trainings: a model, a task, an optimizer, a schedule each.

Real trainings in real fp16 with a real GradScaler, on the CPU, watched as a user would watch them.
TUNED configurations fitted the constants. SEEN ones fitted none, but their misses were looked at,
which led to mended mechanisms: idle runs, groups of several rates, RMSprop's first steps. NEW ones
were made after all of that; their first look widened the interval, their second led to the sign of
little learnt, whose numbers are the tuned ones'.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from learning_rate_tasks import TASKS, Task
from torch import Tensor, nn

import ampwatch
from ampwatch.diagnosis import Engine
from ampwatch.diagnosis.learning_rate import RateRows, RateState

STEPS = 160
LEAST_AGAIN = 60  # steps after a restart, so that the end is seen
GRID = tuple(2.0**k for k in range(-5, 8))  # 13 rates: factors on a configuration's nominal rate

TUNED, SEEN, NEW = "tuned", "seen", "new"


@dataclass(frozen=True)
class Configuration:
    """One training, but for its rate and seed."""

    name: str
    model: str
    optimizer: str
    nominal: float
    schedule: str = "constant"
    clip: float | None = None
    micro_batches: int = 1
    weight_decay: float = 0.0
    two_groups: bool = False
    group: str = TUNED
    steps: int = STEPS
    resumed_after: int = 0  # steps at the nominal rate, before what is watched begins
    precision: torch.dtype = torch.float16  # with a scaler; any other without one

    @property
    def is_tuned_on(self) -> bool:
        return self.group == TUNED

    @property
    def rates(self) -> tuple[float, ...]:
        return tuple(self.nominal * factor for factor in GRID)


CONFIGURATIONS = (
    Configuration("mlp-sgd", "mlp", "sgd", 0.5),
    Configuration("mlp-momentum", "mlp", "momentum", 0.1),
    Configuration("mlp-adam", "mlp", "adam", 0.01),
    Configuration("mlp-adamw-decay", "mlp", "adamw", 0.01, weight_decay=0.1),
    Configuration("mlp-momentum-cosine", "mlp", "momentum", 0.1, schedule="cosine"),
    Configuration("deep-mlp-sgd", "deep", "sgd", 0.2),
    Configuration("deep-mlp-adam-warmup", "deep", "adam", 0.005, schedule="warmup"),
    Configuration("cnn-momentum", "cnn", "momentum", 0.1),
    Configuration("cnn-adam-onecycle", "cnn", "adam", 0.01, schedule="onecycle"),
    Configuration("cnn-sgd-clip", "cnn", "sgd", 0.5, clip=1.0),
    Configuration("pre-ln-adamw-warmup", "pre-ln", "adamw", 0.01, schedule="warmup"),
    Configuration("pre-ln-sgd", "pre-ln", "sgd", 0.5),
    Configuration("post-ln-adam", "post-ln", "adam", 0.005),
    Configuration("post-ln-adam-clip", "post-ln", "adam", 0.005, clip=1.0),
    Configuration("rnn-adam", "rnn", "adam", 0.01),
    Configuration("gru-momentum-clip", "gru", "momentum", 0.2, clip=1.0),
    Configuration("regression-sgd", "regression", "sgd", 0.05),
    Configuration("regression-adam-step", "regression", "adam", 0.02, schedule="step"),
    Configuration("autoencoder-adam", "autoencoder", "adam", 0.01, group=SEEN),
    Configuration("autoencoder-momentum", "autoencoder", "momentum", 0.2, group=SEEN),
    Configuration("bag-adamw", "bag", "adamw", 0.02, group=SEEN),
    Configuration("residual-sgd-warmup", "residual", "sgd", 0.3, "warmup", group=SEEN),
    Configuration("residual-nadam", "residual", "nadam", 0.01, group=SEEN),
    Configuration("mixer-adam-cosine", "mixer", "adam", 0.01, "cosine", group=SEEN),
    Configuration("mixer-momentum-accum", "mixer", "momentum", 0.1, micro_batches=4, group=SEEN),
    Configuration("mixer-adam-groups", "mixer", "adam", 0.01, two_groups=True, group=SEEN),
    Configuration("conv1d-adam", "conv1d", "adam", 0.01, group=SEEN),
    Configuration("conv1d-sgd-cosine", "conv1d", "sgd", 0.5, "cosine", group=SEEN),
    Configuration("batchnorm-sgd-accum", "batchnorm", "sgd", 0.5, micro_batches=2, group=SEEN),
    Configuration("batchnorm-adam-warmup", "batchnorm", "adam", 0.01, "warmup", group=SEEN),
    Configuration("sine-rmsprop", "sine", "rmsprop", 0.002, group=SEEN),
    Configuration("sine-adam-groups", "sine", "adam", 0.01, two_groups=True, group=SEEN),
    Configuration("gated-nesterov-cosine", "gated", "nesterov", 0.1, "cosine", group=NEW),
    Configuration("groupnorm-momentum-warmup", "groupnorm", "momentum", 0.1, "warmup", group=NEW),
    Configuration("deepset-adagrad", "deepset", "adagrad", 0.05, group=NEW),
    Configuration("attention-pool-adamw", "attention-pool", "adamw", 0.01, "warmup", group=NEW),
    Configuration("denoise-adam", "denoise", "adam", 0.02, group=NEW),
    Configuration("product-sgd", "product", "sgd", 0.5, group=NEW),
    Configuration("tied-adamw-cosine", "tied", "adamw", 0.05, "cosine", group=NEW),
    Configuration("maxout-adamax-clip", "maxout", "adamax", 0.01, clip=1.0, group=NEW),
)


class Orthogonal(torch.optim.Optimizer):
    """As Muon: a matrix moves by its momentum made orthogonal; all else by its sign."""

    def __init__(self, groups: list[dict[str, object]], lr: float) -> None:
        super().__init__(groups, {"lr": lr, "momentum": 0.95})

    @torch.no_grad()
    def step(self, closure: object = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                mean = self.state[p].setdefault("mean", torch.zeros_like(p))
                mean.mul_(group["momentum"]).add_(p.grad)
                p.sub_(group["lr"] * (_orthogonal(mean) if p.ndim > 1 else mean.sign()))


def _orthogonal(values: Tensor) -> Tensor:
    matrix = values.flatten(1)
    matrix = matrix / (matrix.norm() + 1e-7)
    for _ in range(5):  # Newton-Schulz
        square = matrix @ matrix.T
        matrix = 3.4445 * matrix + (-4.7750 * square + 2.0315 * square @ square) @ matrix
    return matrix.view_as(values)


class Lion(torch.optim.Optimizer):
    """The sign of a mean of gradients, as its paper writes it."""

    def __init__(self, groups: list[dict[str, object]], lr: float) -> None:
        super().__init__(groups, {"lr": lr, "betas": (0.9, 0.99)})

    @torch.no_grad()
    def step(self, closure: object = None) -> None:
        for group in self.param_groups:
            early, late = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                mean = self.state[p].setdefault("mean", torch.zeros_like(p))
                p.sub_(group["lr"] * (early * mean + (1 - early) * p.grad).sign())
                mean.lerp_(p.grad, 1 - late)


@dataclass(frozen=True)
class Training:
    """Everything of one training that goes on from step to step."""

    configuration: Configuration
    task: Task
    data: torch.Generator
    optimizer: torch.optim.Optimizer
    scheduler: torch.optim.lr_scheduler.LRScheduler | None
    scaler: torch.amp.GradScaler

    def run(self, steps: int, log: Callable[..., None] | None = None) -> None:
        for _ in range(steps):
            loss = _step(self.configuration, self.task, self.optimizer, self.scaler)
            if log is not None and not self.scaler.is_enabled():
                log(loss=loss)  # no scaler sees it
            if self.scheduler is not None and self.scheduler.last_epoch < self.configuration.steps:
                self.scheduler.step()

    def watched(self, steps: int, start_step: int = 0) -> RateState:
        """Train on; what the advice knows of it, out of the run that the watch recorded."""
        with tempfile.TemporaryDirectory() as folder:
            with ampwatch.attach(
                self.scaler, self.task.model, optimizer=self.optimizer, run="run", log_dir=folder,
                endpoint="off", start_step=start_step,
            ) as watch:  # fmt: skip
                self.run(steps, watch.log)
            return Engine().feed(ampwatch.open_run(Path(folder) / "run")).case().rate

    def save(self, path: Path) -> None:
        """A checkpoint as loops write it."""
        parts = {"model": self.task.model, "optimizer": self.optimizer, "scaler": self.scaler}
        states = {name: part.state_dict() for name, part in parts.items()}
        torch.save({**states, "data": self.data.get_state()}, path)

    def restore(self, path: Path, step: int) -> None:
        """Go on from a checkpoint of this step, at this training's own rates."""
        saved = torch.load(path, weights_only=True)
        self.task.model.load_state_dict(saved["model"])
        own = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({**saved["optimizer"], "param_groups": own})
        self.scaler.load_state_dict(saved["scaler"])
        self.data.set_state(saved["data"])
        for _ in range(step if self.scheduler is not None else 0):
            self.scheduler.step()


def begin(configuration: Configuration, rate: float, seed: int) -> Training:
    torch.manual_seed(seed)
    data = torch.Generator().manual_seed(1000 + seed)
    task = TASKS[configuration.model](data)
    half = configuration.precision is torch.float16
    scaler = torch.amp.GradScaler("cpu", enabled=half)
    optimizer = _optimizer(configuration, task.model, rate)
    if configuration.resumed_after:
        good = _optimizer(configuration, task.model, configuration.nominal)
        for _ in range(configuration.resumed_after):
            _step(configuration, task, good, scaler)
        own = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({**good.state_dict(), "param_groups": own})
    scheduler = _scheduler(configuration, optimizer, rate)
    return Training(configuration, task, data, optimizer, scheduler, scaler)


def train(configuration: Configuration, rate: float, seed: int) -> RateState:
    """Train once: from random weights, or on from where a good rate has brought them."""
    return begin(configuration, rate, seed).watched(
        configuration.steps, configuration.resumed_after
    )


def restart(
    configuration: Configuration, failed: float, seed: int, at: int, rate: float
) -> RateRows:
    """The course of a failed training that went on from its checkpoint at another rate.

    The rows before the restart are the failed one's, so that its progress counts.
    """
    before = begin(configuration, failed, seed)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint.pt"
        state = before.watched(at) if at else RateState()
        before.save(path)
        again = begin(configuration, rate, seed)
        again.restore(path, at)
        head = again.watched(max(STEPS - at, LEAST_AGAIN), at).head
    return RateRows(np.concatenate([state.head.values, head.values]))


def _step(
    configuration: Configuration,
    task: Task,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
) -> Tensor:
    optimizer.zero_grad()
    half = configuration.precision is not torch.float32
    for _ in range(configuration.micro_batches):
        inputs, targets = task.batch()
        with torch.autocast("cpu", configuration.precision if half else None, enabled=half):
            outputs = task.model(inputs)
        loss = task.loss(outputs.float(), targets)
        scaler.scale(loss / configuration.micro_batches).backward()
    if configuration.clip is not None:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(task.model.parameters(), configuration.clip)
    scaler.step(optimizer)
    scaler.update()
    return loss.detach()


def _optimizer(
    configuration: Configuration, model: nn.Module, rate: float
) -> torch.optim.Optimizer:
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups: list[dict[str, object]] = [{"params": parameters}]
    if configuration.two_groups:
        groups = [{"params": parameters[:2], "lr": rate / 10}, {"params": parameters[2:]}]
    decay = configuration.weight_decay
    make = {
        "sgd": lambda: torch.optim.SGD(groups, rate, weight_decay=decay),
        "momentum": lambda: torch.optim.SGD(groups, rate, momentum=0.9, weight_decay=decay),
        "adam": lambda: torch.optim.Adam(groups, rate),
        "adamw": lambda: torch.optim.AdamW(groups, rate, weight_decay=decay),
        "rmsprop": lambda: torch.optim.RMSprop(groups, rate),
        "nadam": lambda: torch.optim.NAdam(groups, rate),
        "nesterov": lambda: torch.optim.SGD(groups, rate, momentum=0.9, nesterov=True),
        "adagrad": lambda: torch.optim.Adagrad(groups, rate),
        "adamax": lambda: torch.optim.Adamax(groups, rate),
        "lion": lambda: Lion(groups, rate),
        "adafactor": lambda: torch.optim.Adafactor(groups, rate),
        "orthogonal": lambda: Orthogonal(groups, rate),
    }
    return make[configuration.optimizer]()


def _scheduler(
    configuration: Configuration, optimizer: torch.optim.Optimizer, rate: float
) -> torch.optim.lr_scheduler.LRScheduler | None:
    if configuration.schedule == "onecycle":
        return torch.optim.lr_scheduler.OneCycleLR(
            optimizer, rate, total_steps=configuration.steps + 1, cycle_momentum=False
        )
    factors: dict[str, Callable[[int], float]] = {
        "warmup": lambda t: min(1.0, (t + 1) / 40),
        "cosine": lambda t: 0.5 * (1 + math.cos(math.pi * t / configuration.steps)),
        "step": lambda t: 1.0 if t < 100 else 0.1,
        "raised": lambda t: 0.1 if t < 100 else 1.0,
    }
    factor = factors.get(configuration.schedule)
    return None if factor is None else torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
