"""Who caused the overflows: counted by the layer that they name and by the rank they came from.

Ranks add up their gradients, so an overflow on one is an overflow on all. The event of each rank
says whether its own gradients were finite before. A step is judged only if every rank has reported.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from ampwatch.diagnosis.blocks import Block
from ampwatch.diagnosis.event import Event
from ampwatch.diagnosis.times import Times
from ampwatch.rows import EventKind

# A model may have more layers than this; those that overflow first are kept.
MOST_LAYERS = 1024
_MOST_RANKS = 64
LOSS = "(loss)"  # where an event's bound ends, if that is not a layer
# A rank is a culprit if chance alone makes it overflow so often with less than this probability.
RANK_CHANCE = 0.01

# No scale can help against these, so neither chance nor growth causes them.
_BEFORE_THE_SCALE = frozenset(("forward", "input", "loss"))


@dataclass(frozen=True, slots=True)
class LayerOverflows:
    """The overflows that name one layer as the culprit."""

    layer: str
    times: Times
    ranks: frozenset[int]
    bounds: int  # of them, how many only bound the culprit
    at_loss: int = 0  # of those, how many between the layer and the loss
    own_code: tuple[str, str] | None = None  # of a container: the layers around the place
    nans: int = 0  # how many made nan, and not inf

    @property
    def is_bound(self) -> bool:
        """Whether every overflow only bounds the culprit, and none names the layer for certain."""
        return self.bounds == self.times.count

    @property
    def is_at_loss(self) -> bool:
        """Whether every overflow leaves open whether the layer or the loss caused it."""
        return self.at_loss == self.times.count

    def joined(self, other: LayerOverflows) -> LayerOverflows:
        """The overflows of a culprit layer and further ones of it, together."""
        ranks = self.ranks | other.ranks
        kept = ranks if len(ranks) <= _MOST_RANKS else self.ranks
        return LayerOverflows(
            self.layer, self.times.joined(other.times), kept, self.bounds + other.bounds,
            self.at_loss + other.at_loss, self.own_code or other.own_code,
            self.nans + other.nans,
        )  # fmt: skip


def count_for_layer(layers: dict[str, LayerOverflows], event: Event, position: int) -> None:
    """Count an overflow event for the layer that it names as the culprit."""
    layer = event.layer
    if layer is None or (layer not in layers and len(layers) >= MOST_LAYERS):
        return
    bound = int(event.detail.get("exact") is False)
    after, before = event.detail.get("from"), event.detail.get("to")
    times = Times().and_at(event.step, position)
    one = LayerOverflows(
        layer, times, frozenset({event.rank}), bound, int(bound and before == LOSS),
        (str(after), str(before)) if after and before and not bound else None,
        int(event.detail.get("value") == "nan"),
    )  # fmt: skip
    layers[layer] = layers[layer].joined(one) if layer in layers else one


@dataclass(frozen=True, slots=True)
class OverflowOrigin:
    """Where one step's overflow came from: from one rank alone, or from joining the ranks."""

    step: int
    ranks: int  # that reported it
    alone: int | None = None
    joining: bool = False
    before_scale: bool = False  # the rank's own loss or activations were not finite
    layer: str | None = None  # that the rank alone names
    is_bound: bool = False  # whether it only bounds the place


@dataclass(frozen=True, slots=True)
class RankOverflows:
    """The overflows that came from one rank alone."""

    times: Times
    before_scale: int
    layer: str | None  # the one that all of them name
    is_bound: bool  # whether any of them only bounds the place

    def joined(self, later: RankOverflows) -> RankOverflows:
        """The overflows of a culprit rank and later ones of it, together."""
        return RankOverflows(
            self.times.joined(later.times),
            self.before_scale + later.before_scale,
            self.layer if self.layer == later.layer else None,
            self.is_bound or later.is_bound,
        )


