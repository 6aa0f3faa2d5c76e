"""What the overflows that nothing explains have in common: the layers they name, and the ranks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ampwatch.diagnosis.joint_overflows import Joint, Origin
from ampwatch.diagnosis.named import MOST_LAYERS, Named, put
from ampwatch.diagnosis.signals import Event


@dataclass(slots=True)
class Culprits:
    """Overflows that nothing explains: those of the backward pass by layer, and the bounds.

    Where there are several ranks, also what their overflows say together.
    """

    layers: dict[str, Named] = field(default_factory=dict)
    bounds: int = 0
    joint: Joint = field(default_factory=Joint)

    def take(self, event: Event | Origin, position: int) -> None:
        """Take in one overflow event, or what all ranks' events of a step say together."""
        if isinstance(event, Origin):
            self.joint = self.joint.and_origin(event, position)
            return
        self.bounds += event.detail.get("exact") is False
        if event.detail.get("direction") == "backward":
            put(self.layers, event, position)

    def add(self, other: Culprits) -> None:
        """Take in all that another has."""
        self.bounds += other.bounds
        self.joint = self.joint.joined(other.joint)
        for layer, named in other.layers.items():
            if layer in self.layers:
                self.layers[layer] = self.layers[layer].joined(named)
            elif len(self.layers) < MOST_LAYERS:
                self.layers[layer] = named

    def copy(self) -> Culprits:
        """The same, to be changed apart."""
        return replace(self, layers=dict(self.layers))
