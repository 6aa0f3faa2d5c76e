"""Which tensors given to `scale` belong to a step, and how closely backward passes are followed.

A loss counts if its backward accumulated into `.grad`: the inner loss of a gradient penalty does
not. Following a pass with hooks tells, but costs as much as all else the scalars need. In the plain
loop (gradients cleared to None, one `scale`, one backward) nothing has to be followed: a gradient
that is there is this backward's, and one never written to again is at version 0. So passes are
followed in the first steps, on sampled steps, and wherever a loop is not that plain.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ampwatch.probe.backward import BackwardWatch
from ampwatch.probe.records import Loss
from ampwatch.probe.steps import Steps

STEPS_TO_LEARN = 3
STEPS_AFTER_DOUBT = 20


class Losses:
    """The losses scaled since the last optimizer's turn."""

    def __init__(self, steps: Steps, backward: BackwardWatch) -> None:
        self.pending: list[Loss] = []
        self.followed = True  # in this step
        self._steps = steps
        self._backward = backward
        self._closely_for = STEPS_TO_LEARN  # so many more steps
        self._sentinels: Sequence[Tensor] = ()
        self._result: weakref.ref[Tensor] | None = None  # of the one loss nobody follows

    def take(self, outputs: Any, results: Any) -> None:
        """`scaler.scale(outputs)` gave these results."""
        if not isinstance(outputs, Tensor):
            if isinstance(outputs, (list, tuple)):
                for output, result in zip(outputs, results, strict=False):
                    self.take(output, result)
            return
        self._steps.forwards.used()
        pack = (self._steps.open_step or self._steps.current()).pack
        if outputs.is_cpu and outputs.ndim == 0:
            values = pack.values
            at = len(values)
            values.append(outputs.item())
        else:  # the user may go on to change it in place
            value = outputs.detach()
            at = pack.put(value.sum() if value.ndim else value.clone())
        loss = Loss(pack, at)
        if self.pending and not self.followed:
            self._follow_from_here()
        self.pending.append(loss)
        if not results.requires_grad:
            return
        if self.followed:
            self._backward.follow(results, loss)
        else:
            self._result = weakref.ref(results)

    def _follow_from_here(self) -> None:
        """A second loss in a step: the loop is not plain, at least here."""
        first = self.pending[0]
        result = None if self._result is None else self._result()
        if any(p.grad is not None for p in self._sentinels):
            first.counted = True
        elif result is not None:
            self._backward.follow(result, first)
        self.followed = True
        self.doubt()

    def doubt(self) -> None:
        """Something was not as in a plain loop: look closely for a while."""
        self._closely_for = max(self._closely_for, STEPS_AFTER_DOUBT)

    def follow_always(self) -> None:
        """This loop does what no version counter tells."""
        self._closely_for = sys.maxsize

    def hand_over(self, sentinels: Sequence[Tensor]) -> list[Loss]:
        """The pending losses, to the optimizer whose turn it is; some of its parameters."""
        pending, self.pending = self.pending, []
        self._sentinels = sentinels
        if not self.followed:
            for loss in pending:
                loss.counted = True
        elif not _is_plain(pending, sentinels):
            self.doubt()
        return pending

    def begin_step(self, *, sampled: bool) -> None:
        """The next step begins."""
        if self._closely_for:
            self._closely_for -= 1
        self.followed = sampled or self._closely_for > 0

    def release(self) -> None:
        """Let go of every parameter."""
        self.pending = []
        self._sentinels = ()


def _is_plain(pending: Sequence[Loss], sentinels: Sequence[Tensor]) -> bool:
    """One loss, one backward that used it, and gradients that nobody has written to again."""
    if len(pending) != 1 or not pending[0].counted:
        return False
    return not any(p.grad is not None and p.grad._version for p in sentinels)