@dataclass(frozen=True, slots=True)
class JointOverflows:
    """Where overflows that all ranks reported came from, counted; `and_origin` makes a new one."""

    judged: int = 0
    ranks: int = 0  # how many there are at most
    alone: Mapping[int, RankOverflows] = field(default_factory=dict)
    joining: Times = field(default_factory=Times)

    def and_origin(self, origin: OverflowOrigin, position: int) -> JointOverflows:
        """The counts of culprits with the origin of one more overflow."""
        times, alone = Times().and_at(origin.step, position), {}
        if origin.alone is not None:
            before = int(origin.before_scale)
            alone = {origin.alone: RankOverflows(times, before, origin.layer, origin.is_bound)}
        joining = times if origin.joining else Times()
        return self.joined(JointOverflows(1, origin.ranks, alone, joining))

    def joined(self, later: JointOverflows) -> JointOverflows:
        """The counts of culprits so far and later ones, together."""
        alone = dict(self.alone)
        for rank, one in later.alone.items():
            alone[rank] = alone[rank].joined(one) if rank in alone else one
        joining = self.joining.joined(later.joining)
        return JointOverflows(
            self.judged + later.judged, max(self.ranks, later.ranks), alone, joining
        )

    def is_chance(self, count: int) -> bool:
        """Whether so many overflows from one rank are mere chance, and make it no culprit.

        By Chernoff's bound on the tail of the binomial, times the number of ranks it might have
        been.
        """
        share = count / max(1, self.judged)
        expected = 1.0 / max(2, self.ranks)
        if share <= expected:
            return True
        surprise = share * math.log(share / expected)
        if share < 1.0:
            surprise += (1.0 - share) * math.log((1.0 - share) / (1.0 - expected))
        return self.ranks * math.exp(-self.judged * surprise) > RANK_CHANCE


def overflow_origins(block: Block) -> Iterator[OverflowOrigin]:
    """The origin of each overflow in a block that all ranks reported."""
    told: dict[int, dict[int, Event]] = {}
    for event in block.events:
        if event.kind == EventKind.OVERFLOW.value and "own_finite" in event.detail:
            told.setdefault(event.step, {})[event.rank] = event
    for step, events in told.items():
        there = 1 + sum(bool((rows.step == step).any()) for rows in block.others.values())
        if len(events) >= max(2, there):
            yield _origin(step, events)


def _origin(step: int, events: Mapping[int, Event]) -> OverflowOrigin:
    bad = [event for event in events.values() if event.detail["own_finite"] is False]
    if len(bad) != 1:
        exact = all(event.detail.get("own_exact") is True for event in events.values())
        return OverflowOrigin(step, len(events), joining=exact and not bad)
    (event,) = bad
    return OverflowOrigin(
        step, len(events), alone=event.rank, layer=event.layer,
        before_scale=str(event.detail.get("direction")) in _BEFORE_THE_SCALE,
        is_bound=event.detail.get("exact") is False,
    )  # fmt: skip


@dataclass(slots=True)
class OverflowCulprits:
    """Who caused overflows that nothing else explains: layers of the backward pass, or ranks.

    It also counts the events that only bound the layer.
    """

    layers: dict[str, LayerOverflows] = field(default_factory=dict)
    bounds: int = 0
    joint: JointOverflows = field(default_factory=JointOverflows)

    def take(self, event: Event | OverflowOrigin, position: int) -> None:
        """Add one overflow event, or what all ranks' events of one step say together."""
        if isinstance(event, OverflowOrigin):
            self.joint = self.joint.and_origin(event, position)
            return
        self.bounds += event.detail.get("exact") is False
        if event.detail.get("direction") == "backward":
            count_for_layer(self.layers, event, position)

    def add(self, other: OverflowCulprits) -> None:
        """Add all overflows of other culprits."""
        self.bounds += other.bounds
        self.joint = self.joint.joined(other.joint)
        for layer, named in other.layers.items():
            if layer in self.layers:
                self.layers[layer] = self.layers[layer].joined(named)
            elif len(self.layers) < MOST_LAYERS:
                self.layers[layer] = named

    def copy(self) -> OverflowCulprits:
        """An independent copy of the culprits."""
        return replace(self, layers=dict(self.layers))
