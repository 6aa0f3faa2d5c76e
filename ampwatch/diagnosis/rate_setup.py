"""How the learning rate was set up, folded: where it began, the optimizer, the restarts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ampwatch.diagnosis.blocks import Block
from ampwatch.diagnosis.column_arrays import Floats
from ampwatch.diagnosis.event import Event, positive_number
from ampwatch.diagnosis.learning_rate import Group, Setup
from ampwatch.rows import EventKind

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
        told = np.isfinite(rate) & (base > 0)
        if self.moved or not told.any():
            return self
        first = float(rate[told][0]) if self.rate is None else self.rate
        return FirstRate(
            rate=first,
            steps=self.steps + int(told.sum()),
            accepted=self.accepted + int((told & ~block.skipped & ~block.left_out).sum()),
            base=float(base[told][-1]),
            share=max(self.share, float((rate[told] / base[told]).max())),
            moved=bool((np.abs(rate[told] - first) > _SAME_RATE * first).any()),
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
        made = replace(
            self,
            begin=begin,
            restarts=self.restarts + block.restart,
            first_rate=self.first_rate.fold(block),
        )
        for event in block.events:
            made = made._with(event)
        return made._with_layers(block)

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
        known = groups if isinstance(groups, list) else []
        return [group for group in known if isinstance(group, dict)][:_MOST_GROUPS]

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
        group, ratio = layers.numbers["param_group"], layers.numbers["update_ratio"]
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
