"""DeepSpeed: one line after `deepspeed.initialize`.

The engine's optimizer steps on copies of the weights, and decides by itself when it skips. So we
watch the engine: a step is its `_take_model_step`, and loss scale, skipped steps and the gradient
norm are those that it has computed.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import torch

from ampwatch.errors import AttachError
from ampwatch.probe import NoWatch, Watch
from ampwatch.probe import attach as attach_loop
from ampwatch.probe.norms import NormCapture
from ampwatch.probe.optimizers import MASTERS
from ampwatch.probe.tensor_values import put_scalar

_STEP = "_take_model_step"  # of the engine, at the end of gradient accumulation
_GROUPS = ("bit16_groups", "bf16_groups", "fp16_groups")  # the model's own parameters, by group


def attach(engine: Any, **options: Any) -> Watch | NoWatch:
    """Watch a DeepSpeed engine, the first that `deepspeed.initialize` returns.

    `options` are those of `ampwatch.attach`. The learning rate is read, and cannot be changed from
    a page.
    """
    if not is_engine(engine):
        raise AttachError(
            "the engine is none of DeepSpeed's, or has no optimizer; pass the first that "
            "deepspeed.initialize(model=..., optimizer=...) returns."
        )
    steps = _steps_of(engine)
    watch = attach_loop(None, engine.module, optimizer=steps, **options)
    if isinstance(watch, Watch) and _STEP not in vars(engine):  # else it is watched already
        steps.watch = watch
        _call_instead(engine, _STEP, steps.take_step, watch)
        _call_instead(engine, "backward", steps.log_loss, watch)
    return watch


def is_engine(module: Any) -> bool:
    """Whether this is an engine of DeepSpeed's that trains."""
    return hasattr(module, _STEP) and getattr(module, "optimizer", None) is not None


def _call_instead(engine: Any, name: str, instead: Callable[..., Any], watch: Watch) -> None:
    """Have the engine call `instead`, which is given its own method, until the watch is closed."""
    own = getattr(engine, name)

    @wraps(own)
    def method(*arguments: Any, **named: Any) -> Any:
        return own(*arguments, **named) if watch.closed else instead(own, *arguments, **named)

    setattr(engine, name, method)
    watch.after_close(partial(_give_back, weakref.ref(engine), name))


def _give_back(reference: weakref.ref[Any], name: str) -> None:
    engine = reference()
    if engine is not None:
        vars(engine).pop(name, None)


class _EngineSteps(torch.optim.Optimizer):
    """The engine's steps, as those of an optimizer of the model's own parameters."""

    def __init__(self, engine: Any, groups: list[dict[str, Any]]) -> None:
        super().__init__(groups, {})
        self._engine = engine
        self._take: Callable[[], Any] = _nothing
        self._loss: Any = None
        self.watch: Watch

    def log_loss(self, backward: Callable[..., Any], loss: Any, *more: Any, **named: Any) -> Any:
        """The engine's `backward`: its loss counts, divided as the engine divides it."""
        divides = named.get("scale_wrt_gas", more[1] if len(more) > 1 else True)
        self.watch.errors.run(self._add, loss, divides)
        return backward(loss, *more, **named)

    def _add(self, loss: Any, divides: Any) -> None:
        part = loss.detach() / (self._engine.gradient_accumulation_steps() if divides else 1)
        self._loss = part if self._loss is None else self._loss + part
        self.watch.log(loss=self._loss)

    def take_step(self, take: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """The engine's step, within one of an optimizer, whose hooks show it."""
        self.watch.errors.run(self._read_rates)
        self._take = lambda: take(*arguments, **named)
        try:
            return self.step()
        finally:
            self._take, self._loss = _nothing, None

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """What the engine does, and then what it says of it."""
        scale = self.watch.errors.run(self._scale)
        result = self._take()
        self.watch.errors.run(self._put_figures, scale)
        return result

    def _read_rates(self) -> None:
        groups = self._engine.optimizer.param_groups
        for ours, theirs in zip(self.param_groups, groups, strict=False):
            ours["lr"] = theirs["lr"]

    def _scale(self) -> float | None:
        """The loss scale; None where the engine scales nothing."""
        engine = self._engine
        inner = getattr(engine.optimizer, "loss_scale_config", engine.optimizer)
        scale = getattr(inner, "cur_scale", None) if engine.fp16_enabled() else None
        return None if scale is None else float(scale)

    def _put_figures(self, scale: float | None) -> None:
        """Put into the step what the engine computed in it."""
        record = self.watch.loop.current.begin()
        if not record.turns:
            return
        turn, pack = record.turns[-1], record.pack
        skipped = bool(getattr(self._engine.optimizer, "overflow", False))
        turn.found_inf_at = (pack.put_number(float(skipped)),)
        after = self._scale()
        if scale is not None and after is not None:
            record.scale_at, record.scale_after_at = pack.put_number(scale), pack.put_number(after)
        # Gradients that are left in the model are scaled, or a part: they are not the step's.
        norm = self._engine.get_global_grad_norm()
        at = None if norm is None else put_scalar(pack, norm)
        turn.norms = None if at is None else NormCapture((), at, 0, at, None, 0, scaled=False)
        turn.applied = None


def _nothing() -> None:
    """No step is under way."""


def _steps_of(engine: Any) -> _EngineSteps:
    """The engine's steps, with the settings of its optimizer's groups."""
    inner = engine.optimizer
    held = next((groups for name in _GROUPS if (groups := getattr(inner, name, None))), None)
    theirs = inner.param_groups
    if held is None or len(held) != len(theirs):
        held = [[p for p in engine.module.parameters() if p.requires_grad]]
    groups = [
        {**group, "params": list(own), MASTERS: list(group["params"])}
        for group, own in zip(theirs, held, strict=False)
    ]
    kind = type(getattr(inner, "optimizer", inner)).__name__  # as the run names the optimizer
    made: _EngineSteps = type(kind, (_EngineSteps,), {})(engine, groups)
    return made
