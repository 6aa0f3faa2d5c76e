"""What this rank's own backward gave, before the ranks' gradients were joined.

A hook on a parameter sees its gradient before it is accumulated, and so before DDP's reducer, whose
own hooks come after. That is a reduction for each parameter, so it is done on armed steps only. On
every step the gradients that reach the first layer are looked at: one value that is not finite
spoils all that the backward reaches after it. Nothing here communicates, synchronises or writes to
a gradient.

What no hook sees stays unknown: parameters inside a compiled graph, those that FSDP keeps (their
gradients are joined before they arrive), and sparse gradients.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ampwatch.probe.hooks import Guard, Handle, Hook, hook_gradient
from ampwatch.probe.layer_rows import LayerStep
from ampwatch.probe.models import Survey
from ampwatch.probe.readback import Pack
from ampwatch.probe.records import LocalCapture, StepRecord
from ampwatch.probe.tensors import PLAIN, extremes, measurable

Extremes = tuple[Tensor, Tensor]


class LocalGradients:
    """Hooks on the parameters while armed, and on the first layer's output in each forward."""

    def __init__(self, survey: Survey, guard: Guard) -> None:
        self._survey = survey
        self._guard = guard
        self._handles: list[Handle] = []
        self._first_handles: list[Handle] = []
        self._seen: dict[int, list[Extremes]] = {}
        self._first: list[Extremes] = []

    def arm(self, blind: Iterable[int]) -> None:
        """Look at the parameters from now on, but for those of layers that no hook sees into."""
        if self._handles:
            return
        unseen = frozenset(blind)
        for position, parameter in enumerate(self._survey.parameters):
            layer = self._survey.layers[self._survey.parameter_layers[position]]
            sealed = layer.number in unseen or layer.parent in unseen
            if parameter.requires_grad and type(parameter) in PLAIN and not sealed:
                hook = Hook(self._guard, self._note, position)
                self._handles.append(hook_gradient(parameter, hook))

    def disarm(self) -> None:
        """Take the hooks off the parameters."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._seen.clear()

    def release(self) -> None:
        """Leave nothing of ours anywhere."""
        self.disarm()
        self._forget_first()

    def follow_first(self, outputs: Iterable[Tensor]) -> None:
        """The first layer has given these."""
        for tensor in outputs:
            if tensor.requires_grad and measurable(tensor):
                hook = Hook(self._guard, self._note_first)
                self._first_handles.append(hook_gradient(tensor, hook))

    def collect(self, pack: Pack) -> LocalCapture | None:
        """The step's values, put into its pack; None if nothing was seen."""
        seen, self._seen = self._seen, {}
        first, self._first = self._first, []
        self._forget_first()
        if not seen and not first:
            return None
        return LocalCapture(
            {position: _put(values, pack) for position, values in seen.items()}, _put(first, pack)
        )

    def _forget_first(self) -> None:
        """A tensor that the user keeps must not keep us."""
        for handle in self._first_handles:
            handle.remove()
        self._first_handles.clear()

    def _note(self, position: int, gradient: Tensor | None) -> None:
        if gradient is not None and measurable(gradient):
            self._seen.setdefault(position, []).append(extremes(gradient))

    def _note_first(self, gradient: Tensor | None) -> None:
        if gradient is not None and measurable(gradient):
            self._first.append(extremes(gradient))


def _put(values: Iterable[Extremes], pack: Pack) -> tuple[int, ...]:
    return tuple(pack.put_magnitude(low, high) for low, high in values)


# -- whether an overflow came from this rank's own backward, or with the gradients of the others ---


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
