"""The signs by which a step is judged before its optimizer runs, each against what is usual.

    gradients not finite | gradient norm | loss | largest input | learning rate

All were measured by the watch already. The loss and the inputs are this rank's own; what every rank
sees alike are norms, after a reduction, and rates.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ampwatch.guarding.caps import OutliersInARow
from ampwatch.guarding.usual_values import (
    NEAR,
    UsualLosses,
    UsualRates,
    UsualSizes,
    usual_inputs,
    usual_norms,
)
from ampwatch.probe.learning_rates import number_of
from ampwatch.probe.norms import NormCapture
from ampwatch.probe.optimizers import OptimizerView
from ampwatch.probe.records import StepRecord, Turn
from ampwatch.probe.tensor_values import Pack


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
class Seen:
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
