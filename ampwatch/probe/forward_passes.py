"""The forward passes of a step: those that no step follows, and how many samples they take.

A loop that guards itself against a nan loss stops, or leaves the step out, and calls nothing of
ours again. So what left the model (of large outputs a copy of some values) is kept until the loss
is scaled or its backward begins. Where the next forward pass or the loop's end comes first, it
shows whether the forward was finite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from ampwatch.probe.records import StepRecord
from ampwatch.probe.tensors import extremes, measurable, strided

SAMPLE_LIMIT = 8192  # values of an output: a nan spreads over all that depends on it

# Of one step, until a first loss has told how many forward passes a step takes: a network of two
# towers or a generator and its critic take some before the loss.
FORWARDS_UNTIL_KNOWN = 3
_MOST_SAMPLES = 16

# The last batch of an epoch is smaller, and some loops vary their batches all the time: so many
# steps in a row make a size the usual one.
STEPS_TO_BELIEVE = 10


class Forwards:
    """The training forwards since a loss was last used."""

    __slots__ = ("_given", "_samples", "_several", "_usual", "count", "seen_before", "unused")

    def __init__(self, *, several_models: bool) -> None:
        self.count = 0  # in the step in progress
        self.seen_before = False  # whether the step before had any
        self.unused = 0  # since a loss was used
        self._usual = 0  # the most that came before a loss was used
        self._samples: list[tuple[int, Tensor]] = []  # of what layers gave since then
        self._several = several_models
        # What a model gave in this step, by its memory, which others may hold once it is gone.
        self._given: dict[int, Any] = {}  # weak references; torch's class has no types

    def are_another_steps(self) -> bool:
        """Whether a forward that begins now is another step's, though no loss has been used."""
        return self.unused >= (self._usual or FORWARDS_UNTIL_KNOWN)

    def gave(self, layer: int, outputs: Iterable[Tensor], record: StepRecord) -> None:
        """A layer, the outermost as a rule, gave these."""
        for value in outputs:
            if not measurable(value):
                continue
            part = _part(value)
            if len(self._samples) < _MOST_SAMPLES:
                self._samples.append((layer, part))
            if self._several:
                memory = value.untyped_storage()
                self._given[memory.data_ptr()] = _weakly(memory)
                at = record.pack.put_magnitude(*extremes(part))
                record.given_at = (*record.given_at, (at, len(record.input_at)))

    def is_data(self, value: Tensor) -> bool:
        """Whether a tensor that enters a model comes from outside, and not from the training."""
        if value.grad_fn is not None:
            return False
        if not self._given:
            return True
        given = self._given.get(value.untyped_storage().data_ptr())
        return given is None or given.expired()

    def used(self) -> None:
        """A loss is scaled, or its backward begins: what the model gave has been of use."""
        if self.unused:
            self._usual = max(self._usual, self.unused)
            self.unused = 0
            self._samples.clear()

    def step_over(self) -> None:
        """The next step begins."""
        if self.unused:
            self.used()
        self.seen_before = self.count > 0
        self.count = 0
        if self._given:
            self._given.clear()

    def can_be_judged(self, record: StepRecord) -> bool:
        """Whether to ask now: a device answers late, so a step's usual forwards must be known."""
        if all(part.is_cpu for _, part in self._samples):
            return True
        return bool(self._usual) and not record.scalars

    def begin_anew(self) -> None:
        """The step is closed as one that was left out: how long it was says nothing."""
        self.unused = 0

    def put(self, record: StepRecord) -> None:
        """Write down what the model gave since a loss was last used; no step follows it."""
        record.unfollowed = True
        for layer, sample in self._samples:
            seen = sample.masked_fill(sample == -math.inf, 0.0)  # put there by intention: a mask
            record.outputs_at.append((layer, record.pack.put_magnitude(*extremes(seen))))
        self._samples.clear()


class BatchSize:
    """The usual number of samples that a step's forward passes take."""

    __slots__ = ("_candidate", "_first_step", "_repeats", "usual")

    def __init__(self) -> None:
        self.usual = 0  # not known yet
        self._candidate = 0
        self._first_step = 0  # that had the candidate
        self._repeats = 0  # steps in a row that had it; 0 while all is as usual

    def is_usual(self, samples: int) -> bool:
        """Whether a step of so many samples is no change of the batch size."""
        return samples == self.usual and not self._repeats

    def see(self, samples: int, step: int) -> tuple[int, int] | None:
        """A step took so many; if that changes the usual number: since which step, from what."""
        if samples == self.usual:
            self._repeats = 0
            return None
        if samples != self._candidate or not self._repeats:
            self._candidate, self._first_step, self._repeats = samples, step, 0
        self._repeats += 1
        if self._repeats < STEPS_TO_BELIEVE:
            return None
        before, self.usual, self._repeats = self.usual, samples, 0
        return (self._first_step, before) if before else None


_weakly: Callable[[Any], Any] = StorageWeakRef


def _part(value: Tensor) -> Tensor:
    """Its values, or some; a copy where to keep them would be to keep a larger tensor."""
    known = value.detach()
    if known.numel() > SAMPLE_LIMIT:
        return strided(known, SAMPLE_LIMIT).clone()
    return known if value._base is None else known.clone()


def first_bad_output(record: StepRecord) -> int | None:
    """The layer that gave what is not finite in a forward that no step followed."""
    values = record.pack.values
    return next((layer for layer, at in record.outputs_at if not math.isfinite(values[at])), None)


def was_left_out(record: StepRecord) -> bool:
    """Whether the loop left out a step, or stopped at it, that was not finite."""
    if not record.unfollowed:
        return False
    logged = record.logged_loss_at
    bad_loss = logged is not None and not math.isfinite(record.pack.values[logged])
    return bad_loss or first_bad_output(record) is not None


def data_magnitudes(record: StepRecord) -> list[float]:
    """The largest magnitudes of what entered a model from outside.

    What enters after a watched model has given something that is not finite may be made of that.
    """
    values = record.pack.values
    poisoned = (before for at, before in record.given_at if not math.isfinite(values[at]))
    until = next(poisoned, None)
    return [values[at] for at in record.input_at[:until]]
