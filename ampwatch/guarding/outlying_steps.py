"""Whether an optimizer's step would harm: what it shows, beside what is usual in such steps.

    gradients not finite | gradient norm | loss | largest input | learning rate

All were measured by the watch already. The loss and the inputs are this rank's own; what every rank
sees alike are norms, after a reduction, and rates.

Each optimizer has its own usual steps, of those that were taken. An outlier that was left out
cannot move what is usual; one that was taken can hardly: median, median deviation and the third
largest value hold against two. With few steps known every distance counts double.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ampwatch.guarding.guard_settings import OutliersInARow
from ampwatch.probe.learning_rates import number_of
from ampwatch.probe.norms import NormCapture
from ampwatch.probe.optimizers import OptimizerView
from ampwatch.probe.records import StepRecord, Turn
from ampwatch.probe.tensor_values import Pack

WINDOW = 128  # of the last steps that were taken: OLMo-core's
START = 16  # of them, before there is a limit
SETTLED = 64  # until then distances count double: OLMo-core begins here
DEVIATIONS = 6.0  # also OLMo-core's, of deviations that an outlier can move
RARE = 3  # from the top: two outliers that were taken do not raise the limit
MOST_OVER_RARE = 10.0  # times: Megatron-Bridge's factor
NEAR = 0.99  # of the limit: the same gradients may be above it on another rank
RATE_LEAP = 4.0  # times the highest rate before: warm-ups rise by less in a step
_TO_SIGMA = 1.4826  # from the median absolute deviation to a normal distribution's deviation
_EVERY = 8  # steps between two limits: sorting the window costs as much as all else
_MOST_OCTAVES = 1000.0  # of a limit that a float can hold


@dataclass(frozen=True, slots=True)
class Spread:
    """How a window of values is spread."""

    middle: float
    deviation: float  # as of a normal distribution, from the median deviation
    quarter: float  # a quarter are above
    rare: float  # the third largest


class _Window:
    """The last values of steps that were taken."""

    def __init__(self, window: int = WINDOW) -> None:
        self.limit = math.inf
        self.middle = math.nan
        self._values: deque[float] = deque(maxlen=window)
        self._taken = 0

    def _add(self, value: float) -> Spread | None:
        """Take a value; how all are spread, where it is time for another limit."""
        self._values.append(value)
        self._taken += 1
        if self._taken < START or self._taken % _EVERY:
            return None
        ordered = sorted(self._values)
        middle = ordered[len(ordered) // 2]
        distances = sorted([abs(one - middle) for one in ordered])
        deviation = _TO_SIGMA * distances[len(distances) // 2]
        return Spread(middle, deviation, ordered[-len(ordered) // 4], ordered[-RARE])

    @property
    def _width(self) -> float:
        return 1.0 if self._taken >= SETTLED else 2.0


class UsualSizes(_Window):
    """Sizes such as gradient norms, judged by their octaves.

    One is an outlier six robust deviations above the median, or ten times above the third largest:
    norms that differ by hundreds at the lower end have a wide deviation and yet none that large. It
    is none below `least` times the median, nor below `over_rare` times the third largest: a
    training whose every thirtieth batch is large is used to it.
    """

    def __init__(self, least: float, over_rare: float) -> None:
        super().__init__()
        self._least, self._over_rare = math.log2(least), math.log2(over_rare)

    def take(self, size: float) -> None:
        """A step with this size was taken."""
        if not 0.0 < size < math.inf:
            return
        spread = self._add(math.log2(size))
        if spread is None:
            return
        wide, middle, rare = self._width, spread.middle, spread.rare
        far = min(
            middle + wide * DEVIATIONS * spread.deviation, rare + wide * math.log2(MOST_OVER_RARE)
        )
        least = max(middle + wide * self._least, rare + wide * self._over_rare)
        self.middle = 2.0**middle
        self.limit = 2.0 ** min(max(far, least), _MOST_OCTAVES)


def usual_norms() -> UsualSizes:
    """For gradient norms: those of a calm training double by chance."""
    return UsualSizes(least=4.0, over_rare=1.5)


def usual_inputs() -> UsualSizes:
    """For the largest value that enters the model: stricter, since large ones may be harmless."""
    return UsualSizes(least=8.0, over_rare=4.0)


class UsualLosses(_Window):
    """Losses, judged by their distance above the median; they may be negative.

    One is an outlier six robust deviations above it, beyond what one batch in 100,000 would show by
    the tail of the last, and half of the way back to where the training began. The tail is an
    exponential one through the upper quartile and the third largest. A training that knows its data
    by heart has a heavier one: single batches a thousand times above the median, by which it
    unlearns nothing.
    """

    ONCE_IN = 1e5
    WAY_BACK = 0.5
    LEAST_SHARE = 0.25  # of the median: where a training was resumed, it began where it is
    FIRST = 8

    def __init__(self) -> None:
        super().__init__(SETTLED)  # of a loss that falls, older values say too much
        self._began = math.nan

    def take(self, loss: float) -> None:
        """A step with this loss was taken."""
        if not math.isfinite(loss):
            return
        spread = self._add(loss)
        if self._taken == self.FIRST:
            self._began = sorted(self._values)[self.FIRST // 2]
        if spread is None:
            return
        self.middle = spread.middle
        far = max(
            DEVIATIONS * spread.deviation,
            self._tail(spread),
            self.WAY_BACK * (self._began - spread.middle),
            self.LEAST_SHARE * abs(spread.middle),
        )
        self.limit = spread.middle + self._width * far if far > 0.0 else math.inf

    def _tail(self, spread: Spread) -> float:
        """How far above the median one batch in 100,000 lies."""
        count, far = len(self._values), DEVIATIONS * spread.deviation
        quarter, rare = spread.quarter - spread.middle, spread.rare - spread.middle
        if rare <= 0.0:
            return 0.0
        rare_share = (RARE - 0.5) / count
        slope = (rare - quarter) / math.log(0.25 / rare_share)
        reach = rare + slope * math.log(rare_share * self.ONCE_IN)
        return reach * max(1.0, math.sqrt(rare / far) if far > 0.0 else math.inf)


class UsualRates:
    """Learning rates: one is an outlier far above all before it and above its schedule's peak."""

    def __init__(self) -> None:
        self.limit = math.inf
        self.highest = 0.0
        self._taken = 0

    def take(self, rate: float) -> None:
        """A step with this rate was taken."""
        if not 0.0 < rate < math.inf:
            return
        self._taken += 1
        self.highest = max(self.highest, rate)
        if self._taken >= START:
            self.limit = RATE_LEAP * self.highest


