"""What the overhead benchmark compares: nothing, ampwatch in three settings, and other loggers.

Every contender works on the same training. `begin` and `end` stand around a block and are not
timed; `after_step` is. The loggers get ready-made numbers: only logging them is charged.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

from overhead_training import Training

import ampwatch

EIGHT = ("loss", "scale", "growth_tracker", "skipped", "lr", "grad_norm", "param_norm", "update")


class Bare:
    """The loop by itself; what the others are measured against."""

    name = "bare loop again"  # as a contender it shows what the method itself cannot tell apart
    logs = "nothing"

    def begin(self, training: Training) -> None:
        """Get ready for a block."""

    def after_step(self, training: Training) -> None:
        """Do what a loop with this contender does once a step."""

    def end(self) -> None:
        """Leave the training as it was."""

    def close(self) -> None:
        """Give everything back at the end of the benchmark."""


class Watched(Bare):
    """ampwatch, attached for each block and detached after it."""

    def __init__(self, name: str, logs: str, folder: Path, layer_every: int | None = None) -> None:
        self.name, self.logs = name, logs
        self._folder = folder
        self._layer_every = layer_every
        self._watch: Any = None

    def begin(self, training: Training) -> None:
        folder = self._folder / "ampwatch"
        if self._layer_every is None:
            self._watch = ampwatch.attach(training.scaler, None, log_dir=folder)
            return
        self._watch = ampwatch.attach(
            training.scaler, training.model, log_dir=folder, layer_every=self._layer_every
        )

    def end(self) -> None:
        self._watch.close()


class TensorBoard(Bare):
    name = "TensorBoard"
    logs = "eight add_scalar calls"

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(folder / "tensorboard"))
        self.steps = count()

    def after_step(self, training: Training) -> None:
        step = next(self.steps)
        for name in EIGHT:
            self.writer.add_scalar(name, 0.5 * step, step)

    def close(self) -> None:
        self.writer.close()


class WeightsAndBiases(Bare):
    name = "W&B offline"
    logs = "one log call of eight scalars"

    def __init__(self, folder: Path) -> None:
        import wandb

        folder.mkdir(parents=True)
        settings = wandb.Settings(silent=True, console="off", x_disable_stats=True)
        self.run = wandb.init(
            project="overhead", mode="offline", dir=str(folder), settings=settings
        )
        self.steps = count()

    def after_step(self, training: Training) -> None:
        self.run.log(dict.fromkeys(EIGHT, 0.5 * next(self.steps)))

    def close(self) -> None:
        self.run.finish()


class Trackio(Bare):
    name = "trackio"
    logs = "one log call of eight scalars"

    def __init__(self, folder: Path) -> None:
        os.environ["TRACKIO_DIR"] = str(folder / "trackio")  # read when trackio is imported
        import trackio

        self.trackio = trackio
        with contextlib.redirect_stdout(io.StringIO()):
            trackio.init(project="overhead", embed=False, auto_log_gpu=False)
        self.steps = count()

    def after_step(self, training: Training) -> None:
        self.trackio.log(dict.fromkeys(EIGHT, 0.5 * next(self.steps)))

    def close(self) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            self.trackio.finish()


class Computing(Bare):
    """What the naive monitor pays before it logs anything; no logger, so no target."""

    name = "norms by hand"
    logs = "p.grad.norm().item() for each parameter"

    def after_step(self, training: Training) -> None:
        for parameter in training.model.parameters():
            parameter.grad.norm().item()


class Naive(TensorBoard):
    """The monitor people write first."""

    name = "naive monitor"
    logs = "p.grad.norm().item() for each parameter and the eight scalars, by add_scalar"

    def after_step(self, training: Training) -> None:
        super().after_step(training)
        for name, parameter in training.model.named_parameters():
            self.writer.add_scalar(name, parameter.grad.norm().item(), training.steps_done)


WATCHED = {
    "scalars": ("ampwatch, the scaler alone", "scalars and skips", None),
    "norms": ("ampwatch, layer_every=10**9", "and global, per-layer and update norms", 10**9),
    "default": ("ampwatch, default settings", "and layer statistics every 50 steps", 50),
}
REQUIRES = {
    TensorBoard: "tensorboard",
    WeightsAndBiases: "wandb",
    Trackio: "trackio",
    Computing: None,
    Naive: "tensorboard",
}


def watched(key: str, folder: Path) -> Watched:
    """ampwatch in one of the three settings of WATCHED."""
    name, logs, layer_every = WATCHED[key]
    return Watched(name, logs, folder, layer_every)


def all_contenders(folder: Path) -> Iterator[Bare]:
    """The bare loop, the three watched settings, and every baseline that is installed."""
    logging.getLogger("wandb").setLevel(logging.ERROR)
    yield Bare()
    for key in WATCHED:
        yield watched(key, folder)
    for kind, package in REQUIRES.items():
        if package is None or find_spec(package):
            yield kind(folder / kind.__name__) if package else kind()


def left_out() -> list[str]:
    """Packages that a baseline needs and that are not installed."""
    return sorted({name for name in REQUIRES.values() if name and not find_spec(name)})
