"""The steps that a library's engine makes by itself, and what it says of each.

An engine decides when it skips, and its optimizers may hold copies of the weights. So a step is a
call of the engine's own method: the loss scale, the skip and the gradient norm are those that it
has computed. `deepspeed`, `megatron` and `torchtitan` say where to read them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, TypeVar

import torch
from torch import Tensor

from ampwatch.probe import NoWatch, Watch, attach
from ampwatch.probe.norms import NormCapture
from ampwatch.probe.optimizers import MASTERS
from ampwatch.probe.records import Turn
from ampwatch.probe.tensor_values import Pack, put_scalar

Call = tuple[Any, str, Callable[..., Any]]
"""An object, the name of its method, and what is called instead: it is given that method."""


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What an engine says of the step that it has just made."""

    skipped: bool | None  # None: it does not look for what is not finite
    norm: Any = None  # of all gradients, unscaled and before clipping: a number or a tensor
    max_norm: float = 0.0  # to which it clips; 0: it does not


class EngineSteps(torch.optim.Optimizer):
    """An engine's steps, as those of an optimizer of the model's own parameters."""

    watch: Watch
    leaves_gradients = False  # whether the gradients in the model are what the step uses

    def __init__(self, engine: Any, groups: Iterable[dict[str, Any]]) -> None:
        super().__init__(groups, {})
        self.engine = engine
        self._take: Callable[[], Any] = _nothing
        self._loss: Any = None

    def optimizers(self) -> Sequence[Any]:
        """The engine's optimizers, whose groups hold the learning rates."""
        raise NotImplementedError

    def scale(self) -> Any:
        """The engine's loss scale, a number or a tensor; None where it scales nothing."""
        return None

    def outcome(self, result: Any) -> StepOutcome:
        """What the engine says of its step, which returned this."""
        raise NotImplementedError

    def add_loss(self, part: Any) -> None:
        """Add the loss of a micro-batch, divided as the engine divides it."""
        self._loss = part if self._loss is None else self._loss + part
        self.watch.log(loss=self._loss)

    def take_step(self, take: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """The engine's step, within one of an optimizer, whose hooks show it."""
        self.watch.errors.run(self._follow)
        self._take = lambda: take(*arguments, **named)
        try:
            return self.step()
        finally:
            self._take, self._loss = _nothing, None

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """What the engine does, and then what it says of it."""
        scale = self.watch.errors.run(self.scale)
        result = self._take()
        self.watch.errors.run(self._put, scale, result)
        return result

    def _follow(self) -> None:
        """Take the rates and the state that the engine's optimizers have now."""
        optimizers = self.optimizers()
        theirs = [group for one in optimizers for group in one.param_groups]
        for ours, group in zip(self.param_groups, theirs, strict=False):
            ours["lr"] = group["lr"]
        if len(optimizers) == 1:
            self.state = optimizers[0].state

    def _put(self, scale: Any, result: Any) -> None:
        """Put into the step what the engine computed in it."""
        record = self.watch.loop.current.begin()
        if not record.turns:
            return
        turn, pack, outcome = record.turns[-1], record.pack, self.outcome(result)
        if outcome.skipped is not None:
            turn.found_inf_at = (pack.put_number(float(outcome.skipped)),)
        after = self.scale()
        if scale is not None and after is not None:
            record.scale_at, record.scale_after_at = (
                put_scalar(pack, scale),
                put_scalar(pack, after),
            )
        self._put_norms(turn, pack, outcome)

    def _put_norms(self, turn: Turn, pack: Pack, outcome: StepOutcome) -> None:
        if not self.leaves_gradients:  # those in the model are scaled, or a part, or older
            turn.norms = turn.applied = None
        if outcome.norm is None:
            return
        measured = turn.norms is not None
        turn.norms = _reported(turn.norms, put_scalar(pack, outcome.norm))
        if outcome.max_norm and not (measured and turn.applied is None):
            applied = put_scalar(pack, _clipped(outcome.norm, outcome.max_norm))
            turn.applied = _reported(turn.applied, applied)


Steps = TypeVar("Steps", bound=EngineSteps)


def _nothing() -> None:
    """No step is under way."""


def _reported(norms: NormCapture | None, at: int | None) -> NormCapture:
    """These norms, with the total that the engine reports; without them the total alone."""
    if norms is None:
        norms = NormCapture((), 0, 0, None, None, unseen=1, scaled=False)
    norms.reported_at = at
    return norms


def _clipped(norm: Any, limit: float) -> Any:
    """The norm after clipping, by the formula that torch and Megatron share."""
    factor = limit / (norm + 1e-6)
    return norm * (factor.clamp(max=1.0) if isinstance(factor, Tensor) else min(factor, 1.0))


def engine_steps(
    kind: type[Steps], engine: Any, optimizers: Sequence[Any], held: Sequence[list[Any]]
) -> Steps:
    """The steps of an engine: `held` are the model's own parameters, as its groups hold them."""
    theirs = [group for one in optimizers for group in one.param_groups]
    groups = [
        {**group, "params": list(own), MASTERS: list(group["params"])}
        for group, own in zip(theirs, held, strict=False)
    ]
    name = type(getattr(optimizers[0], "optimizer", optimizers[0])).__name__  # as the run names it
    made: Steps = type(name, (kind,), {})(engine, groups)
    return made


def attach_steps(
    steps: EngineSteps, model: Any, calls: Sequence[Call], options: dict[str, Any]
) -> Watch | NoWatch:
    """Watch a model that these steps train, or its parts; `calls` begins with the engine's step."""
    parts = model if isinstance(model, (list, tuple)) else [model]
    watch = attach(None, parts[0] if len(parts) == 1 else parts, optimizer=steps, **options)
    owner, name, _ = calls[0]
    if isinstance(watch, Watch) and not hasattr(getattr(owner, name), "ampwatch_instead"):
        steps.watch = watch
        for call in calls:
            _call_instead(*call, watch)
    return watch


def _call_instead(owner: Any, name: str, instead: Callable[..., Any], watch: Watch) -> None:
    """Have calls of this method go to `instead` until the watch is closed."""
    own, before = getattr(owner, name), vars(owner).get(name)

    @wraps(own)
    def method(*arguments: Any, **named: Any) -> Any:
        return own(*arguments, **named) if watch.closed else instead(own, *arguments, **named)

    vars(method)["ampwatch_instead"] = True
    setattr(owner, name, method)
    watch.after_close(partial(_give_back, weakref.ref(owner), name, before))


def _give_back(reference: weakref.ref[Any], name: str, before: Any) -> None:
    owner = reference()
    if owner is not None and before is None:
        vars(owner).pop(name, None)
    elif owner is not None:
        setattr(owner, name, before)