# -- one step --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Measured:
    """What is known of a step; nan where it was not measured."""

    norm: float
    is_finite: bool
    rate: float = math.nan  # the highest of the groups, without what we or a page multiplied it by
    peak: float = math.nan  # that the schedule plans, where it leapt
    loss: float = math.nan
    largest_input: float = math.nan


@dataclass(frozen=True, slots=True)
class UsualSteps:
    """What is usual in the steps of one optimizer."""

    norms: UsualSizes = field(default_factory=usual_norms)
    losses: UsualLosses = field(default_factory=UsualLosses)
    inputs: UsualSizes = field(default_factory=usual_inputs)
    rates: UsualRates = field(default_factory=UsualRates)
    in_a_row: OutliersInARow = field(default_factory=OutliersInARow)

    def take(self, step: Measured) -> None:
        """This step was taken."""
        self.norms.take(step.norm)
        self.losses.take(step.loss)
        self.inputs.take(step.largest_input)
        self.rates.take(step.rate)

    def leaps(self, step: Measured) -> bool:
        """Whether the rate is far above all before it and what its schedule plans."""
        return step.rate > self.rates.limit and not NEAR * step.rate <= step.peak


@dataclass(frozen=True, slots=True)
class JudgedStep:
    """One step, and what was usual when it came."""

    step: Measured
    usual: UsualSteps

    @property
    def is_finite(self) -> bool:
        """Whether its gradients are."""
        return self.step.is_finite

    @property
    def is_outlying(self) -> bool:
        """Whether the step would harm."""
        step, usual = self.step, self.usual
        return (
            not step.is_finite
            or step.norm > usual.norms.limit
            or step.loss > usual.losses.limit
            or step.largest_input > usual.inputs.limit
            or usual.leaps(step)
        )

    @property
    def is_near(self) -> bool:
        """Whether another rank, which sees the same gradients, may call it outlying."""
        return self.is_outlying or self.step.norm > NEAR * self.usual.norms.limit

    def _signs(self) -> Iterator[tuple[str, str, float, float, float]]:
        """The key and the name of each, its value, what is usual, and the limit."""
        step, usual = self.step, self.usual
        yield "grad_norm", "gradient norm", step.norm, usual.norms.middle, usual.norms.limit
        yield "loss", "loss", step.loss, usual.losses.middle, usual.losses.limit
        largest = step.largest_input
        yield "input", "largest input", largest, usual.inputs.middle, usual.inputs.limit
        if usual.leaps(step):
            yield "lr", "learning rate", step.rate, usual.rates.highest, usual.rates.limit

    @property
    def detail(self) -> dict[str, Any]:
        """For the event: the norm, and beside it what is outlying."""
        found: dict[str, Any] = {}
        for key, _, value, usual, limit in self._signs():
            if key == "grad_norm":
                found |= {key: value, "usual": usual, "limit": limit}
            elif value > limit:
                found |= {key: value, f"{key}_usual": usual, f"{key}_limit": limit}
        return {name: one if math.isfinite(one) else str(one) for name, one in found.items()}

    @property
    def words(self) -> str:
        """In words."""
        if not self.step.is_finite:
            return "The gradients were not finite"
        told = [
            f"the {name} was {value:.3g}, usually {usual:.3g} (limit {limit:.3g})"
            for _, name, value, usual, limit in self._signs()
            if value > limit
        ]
        words = "; ".join(told) or "another rank's step was outlying"
        return words[0].upper() + words[1:]


