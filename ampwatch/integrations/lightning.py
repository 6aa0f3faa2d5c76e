"""Lightning: `Trainer(callbacks=[AmpwatchCallback()])` watches every fit."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ampwatch.errors import warn
from ampwatch.integrations.framework_watch import FrameworkWatch

if TYPE_CHECKING:
    Callback = object
elif "pytorch_lightning" in sys.modules and "lightning" not in sys.modules:
    from pytorch_lightning import Callback  # the user's own, where both are installed
else:
    try:
        from lightning.pytorch import Callback
    except ImportError:
        from pytorch_lightning import Callback


class _Hooks:
    """The hooks of the callback, whichever package's Callback it is."""

    def __init__(self, **options: Any) -> None:
        self._watch = FrameworkWatch(options)
        self._resumed: dict[str, Any] = {}
        self._loss: Tensor | None = None

    @property
    def exit_code(self) -> int:
        """0, or what `ampwatch plan` says if the guard has stopped the fit: for sys.exit."""
        return self._watch.guard.exit_code

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to watch Lightning's fit, at the step where its checkpoint left off."""
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        self._watch.begin(
            scaler, pl_module, trainer.optimizers, start_step=trainer.global_step, **self._resumed
        )
        self._watch.on_stop(partial(_stop_fit, trainer))

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Tensor) -> None:
        """Note the loss of Lightning's fit where no scaler gets it; micro-batches add up."""
        if getattr(trainer.precision_plugin, "scaler", None) is None:
            self._loss = loss.detach() if self._loss is None else self._loss + loss.detach()

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Log the noted loss of Lightning's fit to the step in progress."""
        if self._loss is not None:
            self._watch.log(loss=self._loss)
            self._loss = None

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """End the watch as Lightning's fit ends: the log is complete."""
        self._watch.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Record the exception that ended Lightning's fit, and in which layer it was."""
        self._watch.fail(exception)

    def state_dict(self) -> dict[str, Any]:
        """What Lightning saves in a checkpoint: the run to which it belongs."""
        name = self._watch.run_name
        return {} if name is None else {"run": name, "resume": True}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue the run to which Lightning's loaded checkpoint belongs."""
        self._resumed = dict(state_dict)


class AmpwatchCallback(_Hooks, Callback):
    """Watches the fit with the scaler of the trainer's precision plugin, or without one.

    Takes what `ampwatch.attach` takes beside scaler, model and optimizer: `run`, `log_dir`,
    `endpoint`, `layer_every`, `config`; `mirror`, which is `ampwatch.mirror`'s `to`: "active" is
    the run of the framework's own logger; and `guard`, True or a dict of `ampwatch.guard`'s
    arguments. A fit resumed by `ckpt_path` goes on in the run that
    the checkpoint was saved from.
    """


def callback_on(base: type) -> type:
    """The callback that AMPWATCH=1 adds to each Trainer whose callbacks are of this class.

    Its name tells its state in a checkpoint from that of the script's own callback.
    """
    return type("AmpwatchAddedCallback", (_Added, base), {})


class _Added(_Hooks):
    """Leaves a Trainer to the script's own callback, if it has one: a training has one watch."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to watch Lightning's fit, unless the script does."""
        if any(isinstance(one, _Hooks) and one is not self for one in trainer.callbacks):
            warn("the script has an AmpwatchCallback of its own; AMPWATCH=1 adds none.")
        else:
            super().on_train_start(trainer, pl_module)


def _stop_fit(trainer: Any) -> None:
    """End Lightning's fit after the step in progress."""
    trainer.should_stop = True
