"""Megatron-core: one line after `get_megatron_optimizer`; a step is that optimizer's `step`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from ampwatch.probe.models import wrapping_of

# The model's own parameters, by group: half precision, float32.
_GROUPS = (
    ("float16_groups", "fp32_from_fp32_groups"),
    ("model_float16_groups", "model_fp32_groups"),  # of the distributed optimizer
)


def attach(optimizer: Any, model: Any, **options: Any) -> Watch | NoWatch:
    """Watch a training of Megatron's: its optimizer, and the model or the list of its chunks.

    `options` are those of `ampwatch.attach`. The loss is what the schedules give to
    `optimizer.scale_loss`, their `grad_scale_func`; else pass it to `watch.log(loss=loss)`.
    """
    if not (hasattr(optimizer, "get_loss_scale") and hasattr(optimizer, "scale_loss")):
        raise AttachError(
            "the optimizer is none of Megatron's; pass what get_megatron_optimizer returns."
        )
    if not optimizers_of(optimizer):
        raise AttachError("Megatron's optimizer trains no parameter on this rank.")
    steps = _steps_of(optimizer)
    calls: list[Call] = [
        (optimizer, "step", steps.take_step),
        (optimizer, "scale_loss", steps.hear_loss),
        # Their configs may have been given the method already.
        *(
            (config, "grad_scale_func", steps.hear_loss)
            for config in steps.configs(model)
            if config.grad_scale_func == optimizer.scale_loss
        ),
    ]
    return attach_steps(steps, model, calls, options)


def attach_in_script(
    optimizer: Any, models_of: Callable[..., Any], options: dict[str, Any]
) -> Watch | NoWatch:
    """Watch an optimizer of Megatron's that a script uses, with the model that it trains."""
    return attach(optimizer, models_of([_steps_of(optimizer)], None), **options)


def optimizers_of(optimizer: Any) -> Sequence[Any]:
    """The optimizers that step inside Megatron's."""
    return [one.optimizer for one in _parts(optimizer)]


def _parts(optimizer: Any) -> list[Any]:
    """Megatron's optimizers in the chain that train something on this rank."""
    parts = getattr(optimizer, "chained_optimizers", [optimizer])
    return [one for one in parts if getattr(one, "optimizer", None) is not None]


def _steps_of(optimizer: Any) -> _MegatronSteps:
    held = [group for one in _parts(optimizer) for group in _held(one)]
    return engine_steps(_MegatronSteps, optimizer, optimizers_of(optimizer), held)


def _held(optimizer: Any) -> list[list[Any]]:
    """The model's own parameters in each group.

    Where other ranks' parts of them arrive only in the next forward pass, the optimizer's copies of
    this rank's part stand for them.
    """
    theirs = [group["params"] for group in optimizer.param_groups]
    late = getattr(getattr(optimizer, "ddp_config", None), "overlap_param_gather", False)
    for half, full in () if late else _GROUPS:
        if hasattr(optimizer, half) and len(getattr(optimizer, half)) == len(theirs):
            both = zip(getattr(optimizer, half), getattr(optimizer, full), strict=True)
            return [[*a, *b] for a, b in both]
    return theirs


class _MegatronSteps(EngineSteps):
    """The steps of Megatron's optimizer, or of the chain of them."""

    def optimizers(self) -> Sequence[Any]:
        return optimizers_of(self.engine)

    def configs(self, model: Any) -> list[Any]:
        """The configs of the model's chunks, from which the schedules take `grad_scale_func`."""
        chunks = model if isinstance(model, (list, tuple)) else [model]
        found = (getattr(one, "config", None) for chunk in chunks for one in wrapping_of(chunk))
        configs = {id(one): one for one in found if one and hasattr(one, "grad_scale_func")}
        self._by_token = any(one.calculate_per_token_loss for one in configs.values())
        return list(configs.values())

    def hear_loss(self, scale_loss: Callable[..., Any], loss: Any, *more: Any) -> Any:
        """`scale_loss`: the loss of a micro-batch, divided by their number, counts."""
        self.watch.errors.run(self._add, loss)
        return scale_loss(loss, *more)

    def _add(self, loss: Any) -> None:
        # The schedules also ask for the scale of ones. A sum over tokens is no loss of a step.
        if loss.requires_grad and not self._by_token:
            self.add_loss(loss.detach())

    def _scaler(self) -> Any:
        return getattr(_parts(self.engine)[0], "grad_scaler", None)

    def scale(self) -> Any:
        return None if self._scaler() is None else self.engine.get_loss_scale()

    def outcome(self, result: Any) -> StepOutcome:
        success, norm, _ = result
        limit = self.engine.config.clip_grad
        if not norm and not limit:
            norm = None  # it was not computed
        skipped = None if success and self._scaler() is None else not success
        return StepOutcome(skipped, norm, limit)