# -- one optimizer's part of a step, before its optimizer runs -------------------------------------


@dataclass(frozen=True, slots=True)
class Guarded:
    """One optimizer's part of the step in progress, as the probe has measured it."""

    view: OptimizerView
    turn: Turn
    norms: NormCapture
    record: StepRecord
    rate: dict[str, float]  # as `rate_of` gives it

    @property
    def pack(self) -> Pack:
        """Where the values stand."""
        return self.record.pack

    def measured(self) -> Measured:
        """What is known of it, once its values have arrived."""
        norms, values = self.norms, self.pack.values
        norm = math.hypot(*values[norms.at : norms.at + norms.count])
        is_finite = math.isfinite(norm)
        if not is_finite and norms.amax_at is not None:  # a norm may leave its format
            largest = values[norms.amax_at : norms.amax_at + norms.count]
            is_finite = all(map(math.isfinite, largest))
        return Measured(norm, is_finite, **self.rate, **self.own_values())

    def own_places(self) -> dict[str, Sequence[int]]:
        """Where this rank's losses and largest inputs stand in the step's pack.

        A loss that was logged late is the step before's: a good step would be left out for a bad
        one.
        """
        record = self.record
        losses = [loss.at for loss in self.turn.losses if loss.pack is record.pack]
        if record.logged_loss_at is not None and not record.logged_loss_is_late:
            losses = [record.logged_loss_at]
        return {"loss": losses, "largest_input": record.input_at}

    def own_values(self) -> dict[str, float]:
        """This rank's loss and largest input; nan as long as a device has them."""
        values, places = self.pack.values, self.own_places()
        losses = [values[at] for at in places["loss"]]
        return {
            "loss": sum(losses) / len(losses) if losses else math.nan,
            "largest_input": max([values[at] for at in places["largest_input"]], default=math.nan),
        }

    def norm_there(self) -> Tensor | None:
        """The gradient norm, if it waits on one device."""
        at = self.norms.total_at
        return None if at is None else dict(self.pack.pending or ()).get(at)

    def own_there(self, device: torch.device) -> dict[str, Tensor]:
        """This rank's loss and largest input, where they wait on this device."""
        known, found = dict(self.pack.pending or ()), {}
        for name, places in self.own_places().items():
            waiting = [known[at].reshape(-1)[0].float() for at in places if at in known]
            if waiting and len(waiting) == len(places) and all(w.device == device for w in waiting):
                joined = torch.stack(waiting)
                found[name] = joined.mean() if name == "loss" else joined.amax()
        return found

    def waited_for(self) -> Measured | None:
        """What is known of it, waited for once; None where it is on several devices."""
        total = self.norm_there()
        if total is None:
            return None
        there = self.own_there(total.device)
        norm, *others = torch.stack([total.float(), *there.values()]).tolist()
        own = self.own_values() | dict(zip(there, others, strict=True))
        return Measured(norm, math.isfinite(norm), **self.rate, **own)


def rate_of(optimizer: Any, view: OptimizerView, turn: Turn, usual: UsualSteps) -> dict[str, float]:
    """The highest rate of the groups; where it leapt, the peak that the schedule plans too."""
    rate = max(turn.lrs, default=math.nan) / view.multiplied
    if not rate > usual.rates.limit or optimizer is None:
        return {"rate": rate}
    planned = [
        number_of(group.get(name))
        for group in optimizer.param_groups
        for name in ("initial_lr", "max_lr")
    ]
    known = [one for one in planned if one > 0.0]
    return {"rate": rate, "peak": max(known, default=math.nan) / view.multiplied}
