"""One optimizer as the probe knows it: its parameters, its rates, its hook, what its state asks.

The state is read on sampled steps, after the step, through the slices of `weight_updates`, and
reduced where the weights live: nothing waits for a device. Two questions are asked.

*Does Adam's second moment keep up with the gradient?* The RMS of g / sqrt(v) of each parameter, v
corrected for its start (with amsgrad its largest so far, which is what divides): about 1 where it
does; well above where v is still that of a smaller gradient, and the update is too large.

*Do weights in half precision move as far as they are asked to?* Beside the weights that the step
left unchanged to the bit stand two figures that tell rounding away from what only looks like it:
how many would move if rounding kept the mean, as stochastic rounding and Kahan sums do; and how far
the weights moved along what was asked, over what was asked. Both are absent where the optimizer's
step is not understood, or where it keeps more for each weight than moments.
"""

from __future__ import annotations

import enum
import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import is_
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ampwatch.probe.hooks import hook_step_end
from ampwatch.probe.learning_rates import follow_changes, multiply_rates, number_of
from ampwatch.probe.norms import GradientMeter, norms_of
from ampwatch.probe.records import StateCapture
from ampwatch.probe.tensor_values import HALF, Pack, is_shard
from ampwatch.probe.weight_updates import Slices, few_of
from ampwatch.rows import LR_LEAP

_UNREAD = object()

MASTERS = "ampwatch_masters"
"""In a group: what really steps, where the group's parameters are its copies in half precision."""

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
        rates = [number_of(group.get("lr")) for group in groups]
        if rates == self.lrs:  # the same rates again: the bases are the same too
            return ()
        self._highest += rates[len(self._highest) :]
        self._highest = [max(pair) for pair in zip(self._highest, rates, strict=False)]
        leaps = [
            (group, before, now)
            for group, (before, now) in enumerate(zip(self.lrs, rates, strict=False))
            if now >= LR_LEAP * before > 0
        ]
        pairs = zip(groups, self._highest, strict=True)
        self.lrs, self.lr_bases = rates, [self._base(group, highest) for group, highest in pairs]
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
    kept_in = {str(p.dtype).removeprefix("torch.") for p in group.get(MASTERS) or group["params"]}
    facts: dict[str, Any] = {"parameters": len(group["params"]), "dtype": "/".join(sorted(kept_in))}
    # The last is LBFGS's: how many updates it may make within a step.
    names = ("lr", "initial_lr", "max_lr", "weight_decay", "momentum", "alpha", "eps", "max_iter")
    for name in names:
        if name in group:
            facts[name] = _shown(group[name])
    betas = group.get("betas")
    if isinstance(betas, Sequence):
        facts["betas"] = [_shown(beta) for beta in betas]
    for name in ("fused", "foreach", "capturable", "amsgrad", "nesterov"):
        if name in group:
            facts[name] = bool(group[name])
    return facts


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


# -- what the optimizer's state asks of the weights ------------------------------------------------


_ADAM = frozenset({"exp_avg", "exp_avg_sq"})
_UNDERSTOOD = _ADAM | {"max_exp_avg_sq", "momentum_buffer", "square_avg", "sum", "step"}

# A number's own exponent less these is that of its last bit: `frexp` gives fractions below 1.
_BITS = {torch.bfloat16: 8, torch.float16: 11}
_SMALLEST = {torch.bfloat16: 2.0**-133, torch.float16: 2.0**-24}
_SUMS = 6
_MOST_ELEMENTS = 1 << 22  # worked on at once: a few times 16 MB beside a model that fills the card
_LEAST_ROOT = 1e-30  # divides where an eps of 0 would not


@dataclass(frozen=True, slots=True)
class Rounding:
    """What became of one step's update in half-precision weights."""

    unmoved_share: float  # of those whose gradient is not zero
    asked_share: float | None  # that would move if rounding kept the mean; None: nobody knows
    kept_share: float | None  # moved along what was asked, over what was asked


class _Kind(enum.Enum):
    """The formulas of torch's own optimizers, as far as they are understood."""

    PLAIN = enum.auto()  # the gradient or its momentum: SGD
    ROOTED = enum.auto()  # the gradient over the root of a second moment: RMSprop, Adagrad
    ADAM = enum.auto()  # the same of a first one, both corrected for their start


@dataclass(slots=True)
class _Bucket:
    """Parameters whose update is one formula with the same numbers in it."""

    group: Mapping[str, Any]
    dtype: torch.dtype
    kind: _Kind
    step: float | None  # Adam's; None: each one's stands on the device
    elements: int = 0
    places: list[int] = field(default_factory=list)
    gradients: list[Tensor] = field(default_factory=list)
    first: list[Tensor] = field(default_factory=list)  # none: what is asked is not known
    second: list[Tensor] = field(default_factory=list)
    steps: list[Tensor] = field(default_factory=list)


