"""The loops that the frameworks benchmark times: one training, written by each framework.

A loop is given a model, its batch and one of CONTENDERS; it calls `tick` as each step begins. The
half precision of the frameworks is put together by hand, because some refuse float16 on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from overhead_contenders import EIGHT
from overhead_training import mlp
from torch import Tensor, nn

import ampwatch

BARE, LOGGER, SCALER, DEFAULT = (
    "nothing", "its TensorBoard logger", "ampwatch, the scaler alone", "ampwatch, default settings",
)  # fmt: skip
CONTENDERS = (BARE, LOGGER, SCALER, DEFAULT)
Tick = Callable[[], None]
Loop = Callable[[str, Path, int, Tick], None]


def loss_of(model: nn.Module, inputs: Tensor) -> Tensor:
    return model(inputs).float().square().mean()


def scaler() -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=10**9)


def ready_made(step: int) -> dict[str, float]:
    """Numbers for a logger: only logging them is charged."""
    return dict.fromkeys(EIGHT, 0.5 * step)


class Steps(torch.utils.data.Dataset[dict[str, Tensor]]):
    """So many times the same batch."""

    def __init__(self, steps: int, inputs: Tensor) -> None:
        self.steps, self.inputs = steps, inputs

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, step: int) -> dict[str, Tensor]:
        return {"inputs": self.inputs}


def batches(steps: int, inputs: Tensor) -> Any:
    return torch.utils.data.DataLoader(Steps(steps, inputs), batch_size=None)


def lightning_fit(contender: str, folder: Path, steps: int, tick: Tick) -> None:
    import lightning.pytorch as lightning
    from lightning.pytorch.loggers import TensorBoardLogger
    from lightning.pytorch.plugins.precision import MixedPrecision

    from ampwatch.integrations.lightning import AmpwatchCallback

    training = mlp()

    class Fitted(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = training.model

        def training_step(self, item: dict[str, Tensor], number: int) -> Tensor:
            tick()
            if contender == LOGGER:
                self.logger.log_metrics(ready_made(number), number)
            return loss_of(self.net, item["inputs"])

        def configure_optimizers(self) -> Any:
            return training.optimizer

    class ScalerAlone(lightning.Callback):
        def on_train_start(self, trainer: Any, _module: Any) -> None:
            self.watch = ampwatch.attach(trainer.precision_plugin.scaler, None, log_dir=folder)

        def on_train_end(self, _trainer: Any, _module: Any) -> None:
            self.watch.close()

    callbacks = {SCALER: [ScalerAlone()], DEFAULT: [AmpwatchCallback(log_dir=folder)]}
    lightning.Trainer(
        accelerator="cpu", devices=1, max_epochs=1, default_root_dir=folder,
        logger=TensorBoardLogger(folder) if contender == LOGGER else False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        plugins=[MixedPrecision("16-mixed", "cpu", scaler=scaler())],
        callbacks=callbacks.get(contender, []),
    ).fit(Fitted(), batches(steps, training.inputs))  # fmt: skip


def fabric_loop(contender: str, folder: Path, steps: int, tick: Tick) -> None:
    from lightning.fabric import Fabric
    from lightning.fabric.loggers import TensorBoardLogger
    from lightning.fabric.plugins.precision import MixedPrecision

    from ampwatch.integrations.fabric import attach

    precision = MixedPrecision("16-mixed", "cpu", scaler=scaler())
    loggers = [TensorBoardLogger(folder)] if contender == LOGGER else []
    fabric = Fabric(accelerator="cpu", devices=1, plugins=[precision], loggers=loggers)
    training = mlp()
    model, optimizer = fabric.setup(training.model, training.optimizer)
    watch = None
    if contender == SCALER:
        watch = ampwatch.attach(precision.scaler, None, log_dir=folder)
    elif contender == DEFAULT:
        watch = attach(fabric, model, optimizer, log_dir=folder)
    for step in range(steps):
        tick()
        optimizer.zero_grad()
        fabric.backward(loss_of(model, training.inputs))
        optimizer.step()
        if contender == LOGGER:
            fabric.log_dict(ready_made(step), step)
    if watch is not None:
        watch.close()


def half_precision(accelerator: Any) -> None:
    """As Accelerate is on a GPU with mixed_precision="fp16"."""
    accelerator.scaler = scaler()
    accelerator.native_amp, accelerator.state._mixed_precision = True, "fp16"


def accelerate_loop(contender: str, folder: Path, steps: int, tick: Tick) -> None:
    from accelerate import Accelerator

    from ampwatch.integrations.accelerate import attach

    trackers = "tensorboard" if contender == LOGGER else None
    accelerator = Accelerator(cpu=True, log_with=trackers, project_dir=str(folder))
    if contender == LOGGER:
        accelerator.init_trackers("run")
    half_precision(accelerator)
    training = mlp()
    model, optimizer = accelerator.prepare(training.model, training.optimizer)
    watch = None
    if contender == SCALER:
        watch = ampwatch.attach(accelerator.scaler, None, log_dir=folder)
    elif contender == DEFAULT:
        watch = attach(accelerator, model, optimizer, log_dir=folder)
    for step in range(steps):
        tick()
        optimizer.zero_grad()
        accelerator.backward(loss_of(model, training.inputs))
        optimizer.step()
        if contender == LOGGER:
            accelerator.log(ready_made(step), step=step)
    if watch is not None:
        watch.close()
    accelerator.end_training()


def transformers_callbacks(contender: str, folder: Path) -> list[Any]:
    """The contender as a callback of its Trainer."""
    import transformers

    from ampwatch.integrations.transformers import AmpwatchCallback

    class Logs(transformers.TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
            from torch.utils.tensorboard import SummaryWriter

            self.writer = SummaryWriter(str(folder))

        def on_step_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
            for name, value in ready_made(state.global_step).items():
                self.writer.add_scalar(name, value, state.global_step)

        def on_train_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
            self.writer.close()

    class ScalerAlone(transformers.TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
            self.watch = ampwatch.attach(parts["optimizer"].scaler, None, log_dir=folder)

        def on_train_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
            self.watch.close()

    made = {
        LOGGER: Logs, SCALER: ScalerAlone, DEFAULT: partial(AmpwatchCallback, log_dir=folder),
    }  # fmt: skip
    return [made[contender]()] if contender in made else []


def transformers_training(contender: str, folder: Path, steps: int, tick: Tick) -> None:
    import transformers

    training = mlp()

    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = training.model

        def forward(self, inputs: Tensor) -> dict[str, Tensor]:
            tick()
            return {"loss": loss_of(self.net, inputs)}

    class InOrder(transformers.Trainer):
        def get_train_dataloader(self) -> Any:
            return batches(steps, training.inputs)

    constant = torch.optim.lr_scheduler.LambdaLR(training.optimizer, lambda _: 1.0)
    trainer = InOrder(
        model=WithLoss(), optimizers=(training.optimizer, constant),
        args=transformers.TrainingArguments(
            output_dir=str(folder), max_steps=steps, report_to=[], disable_tqdm=True, use_cpu=True,
            save_strategy="no", logging_strategy="no", max_grad_norm=0.0,
        ),
        train_dataset=Steps(steps, training.inputs),
        callbacks=transformers_callbacks(contender, folder),
    )  # fmt: skip
    half_precision(trainer.accelerator)
    trainer.train()


LOOPS: dict[str, Loop] = {
    "Lightning": lightning_fit,
    "Lightning Fabric": fabric_loop,
    "Accelerate": accelerate_loop,
    "Transformers Trainer": transformers_training,
}
