"""What the user's own code logs with `watch.log`: values of the step in progress."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ampwatch.probe.current_step import CurrentStep
from ampwatch.probe.forward_passes import Forwards
from ampwatch.probe.optimizer_turns import Turns
from ampwatch.probe.own_failures import warn
from ampwatch.probe.readback import put_scalar


class UserValues:
    """Puts them into the step's record; each mistake is warned of once."""

    def __init__(self, current: CurrentStep, forwards: Forwards, turns: Turns) -> None:
        self._current, self._forwards, self._turns = current, forwards, turns
        self._warned: set[str] = set()

    def log(self, values: Mapping[str, Any]) -> None:
        """Put these into the step in progress."""
        if "loss" in values and self._forwards.seen_before and not self._forwards.count:
            self._warn_of_late_loss()
        record = self._current.begin()
        for name, value in values.items():
            at = put_scalar(record.pack, value)
            if at is None:
                kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
                self._warn(name, f"log({name}=...) is no number ({kind}) and is not recorded.")
            elif name == "loss":
                record.logged_loss_at = at
            else:
                record.scalars = (*record.scalars, (name, at))

    def _warn_of_late_loss(self) -> None:
        """A loss came between a step's end and the next forward pass: it is the ended step's."""
        if len(self._turns.views) == 1:  # another optimizer's step may need no forward pass
            self._warn(
                "",
                "log(loss=...) came after its step had ended, and counts for the next one: call it "
                "before optimizer.step(), or with a scaler before scaler.update().",
            )

    def _warn(self, key: str, sentence: str) -> None:
        if key not in self._warned:
            self._warned.add(key)
            warn(sentence)
