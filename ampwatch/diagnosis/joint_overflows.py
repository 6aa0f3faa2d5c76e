"""What the ranks' overflow events of one step say together: whose backward it was, or nobody's.

Where ranks join their gradients, an overflow of one is an overflow of all; each rank's event tells
whether its own gradients were finite before. A step is judged only where every rank has told.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ampwatch.diagnosis.blocks import Block
from ampwatch.diagnosis.named import Times
from ampwatch.diagnosis.signals import Event
from ampwatch.rows import EventKind

# How likely chance alone may be to make one rank overflow so often before it is called a wonder.
RANK_CHANCE = 0.01

# No scale can help these, so chance and growth have no part in them.
_BEFORE_THE_SCALE = frozenset(("forward", "input", "loss"))


@dataclass(frozen=True, slots=True)
class Origin:
    """Where one step's overflow came from: from one rank alone, or from the joining."""

    step: int
    ranks: int  # that told
    alone: int | None = None
    joining: bool = False
    before_scale: bool = False  # the rank's own loss or activations were not finite
    layer: str | None = None  # that the rank alone names
    is_bound: bool = False  # whether it only bounds the place


@dataclass(frozen=True, slots=True)
class Alone:
    """The overflows that came from one rank alone."""

    times: Times
    before_scale: int
    layer: str | None  # the one that all of them name
    is_bound: bool  # whether any of them only bounds the place

    def joined(self, later: Alone) -> Alone:
        """Both together."""
        return Alone(
            self.times.joined(later.times),
            self.before_scale + later.before_scale,
            self.layer if self.layer == later.layer else None,
            self.is_bound or later.is_bound,
        )


@dataclass(frozen=True, slots=True)
class Joint:
    """Origins counted; `and_origin` makes a new one."""

    judged: int = 0
    ranks: int = 0  # how many there are at most
    alone: Mapping[int, Alone] = field(default_factory=dict)
    joining: Times = field(default_factory=Times)

    def and_origin(self, origin: Origin, position: int) -> Joint:
        """One more step."""
        times, alone = Times().and_at(origin.step, position), {}
        if origin.alone is not None:
            before = int(origin.before_scale)
            alone = {origin.alone: Alone(times, before, origin.layer, origin.is_bound)}
        joining = times if origin.joining else Times()
        return self.joined(Joint(1, origin.ranks, alone, joining))

    def joined(self, later: Joint) -> Joint:
        """Both together."""
        alone = dict(self.alone)
        for rank, one in later.alone.items():
            alone[rank] = alone[rank].joined(one) if rank in alone else one
        joining = self.joining.joined(later.joining)
        return Joint(self.judged + later.judged, max(self.ranks, later.ranks), alone, joining)

    def is_chance(self, count: int) -> bool:
        """Whether so many from one rank are no wonder, were every rank as likely each time.

        Chernoff's bound on the binomial's tail, times the ranks that it might have been.
        """
        share = count / max(1, self.judged)
        expected = 1.0 / max(2, self.ranks)
        if share <= expected:
            return True
        surprise = share * math.log(share / expected)
        if share < 1.0:
            surprise += (1.0 - share) * math.log((1.0 - share) / (1.0 - expected))
        return self.ranks * math.exp(-self.judged * surprise) > RANK_CHANCE


def origins(block: Block) -> Iterator[Origin]:
    """The origin of each overflow of a block that all ranks tell of."""
    told: dict[int, dict[int, Event]] = {}
    for event in block.events:
        if event.kind == EventKind.OVERFLOW.value and "own_finite" in event.detail:
            told.setdefault(event.step, {})[event.rank] = event
    for step, events in told.items():
        there = 1 + sum(bool((rows.step == step).any()) for rows in block.others.values())
        if len(events) >= max(2, there):
            yield _origin(step, events)


def _origin(step: int, events: Mapping[int, Event]) -> Origin:
    bad = [event for event in events.values() if event.detail["own_finite"] is False]
    if len(bad) != 1:
        exact = all(event.detail.get("own_exact") is True for event in events.values())
        return Origin(step, len(events), joining=exact and not bad)
    (event,) = bad
    return Origin(
        step, len(events), alone=event.rank, layer=event.layer,
        before_scale=str(event.detail.get("direction")) in _BEFORE_THE_SCALE,
        is_bound=event.detail.get("exact") is False,
    )  # fmt: skip
