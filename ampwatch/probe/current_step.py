"""The step in progress: its record, its forward passes, whether it is sampled, what users log.

The parts of a watched loop (`loop`, `optimizer_turns`, `backward_passes`) share one `CurrentStep`,
the one owner of the record. A step is in one of these states:

    not begun   `record` is None              until any call of the loop
    forward     `forwards.unused` is not 0    until a loss is scaled, or a backward begins
    backward    `losses.pending` holds losses until an optimizer's turn takes them
    turn        a `Turn` in `record.turns`    from `unscale_` or `step` on, one for each optimizer
    stepping    `turns.stepping` or `.begun`  until that optimizer's step returns
    done        `turn.done`                   until `update`; without a scaler the step is over
    closed      `Loop.close_step`             the record is handed over once its values are there

A loop that guards itself against a nan loss stops, or leaves the step out, and calls nothing of
ours again. So what left the model (of large outputs a copy of some values) is kept until the loss
is scaled or its backward begins. Where the next forward pass or the loop's end comes first, it
shows whether the forward was finite.
"""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from ampwatch.errors import warn
from ampwatch.printable_text import with_article
from ampwatch.probe.layer_observer import LayerObserver
from ampwatch.probe.records import EventRecord, StepRecord
from ampwatch.probe.tensor_values import Pack, extremes, measurable, put_scalar, strided
from ampwatch.rows import EventKind

SAMPLE_LIMIT = 8192  # values of an output: a nan spreads over all that depends on it

# Of one step, until a first loss has told how many forward passes a step takes: a network of two
# towers or a generator and its critic take some before the loss.
FORWARDS_UNTIL_KNOWN = 3
_MOST_SAMPLES = 16

# Which steps are sampled: the first, each n-th, and those after a skip. After a forward pass that
# failed in a step that was not sampled, sampling goes on longer each time.
FIRST_STEPS = 10
STEPS_AFTER_SKIP = 20
MOST_STEPS_AFTER = 160

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
        """The next step begins: no forward pass of it has run."""
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

    def put(self, record: StepRecord) -> None:
        """Write down what the model gave since a loss was last used; no step follows it."""
        record.unfollowed = True
        for layer, sample in self._samples:
            seen = sample.masked_fill(sample == -math.inf, 0.0)  # put there by intention: a mask
            record.outputs_at.append((layer, record.pack.put_magnitude(*extremes(seen))))
        self._samples.clear()


class BatchSize:
    """The usual number of samples that a step's forward passes take."""

    __slots__ = ("_candidate", "_first_step", "_repeats", "_usual")

    def __init__(self) -> None:
        self._usual = 0  # not known yet
        self._candidate = 0
        self._first_step = 0  # that had the candidate
        self._repeats = 0  # steps in a row that had it; 0 while all is as usual

    def see(self, samples: int, step: int) -> tuple[int, int] | None:
        """A step took so many; if that changes the usual number: since which step, from what."""
        if samples == self._usual:
            self._repeats = 0
            return None
        if samples != self._candidate or not self._repeats:
            self._candidate, self._first_step, self._repeats = samples, step, 0
        self._repeats += 1
        if self._repeats < STEPS_TO_BELIEVE:
            return None
        before, self._usual, self._repeats = self._usual, samples, 0
        return (self._first_step, before) if before else None


_weakly: Callable[[Any], Any] = StorageWeakRef


def _part(value: Tensor) -> Tensor:
    """An output's values, or some; a copy where to keep them would be to keep a larger tensor."""
    scalar = value.detach()
    if scalar.numel() > SAMPLE_LIMIT:
        return strided(scalar, SAMPLE_LIMIT).clone()
    return scalar if value._base is None else scalar.clone()


# -- the step --------------------------------------------------------------------------------------


class LoopOwner(Protocol):
    """Whose loop this is; `watch.Watch`."""

    def adopt(self, scaler: Any) -> None:
        """The loop goes on with this scaler too."""

    def end_if_over(self) -> None:
        """An optimizer is gone: the watch ends if nobody is left."""


class LoopOfStep(Protocol):
    """What the parts of a step ask of the loop that it belongs to; `loop.Loop`."""

    def close_step(self, *, update_seen: bool | None) -> None:
        """The step in progress is over."""

    def close_without_update(self) -> None:
        """An optimizer steps again: the step before had no update."""

    def backward_began(self) -> None:
        """A backward pass that is followed has begun."""

    def backward_ended(self) -> None:
        """It has ended, and has accumulated gradients."""


