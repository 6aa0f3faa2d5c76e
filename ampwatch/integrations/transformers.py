"""Transformers: `Trainer(callbacks=[AmpwatchCallback()])` watches every `train()`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ampwatch.integrations.framework_watch import FrameworkWatch
from ampwatch.metric_names import is_metric

if TYPE_CHECKING:
    TrainerCallback = object
else:
    from transformers import TrainerCallback


_MEASURED = ("loss", "grad_norm", "learning_rate")  # by the watch, in each step


class AmpwatchCallback(TrainerCallback):
    """Watches the training with the scaler that Accelerate gave the optimizer, or without one.

    Takes what `ampwatch.attach` takes beside scaler, model and optimizer: `run`, `log_dir`,
    `endpoint`, `layer_every`, `config`; `mirror`, which is `ampwatch.mirror`'s `to`: "active" is
    the run of the framework's own logger; and `guard`, True or a dict of `ampwatch.guard`'s
    arguments. Steps are the trainer's: a training resumed from a
    checkpoint begins at its step.
    """

    def __init__(self, **options: Any) -> None:
        self._watch = FrameworkWatch(options)
        self._loss = _LossOfModel()

    @property
    def exit_code(self) -> int:
        """0, or what `ampwatch plan` says if the guard has stopped the Trainer: for sys.exit."""
        return self._watch.guard.exit_code

    def on_train_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Begin to watch the Trainer of Transformers; its optimizer has its scaler by now."""
        model, optimizer = parts["model"], parts["optimizer"]
        scaler = getattr(optimizer, "scaler", None)
        if scaler is None:
            self._loss.watch_model(model)
        self._watch.begin(scaler, model, optimizer, start_step=state.global_step)
        self._watch.on_stop(partial(_stop_trainer, control))

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Log the loss of the Trainer's model to the step in progress."""
        loss = self._loss.take()
        if loss is not None:
            self._watch.log(loss=loss)

    def on_log(
        self, args: Any, state: Any, control: Any, logs: Mapping[str, Any], **parts: Any
    ) -> None:
        """Log what the Trainer logs and the watch does not measure, such as TRL's figures."""
        self._watch.log({k: v for k, v in logs.items() if k not in _MEASURED and is_metric(k)})

    def on_train_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """End the watch as the Trainer of Transformers ends: the log is complete."""
        self._loss.release()
        self._watch.end()


def _stop_trainer(control: Any) -> None:
    """End the Trainer of Transformers after the step in progress."""
    control.should_training_stop = True


class _LossOfModel:
    """The loss of the Trainer's step where no scaler is given it.

    No callback sees the loss that the trainer divides over micro-batches, so the model's own is
    weighed by the gradient that comes back to it. A loss that the trainer computes by itself (label
    smoothing) sends none back: then there is no loss, rather than a wrong one.
    """

    def __init__(self) -> None:
        self._total: Tensor | None = None
        self._hook: Any = None

    def watch_model(self, model: torch.nn.Module) -> None:
        """Look at each output of the Trainer's model from now on."""
        self.release()
        self._hook = model.register_forward_hook(self._see)

    def take(self) -> Tensor | None:
        """The sum of the losses of the Trainer's model since the last call."""
        total, self._total = self._total, None
        return total

    def release(self) -> None:
        """Remove the hook from the Trainer's model."""
        if self._hook is not None:
            self._hook.remove()
        self._hook, self._total = None, None

    def _see(self, _model: Any, _inputs: Any, output: Any) -> None:
        loss = getattr(output, "loss", None)
        if isinstance(loss, Tensor) and loss.requires_grad and loss.ndim == 0:
            hook: Any = partial(self._add, loss.detach())
            loss.register_hook(hook)  # type: ignore[no-untyped-call]

    def _add(self, loss: Tensor, weight: Tensor) -> None:
        part = loss * weight.detach()
        self._total = part if self._total is None else self._total + part
