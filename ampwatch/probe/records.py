"""What the training thread hands to the courier for one step: raw values, nothing computed.

The values themselves stand in the step's `Pack`; these records say where. They are filled in while
the step goes on, so they are not frozen, and what is rarely there defaults to an empty tuple, which
costs nothing to make.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ampwatch.probe.capture import LayerCapture
from ampwatch.probe.gradients import NormCapture
from ampwatch.probe.readback import Pack
from ampwatch.probe.updates import UpdateCapture
from ampwatch.rows import EventKind


@dataclass(slots=True)
class Loss:
    """One tensor given to `scale`: where its value stands, and whether a backward used it."""

    pack: Pack
    at: int
    counted: bool = False


@dataclass(slots=True)
class Turn:
    """One optimizer's part of a step."""

    optimizer: int
    positions: Sequence[int] = ()  # of the optimizer's parameters in the survey
    losses: Sequence[Loss] = ()
    lrs: Sequence[float] = ()
    lr_bases: Sequence[float] = ()
    norms: NormCapture | None = None
    applied: NormCapture | None = None
    edited_before_unscale: bool = False
    found_inf_at: Sequence[int] = ()
    stepped: bool | None = None
    bypassed: bool = False  # stepped past an enabled scaler
    done: bool = False
    update: UpdateCapture | None = None
    param_norm_at: int | None = None  # the exact norm of the matrix weights, on sampled steps

    def take_norms(self, norms: NormCapture | None) -> None:
        """Norms of gradients as the backward left them, unless someone has been at them."""
        if self.edited_before_unscale:
            self.applied = norms
        else:
            self.norms = norms


@dataclass(slots=True)
class StepRecord:
    """A closed step."""

    step: int
    pack: Pack
    turns: list[Turn] = field(default_factory=list)
    losses: Sequence[Loss] = ()  # those no turn has taken
    time_ns: int = 0
    step_time_ms: float | None = None
    enabled: bool = True
    scale_at: int | None = None
    tracker_at: int | None = None
    scale_after_at: int | None = None
    update_seen: bool | None = None
    input_at: Sequence[int] = ()  # largest magnitudes entering the model
    autocast_dtype: str | None = None
    first_layer: int | None = None
    first_layer_at: Sequence[int] = ()
    sampled: bool = False
    layers: LayerCapture | None = None
    scalars: Sequence[tuple[str, int]] = ()  # the user's own
    logged_loss_at: int | None = None

    def has_content(self) -> bool:
        """Whether anything happened that deserves a row, beyond a forward pass."""
        return bool(self.turns or self.losses or self.logged_loss_at is not None)


@dataclass(frozen=True, slots=True)
class EventRecord:
    """Something that happened once, with what is known about it."""

    step: int
    time_ns: int
    kind: EventKind
    detail: dict[str, Any]
