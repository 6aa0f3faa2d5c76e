"""Things that happened, counted: how often, from when to when; overflows by the layer they name."""

from __future__ import annotations

from dataclasses import dataclass

from ampwatch.diagnosis.signals import Event, Integers

# A model may have more layers than this; those that overflow first are kept.
MOST_LAYERS = 1024
_MOST_RANKS = 64


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

    def joined(self, later: Times) -> Times:
        """Both together."""
        if not self.count or not later.count:
            return later if later.count else self
        last = max(self, later, key=lambda times: times.last_position)
        return Times(self.count + later.count, self.first_step, last.last_step, last.last_position)


@dataclass(frozen=True, slots=True)
class Named:
    """The overflows that name one layer."""

    layer: str
    times: Times
    ranks: frozenset[int]
    bounds: int  # of them, how many only bound the culprit

    @property
    def is_bound(self) -> bool:
        """Whether no event names the layer for certain."""
        return self.bounds == self.times.count

    def joined(self, other: Named) -> Named:
        """Both together."""
        ranks = self.ranks | other.ranks
        kept = ranks if len(ranks) <= _MOST_RANKS else self.ranks
        return Named(self.layer, self.times.joined(other.times), kept, self.bounds + other.bounds)


def put(layers: dict[str, Named], event: Event, position: int) -> None:
    """Count an overflow for the layer that it names."""
    layer = event.layer
    if layer is None or (layer not in layers and len(layers) >= MOST_LAYERS):
        return
    bound = int(event.detail.get("exact") is False)
    times = Times().and_at(event.step, position)
    one = Named(layer, times, frozenset({event.rank}), bound)
    layers[layer] = layers[layer].joined(one) if layer in layers else one
