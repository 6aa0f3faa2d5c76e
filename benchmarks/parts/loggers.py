"""Other loggers that ours is compared with, with one way to call them."""

from __future__ import annotations

import contextlib
import io
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


class TensorBoard:
    """An add_scalar a value."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(folder))
        self.close = self.writer.close

    def log(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)


class WeightsAndBiases:
    """W&B offline: a log call a step. Its own process's time is not counted."""

    def __init__(self, folder: Path) -> None:
        import wandb

        logging.getLogger("wandb").setLevel(logging.ERROR)
        folder.mkdir(parents=True, exist_ok=True)
        settings = wandb.Settings(silent=True, console="off", x_disable_stats=True)
        self.run = wandb.init(
            project="benchmark", mode="offline", dir=str(folder), settings=settings
        )
        self.close = self.run.finish

    def log(self, values: Mapping[str, float], step: int) -> None:
        self.run.log(values, step=step)


class Trackio:
    """A log call a step."""

    def __init__(self, folder: Path) -> None:
        os.environ["TRACKIO_DIR"] = str(folder)  # read when trackio is imported
        import trackio

        self.trackio = trackio
        with contextlib.redirect_stdout(io.StringIO()):
            trackio.init(project="benchmark", embed=False, auto_log_gpu=False)

    def log(self, values: Mapping[str, float], step: int) -> None:
        self.trackio.log(dict(values), step=step)

    def close(self) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            self.trackio.finish()


# Each has `log(values, step)` for a step's scalars, and `close()`.
LOGGERS: dict[str, Callable[[Path], Any]] = {
    "TensorBoard": TensorBoard, "W&B offline": WeightsAndBiases, "trackio": Trackio,
}  # fmt: skip
PACKAGES = {"TensorBoard": "tensorboard", "W&B offline": "wandb", "trackio": "trackio"}