@torch.no_grad()
def read_state(view: OptimizerView, before: Any, after: Any, pack: Pack) -> StateCapture | None:
    """What an optimizer's state says of the step just made; None where there is nothing to tell.

    `before` and `after` are the slices of the weights around that step.
    """
    optimizer = view.reference()
    if not isinstance(getattr(optimizer, "state", None), Mapping):
        return None
    places: list[int] = []
    squares_at: list[int] = []
    sums: list[Tensor] = []
    for bucket in _sorted(view, optimizer):
        gradient = torch.cat(bucket.gradients).float()
        if bucket.kind is _Kind.ADAM:
            places += bucket.places
            first = _put_squares(bucket, gradient, pack)
            squares_at += range(first, first + len(bucket.places))
        if bucket.dtype in HALF:
            sums.append(_rounding_sums(bucket, gradient, view.slices, before, after))
    rounding_at = pack.put(torch.stack(sums).sum(dim=0)) if sums else None
    if not places and rounding_at is None:
        return None
    return StateCapture(view.slices.layout, tuple(places), tuple(squares_at), rounding_at)


def rounding_of(capture: StateCapture, values: Sequence[float]) -> Rounding | None:
    """What half-precision weights took up of the update, once the sums have arrived."""
    at = capture.rounding_at
    if at is None:
        return None
    every, unmoved, understood, movable, asked, moved = values[at : at + _SUMS]
    if not every > 0:
        return None
    if not (understood > 0 and 0 < asked < math.inf and math.isfinite(moved)):
        return Rounding(unmoved / every, None, None)
    return Rounding(unmoved / every, movable / understood, moved / asked)


def ratios_by_layer(
    capture: StateCapture, values: Sequence[float], layers: NDArray[np.int64]
) -> dict[int, float]:
    """Each layer's RMS of g / sqrt(v), over all of its elements; `layers` has each parameter's.

    Weights speak where a layer has them: a bias is small and noisy.
    """
    layout = capture.layout
    places = np.array(capture.places, np.int64)
    squares = np.array([values[at] for at in capture.squares_at]) * layout.weights[places]
    elements = (layout.counts * layout.weights)[places]
    owner, matrix = layers[layout.positions[places]], layout.matrix[places]
    ratios = {}
    for layer in np.unique(owner[owner >= 0]).tolist():
        mine = owner == layer
        if (mine & matrix).any():
            mine &= matrix
        mean = float(squares[mine].sum() / elements[mine].sum())
        if math.isfinite(mean):
            ratios[layer] = math.sqrt(mean)
    return ratios


# -- sorting ---------------------------------------------------------------------------------------


def _sorted(view: OptimizerView, optimizer: Any) -> Iterator[_Bucket]:
    """The parameters by what their update is made of; a large model's in several parts."""
    filling: dict[Any, _Bucket] = {}
    for place, count in enumerate(view.slices.layout.counts.tolist()):
        key = _sort_in(filling, view, optimizer, place)
        if key is not None:
            bucket = filling[key]
            bucket.elements += count
            if bucket.elements >= _MOST_ELEMENTS:
                yield filling.pop(key)
    yield from filling.values()


def _sort_in(buckets: dict[Any, _Bucket], view: OptimizerView, optimizer: Any, place: int) -> Any:
    """Put one parameter's slices where they belong, and say where; None if they tell nothing."""
    slices = view.slices
    parameter = slices.parameters[place]
    gradient = slices.like(place, parameter.grad)
    if gradient is None:
        return None
    number = view.groups[slices.layout.positions[place]]
    group = optimizer.param_groups[number]
    state = optimizer.state.get(parameter) or {}
    kind, first, second = _formula(slices, place, group, state, gradient)
    is_half = parameter.dtype in HALF
    if kind is not _Kind.ADAM and not is_half:
        return None
    if is_half and _keeps_more(state, parameter):
        first = None  # of its own: what it asks for is not in the moments alone
    steps = state.get("step") if kind is _Kind.ADAM else None
    on_device = isinstance(steps, Tensor) and not steps.is_cpu
    count = None if steps is None or on_device else float(steps)
    key = number, parameter.dtype, kind, count, on_device, first is None, first is gradient
    bucket = buckets.get(key)
    if bucket is None:
        bucket = buckets[key] = _Bucket(group, parameter.dtype, kind, count)
    bucket.places.append(place)
    bucket.gradients.append(gradient)
    if first is not None:
        bucket.first.append(first)
    if second is not None:
        bucket.second.append(second)
    if on_device and steps is not None:
        bucket.steps.append(steps)
    return key


