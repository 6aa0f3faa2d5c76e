"""Which steps are sampled: the first ten, every n-th, and the twenty after a skip.

After a forward pass that failed in a step that was not sampled, sampling goes on longer each time.
"""

from __future__ import annotations

from ampwatch.probe.layer_observer import LayerObserver
from ampwatch.probe.records import StepRecord

FIRST_STEPS = 10
STEPS_AFTER_SKIP = 20
MOST_STEPS_AFTER = 160


class Sampling:
    """Chooses the steps to sample, and arms the layer observer for them."""

    def __init__(self, observer: LayerObserver | None, layer_every: int, start_step: int) -> None:
        self.sampled = False
        self.observes = observer is not None
        self._observer = observer
        self._layer_every = max(1, layer_every)
        self._until = start_step + FIRST_STEPS
        self._patience = STEPS_AFTER_SKIP
        self.begin(start_step)

    def begin(self, step: int) -> None:
        """The next step has this number."""
        self.sampled = step < self._until or step % self._layer_every == 0
        if self._observer is None:
            return
        if self.sampled:
            # What casts would do changes slowly: it is computed at each n-th step only.
            self._observer.arm(what_if=step % self._layer_every == 0)
        elif self._observer.armed:
            self._observer.disarm()

    def look_away(self) -> None:
        """This step does not end: forget what was noted of it."""
        if self._observer is not None:
            self._observer.disarm()

    def arm_after(self, step: int, *, failed: bool = False, seen: bool = True) -> None:
        """A skip was seen: sample the steps from this one on.

        `failed`: its forward pass was not finite; `seen`: it had been sampled.
        """
        self._until = max(self._until, step + (self._patience if failed else STEPS_AFTER_SKIP))
        if failed and not seen:
            self._patience = min(2 * self._patience, MOST_STEPS_AFTER)

    def collect(self, record: StepRecord) -> None:
        """Take what the observer saw into the step's record."""
        observer = self._observer
        if observer is None:
            return
        if observer.armed or record.unfollowed:
            layers = observer.collect() if observer.armed else observer.collect_weights()
            if not layers.on_host:
                layers.put(record.pack)
            record.layers = layers
        if observer.several_ranks:
            record.local = observer.collect_local(record.pack)
        first = observer.collect_first(record.pack)
        if first and observer.first_layer is not None:
            record.first_layer_at = first
            record.first_layer = observer.first_layer.number
