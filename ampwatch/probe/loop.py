"""The training loop as the probe sees it: which call belongs to which step, and when a step ends.

All of it runs on the training thread, so it only collects: values are put into the step's pack and
computed on elsewhere. A step ends at `scaler.update()`; without an enabled scaler, at
`optimizer.step()`; and where a call raises, so that the mistake has a row.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from ampwatch.errors import warn
from ampwatch.probe.backward_passes import BackwardWatch, Losses
from ampwatch.probe.checkpoints import SavedMoments
from ampwatch.probe.control import Control
from ampwatch.probe.current_step import BatchSize, CurrentStep, Forwards, Sampling
from ampwatch.probe.hooks import FailureShield
from ampwatch.probe.models import Survey
from ampwatch.probe.optimizer_turns import Turns
from ampwatch.probe.optimizers import OptimizerView
from ampwatch.probe.records import EventRecord, Stale, StepRecord, Turn
from ampwatch.probe.tensor_values import dtype_name, measurable
from ampwatch.rows import EventKind

# Of one step, however many micro-batches it accumulates; later ones are not looked at.
MOST_FORWARDS = 2048

Stepping = tuple[OptimizerView, Turn]

# torch's words where no step and no unscale_ has come before an update.
NO_CHECKS = "No inf checks were recorded prior to update"


class StepActor(Protocol):
    """Who acts on the steps, where the user allows it; `guarding.StepGuard`."""

    def step_over(self) -> None:
        """A step of the loop has ended."""

    def settled(self, record: StepRecord) -> None:
        """The values of this step have arrived."""

    def release(self) -> None:
        """The watch ends: act on no step any more."""


class Loop:
    """One watched loop; its methods are called by the scaler's subclass and by hooks."""

    def __init__(
        self,
        scaler: Any,
        survey: Survey,
        deliver: Callable[[StepRecord | EventRecord], None],
        sampling: Sampling,
        shield: FailureShield,
        start_step: int = 0,
    ) -> None:
        self.control: Control | None = None  # where a page may act
        self.actor: StepActor | None = None  # where a guard may
        self.forwards = Forwards(several_models=len(survey.roots) > 1)
        self.current = CurrentStep(scaler, sampling, self.forwards, deliver, start_step)
        self.current.loop = self
        self.sampling = sampling
        self._deliver = deliver
        self._backward = BackwardWatch(survey.parameters, self.current, shield)
        self.losses = Losses(self.current, self._backward)
        self.turns = Turns(self.current, survey, self._backward, self.losses, shield)
        self._batch_size = BatchSize()
        self._closed_at: float | None = None
        self._settling: deque[StepRecord] = deque()
        self._saves = SavedMoments(deliver)
        self._last_error: int | None = None  # its id: holding it would hold its frames

    def log(self, scalars: Mapping[str, Any], values: object = None) -> None:
        """Put what the user logs into the step: by keywords, and in a mapping, if it is one."""
        if values is not None:
            scalars = {**self.current.named(values), **scalars}
        # Another optimizer's step may need no forward pass: then no loss is late.
        self.current.log(scalars, may_be_late=len(self.turns.views) == 1)

    # -- forward and backward --------------------------------------------------------------------

    def forward_began(self, inputs: Sequence[Tensor], device_type: str) -> None:
        """A training forward of a root module starts with these tensors."""
        forwards = self.forwards
        if forwards.are_another_steps():
            self._leave_out()
        record = self.current.record or self.current.begin()
        forwards.count += 1
        forwards.unused += 1
        if forwards.count >= MOST_FORWARDS:
            if forwards.count == MOST_FORWARDS:
                self._stop_observing(record)
            return
        if inputs and inputs[0].ndim and type(size := inputs[0].size(0)) is int:
            record.samples += size
        for value in inputs:
            if measurable(value) and forwards.is_data(value):
                low, high = torch.aminmax(value.detach() if value.requires_grad else value)
                record.input_at = (*record.input_at, record.pack.put_magnitude(low, high))
        if torch.is_autocast_enabled(device_type):
            record.autocast_dtype = dtype_name(torch.get_autocast_dtype(device_type))

    def _stop_observing(self, record: StepRecord) -> None:
        """Record no more of this step: its memory would grow without bound."""
        self.sampling.stop_observing()
        if not (record.turns or self.losses.pending):
            warn(
                f"{MOST_FORWARDS} training forward passes, and no optimizer step was seen (one "
                "inside torch.compile is not): nothing is recorded until one is."
            )

    def forward_ended(self, layer: int, outputs: Sequence[Tensor]) -> None:
        """A training forward of this layer, a root module as a rule, gave these tensors.

        Without an enabled scaler the gradient of an output marks the backward's begin: of any, as
        TRL's policies return a loss first, which nobody uses.
        """
        if self.forwards.count < MOST_FORWARDS:
            self.forwards.gave(layer, outputs, self.current.record or self.current.begin())
        if self.current.enabled:
            return
        for value in outputs:
            if value.requires_grad:
                self._backward.follow(value, None)

    def backward_began(self) -> None:
        """A backward pass that is followed has begun: what was given has been of use."""
        if self.forwards.unused:
            self.forwards.used()
        self.turns.backward_began()

    def backward_ended(self) -> None:
        """A backward pass that is followed has accumulated gradients."""
        turns = self.turns
        if not self.current.enabled:
            turns.measure_early()
        elif turns.detailed and (self.sampling.sampled or turns.unseen_edits):
            turns.measure_left()

    # -- the scaler's calls ----------------------------------------------------------------------

    def before_update(self) -> None:
        """`scaler.update()` is about to change the scale."""
        record = self.current.record or self.current.begin()
        pack, scaler = record.pack, self.current.scaler()
        scale = None if scaler is None else scaler._scale
        if record.scale_at is None and scale is not None:
            at = record.scale_at = pack.put_scalars(scale, scaler._growth_tracker)
            record.tracker_at = at + 1
        if pack.pending is not None:
            pack.seal()

    def after_update(self, scaler: Any, new_scale: Any) -> None:
        """`scaler.update()` has returned: the step is over."""
        record = self.current.record or self.current.begin()
        scale, pack = scaler._scale, record.pack
        if scale is not None:
            record.scale_after_at = len(pack.values)
            if scale.is_cpu:
                pack.values.append(scale.item())
            else:
                pack.put(scale)
        if new_scale is not None:
            self.current.event(EventKind.SCALE_SET, {})
        turns = record.turns
        if len(turns) != 1 or len(self.turns.views) != 1 or not turns[0].done:
            self.turns.update_passes(record)
        self.close_step(update_seen=True)

    def failed(self, where: str, error: BaseException, optimizer: Any = None) -> None:
        """One of the scaler's calls has raised: what is known of the step becomes a row."""
        if self._last_error == id(error):
            return  # it has left unscale_ already and now leaves step
        self._last_error = id(error)
        stage = self.turns.abandon(optimizer)
        if isinstance(error, Exception):
            self._report_exception(where, error, stage)
        if self.current.record is not None:
            if self.current.enabled:
                self.before_update()
            self.close_step(update_seen=False)

    def _report_exception(self, where: str, error: Exception, stage: str | None) -> None:
        """Its event, with what the loop had done: torch's message alone fits several mistakes."""
        pending = bool(self.losses.pending)  # scaled since the last call for an optimizer
        if where == "update" and pending and NO_CHECKS in str(error):
            self.current.misuse("AMP403", {"raised": True})
        detail = {
            "where": where,
            "type": type(error).__name__,
            "message": str(error)[:500],
            "fatal": False,
            "second_step": stage == "STEPPED",
            "second_unscale": stage == "UNSCALED" and pending,
        }
        self.current.event(EventKind.EXCEPTION, detail)

    def state_saved(self, path: str | None = None) -> None:
        """`scaler.state_dict()` was called, probably for a checkpoint, or a path was reported."""
        detail: dict[str, Any] = (
            {"of": "scaler"} if path is None else {"of": "checkpoint", "path": path}
        )
        event = EventRecord(self.current.number, time.time_ns(), EventKind.STATE_SAVED, detail)
        self._saves.take(event, self.turns.optimizers())

    def state_loaded(self, state: Any) -> None:
        """`scaler.load_state_dict()` was called: an event for the diagnosis."""
        mapping = state if isinstance(state, Mapping) else {}
        numbers = {k: v for k, v in mapping.items() if isinstance(v, (int, float))}
        self.current.event(EventKind.STATE_LOADED, {"of": "scaler", **numbers})

    # -- the end of a step ------------------------------------------------------------------------

    def _leave_out(self) -> None:
        """A forward begins, and no step has followed those before it: were they not finite?

        On a device the answer arrives later; until then the step is doubtful: it may not count.
        """
        record = self.current.record
        if record is None or record.turns or self.losses.pending:
            return
        if not self.forwards.can_be_judged(record):
            return
        self.forwards.put(record)
        doubtful = record.pack.pending is not None
        if not doubtful and not record.was_left_out:
            record.forget_outputs()
            return
        self.forwards.unused = 0  # how long a step that was left out took says nothing
        if self.current.enabled:
            self.before_update()
        record.doubtful = doubtful
        self.close_step(update_seen=False)

    def close_without_update(self) -> None:
        """An optimizer steps again without an update: pending losses belong to the next step."""
        losses, self.losses.pending = self.losses.pending, []
        if self.current.enabled:
            self.before_update()
        without = self.current.begin().is_bypassed
        self.close_step(update_seen=None if without else False)
        self.losses.pending = losses

    def close_step(self, *, update_seen: bool | None) -> None:
        """The step in progress becomes a record; the next one begins with the next call."""
        current, losses, sampling = self.current, self.losses, self.sampling
        record = current.record or current.begin()
        if self.turns.stand_in is not None:
            self.turns.stand_in_ends()
        current.record = None
        if losses.pending:
            record.losses = losses.hand_over(())
        record.update_seen = update_seen
        record.enabled = current.enabled
        record.sampled = sampling.sampled
        if sampling.observes:
            self._close_forwards(record)
        if record.pack.pending is not None:
            record.pack.seal()
        record.time_ns = time.time_ns()
        now = time.perf_counter()
        if self._closed_at is not None:
            record.step_time_ms = (now - self._closed_at) * 1e3
        self._closed_at = now
        current.number += not record.doubtful
        if self._settling or record.pack.copies is not None or self._saves.waiting:
            self._settling.append(record)
            self.settle()
        else:
            self._hand_over(record)
        sampling.begin(current.number)
        if losses.followed or losses.closely_for or sampling.sampled:
            losses.begin_step(sampled=sampling.sampled)
        if self.control is not None:
            self.control.step_over()
        if self.actor is not None:
            self.actor.step_over()

    def stepping(self, optimizer: Any) -> Stepping | None:
        """This optimizer's turn, whose step is about to run; None if it is part of another's."""
        turns = self.turns
        if turns.stepping is optimizer:
            return turns.in_step
        if turns.begun is optimizer:
            view = turns.view(optimizer)
            return view, turns.turn(view)
        return None

    def _close_forwards(self, record: StepRecord) -> None:
        """Put what the step's forward passes have shown into its record."""
        change = self._batch_size.see(record.samples, record.step) if record.samples else None
        if change is not None:
            since, before = change
            detail = {"from": before, "to": record.samples}
            self.current.event(EventKind.BATCH_SIZE_CHANGED, detail, step=since)
        self.sampling.collect(record)
        self.forwards.step_over()

    def settle(self) -> None:
        """Hand over records and saves whose values have arrived, in their order; never waits."""
        settling = self._settling
        while settling and (settling[0].pack.copies is None or settling[0].pack.ready()):
            self._hand_over(settling.popleft())
        self._saves.settle()

    def _hand_over(self, record: StepRecord) -> None:
        """The values of this record have arrived: check them and give it to the courier."""
        left_out = record.unfollowed and record.was_left_out
        if record.doubtful:
            if not left_out:
                return
            self._renumber_later()
        turns = self.turns
        if left_out:
            self.sampling.arm_after(self.current.number, failed=True, seen=record.sampled)
        elif record.has_overflowed:
            seen = record.layers is not None
            failed = record.has_failed
            self.sampling.arm_after(self.current.number, failed=failed, seen=seen)
            turns.remember_used(record)
        for turn in record.turns:
            if record.sampled or turns.unseen_edits:
                turns.look_for_edits(turn, record)
            if turn.stale is not None:
                self._report_stale(turn, turn.stale, record)
        self._deliver(record)
        if self.actor is not None:
            self.actor.settled(record)

    def _renumber_later(self) -> None:
        """A doubtful step counts: the numbers of the steps after it go up by one."""
        for later in self._settling:
            later.step += 1
        if self.current.record is not None:
            self.current.record.step += 1
        self.current.number += 1

    def _report_stale(self, turn: Turn, stale: Stale, record: StepRecord) -> None:
        misuse = stale.misuse(record)
        if misuse is not None:
            code, detail = misuse
            self.current.misuse(code, {"optimizer": turn.optimizer, **detail}, step=record.step)

    def close(self) -> None:
        """Close the step that is open, and let go of every hook."""
        record = self.current.record
        if record is not None and self._is_a_row(record):
            if self.current.enabled:
                self.before_update()
            missing = record.unfollowed or (self.current.enabled and not record.is_bypassed)
            self.close_step(update_seen=False if missing else None)
        for record in self._settling:
            record.pack.wait()
        self.settle()
        self._saves.close()
        if self.actor is not None:
            self.actor.release()
            self.actor = None
        self.current.owner = None
        self.turns.release()
        self._backward.release()
        self.losses.release()

    def _is_a_row(self, record: StepRecord) -> bool:
        """Whether the step in progress at the end is a row; a guarded loop may stop in one."""
        self.forwards.put(record)
        record.pack.seal()
        record.pack.wait()
        if record.pack.ready() and not record.was_left_out:
            record.forget_outputs()
        return bool(
            record.unfollowed or record.turns or record.losses or record.logged_loss_at is not None
        )
