"""The learning rates of an optimizer: read them, set their peak, multiply them.

Param groups and schedulers hold learning rates of their own. A change of `lr` alone is undone by
the next `scheduler.step()`, so a change here covers all of them. The user's `set_learning_rate`,
the guard, the dashboard and the reruns of `ampwatch prove` share this one implementation.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Protocol
from weakref import WeakSet

from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler

from ampwatch.errors import LearningRateError, warn
from ampwatch.probe.hooks import Handle

# What a param group or a scheduler holds: single learning rates, and lists with one for each group.
RATES = ("lr", "initial_lr", "max_lr", "min_lr", "swa_lr", "eta_min", "default_min_lr")
LISTS = ("base_lrs", "max_lrs", "min_lrs", "_last_lr")
# What a scheduler that is not torch's may hold besides.
_OWN_RATES = ("base_lr", "peak_lr", "start_lr", "end_lr", "final_lr", "warmup_lr")

_SAME = 1e-6  # relative: two learning rates that differ by less are the same
_CHECKED_STEPS = 3  # after a change; a loop that assigns the learning rate does it in each step
_BY_HAND = 0.1  # a loop that multiplies the learning rate itself moves it by less in a step
_WAY_BACK = 0.75  # in octaves: so far back to the old learning rate, no schedule goes in a step


def number_of(value: Any) -> float:
    """A hyper-parameter as a number; nan where reading it would synchronise a device."""
    if type(value) is float:
        return value
    if isinstance(value, Tensor):
        return (
            float(value.item()) if value.device.type == "cpu" and value.numel() == 1 else math.nan
        )
    return float(value) if isinstance(value, (int, float)) else math.nan


# -- the user's call -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LearningRateChange:
    """What `set_learning_rate` has changed; its text says it in plain sentences."""

    peak_before: float
    peak: float
    current: tuple[float, ...]  # of each group
    schedulers: tuple[str, ...]  # the classes of those that were changed
    unreached: tuple[str, ...] = ()  # a sentence for each that could not be changed

    def __str__(self) -> str:
        count = len(self.current)
        groups = "1 group" if count == 1 else f"{count} groups"
        before = f"from {self.peak_before:.4g} to {self.peak:.4g}"
        if _is_same(self.peak_before, self.peak):
            before = f"to {self.peak:.4g}, as it was,"
        text = f"Set the peak learning rate {before} in {groups}; "
        text += f"the current learning rate is now {max(self.current):.4g}."
        if self.schedulers:
            text += f" Changed with it: {', '.join(self.schedulers)}."
        return " ".join([text, *self.unreached])


def set_learning_rate(optimizer: Any, lr: Any, scheduler: Any = None) -> LearningRateChange:
    """Set the peak learning rate of an optimizer, and scale the rest of its schedule with it.

    The group with the highest peak gets `lr`; the others keep their ratio to it, and so does the
    current learning rate in the middle of a warm-up or a decay. Called again, it changes nothing.
    torch's schedulers are found by themselves; `scheduler`, one or several, need only be given if
    it is none of torch's. After loading a checkpoint, call it again: a checkpoint brings its own
    learning rates. With several ranks, every rank calls it.

    The peak of a group is its `max_lr`, else the highest of its `initial_lr`, what its scheduler
    goes up to, and its current learning rate.
    """
    groups = _groups_to_change(optimizer)
    wanted = _wanted(lr)
    given = _given_schedulers(scheduler, optimizer)
    held = _unique([*given, *schedulers_of(optimizer)])
    _check_peaks(_peaks(groups, held))
    before = [_exact(group.get("lr")) for group in groups]
    _align(groups, held)
    peak = max(_peaks(groups, held))
    multiply_rates(optimizer, wanted / peak, held)
    unreached = tuple(_unreached_text(one) for one in held if not _is_reached(one))
    for sentence in unreached:
        warn(sentence)
    after = [_exact(group.get("lr")) for group in groups]
    _follow_next_steps(optimizer, held, before, after)
    return LearningRateChange(
        peak, wanted, tuple(after), tuple(_class_name(one) for one in held if _is_reached(one)),
        unreached,
    )  # fmt: skip


def _wanted(lr: Any) -> float:
    if isinstance(lr, Tensor) and lr.numel() == 1:
        lr = lr.item()
    if isinstance(lr, bool) or not isinstance(lr, Real):
        raise LearningRateError(
            f"The learning rate is a {type(lr).__name__}, not a number: call "
            "ampwatch.set_learning_rate(optimizer, 0.07)."
        )
    wanted = float(lr)
    if not (math.isfinite(wanted) and wanted > 0):
        raise LearningRateError(
            f"The learning rate {lr} cannot be a peak: give a number above 0. To keep weights as "
            "they are, leave them out of the optimizer."
        )
    return wanted


def _groups_to_change(optimizer: Any) -> list[dict[str, Any]]:
    groups = getattr(optimizer, "param_groups", None)
    if isinstance(optimizer, (list, tuple)):
        raise LearningRateError(
            f"{len(optimizer)} optimizers were given: call ampwatch.set_learning_rate once for "
            "each of them."
        )
    if not isinstance(groups, list) or not all("lr" in group for group in groups) or not groups:
        raise LearningRateError(
            f"A {type(optimizer).__name__} has no param groups with a learning rate: give the "
            "optimizer first, as in ampwatch.set_learning_rate(optimizer, 0.07, scheduler)."
        )
    return groups


def _given_schedulers(scheduler: Any, optimizer: Any) -> list[Any]:
    """What was given as schedulers, with those inside; all of them drive this optimizer."""
    given = [] if scheduler is None else scheduler
    schedulers = _with_parts(given if isinstance(given, (list, tuple)) else [given])
    for one in schedulers:
        if not callable(getattr(one, "step", None)):
            raise LearningRateError(
                f"A {type(one).__name__} was given as the scheduler, and it has no step(): give "
                "one scheduler or a list of them, or none."
            )
        driven = getattr(one, "optimizer", None)
        if hasattr(driven, "param_groups") and not _is_one(driven, optimizer):
            raise LearningRateError(
                f"The {type(one).__name__} that was given drives another optimizer than the "
                f"{type(optimizer).__name__} that was given: call ampwatch.set_learning_rate for "
                "each optimizer with its own schedulers."
            )
    return schedulers


def _with_parts(schedulers: Iterable[Any]) -> list[Any]:
    """Schedulers, the ones that they chain, and the ones inside wrappers of other libraries."""
    found: list[Any] = []
    for one in schedulers:
        inner = getattr(one, "scheduler", None)
        wraps = not isinstance(one, LRScheduler) and callable(getattr(inner, "step", None))
        found += _with_parts([inner]) if wraps else [one]
        parts = getattr(one, "_schedulers", None)
        found += _with_parts(parts) if isinstance(parts, (list, tuple)) else []
    return found


def _check_peaks(peaks: Sequence[float]) -> None:
    if not max(peaks) > 0 or not math.isfinite(max(peaks)):
        raise LearningRateError(
            f"The peak learning rate is {max(peaks):g} in all param groups, which cannot be "
            "scaled: give the optimizer a learning rate when it is created."
        )


# -- the peaks -------------------------------------------------------------------------------------


def _peaks(groups: Sequence[Mapping[str, Any]], schedulers: Sequence[Any]) -> list[float]:
    """The highest learning rate of each group in its schedule, as far as it is held somewhere."""
    return [_peak(at, group, schedulers) for at, group in enumerate(groups)]


def _peak(at: int, group: Mapping[str, Any], schedulers: Sequence[Any]) -> float:
    if "max_lr" in group:
        return _exact(group["max_lr"])
    highest = [_at(_held(one).get("max_lrs"), at) for one in schedulers]
    return max(_exact(group.get("lr")), _exact(group.get("initial_lr")), 0.0, *highest)


def _align(groups: Sequence[dict[str, Any]], schedulers: Sequence[Any]) -> None:
    """Bring each group to the base that its schedulers compute from.

    They differ where a checkpoint was loaded into the optimizer and not into the schedulers, or
    where a base was changed by hand. If the schedulers disagree, it is left as it is: some compute
    from bases of their own.
    """
    holders = [one for one in schedulers if _held(one).get("base_lrs")]
    if len(holders) > 1:  # a cycle's base is the low end
        holders = [one for one in holders if "max_lrs" not in _held(one)]
    for at, group in enumerate(groups):
        initial = _exact(group.get("initial_lr"))
        bases = {_at(_held(one)["base_lrs"], at) for one in holders}
        if len(bases) != 1 or not (base := min(bases)) > 0 or not initial > 0:
            continue
        if _is_same(base, initial):
            continue
        if any(_explains(one, at, _exact(group.get("lr"))) for one in holders):
            scale_rates(group, base / initial, set(), names=("initial_lr",))
        else:
            scale_rates(group, base / initial, set())


def _explains(scheduler: Any, at: int, lr: float) -> bool:
    """Whether the scheduler has set this learning rate of a group."""
    return _is_same(_at(_held(scheduler).get("_last_lr"), at), lr)


def _held(scheduler: Any) -> MutableMapping[str, Any]:
    return getattr(scheduler, "__dict__", {})


def _at(rates: Any, at: int) -> float:
    known = isinstance(rates, (list, tuple)) and at < len(rates)
    return _exact(rates[at]) if known else 0.0


def _exact(rate: Any) -> float:
    """A learning rate as a number, also one that only a device knows; 0 if there is none."""
    is_number = isinstance(rate, Real) or (isinstance(rate, Tensor) and rate.numel() == 1)
    return float(rate) if is_number else 0.0


def _is_same(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=_SAME)


# -- change them -----------------------------------------------------------------------------------


class RateFollower(Protocol):
    """What keeps learning rates of an optimizer from earlier steps, as the probe does."""

    reference: Any

    def rates_were_multiplied(self, factor: float) -> None:
        """Multiply them, too."""


_followers: WeakSet[Any] = WeakSet()


def follow_changes(follower: RateFollower) -> None:
    """Have the follower told of each change to its optimizer; it is held weakly."""
    _followers.add(follower)


def multiply_rates(optimizer: Any, factor: float, schedulers: Sequence[Any] | None = None) -> None:
    """Multiply all learning rates of the optimizer, and those that its schedulers hold."""
    held = schedulers_of(optimizer) if schedulers is None else schedulers
    changed: set[int] = set()  # a schedule may hold a group's own tensor
    for group in optimizer.param_groups:
        scale_rates(group, factor, changed)
    for one in held:
        names = (*RATES, *LISTS)
        scale_rates(
            _held(one), factor, changed,
            names if isinstance(one, LRScheduler) else (*names, *_OWN_RATES),
        )  # fmt: skip
    for hook in list(getattr(optimizer, "_optimizer_step_pre_hooks", {}).values()):
        if isinstance(hook, _NextSteps):
            hook.steps_left = 0  # of an earlier change
    for follower in list(_followers):
        if _is_one(follower.reference(), optimizer):
            follower.rates_were_multiplied(factor)


def schedulers_of(optimizer: Any) -> list[Any]:
    """The schedulers that drive this optimizer, chained ones too.

    Torch keeps no list of them, so all objects are searched: a tenth of a second, perhaps, which
    only a change that somebody asked for is worth.
    """
    objects = (one for one in gc.get_objects() if issubclass(type(one), LRScheduler))
    return [one for one in objects if _is_one(vars(one).get("optimizer"), optimizer)]


def _is_one(driven: Any, optimizer: Any) -> bool:
    """Whether both are one optimizer; a wrapper shares the param groups of what it wraps."""
    if driven is None or driven is optimizer:
        return driven is not None
    return getattr(driven, "param_groups", None) is getattr(optimizer, "param_groups", driven)


def scale_rates(
    part: MutableMapping[str, Any],
    factor: float,
    changed: set[int] | None = None,
    names: Sequence[str] = (*RATES, *LISTS),
) -> None:
    """Multiply what a param group, a scheduler or a saved state of one holds under these names.

    With `changed`, tensors are multiplied in place, each once: a captured graph reads them, and a
    schedule may hold a group's own. Without it, new ones take their place.
    """
    for name in names:
        held = part.get(name)
        if isinstance(held, (list, tuple)):
            part[name] = type(held)([_times(rate, factor, changed) for rate in held])
        elif held is not None:
            part[name] = _times(held, factor, changed)


def _times(rate: Any, factor: float, changed: set[int] | None) -> Any:
    if isinstance(rate, bool) or not isinstance(rate, (Real, Tensor)):
        return rate
    if changed is None or not isinstance(rate, Tensor):
        return rate * factor
    if id(rate) not in changed:
        rate.mul_(factor)
        changed.add(id(rate))
    return rate


def _unique(schedulers: Sequence[Any]) -> list[Any]:
    return list({id(one): one for one in schedulers}.values())


# -- what a change does not reach ------------------------------------------------------------------


def _is_reached(scheduler: Any) -> bool:
    """Whether it is one of torch's, or holds a learning rate under a name that we know."""
    held, known = _held(scheduler), (*RATES, *LISTS, *_OWN_RATES)
    return isinstance(scheduler, LRScheduler) or any(name in held for name in known)