class CurrentStep:
    """The step in progress, and what is known of the scaler."""

    def __init__(
        self,
        scaler: Any,
        sampling: Sampling,
        forwards: Forwards,
        deliver: Callable[[StepRecord | EventRecord], None],
        number: int,
    ) -> None:
        self.number = number
        self.record: StepRecord | None = None  # `record or begin()` saves a call where there is one
        self.sampling = sampling
        self.forwards = forwards
        self.enabled = scaler is not None and bool(scaler.is_enabled())
        self.used = not self.enabled  # whether an enabled scaler has been called yet
        self.scaler: Callable[[], Any] = _no_scaler
        self._is_idle = False
        self.loop: LoopOfStep
        # Who owns us must live as long as the scaler or the optimizer that calls us.
        self.owner: LoopOwner | None = None
        self._deliver = deliver
        self._reported: set[str] = set()  # codes of mistakes
        self._warned: set[tuple[str, str]] = set()  # of which mistake in what the user logs, where
        if scaler is not None:
            self.set_scaler(scaler)

    def begin(self) -> StepRecord:
        """The record of the step in progress; a new one if there is none."""
        if self.record is None:
            self.record = StepRecord(self.number, Pack())
        return self.record

    def event(self, kind: EventKind, detail: Mapping[str, Any], *, step: int | None = None) -> None:
        """Report something that happened once, in this step or in the one in progress."""
        at = self.number if step is None else step
        self._deliver(EventRecord(at, time.time_ns(), kind, dict(detail)))

    def misuse(self, code: str, detail: Mapping[str, Any], *, step: int | None = None) -> None:
        """Report a mistake of the loop, the first time it is seen."""
        if code not in self._reported:
            self._reported.add(code)
            self.event(EventKind.MISUSE, {"code": code, **detail}, step=step)

    def named(self, values: object) -> dict[str, Any]:
        """What the user logs in a mapping; each mistake is warned of once."""
        if not isinstance(values, Mapping):
            self._warn(
                ("mapping", ""),
                f"log() was given {with_article(type(values).__name__)} and does not record it: "
                'pass a mapping, log({"val/acc": 0.9}), or keywords, log(acc=0.9).',
            )
            return {}
        for name in values:
            if not isinstance(name, str):
                kind = with_article(type(name).__name__)
                self._warn(("name", ""), f"log() was given {kind} as a name: it is not recorded.")
        return {name: value for name, value in values.items() if isinstance(name, str)}

    def log(self, values: Mapping[str, Any], *, may_be_late: bool) -> None:
        """Put what the user logs into the step; each mistake is warned of once.

        A loss that comes between a step's end and the next forward pass is the ended step's.
        """
        forwards = self.forwards
        is_late = may_be_late and forwards.seen_before and not forwards.count
        if is_late and "loss" in values:
            self._warn(
                ("late", ""),
                "log(loss=...) came after its step had ended, and counts for the next one: call it "
                "before optimizer.step(), or with a scaler before scaler.update().",
            )
        record = self.begin()
        for name, value in values.items():
            at = put_scalar(record.pack, value)
            if at is None:
                kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
                given = f"{name}=..." if name.isidentifier() else f"{{{name!r}: ...}}"
                sentence = f"log({given}) is no number ({kind}) and is not recorded."
                self._warn(("number", name), sentence)
            elif name == "loss":
                record.logged_loss_at, record.logged_loss_is_late = at, is_late
            else:
                record.scalars = (*record.scalars, (name, at))

    def _warn(self, mistake: tuple[str, str], sentence: str) -> None:
        if mistake not in self._warned:
            self._warned.add(mistake)
            warn(sentence)

    def set_scaler(self, scaler: Any) -> None:
        """The loop goes on with this scaler: the current step is its."""
        # Weak: an optimizer's hook holds us, and may not hold the scaler.
        self.scaler = weakref.ref(scaler)

    def adopt(self, scaler: Any) -> None:
        """The loop goes on with a scaler that nobody has attached."""
        self.scaler_is_used()
        self.set_scaler(scaler)
        if self.owner is not None:
            self.owner.adopt(scaler)
        detail = {
            "class": type(scaler).__name__,
            # With the scale of the step in progress these tell how often it has skipped, unseen.
            "init_scale": getattr(scaler, "_init_scale", None),
            "backoff_factor": getattr(scaler, "_backoff_factor", None),
        }
        self.event(EventKind.SCALER_REPLACED, detail)

    def optimizer_gone(self, _reference: Any) -> None:
        """The user has let an optimizer go."""
        if self.owner is not None:
            self.owner.end_if_over()

    def scaler_is_used(self) -> None:
        """The scaler is called for the first time."""
        self.used = True
        if self._is_idle:
            self._is_idle, self.enabled = False, True

    def ignore_unused_scaler(self) -> None:
        """An optimizer steps before the scaler was called: go on as if there were no scaler."""
        self._is_idle, self.enabled = True, False
        warn(
            "the scaler has scaled nothing when the optimizer stepped: this is watched as a "
            "training without one, until it is used."
        )


def _no_scaler() -> None:
    """The scaler of a loop that has none."""


# -- which steps are sampled -----------------------------------------------------------------------


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
        """Choose whether the next step, which has this number, is sampled."""
        self.sampled = step < self._until or step % self._layer_every == 0
        if self._observer is None:
            return
        if self.sampled:
            # What casts would do changes slowly: it is computed at each n-th step only.
            self._observer.arm(what_if=step % self._layer_every == 0)
        elif self._observer.armed:
            self._observer.disarm()

    def stop_observing(self) -> None:
        """Stop sampling the current step, which does not end, and forget what was noted of it."""
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
        if observer.local is not None:
            record.local = observer.local.collect(record.pack)
        first = observer.collect_first(record.pack)
        if first and observer.first_layer is not None:
            record.first_layer_at = first
            record.first_layer = observer.first_layer.number
