"""What the training thread hands to the courier for one step: raw values, nothing computed.

The values themselves stand in the step's `Pack`; these records hold their positions. They are
filled in while the step goes on, so they are not frozen. They are made on the training thread, so
what is not yet known stands on the class: setting twenty slots to None would cost more than the
rest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ampwatch.probe.norms import NormCapture
from ampwatch.probe.tensor_values import Pack
from ampwatch.rows import EventKind

if TYPE_CHECKING:
    from ampwatch.probe.layer_observer import LocalCapture, SampledLayers


@dataclass(slots=True)
class Value:
    """One number, and the pack in which it will stand."""

    pack: Pack
    at: int

    @property
    def value(self) -> float:
        """The number, once it has arrived."""
        return self.pack.values[self.at]


@dataclass(slots=True)
class Loss(Value):
    """One tensor given to `scale`, and whether a backward used it."""

    counted: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """One parameter's gradient as it stood at some moment."""

    parameter: Tensor
    identity: int
    version: int
    passes: int  # that had reached it


@dataclass(frozen=True, slots=True)
class Waiting:
    """Gradients that updates have passed by while they waited for their step."""

    marks: tuple[Mark, ...]  # at the last of the updates
    scales: tuple[Value, ...]  # at each of the first updates
    held: tuple[Value, ...]  # what was there when each next backward began
    updates: int
    unscaled: bool  # `unscale_` had run on them


@dataclass(frozen=True, slots=True)
class Stale:
    """What a turn found to be older than itself; its values may arrive late."""

    held: tuple[Value, ...]
    waiting: Waiting | None = None  # None: a step had used them

    @property
    def is_true(self) -> bool:
        """Whether there was something in the old gradients; zeros are as good as none."""
        return bool(self.held) and all(value.value != 0.0 for value in self.held)

    @property
    def is_poison(self) -> bool:
        """Whether the old gradients were not finite: then this step's backward is not to blame."""
        return any(not math.isfinite(value.value) for value in self.held)

    def misuse(self, record: StepRecord) -> tuple[str, dict[str, Any]] | None:
        """The mistake of using old gradients, if it is one, once the values have arrived."""
        waiting = self.waiting
        if not self.is_true:
            return None
        if waiting is None:
            return "AMP412", {}
        scales = [scale.value for scale in waiting.scales]
        if (scale := record.scale) is not None:
            scales.append(scale)
        if len(set(scales)) == 1 and not waiting.unscaled:
            return None  # no harm until the scale moves
        detail = {"scales": scales, "updates": waiting.updates, "unscaled": waiting.unscaled}
        return "AMP403", detail


# -- what an optimizer has done --------------------------------------------------------------------


@dataclass(frozen=True, eq=False)  # without slots, so that it can be referred to weakly
class SliceLayout:
    """Which elements stand for which parameter in a joined slice."""

    starts: NDArray[np.int64]  # where each sliced parameter begins
    weights: NDArray[np.float64]  # elements of the parameter for one of the slice
    counts: NDArray[np.int64]
    positions: NDArray[np.int64]  # the parameters' positions in the survey or the optimizer
    matrix: NDArray[np.bool_]  # two dimensions or more


@dataclass(slots=True)  # not frozen: one is made each step, and freezing triples its price
class HostUpdate:
    """One optimizer step seen through the slices of parameters on the CPU: before and after."""

    layout: SliceLayout
    before: NDArray[np.float32]
    after: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class DeviceUpdate:
    """The same, reduced on the device: where each parameter's norms stand in the pack."""

    layout: SliceLayout
    moved_at: int  # norms of the slices' movement
    squared_at: int  # norms of the squared movement, for the error
    weight_at: int  # norms of the slices before
    along_at: int | None = None  # the scaled-up product with the update before, if there was one


UpdateCapture = HostUpdate | DeviceUpdate


@dataclass(frozen=True, slots=True)
class StateCapture:
    """Where the figures of one step of an optimizer's state stand in the pack."""

    layout: SliceLayout
    places: tuple[int, ...]  # in the layout: the parameters with a second moment
    squares_at: tuple[int, ...]  # of each its sum of g^2 / v over the slice
    rounding_at: int | None  # the first of the sums; None without half-precision weights