def _unreached_text(scheduler: Any) -> str:
    return (
        f"{_class_name(scheduler)} is not a torch scheduler and holds no learning rate under a "
        "name that ampwatch knows (such as base_lrs), so it was not changed: change the value "
        "where it is created."
    )


def _class_name(one: Any) -> str:
    return type(one).__name__


def _is_torchs_own(scheduler: Any) -> bool:
    """Whether torch's code computes its learning rates, so that they scale as ours do."""
    made_in = getattr(getattr(type(scheduler), "get_lr", None), "__module__", "")
    return isinstance(scheduler, LRScheduler) and made_in.startswith("torch.")


def _follow_next_steps(
    optimizer: Any, schedulers: Sequence[Any], before: list[float], after: list[float]
) -> None:
    place = getattr(optimizer, "_optimizer_step_pre_hooks", None)
    if place is None:  # a wrapper without hooks
        return
    follower = _NextSteps(optimizer, schedulers, before, after)
    follower.handle = Handle(follower, place, saved=False)


class _NextSteps:
    """Warns once if something else sets the learning rate in the steps after a change."""

    def __init__(
        self, optimizer: Any, schedulers: Sequence[Any], before: list[float], after: list[float]
    ) -> None:
        self.steps_left = _CHECKED_STEPS
        self.handle: Handle | None = None
        self._schedulers = schedulers
        self._before, self._after = before, after
        self._held_peaks = _held_peaks(optimizer)

    def __call__(self, optimizer: Any, *_: Any) -> None:
        if self.steps_left > 0:
            self.steps_left -= 1
            sentence = self._undone_text(optimizer)
            if sentence:
                self.steps_left = 0
                warn(sentence, stacklevel=4)
        if self.steps_left <= 0:
            self._remove(optimizer)

    def _remove(self, optimizer: Any) -> None:
        """Take the hook away where it is the last: torch is iterating over their dict."""
        place = optimizer._optimizer_step_pre_hooks
        if self.handle is not None and next(reversed(place.values()), None) is self:
            self.handle.remove()

    def _undone_text(self, optimizer: Any) -> str:
        groups = optimizer.param_groups
        for was, now in zip(self._held_peaks, _held_peaks(optimizer), strict=False):
            if was and now and not _is_same(was, now):
                return (
                    f"the peak learning rate was set to {now:.4g} after ampwatch.set_learning_rate "
                    f"had set it to {was:.4g}: if a checkpoint was loaded in between, call "
                    "ampwatch.set_learning_rate after loading it."
                )
        for at, group in enumerate(groups[: len(self._after)]):
            now = number_of(group.get("lr"))
            if not math.isnan(now) and self._is_assigned(optimizer, at, now):
                return (
                    "the training loop assigns the learning rate itself each step "
                    f"({now:.4g} instead of {self._after[at]:.4g}): change the value there. If a "
                    "checkpoint was loaded after ampwatch.set_learning_rate, call it after "
                    "loading."
                )
        return ""

    def _is_assigned(self, optimizer: Any, at: int, now: float) -> bool:
        """Whether neither the change nor a schedule explains a group's learning rate."""
        before, after = self._before[at], self._after[at]
        if _is_same(now, after) or _explained(self._schedulers, at, now):
            return False
        if _explained(schedulers_of(optimizer), at, now):  # made after the change
            return False
        way = _way_back(before, after, now)
        if any(not _is_torchs_own(one) for one in self._schedulers):
            return way > _WAY_BACK
        return way > _WAY_BACK or not math.isclose(now, after, rel_tol=_BY_HAND)


def _explained(schedulers: Iterable[Any], at: int, lr: float) -> bool:
    return any(_is_torchs_own(one) and _explains(one, at, lr) for one in schedulers)


def _way_back(before: float, after: float, now: float) -> float:
    """How far a learning rate has gone back from `after` to `before`: 1 if it is there."""
    if min(before, after, now) <= 0 or _is_same(before, after):
        return 0.0
    return math.log(now / after) / math.log(before / after)


def _held_peaks(optimizer: Any) -> list[float]:
    """What each group holds of its peak: its `max_lr`, else its `initial_lr`, else 0."""
    held = [group.get("max_lr", group.get("initial_lr")) for group in optimizer.param_groups]
    rates = [number_of(one) for one in held]
    return [0.0 if math.isnan(one) else one for one in rates]
