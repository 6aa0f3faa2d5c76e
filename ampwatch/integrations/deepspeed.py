"""DeepSpeed: one line after `deepspeed.initialize`; a step is the engine's `_take_model_step`."""

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

_STEP = "_take_model_step"  # of the engine, at the end of gradient accumulation
_GROUPS = ("bit16_groups", "bf16_groups", "fp16_groups")  # the model's own parameters, by group


def attach(engine: Any, **options: Any) -> Watch | NoWatch:
    """Watch a DeepSpeed engine, the first that `deepspeed.initialize` returns.

    `options` are those of `ampwatch.attach`. The learning rate is read, and cannot be changed from
    a page.
    """
    if not (hasattr(engine, _STEP) and getattr(engine, "optimizer", None) is not None):
        raise AttachError(
            "the engine is none of DeepSpeed's, or has no optimizer; pass the first that "
            "deepspeed.initialize(model=..., optimizer=...) returns."
        )
    inner = engine.optimizer
    held = next((groups for name in _GROUPS if (groups := getattr(inner, name, None))), None)
    if held is None or len(held) != len(inner.param_groups):
        held = [[p for p in engine.module.parameters() if p.requires_grad]]
    steps = engine_steps(_DeepSpeedSteps, engine, [inner], held)
    calls: list[Call] = [(engine, _STEP, steps.take_step), (engine, "backward", steps.hear_loss)]
    return attach_steps(steps, engine.module, calls, options)


def attach_in_script(
    engine: Any, _models_of: Callable[..., Any], options: dict[str, Any]
) -> Watch | NoWatch:
    """Watch an engine that a script runs."""
    return attach(engine, **options)


def optimizers_of(engine: Any) -> Sequence[Any]:
    """The optimizer that steps inside the engine's; none where it does not train."""
    inner = engine.optimizer if engine.training else None
    return [] if inner is None else [getattr(inner, "optimizer", inner)]


class _DeepSpeedSteps(EngineSteps):
    """The steps of DeepSpeed's engine."""

    def optimizers(self) -> Sequence[Any]:
        return [self.engine.optimizer]

    def hear_loss(self, backward: Callable[..., Any], loss: Any, *more: Any, **named: Any) -> Any:
        """The engine's `backward`: its loss counts, divided as the engine divides it."""
        divides = named.get("scale_wrt_gas", more[1] if len(more) > 1 else True)
        self.watch.errors.run(self._add, loss, divides)
        return backward(loss, *more, **named)

    def _add(self, loss: Any, divides: Any) -> None:
        self.add_loss(loss.detach() / (self.engine.gradient_accumulation_steps() if divides else 1))

    def scale(self) -> float | None:
        engine = self.engine
        inner = getattr(engine.optimizer, "loss_scale_config", engine.optimizer)
        scale = getattr(inner, "cur_scale", None) if engine.fp16_enabled() else None
        return None if scale is None else float(scale)

    def outcome(self, result: Any) -> StepOutcome:
        engine = self.engine
        skipped = bool(getattr(engine.optimizer, "overflow", False))
        return StepOutcome(skipped, engine.get_global_grad_norm(), engine.gradient_clipping())
