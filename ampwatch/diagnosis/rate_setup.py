"""How the learning rate was set up, folded: where it began, the optimizer, restarts, its leaps.

A leap at least doubles the rate from one step to the next. The stairs of a warm-up are no leaps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ampwatch.diagnosis import thresholds
from ampwatch.diagnosis.blocks import Block
from ampwatch.diagnosis.column_arrays import Floats
from ampwatch.diagnosis.learning_rate import Group, Setup
from ampwatch.diagnosis.record import Event, positive_number
from ampwatch.rows import LR_LEAP, EventKind

_MOST_SAVED = 256
_MOST_GROUPS = 64
_MOST_LARGER = 16
_MOST_OPTIMIZERS = 1024
# The same rate, but for what a schedule's arithmetic rounds.
_SAME_RATE = 1e-6


@dataclass(frozen=True, slots=True)
class FirstRate:
    """Where the rate's setup began: a first rate that has not moved, and how far below its base."""

    rate: float | None = None  # the first recorded one, of the first optimizer's first group
    steps: int = 0  # with a rate and its base
    accepted: int = 0  # of them
    base: float = 0.0  # the last one recorded
    share: float = 0.0  # of its base rate, at most
    moved: bool = False  # another rate was recorded

    def fold(self, block: Block) -> FirstRate:
        """The setup's first rate with one more block, while it has not moved."""
        rate, base = block.columns["lr"], block.columns["lr_base"]
        has_both = np.isfinite(rate) & (base > 0)
        if self.moved or not has_both.any():
            return self
        first = float(rate[has_both][0]) if self.rate is None else self.rate
        return FirstRate(
            rate=first,
            steps=self.steps + int(has_both.sum()),
            accepted=self.accepted + int((has_both & ~block.skipped & ~block.left_out).sum()),
            base=float(base[has_both][-1]),
            share=max(self.share, float((rate[has_both] / base[has_both]).max())),
            moved=bool((np.abs(rate[has_both] - first) > _SAME_RATE * first).any()),
        )


@dataclass(frozen=True, slots=True)
class RateSetup:
    """How events and layers say the learning rate was set up; `fold` makes a new one."""

    first: Mapping[str, Any] = field(default_factory=dict)  # of the first optimizer
    optimizers: int = 0
    begin: int | None = None
    loaded_at_start: bool = False
    loads: int = 0  # after the first step
    restarts: int = 0
    saved: tuple[int, ...] = ()
    larger_batches: tuple[int, ...] = ()
    ratio_sums: Floats = field(default_factory=lambda: np.zeros(_MOST_GROUPS))
    ratio_counts: Floats = field(default_factory=lambda: np.zeros(_MOST_GROUPS))
    first_rate: FirstRate = field(default_factory=FirstRate)

    def fold(self, block: Block) -> RateSetup:
        """The setup of the rate with one more block."""
        begin = int(block.step[0]) if self.begin is None and len(block) else self.begin
        setup = replace(
            self,
            begin=begin,
            restarts=self.restarts + block.restart,
            first_rate=self.first_rate.fold(block),
        )
        for event in block.events:
            setup = setup._with(event)
        return setup._with_layers(block)

    def shown(self, *, stopped: bool = False) -> Setup:
        """The setup of the rate in the form that the advice reads."""
        ratio = self.ratio_sums / np.maximum(self.ratio_counts, 1)
        groups, elements = self._groups, self.first.get("elements")
        return Setup(
            groups=tuple(_group(self.first, group) for group in groups),
            lead_group=int(np.argmax(ratio[: max(1, len(groups))])),
            elements=elements if isinstance(elements, int) and elements > 0 else None,
            several_optimizers=self.optimizers > 1,
            resumed=self.loaded_at_start or bool(self.begin),
            saved_steps=self.saved,
            restarts=self.restarts + self.loads,
            larger_batches=self.larger_batches,
            inner_updates=any((positive_number(g.get("max_iter")) or 1) > 1 for g in groups),
            stopped=stopped,
        )

    def begins_below(self, share: float) -> bool:
        """Whether every known group's rate begins at no more than this share of its base rate.

        A group whose own rate is as high as the base rate of others is not warming up.
        """
        groups = self._groups
        pairs = [(positive_number(group.get("lr")) or 0.0, _base(group)) for group in groups]
        return len(groups) < 2 or all(rate <= share * base for rate, base in pairs if base)

    @property
    def _groups(self) -> Sequence[Mapping[str, Any]]:
        groups = self.first.get("groups")
        listed = groups if isinstance(groups, list) else []
        return [group for group in listed if isinstance(group, dict)][:_MOST_GROUPS]

    def _with(self, event: Event) -> RateSetup:
        detail = event.detail
        if event.kind == EventKind.STATE_SAVED.value:
            return replace(self, saved=(*self.saved, event.step)[-_MOST_SAVED:])
        if event.kind == EventKind.BATCH_SIZE_CHANGED.value:
            if (positive_number(detail.get("to")) or 0.0) > (
                positive_number(detail.get("from")) or np.inf
            ):
                larger = (*self.larger_batches, event.step)[-_MOST_LARGER:]
                return replace(self, larger_batches=larger)
        elif event.kind == EventKind.STATE_LOADED.value:
            if self.begin is None or event.step <= self.begin:
                return replace(self, loaded_at_start=True)
            return replace(self, loads=self.loads + 1)
        elif event.kind == EventKind.OPTIMIZER.value:
            number = int(min(positive_number(detail.get("optimizer")) or 0.0, _MOST_OPTIMIZERS))
            first = detail if number == 0 else self.first
            return replace(self, first=first, optimizers=max(self.optimizers, number + 1))
        return self

    def _with_layers(self, block: Block) -> RateSetup:
        layers = block.layers
        group, ratio = layers.numbers("param_group"), layers.numbers("update_ratio")
        keep = np.isfinite(ratio) & (ratio > 0) & (group >= 0) & (group < _MOST_GROUPS)
        if not keep.any():
            return self
        at = group[keep].astype(np.int64)
        # Logarithms: one layer that leaps must not lead its group.
        sums = np.bincount(at, np.log2(ratio[keep]) + 64.0, minlength=_MOST_GROUPS)
        counts = np.bincount(at, minlength=_MOST_GROUPS)
        return replace(
            self, ratio_sums=self.ratio_sums + sums, ratio_counts=self.ratio_counts + counts
        )


