"""torchtitan: one line after the trainer is made; a step is that of its optimizers together."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ampwatch.errors import AttachError
from ampwatch.integrations.engine_steps import (
    Call,
    EngineSteps,
    StepOutcome,
    attach_steps,
    engine_steps,
)
from ampwatch.probe import NoWatch, Watch


def attach(trainer: Any, **options: Any) -> Watch | NoWatch:
    """Watch a `torchtitan` Trainer; call it before `trainer.train()`.

    `options` are those of `ampwatch.attach`. The learning rate is read, and cannot be changed from
    a page.
    """
    if not (hasattr(trainer, "forward_backward_step") and hasattr(trainer, "model_parts")):
        raise AttachError("the trainer is none of torchtitan's; pass its Trainer, once it is made.")
    optimizers = optimizers_of(trainer)
    held = [group["params"] for one in optimizers for group in one.param_groups]
    steps = engine_steps(_TrainerSteps, trainer, optimizers, held)
    calls: list[Call] = [
        (trainer.optimizers, "step", steps.take_step),
        (trainer, "forward_backward_step", steps.hear_loss),
    ]
    clips = sys.modules.get("torchtitan.distributed.utils")
    if clips is not None:
        calls.append((clips, "clip_grad_norm_", steps.hear_norm))
    return attach_steps(steps, trainer.model_parts, calls, options)


def attach_in_script(
    trainer: Any, _models_of: Callable[..., Any], options: dict[str, Any]
) -> Watch | NoWatch:
    """Watch a trainer that a script runs."""
    return attach(trainer, **options)


def optimizers_of(trainer: Any) -> Sequence[Any]:
    """The optimizers that step inside the trainer's container."""
    return list(trainer.optimizers)


class _TrainerSteps(EngineSteps):
    """The steps of torchtitan's trainer."""

    leaves_gradients = True

    def __init__(self, engine: Any, groups: Any) -> None:
        super().__init__(engine, groups)
        self._norm: Any = None

    def optimizers(self) -> Sequence[Any]:
        return optimizers_of(self.engine)

    def hear_loss(self, run: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """`forward_backward_step`: the loss of a micro-batch that it returns."""
        loss = run(*arguments, **named)
        self.watch.errors.run(self._add, loss, named)
        return loss

    def _add(self, loss: Any, named: Mapping[str, Any]) -> None:
        trainer = self.engine
        if not getattr(trainer, "pp_has_last_stage", True):
            return  # this rank has no loss
        ranks = 1
        if "global_valid_tokens" in named:  # then it is this rank's part of the mean over all ranks
            mesh = trainer.parallel_dims.get_optional_mesh("loss")
            ranks = 1 if mesh is None else mesh.size()
        self.add_loss(loss.detach() * ranks)

    def hear_norm(self, clip: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """`clip_grad_norm_`: the norm over all ranks, before clipping, that it returns."""
        self._norm = clip(*arguments, **named)
        return self._norm

    def outcome(self, result: Any) -> StepOutcome:
        norm, self._norm = self._norm, None
        return StepOutcome(None, norm, self.engine.config.training.max_norm)
