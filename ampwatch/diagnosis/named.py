"""Things that happened, counted: how often, from when to when; overflows by the layer they name."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ampwatch.diagnosis.blocks import Block
from ampwatch.diagnosis.signals import Event, Integers, Mask

# A model may have more layers than this; those that overflow first are kept.
MOST_LAYERS = 1024
_MOST_RANKS = 64
ROOT = "(root)"  # what the one model's own layer is called; several have names of their own
LOSS = "(loss)"  # where an event's bound ends, if that is not a layer


@dataclass(frozen=True, slots=True)
class Times:
    """How often something was seen, and when first and last."""

    count: int = 0
    first_step: int | None = None
    last_step: int | None = None
    last_position: int = -1  # an entry of the run

    def and_at(self, step: int, position: int, count: int = 1) -> Times:
        """Seen again, `count` times."""
        first = step if self.first_step is None else self.first_step
        return Times(self.count + count, first, step, position)

    def and_entries(self, at: Integers, steps: Integers, start: int) -> Times:
        """Seen again at these entries of a block that begins at `start`."""
        if not len(at):
            return self
        first = int(steps[at[0]]) if self.first_step is None else self.first_step
        return Times(self.count + len(at), first, int(steps[at[-1]]), start + int(at[-1]))

    def and_where(self, mask: Mask, block: Block) -> Times:
        """Seen again at these entries of a block."""
        return self.and_entries(mask.nonzero()[0], block.step, block.start)

    def joined(self, other: Times) -> Times:
        """Both together."""
        if not self.count or not other.count:
            return other if other.count else self
        first = self if self.began_before(other) else other
        last = max(self, other, key=lambda times: times.last_position)
        return Times(self.count + other.count, first.first_step, last.last_step, last.last_position)

    def began_before(self, other: Times) -> bool:
        """Whether both happened, and this one first."""
        if self.first_step is None or other.first_step is None:
            return False
        return self.first_step < other.first_step


@dataclass(frozen=True, slots=True)
class Named:
    """The overflows that name one layer."""

    layer: str
    times: Times
    ranks: frozenset[int]
    bounds: int  # of them, how many only bound the culprit
    at_loss: int = 0  # of those, how many between the layer and the loss
    own_code: tuple[str, str] | None = None  # of a container: the layers around the place
    nans: int = 0  # how many made nan, and not inf

    @property
    def is_bound(self) -> bool:
        """Whether no event names the layer for certain."""
        return self.bounds == self.times.count

    @property
    def is_at_loss(self) -> bool:
        """Whether every event leaves it open whether the layer did it or the loss."""
        return self.at_loss == self.times.count

    def joined(self, other: Named) -> Named:
        """Both together."""
        ranks = self.ranks | other.ranks
        kept = ranks if len(ranks) <= _MOST_RANKS else self.ranks
        return Named(
            self.layer, self.times.joined(other.times), kept, self.bounds + other.bounds,
            self.at_loss + other.at_loss, self.own_code or other.own_code,
            self.nans + other.nans,
        )  # fmt: skip


def innermost(names: Collection[str]) -> list[str]:
    """Without the modules that hold others of these."""
    holders = {ROOT} if set(names) - {ROOT} else set()
    for name in names:
        parts = name.split(".")
        holders |= {".".join(parts[:count]) for count in range(1, len(parts))}
    return [name for name in names if name not in holders]


def put(layers: dict[str, Named], event: Event, position: int) -> None:
    """Count an overflow for the layer that it names."""
    layer = event.layer
    if layer is None or (layer not in layers and len(layers) >= MOST_LAYERS):
        return
    bound = int(event.detail.get("exact") is False)
    after, before = event.detail.get("from"), event.detail.get("to")
    times = Times().and_at(event.step, position)
    one = Named(
        layer, times, frozenset({event.rank}), bound, int(bound and before == LOSS),
        (str(after), str(before)) if after and before and not bound else None,
        int(event.detail.get("value") == "nan"),
    )  # fmt: skip
    layers[layer] = layers[layer].joined(one) if layer in layers else one
