"""One optimizer as the probe knows it: its parameters, its learning rates, its hook."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import is_
from typing import Any

import torch
from torch import Tensor

from ampwatch.probe.hooks import hook_step_end
from ampwatch.probe.learning_rates import follow_changes, multiply_rates, number_of
from ampwatch.probe.norms import GradientMeter
from ampwatch.probe.tensor_values import is_shard
from ampwatch.probe.weight_updates import Slices, few_of
from ampwatch.rows import LR_LEAP

_UNREAD = object()

Leap = tuple[int, float, float]  # of a group's rate: the group, the rate before, the rate now


def takes_hooks(optimizer: Any) -> bool:
    """Whether hooks can show its steps; not of a wrapper without `Optimizer.__init__`."""
    return hasattr(optimizer, "register_step_post_hook") and hasattr(
        optimizer, "_optimizer_step_post_hooks"
    )


class OptimizerView:
    """One optimizer as the probe sees it; holds hooks that `release` takes away."""

    def __init__(
        self,
        number: int,
        optimizer: Any,
        positions: Mapping[int, int],
        on_stepped: Callable[..., None],
        on_gone: Callable[[Any], None],
        *,
        detailed: bool,
    ) -> None:
        self.number = number
        # Weak: its state may be twice the model.
        self.reference: Callable[[], Any] = weakref.ref(optimizer, on_gone)
        self.parameters: list[Tensor] = []
        self.observed: list[Tensor] = []  # those whose norms and updates are taken
        self.groups: list[int] = []  # each parameter's
        self.positions: list[int] = []  # in the survey; -1 for a parameter of no watched model
        self.slices = Slices((), ())
        self.meter = GradientMeter(())
        self.sentinels: list[Tensor] = []  # a few parameters that stand for all
        self.lrs: list[float] = []  # each group's rate, as `read_rates` found it
        self.lr_bases: list[float] = []  # and its base rate
        self._lr: object = _UNREAD  # the first group's, as the object it was
        self._highest: list[float] = []
        self.multiplied = 1.0  # what the user, a page or a guard has multiplied the rates by
        self._known = positions
        self._detailed = detailed
        self._counts: tuple[int, ...] = ()
        self._only_count = -1  # where there is one group: of its parameters
        self._handles = [hook_step_end(optimizer, on_stepped)] if takes_hooks(optimizer) else []
        self.hooked = bool(self._handles)  # whether its steps are seen by themselves
        # Whether it unscales and skips inside its own step.
        self.fused = bool(getattr(optimizer, "_step_supports_amp_scaling", False))
        self.follow(optimizer)
        follow_changes(self)

    def is_of(self, optimizer: Any) -> bool:
        """Whether this is the view of that optimizer; its id may have been another's before."""
        return self.reference() is optimizer

    @property
    def is_gone(self) -> bool:
        """Whether the user has let the optimizer go."""
        return self.reference() is None

    def is_as_before(self, optimizer: Any) -> bool:
        """Whether it is that optimizer, with the parameters and the rate that are known of it.

        Asked before each step, and so in one call. Where there are several groups: no.
        """
        groups = optimizer.param_groups
        if len(groups) != 1 or self.reference() is not optimizer:
            return False
        group = groups[0]
        lr, held = group.get("lr"), group["params"]
        return (
            (lr is self._lr or (type(lr) is float and lr == self._lr))
            and self._only_count == len(held)
            and all(map(is_, held, self.parameters))
        )

    def is_current(self, optimizer: Any) -> bool:
        """Whether the optimizer's groups still hold the same parameters."""
        groups = optimizer.param_groups
        if len(groups) == 1:
            held = groups[0]["params"]
            return len(held) == self._only_count and all(map(is_, held, self.parameters))
        counts = tuple([len(group["params"]) for group in groups])
        return counts == self._counts and all(map(is_, _parameters(groups), self.parameters))

    def follow(self, optimizer: Any) -> None:
        """Take up the parameters that the optimizer's groups hold now."""
        groups = optimizer.param_groups
        self._counts = counts = tuple([len(group["params"]) for group in groups])
        self._only_count = counts[0] if len(counts) == 1 else -1
        self.parameters = list(_parameters(groups))
        self.groups = [number for number, count in enumerate(counts) for _ in range(count)]
        self.positions = [self._known.get(id(p), -1) for p in self.parameters]
        self.sentinels = few_of([p for p in self.parameters if p.requires_grad])
        self.observed = self.parameters if self._detailed else []
        self.slices = Slices(self.observed, range(len(self.observed)))
        self.meter = GradientMeter(self.observed)

    def look_again(self) -> None:
        """Ask again what kind of gradients there are, and which parameters are trained."""
        self.meter.look_again()
        self.sentinels = few_of([p for p in self.parameters if p.requires_grad])

    def read_rates(self, optimizer: Any) -> Sequence[Leap]:
        """Read each group's rate into `lrs` and `lr_bases`; the rates that have just leapt.

        The base is the group's `max_lr`; else its `initial_lr` when the rate never exceeded it;
        else the highest rate seen.
        """
        groups = optimizer.param_groups
        lr = groups[0].get("lr")
        self._lr = lr if lr is None or type(lr) is float else _UNREAD  # a tensor may change
        known = [number_of(group.get("lr")) for group in groups]
        if known == self.lrs:  # the same rates again: the bases are the same too
            return ()
        self._highest += known[len(self._highest) :]
        self._highest = [max(pair) for pair in zip(self._highest, known, strict=False)]
        leaps = [
            (group, before, now)
            for group, (before, now) in enumerate(zip(self.lrs, known, strict=False))
            if now >= LR_LEAP * before > 0
        ]
        pairs = zip(groups, self._highest, strict=True)
        self.lrs, self.lr_bases = known, [self._base(group, highest) for group, highest in pairs]
        return leaps

    def multiply_rates(self, factor: float) -> None:
        """Multiply every rate, in its groups and schedules; the base rate falls or rises along."""
        optimizer = self.reference()
        if optimizer is not None:
            multiply_rates(optimizer, factor)

    def rates_were_multiplied(self, factor: float) -> None:
        """All rates of the optimizer were multiplied, by us or at the user's call."""
        self._highest = [rate * factor for rate in self._highest]
        self.multiplied *= factor

    @staticmethod
    def _base(group: Mapping[str, Any], highest: float) -> float:
        if "max_lr" in group:
            return number_of(group["max_lr"])
        initial = number_of(group.get("initial_lr"))
        return highest if highest > initial or math.isnan(initial) else initial

    def describe(self, optimizer: Any) -> dict[str, Any]:
        """The optimizer in words and numbers, for its `optimizer` event."""
        return {
            "optimizer": self.number,
            "class": type(optimizer).__name__,
            "parameters": len(self.parameters),
            "elements": sum(p.numel() for p in self.parameters),
            "groups": [_group(group) for group in optimizer.param_groups],
        }

    def release(self) -> None:
        """Take the hooks off the optimizer."""
        for handle in self._handles:
            handle.remove()
        self._handles = []


