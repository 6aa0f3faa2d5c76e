"""The same small training, its loop written by a framework: each is given a `Drive` and runs it.

As a script it is the plain loop that `ampwatch run` watches: `framework_loops.py OUT RATE SPOILT`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from wrapper_parts import SPOILT, STEPS, Net, batch, spoil

import ampwatch


@dataclass(frozen=True)
class Drive:
    """What is to be trained, and how it is to be watched, if it is."""

    folder: Path
    steps: int = STEPS
    spoilt: int | None = SPOILT
    rate: float = 0.1
    watched: bool = True

    @property
    def asked(self):
        """What the watch is told."""
        return {"log_dir": self.folder, "run": "r"}


def parts(drive):
    torch.manual_seed(0)
    net = Net()
    return net, torch.optim.SGD(net.parameters(), lr=drive.rate)


def scaler_on_cpu():
    return torch.amp.GradScaler("cpu", init_scale=1024.0)


def in_half_precision(accelerator):
    """As Accelerate is on a GPU with mixed_precision="fp16", which it refuses on a CPU."""
    accelerator.scaler = scaler_on_cpu()
    accelerator.native_amp, accelerator.state._mixed_precision = True, "fp16"


def loss_of(net, step, spoilt, call=None):
    spoil(net, step == spoilt)
    inputs, targets = batch(step)
    return nn.functional.mse_loss((call or net)(inputs).float(), targets)


class Batches(torch.utils.data.Dataset):
    """The steps' numbers: what belongs to each is made from it."""

    def __init__(self, steps):
        self.steps = steps

    def __len__(self):
        return self.steps

    def __getitem__(self, step):
        return {"step": torch.tensor(step)}


def lightning_fit(drive):
    import lightning.pytorch as lightning
    from lightning.pytorch.plugins.precision import MixedPrecision

    from ampwatch.integrations.lightning import AmpwatchCallback

    class Fitted(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.optimizer = parts(drive)

        def training_step(self, item, _number):
            return loss_of(self.net, int(item["step"]), drive.spoilt)

        def configure_optimizers(self):
            return self.optimizer

    module = Fitted()
    lightning.Trainer(
        accelerator="cpu", devices=1, max_epochs=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=drive.folder,
        plugins=[MixedPrecision("16-mixed", "cpu", scaler=scaler_on_cpu())],
        callbacks=[AmpwatchCallback(**drive.asked)] if drive.watched else [],
    ).fit(module, torch.utils.data.DataLoader(Batches(drive.steps), batch_size=None))  # fmt: skip
    return list(module.net.parameters())


def fabric_loop(drive):
    from lightning.fabric import Fabric
    from lightning.fabric.plugins.precision import MixedPrecision

    from ampwatch.integrations.fabric import attach

    plugin = MixedPrecision("16-mixed", "cpu", scaler=scaler_on_cpu())
    fabric = Fabric(accelerator="cpu", devices=1, plugins=[plugin])
    net, optimizer = parts(drive)
    model, optimizer = fabric.setup(net, optimizer)
    watch = attach(fabric, model, optimizer, **drive.asked) if drive.watched else None
    for step in range(drive.steps):
        optimizer.zero_grad()
        fabric.backward(loss_of(net, step, drive.spoilt, model))
        optimizer.step()
    if watch is not None:
        watch.close()
    return list(net.parameters())


def accelerate_loop(drive):
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    from ampwatch.integrations.accelerate import attach

    accelerator = Accelerator(cpu=True)
    in_half_precision(accelerator)
    net, optimizer = parts(drive)
    model, optimizer = accelerator.prepare(net, optimizer)
    watch = attach(accelerator, model, optimizer, **drive.asked) if drive.watched else None
    for step in range(drive.steps):
        optimizer.zero_grad()
        accelerator.backward(loss_of(net, step, drive.spoilt, model))
        optimizer.step()
    if watch is not None:
        watch.close()
    AcceleratorState._reset_state(reset_partial_state=True)
    return list(net.parameters())


class WithLoss(nn.Module):
    """A model as the Trainer wants it: its output holds the loss."""

    def __init__(self, net, spoilt):
        super().__init__()
        self.net, self.spoilt = net, spoilt

    def forward(self, step):
        return {"loss": loss_of(self.net, int(step), self.spoilt)}


def transformers_training(drive):
    import transformers
    from accelerate.state import AcceleratorState

    from ampwatch.integrations.transformers import AmpwatchCallback

    class InOrder(transformers.Trainer):
        def get_train_dataloader(self):
            return torch.utils.data.DataLoader(Batches(self.args.max_steps), batch_size=None)

    net, optimizer = parts(drive)
    constant = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    trainer = InOrder(
        model=WithLoss(net, drive.spoilt), optimizers=(optimizer, constant),
        args=transformers.TrainingArguments(
            output_dir=str(drive.folder), max_steps=drive.steps, report_to=[], disable_tqdm=True,
            use_cpu=True, save_strategy="no", max_grad_norm=0.0,
        ),
        train_dataset=Batches(drive.steps),
        callbacks=[AmpwatchCallback(**drive.asked)] if drive.watched else [],
    )  # fmt: skip
    in_half_precision(trainer.accelerator)
    trainer.train()
    AcceleratorState._reset_state(reset_partial_state=True)
    return list(net.parameters())


def ampwatch_run(drive):
    """A script of its own, in a process of its own."""
    import children  # not where this is the script

    out = drive.folder / "weights.pt"
    words = [__file__, out, drive.rate, drive.steps, "" if drive.spoilt is None else drive.spoilt]
    paths = [str(Path(ampwatch.__file__).parents[1]), str(Path(__file__).parent)]
    command = ["-m", "ampwatch", "run", "--name", "r", "-o", drive.folder]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    if drive.watched:
        done = children.run(*command, *words, env=children.forking(environment))
    else:
        done = children.run(*words, env=environment)
    assert done.returncode == 0, done.stderr
    return torch.load(out)


def plain_loop(drive, out):
    net, optimizer = parts(drive)
    scaler = scaler_on_cpu()
    for step in range(drive.steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = loss_of(net, step, drive.spoilt)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    torch.save([p.detach() for p in net.parameters()], out)


@dataclass(frozen=True)
class Framework:
    """One row of the matrix."""

    name: str
    train: Callable[[Drive], list[torch.Tensor]]
    needs: str | None = None  # the package
    holder: str = ""  # what the framework puts before a layer's name


FRAMEWORKS = (
    Framework("Lightning", lightning_fit, "lightning", "net."),
    Framework("Lightning Fabric", fabric_loop, "lightning"),
    Framework("Transformers Trainer", transformers_training, "transformers", "net."),
    Framework("Accelerate", accelerate_loop, "accelerate"),
    Framework("ampwatch run, the script unchanged", ampwatch_run),
)

if __name__ == "__main__":
    _, where, rate, steps, spoilt = sys.argv
    plain_loop(Drive(Path(), int(steps), int(spoilt) if spoilt else None, float(rate)), where)