class Turn:
    """One optimizer's part of a step."""

    lrs: Sequence[float] = ()
    lr_bases: Sequence[float] = ()
    norms: NormCapture | None = None
    applied: NormCapture | None = None
    left: NormCapture | None = None  # scaled, as the backward left them; where edits are looked for
    edited_before_unscale = False
    stepped: bool | None = None
    found_inf_at: Sequence[int] = ()
    bypassed = False  # stepped past an enabled scaler
    done = False
    stale: Stale | None = None  # gradients older than this step
    update: UpdateCapture | None = None
    state: StateCapture | None = None  # on sampled steps: what the optimizer's state asked for
    param_norm_at: int | None = None  # the exact norm of the matrix weights, on sampled steps

    def __init__(
        self,
        optimizer: int,
        positions: Sequence[int],  # of the optimizer's parameters in the survey
        groups: Sequence[int],  # each parameter's
        losses: Sequence[Loss],
    ) -> None:
        self.optimizer = optimizer
        self.positions = positions
        self.groups = groups
        self.losses = losses

    def found_inf(self, values: Sequence[float]) -> bool | None:
        """Whether the scaler found its gradients not finite; None where none looked."""
        return any(values[at] for at in self.found_inf_at) if self.found_inf_at else None

    def has_moved(self, values: Sequence[float]) -> bool:
        """Whether the optimizer's own step was made: after a skip its state is of an earlier."""
        return self.stepped is not False and not self.found_inf(values)

    def take_norms(self, norms: NormCapture | None) -> None:
        """Norms of gradients as the backward left them, unless someone has been at them."""
        if self.edited_before_unscale:
            self.applied = norms
        else:
            self.norms = norms


class StepRecord:
    """A closed step."""

    losses: Sequence[Loss] = ()  # those no turn has taken
    time_ns = 0
    step_time_ms: float | None = None
    enabled = True
    scale_at: int | None = None
    tracker_at: int | None = None
    scale_after_at: int | None = None
    update_seen: bool | None = None
    samples = 0  # that its training forwards took
    input_at: Sequence[int] = ()  # largest magnitudes entering the model
    # Where several models are watched: those that left one, and how many had entered before.
    given_at: Sequence[tuple[int, int]] = ()
    unfollowed = False  # its last forward passes were followed by no loss and no step
    doubtful = False  # has a number of its own only if those forward passes were not finite
    autocast_dtype: str | None = None
    first_layer: int | None = None
    first_layer_at: Sequence[int] = ()
    sampled = False
    layers: SampledLayers | None = None
    local: LocalCapture | None = None  # only where several ranks join their gradients
    scalars: Sequence[tuple[str, int]] = ()  # the user's own
    logged_loss_at: int | None = None
    logged_loss_is_late = False  # told after its own step: it is the step before's

    def __init__(self, step: int, pack: Pack) -> None:
        self.step = step
        self.pack = pack
        self.turns: list[Turn] = []
        self.outputs_at: list[tuple[int, int]] = []  # layer and largest magnitude, if unfollowed

    @property
    def scale(self) -> float | None:
        """The loss scale of this step's gradients."""
        return None if self.scale_at is None else self.pack.values[self.scale_at]

    def forget_outputs(self) -> None:
        """The forward passes that no step followed were finite: they are none of our business."""
        self.unfollowed = False
        self.outputs_at.clear()

    @property
    def first_bad_output(self) -> int | None:
        """The layer that gave what is not finite in a forward that no step followed."""
        values = self.pack.values
        return next((layer for layer, at in self.outputs_at if not math.isfinite(values[at])), None)

    @property
    def was_left_out(self) -> bool:
        """Whether the loop left out a step, or stopped at it, that was not finite."""
        if not self.unfollowed:
            return False
        logged = self.logged_loss_at
        bad_loss = logged is not None and not math.isfinite(self.pack.values[logged])
        return bad_loss or self.first_bad_output is not None

    @property
    def data_magnitudes(self) -> list[float]:
        """The largest magnitudes of what entered a model from outside.

        What enters after a watched model has given something that is not finite may be made of it.
        """
        values = self.pack.values
        poisoned = (before for at, before in self.given_at if not math.isfinite(values[at]))
        until = next(poisoned, None)
        return [values[at] for at in self.input_at[:until]]

    @property
    def is_poisoned(self) -> bool:
        """Whether a turn of it used gradients that were not finite before its backward."""
        return any(turn.stale is not None and turn.stale.is_poison for turn in self.turns)

    @property
    def is_bypassed(self) -> bool:
        """Whether all of its optimizers stepped past the scaler, so that no update is missing."""
        return bool(self.turns) and all(turn.bypassed for turn in self.turns)

    @property
    def has_failed(self) -> bool:
        """Whether its loss was not finite."""
        losses = (loss for turn in self.turns for loss in turn.losses if loss.counted)
        return not all(math.isfinite(loss.value) for loss in losses)

    @property
    def has_overflowed(self) -> bool:
        """Whether any of its optimizers found an inf."""
        values = self.pack.values
        for turn in self.turns:
            for at in turn.found_inf_at:
                if values[at]:
                    return True
        return False


@dataclass(frozen=True, slots=True)
class EventRecord:
    """Something that happened once, with what is known about it."""

    step: int
    time_ns: int
    kind: EventKind
    detail: dict[str, Any]