def _group(detail: Mapping[str, Any], group: Mapping[str, Any]) -> Group:
    # Only who divides by the gradient's size needs an eps (RMSprop has a momentum too).
    divides = "betas" in group or isinstance(group.get("eps"), (int, float))
    adaptive = True if divides else False if "momentum" in group else None
    nesterov = group.get("nesterov") is True
    betas = group.get("betas")
    fades = betas[0] if isinstance(betas, list) and betas else group.get("momentum")
    return Group(
        base=_base(group) or None,
        weight_decay=positive_number(group.get("weight_decay")) or 0.0,
        # The one thing that no step shows and no setting says.
        decoupled=adaptive is True and str(detail.get("class", "")).endswith(("W", "Lion")),
        adaptive=adaptive,
        momentum=_share(group.get("momentum")) or 0.0,
        nesterov=nesterov,
        square_decay=(_share(group.get("alpha")) or 0.0) if divides else 0.0,
        # None where it looks ahead, too; one that names neither may keep a momentum of its own, as
        # optimizers written by hand do.
        fade=None if nesterov else _share(fades),
    )


def _base(group: Mapping[str, Any]) -> float:
    """The base rate of a parameter group, from an event about the optimizer's setup; or 0."""
    return positive_number(group.get("max_lr") or group.get("initial_lr") or group.get("lr")) or 0.0


def _share(value: Any) -> float | None:
    """An optimizer's hyper-parameter for the rate's setup, at least 0 and below 1; else None."""
    return float(value) if isinstance(value, (int, float)) and 0 <= value < 1 else None


# No more are kept: those that explain a trouble are the last before it.
_MOST_LEAPS = 64
# A rate this near to the highest yet is at it, and one so far above it has gone on rising.
_AT_TOP, _FURTHER = 0.98, 1.1
# Nobody trains at a hundredth of the base rate: it is where a warm-up begins.
_WARMING = 0.01


@dataclass(frozen=True, slots=True)
class RateLeap:
    """The rate at least doubled from one step to the next."""

    step: int
    before: float
    after: float
    from_top: bool  # it had never been higher
    is_stair: bool  # ... and had rested there no longer than it took to get there


@dataclass(frozen=True, slots=True)
class RateLeaps:
    """The leaps of the learning rate so far; `fold` makes a new one."""

    leaps: tuple[RateLeap, ...] = ()  # the last few
    top: float = 0.0  # the highest rate yet
    top_position: int = 0  # the entry that reached it
    last: float = float("nan")
    last_base: float = float("nan")

    def fold(self, block: Block) -> RateLeaps:
        """The leaps of the rate with one more block."""
        if not len(block):
            return self
        rate, base = block.columns["lr"], block.columns["lr_base"]
        before = np.concatenate(([self.last], rate[:-1]))
        # Without a scheduler the base rate leaps with the rate, and warms up to nothing.
        base_before = np.concatenate(([self.last_base], base[:-1]))
        position = np.arange(block.start, block.start + len(block))
        leapt = (rate >= LR_LEAP * before) & (before > 0)
        leapt &= position >= thresholds.JUMP_LEAST_POSITION
        top = np.fmax.accumulate(np.concatenate([[self.top], rate]))
        rose = np.flatnonzero(top[1:] > top[:-1])
        reached = np.concatenate([[self.top_position], block.start + rose])
        reached = reached[np.searchsorted(rose, np.arange(len(top)))]
        from_top = before >= _AT_TOP * top[:-1]
        # On the way up a rate rests no longer than it took to get there, but for the first epoch of
        # a warm-up that goes by epochs.
        warms = (rate <= base_before) & (before <= _WARMING * base_before)
        stair = from_top & (warms | (position - reached[:-1] <= reached[:-1]))
        leaps = [
            RateLeap(*(column[at].item() for column in (block.step, before, rate, from_top, stair)))
            for at in np.flatnonzero(leapt)[-_MOST_LEAPS:]
        ]
        return replace(
            self,
            leaps=(*self.leaps, *leaps)[-_MOST_LEAPS:],
            top=float(top[-1]),
            top_position=int(reached[-1]),
            last=float(rate[-1]),
            last_base=float(base[-1]),
        )

    def is_settled(self, leap: RateLeap) -> bool:
        """Whether a leap of the rate was not just one of several stairs upwards."""
        return not (leap.is_stair or (leap.from_top and self.top > _FURTHER * leap.after))

    def is_climb(self, step: int) -> bool:
        """Whether the rate's change at this step was one of several stairs upwards."""
        return any(abs(step - one.step) <= 1 for one in self.leaps if not self.is_settled(one))
