"""Whether an overflow came from this rank's own backward, or with the gradients of the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ampwatch.probe.layer_rows import LayerStep
from ampwatch.probe.records import StepRecord


@dataclass(frozen=True, slots=True)
class OwnBackward:
    """What one overflowed step knows of this rank's own gradients; None is unknown."""

    finite: bool | None
    exact: bool  # every gradient was seen before the ranks were joined
    parameter_finite: Mapping[int, bool]  # to look for a culprit among

    def detail(self) -> dict[str, Any]:
        """For the overflow event."""
        return {} if self.finite is None else {"own_finite": self.finite, "own_exact": self.exact}


def own_backward(record: StepRecord, known: LayerStep, *, loss_finite: bool | None) -> OwnBackward:
    """What this rank's loss, parameters and first layer say of its own part in the overflow."""
    joined, own = known.parameter_finite, known.local_finite
    if record.local is None:
        return OwnBackward(finite=None, exact=False, parameter_finite=joined)
    exact = bool(joined) and joined.keys() <= own.keys()
    reached = record.local.first_finite(record.pack)
    if loss_finite is False or reached is False or not all(own.values()):
        return OwnBackward(finite=False, exact=exact, parameter_finite={**joined, **own})
    if exact:
        return OwnBackward(finite=True, exact=True, parameter_finite=own)
    # Bad gradients that did not come through here name none of this rank's layers.
    return OwnBackward(finite=reached, exact=False, parameter_finite=own if reached else joined)