def _formula(
    slices: Slices, place: int, group: Mapping[str, Any], known: Mapping[str, Any], gradient: Tensor
) -> tuple[_Kind, Tensor | None, Tensor | None]:
    """What the update is made of: its kind, and what stands above and below the line.

    Nothing above it is an optimizer that nobody here understands.
    """
    if known.keys() >= _ADAM and "step" in known and "betas" in group and "eps" in group:
        largest = known.get("max_exp_avg_sq")
        first = slices.like(place, known["exp_avg"])
        second = slices.like(place, known["exp_avg_sq"] if largest is None else largest)
        both = first is not None and second is not None
        return (_Kind.ADAM, first, second) if both else (_Kind.PLAIN, None, None)
    momentum = slices.like(place, known.get("momentum_buffer"))
    if "dampening" in group:  # which is SGD's alone
        return _Kind.PLAIN, gradient if momentum is None else momentum, None
    if group.get("centered") is False:  # RMSprop, whose momentum is of what was divided already
        if group.get("momentum"):
            return _Kind.PLAIN, momentum, None
        second = slices.like(place, known.get("square_avg"))
    else:
        second = slices.like(place, known.get("sum")) if group.get("lr_decay") == 0 else None
    return _Kind.ROOTED, None if second is None else gradient, second


def _keeps_more(known: Mapping[str, Any], parameter: Tensor) -> bool:
    """Whether each weight has something beside its moments: a float32 master, a Kahan sum."""
    shape = parameter.shape
    return any(
        isinstance(value, Tensor) and value.shape == shape and name not in _UNDERSTOOD
        for name, value in known.items()
    )


# -- arithmetic ------------------------------------------------------------------------------------


def _put_squares(bucket: _Bucket, gradient: Tensor, pack: Pack) -> int:
    """Each parameter's sum of g^2 / v over its slice; the place of the first."""
    counts = [len(part) for part in bucket.gradients]
    root = torch.cat(bucket.second).float().sqrt_() / _started(bucket, counts, 1) ** 0.5
    shares = gradient / root.clamp_(min=max(float(bucket.group["eps"]), _LEAST_ROOT))
    if shares.is_cpu:  # ten times quicker than a norm for each
        squares = np.square(shares.numpy(), dtype=np.float64)
        return pack.put_numbers(np.add.reduceat(squares, np.cumsum([0, *counts[:-1]])).tolist())
    norms = torch.stack(norms_of(shares.split(counts), half=False))
    return pack.put(norms * norms)


def _started(bucket: _Bucket, counts: Sequence[int], moment: int) -> Any:
    """How much of its weight a moment has by this step: 1 - beta^step, for each element."""
    beta = bucket.group["betas"][moment]
    if bucket.step is not None:
        return 1.0 - beta**bucket.step
    each = 1.0 - beta ** torch.stack([step.reshape(()) for step in bucket.steps])
    return torch.cat([one.expand(n) for one, n in zip(each.unbind(), counts, strict=True)])


def _rounding_sums(
    bucket: _Bucket, gradient: Tensor, slices: Slices, before: Any, after: Any
) -> Tensor:
    """How many half-precision weights have a gradient, and how many of them did not move.

    Then of those whose update is understood: how many there are, how many should move, what was
    asked of them, what they moved along it.
    """
    old, new, weights = (
        slices.chosen(values, bucket.places)
        for values in (before, after, slices.element_weights(before))
    )
    weights, moved = weights * (gradient != 0), new - old
    figures = [torch.ones_like(old), moved == 0]
    if bucket.first:
        asked = _asked(bucket, old)
        distance = asked.abs()
        movable = (distance / _spacing(old, bucket.dtype)).clamp_(max=1.0)
        figures += [figures[0], movable, distance, moved * asked.sign()]
    sums = [(weights * figure).sum() for figure in figures]
    return torch.stack(sums + [torch.zeros_like(sums[0])] * (_SUMS - len(sums)))


def _asked(bucket: _Bucket, old: Tensor) -> Tensor:
    """The movement that the optimizer's formula gives, before the weights' format rounds it.

    Without what decoupled weight decay adds, which is a share of the rate.
    """
    group = bucket.group
    rate = -group["lr"] if not group.get("maximize") else group["lr"]
    asked: Tensor = torch.cat(bucket.first).float()
    if bucket.first[0] is bucket.gradients[0] and group.get("weight_decay"):
        asked = asked + group["weight_decay"] * old
    if bucket.kind is _Kind.PLAIN:  # Nesterov's look ahead is momentum's own movement on average
        return asked.mul_(rate)
    root = torch.cat(bucket.second).float().sqrt_()
    if bucket.kind is _Kind.ROOTED:
        return asked.div_(root + group["eps"]).mul_(rate)
    counts = [len(part) for part in bucket.gradients]
    root = root / _started(bucket, counts, 1) ** 0.5
    return asked.div_(root + group["eps"]).mul_(rate / _started(bucket, counts, 0))


def _spacing(values: Tensor, dtype: torch.dtype) -> Tensor:
    """How far it is from each value to the next larger one of this format."""
    exponent = torch.frexp(values).exponent - _BITS[dtype]
    spacing = torch.ldexp(torch.ones_like(values), exponent)
    spacing = spacing.clamp_(min=_SMALLEST[dtype])
    return spacing.masked_fill_(values == 0, _SMALLEST[dtype])