def _parameters(groups: Iterable[Mapping[str, Any]]) -> Iterator[Tensor]:
    return chain.from_iterable(group["params"] for group in groups)


def _shown(value: Any) -> float | None:
    """A hyper-parameter for JSON, which has no nan."""
    number = number_of(value)
    return None if math.isnan(number) else number


def _group(group: Mapping[str, Any]) -> dict[str, Any]:
    """One parameter group's settings as numbers and words."""
    kept_in = {str(p.dtype).removeprefix("torch.") for p in group["params"]}
    shown: dict[str, Any] = {"parameters": len(group["params"]), "dtype": "/".join(sorted(kept_in))}
    # The last is LBFGS's: how many updates it may make within a step.
    names = ("lr", "initial_lr", "max_lr", "weight_decay", "momentum", "alpha", "eps", "max_iter")
    for name in names:
        if name in group:
            shown[name] = _shown(group[name])
    betas = group.get("betas")
    if isinstance(betas, Sequence):
        shown["betas"] = [_shown(beta) for beta in betas]
    for name in ("fused", "foreach", "capturable", "amsgrad", "nesterov"):
        if name in group:
            shown[name] = bool(group[name])
    return shown


def matrix_parameters(parameters: Sequence[Tensor]) -> list[Tensor]:
    """The weights whose norm the learning-rate advice reads: two dimensions or more, trainable."""
    return [
        p.detach()
        for p in parameters
        if p.ndim >= 2
        and p.requires_grad
        and (p.is_floating_point() or p.is_complex())
        and p.layout == torch.strided
        and not is_shard(p)  # to reduce one would be to communicate
    ]


def groups_of(views: Iterable[OptimizerView]) -> list[dict[str, Any]]:
    """The parameter groups of those optimizers that are still there."""
    optimizers = [view.reference() for view in views]
    return [group for one in optimizers if one is not None for group in one.param_groups]
