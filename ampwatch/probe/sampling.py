"""Which steps are looked at in detail: the first ten, every n-th, and the twenty after a skip."""

from __future__ import annotations

from ampwatch.probe.layers import LayerObserver
from ampwatch.probe.records import StepRecord

FIRST_STEPS = 10
STEPS_AFTER_SKIP = 20


class Sampling:
    """Decides, and arms the layer observer for the steps it chose."""

    def __init__(self, observer: LayerObserver | None, layer_every: int, start_step: int) -> None:
        self.sampled = False
        self.observes = observer is not None
        self._observer = observer
        self._layer_every = max(1, layer_every)
        self._until = start_step + FIRST_STEPS
        self.begin(start_step)

    def begin(self, step: int) -> None:
        """The next step has this number."""
        self.sampled = step < self._until or step % self._layer_every == 0
        if self._observer is None:
            return
        if self.sampled:
            self._observer.arm()
        elif self._observer.armed:
            self._observer.disarm()

    def arm_after(self, step: int) -> None:
        """A skip has been seen: look closely at the steps from this one on."""
        self._until = max(self._until, step + STEPS_AFTER_SKIP)

    def collect(self, record: StepRecord) -> None:
        """Take what the observer saw into the step's record."""
        observer = self._observer
        if observer is None:
            return
        record.layers = observer.collect(record.pack)
        record.local = observer.collect_local(record.pack)
        record.first_layer_at = observer.collect_first(record.pack)
        if record.first_layer_at and observer.first_layer is not None:
            record.first_layer = observer.first_layer.number
