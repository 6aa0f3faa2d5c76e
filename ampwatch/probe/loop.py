"""The training loop as the probe sees it: which call belongs to which step, and when a step ends.

All of it runs on the training thread, so all of it is capture: values are put into the step's pack
and computed on elsewhere. A step ends at `scaler.update()`; without an enabled scaler, at
`optimizer.step()`; and where a loop goes wrong, so that the mistake has a row to stand on.
"""

from __future__ import annotations

import math
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ampwatch.probe.backward import BackwardWatch
from ampwatch.probe.batch_size import BatchSize
from ampwatch.probe.forwards import Forwards, was_left_out
from ampwatch.probe.guard import Guard, warn
from ampwatch.probe.losses import Losses
from ampwatch.probe.models import Survey
from ampwatch.probe.own_steps import OwnSteps
from ampwatch.probe.readback import Pack, put_scalar
from ampwatch.probe.records import EventRecord, StepRecord, Turn
from ampwatch.probe.sampling import Sampling
from ampwatch.probe.stale import Stale
from ampwatch.probe.tensors import dtype_name, extremes, measurable
from ampwatch.probe.turns import Turns
from ampwatch.rows import EventKind

# Of one step, however many micro-batches it accumulates; later ones are not looked at.
MOST_FORWARDS = 2048

# torch's words where no step and no unscale_ has come before an update.
NO_CHECKS = "No inf checks were recorded prior to update"


class Loop:
    """One watched loop; its methods are called by the scaler's subclass and by hooks."""

    def __init__(
        self,
        scaler: Any,
        survey: Survey,
        deliver: Callable[[StepRecord | EventRecord], None],
        sampling: Sampling,
        guard: Guard,
        start_step: int = 0,
    ) -> None:
        self.step = start_step
        self.sampling = sampling
        self.enabled = scaler is not None and bool(scaler.is_enabled())
        self.forwards = Forwards(several_models=len(survey.roots) > 1)
        self.used = not self.enabled  # whether an enabled scaler has been called yet
        self._idle = False
        self._to_scaler: Callable[[], Any] = _no_scaler
        self.scaler = scaler
        self._deliver = deliver
        self._backward = BackwardWatch(
            survey.parameters, self._backward_began, self._backward_ended, self.misuse, guard
        )
        self.open_step: StepRecord | None = None
        self.losses = Losses(self, self._backward)
        self.turns = Turns(self, survey, self._backward, self.losses)
        self._own_steps = OwnSteps(self, self.turns, guard)
        self.owner: Any = None  # the watch: alive as long as the scaler or optimizer that calls us
        self._batch_size = BatchSize()
        self._closed_at: float | None = None
        self._sees_forwards = False  # in the last step
        self._settling: deque[StepRecord] = deque()
        self._said: set[Any] = set()
        self._last_error: int | None = None  # its id: holding it would hold its frames

    @property
    def scaler(self) -> Any:
        """The one in use, while it lives; a loop may have made another."""
        return self._to_scaler()

    @scaler.setter
    def scaler(self, scaler: Any) -> None:
        # Weak: an optimizer's hook holds us, and may not hold the scaler.
        self._to_scaler = _no_scaler if scaler is None else weakref.ref(scaler)

    # -- what is in progress ---------------------------------------------------------------------

    def current(self) -> StepRecord:
        """The step in progress; begins one if there is none."""
        if self.open_step is None:
            self.open_step = StepRecord(self.step, Pack())
        return self.open_step

    def event(self, kind: EventKind, detail: Mapping[str, Any], *, step: int | None = None) -> None:
        """Hand over something that happened once: in this step, or in the one in progress."""
        at = self.step if step is None else step
        self._deliver(EventRecord(at, time.time_ns(), kind, dict(detail)))

    def misuse(self, code: str, detail: Mapping[str, Any], *, step: int | None = None) -> None:
        """A mistake is an event the first time."""
        if code not in self._said:
            self._said.add(code)
            self.event(EventKind.MISUSE, {"code": code, **detail}, step=step)

    # -- forward and backward --------------------------------------------------------------------

    def forward_began(self, inputs: Sequence[Tensor], device_type: str) -> None:
        """A training forward of a root module starts with these tensors."""
        forwards = self.forwards
        if forwards.have_come_round():
            self._leave_out()
        record = self.open_step or self.current()
        forwards.begins()
        if forwards.count >= MOST_FORWARDS:
            if forwards.count == MOST_FORWARDS:
                self._look_away(record)
            return
        if inputs and inputs[0].ndim and type(size := inputs[0].size(0)) is int:
            record.samples += size
        for value in inputs:
            if measurable(value) and forwards.is_data(value):
                at = record.pack.put_magnitude(*extremes(value))
                record.input_at = (*record.input_at, at)
        if torch.is_autocast_enabled(device_type):
            record.autocast_dtype = dtype_name(torch.get_autocast_dtype(device_type))

    def _look_away(self, record: StepRecord) -> None:
        """More of this step would cost memory without end."""
        self.sampling.look_away()
        if not (record.turns or self.losses.pending):
            warn(
                f"{MOST_FORWARDS} training forward passes, and no optimizer step was seen (one "
                "inside torch.compile is not): nothing is recorded until one is."
            )

    def forward_ended(self, layer: int, outputs: Sequence[Tensor]) -> None:
        """A training forward of this layer, a root module as a rule, gave these tensors.

        Without an enabled scaler the output's gradient marks the backward's begin.
        """
        if self.forwards.count < MOST_FORWARDS:
            self.forwards.gave(layer, outputs, self.open_step or self.current())
        if self.enabled:
            return
        for value in outputs:
            if value.requires_grad:
                self._backward.follow(value, None)
                return

    def leave_idle(self) -> None:
        """An optimizer steps, and the scaler has done nothing so far: as if there were none."""
        self._idle, self.enabled = True, False
        warn(
            "the scaler has scaled nothing when the optimizer stepped: this is watched as a "
            "training without one, until it is used."
        )

    def take_up(self) -> None:
        """The scaler is called for the first time."""
        self.used = True
        if self._idle:
            self._idle, self.enabled = False, True

    def adopt(self, scaler: Any) -> None:
        """The loop goes on with a scaler that nobody has attached."""
        self.take_up()
        self.scaler = scaler
        self.owner.adopt(scaler)
        detail = {
            "class": type(scaler).__name__,
            # With the scale of the step in progress these tell how often it has skipped, unseen.
            "init_scale": getattr(scaler, "_init_scale", None),
            "backoff_factor": getattr(scaler, "_backoff_factor", None),
        }
        self.event(EventKind.SCALER_REPLACED, detail)

    def _backward_began(self) -> None:
        self.forwards.used()
        self.turns.backward_began()

    def _backward_ended(self) -> None:
        if not self.enabled:
            self._own_steps.backward_ended()
        elif self.turns.detailed and (self.sampling.sampled or self.turns.unseen_edits):
            self.turns.backward_ended()

    # -- the scaler's calls ----------------------------------------------------------------------

    def before_update(self) -> None:
        """`scaler.update()` is about to change the scale."""
        record = self.open_step or self.current()
        pack, scaler = record.pack, self.scaler
        scale = None if scaler is None else scaler._scale
        if record.scale_at is None and scale is not None:
            at = record.scale_at = pack.put_scalars(scale, scaler._growth_tracker)
            record.tracker_at = at + 1
        if pack.pending is not None:
            pack.seal()

    def after_update(self, new_scale: Any) -> None:
        """`scaler.update()` has returned: the step is over."""
        record = self.open_step or self.current()
        if self.turns.stand_in is not None:
            self.turns.stand_in_ends()
        scale = self.scaler._scale
        if scale is not None:
            record.scale_after_at = record.pack.put(scale)
        if new_scale is not None:
            self.event(EventKind.SCALE_SET, {})
        turns = record.turns
        if len(turns) != 1 or len(self.turns.views) != 1 or not turns[0].done:
            self.turns.update_passes(record)
        self.close_step(update_seen=True)

    def failed(self, where: str, error: BaseException, optimizer: Any = None) -> None:
        """An exception leaves one of the scaler's calls: what there is of the step is a row."""
        if self._last_error == id(error):
            return  # it has left unscale_ already and now leaves step
        self._last_error = id(error)
        stage = self.turns.abandon(optimizer)
        if isinstance(error, Exception):
            self._say_exception(where, error, stage)
        if self.open_step is not None:
            if self.enabled:
                self.before_update()
            self.close_step(update_seen=False)

    def _say_exception(self, where: str, error: Exception, stage: str | None) -> None:
        """Its event, with what the loop had done: torch's words alone fit several mistakes."""
        pending = bool(self.losses.pending)  # scaled since the last call for an optimizer
        if where == "update" and pending and NO_CHECKS in str(error):
            self.misuse("AMP403", {"raised": True})
        detail = {
            "where": where,
            "type": type(error).__name__,
            "message": str(error)[:500],
            "fatal": False,
            "second_step": stage == "STEPPED",
            "second_unscale": stage == "UNSCALED" and pending,
        }
        self.event(EventKind.EXCEPTION, detail)

    def state_saved(self) -> None:
        """`scaler.state_dict()` was called: very likely a checkpoint."""
        self.event(EventKind.STATE_SAVED, {"of": "scaler"})

    def state_loaded(self, state: Any) -> None:
        """`scaler.load_state_dict()` was called."""
        shown = state if isinstance(state, Mapping) else {}
        numbers = {k: v for k, v in shown.items() if isinstance(v, (int, float))}
        self.event(EventKind.STATE_LOADED, {"of": "scaler", **numbers})

    # -- the user's own scalars ------------------------------------------------------------------

    def log(self, scalars: Mapping[str, Any]) -> None:
        """Put the user's scalars into the step in progress."""
        if "loss" in scalars and self._sees_forwards and not self.forwards.count:
            self._say_late_loss()
        record = self.current()
        for name, value in scalars.items():
            at = put_scalar(record.pack, value)
            if at is None:
                self._say_no_number(name, value)
            elif name == "loss":
                record.logged_loss_at = at
            else:
                record.scalars = (*record.scalars, (name, at))

    def _say_late_loss(self) -> None:
        """A loss came between a step's end and the next forward pass: it is the ended step's."""
        one = len(self.turns.views) == 1  # another optimizer's step may need no forward pass
        if one and "late" not in self._said:
            self._said.add("late")
            warn(
                "log(loss=...) came after its step had ended, and counts for the next one: call it "
                "before optimizer.step(), or with a scaler before scaler.update()."
            )

    def _say_no_number(self, name: str, value: Any) -> None:
        if (name, "log") not in self._said:
            self._said.add((name, "log"))
            kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
            warn(f"log({name}=...) is no number ({kind}) and is not recorded.")

    # -- the end of a step ------------------------------------------------------------------------

    def _leave_out(self) -> None:
        """A forward begins, and none before it has led to a step: was it not finite?

        On a device that shows a little later: until then the step is one that may not count.
        """
        record = self.open_step
        if record is None or record.turns or self.losses.pending:
            return
        if not self.forwards.can_be_judged(record):
            return
        self.forwards.put(record)
        doubtful = record.pack.pending is not None
        if not doubtful and not was_left_out(record):
            record.forget_outputs()
            return
        self.forwards.begin_anew()
        if self.enabled:
            self.before_update()
        self.close_step(update_seen=False, doubtful=doubtful)

    def come_round(self) -> None:
        """The loop begins anew without an update: losses since the last turn are the next's."""
        losses, self.losses.pending = self.losses.pending, []
        if self.enabled:
            self.before_update()
        self.close_step(update_seen=None if _asks_for_no_update(self.current()) else False)
        self.losses.pending = losses

    def close_step(self, *, update_seen: bool | None, doubtful: bool = False) -> None:
        """The step in progress becomes a record; the next one begins with the next call."""
        record = self.open_step or self.current()
        if self.turns.stand_in is not None:
            self.turns.stand_in_ends()
        self.open_step = None
        record.doubtful = doubtful
        losses, sampling, batch = self.losses, self.sampling, self._batch_size
        if losses.pending:
            record.losses = losses.hand_over(())
        if record.samples and (record.samples != batch.usual or batch.held):
            self._say_batch_size(record)
        record.enabled = self.enabled
        record.update_seen = update_seen
        record.sampled = sampling.sampled
        if sampling.observes:
            sampling.collect(record)
        if record.pack.pending is not None:
            record.pack.seal()
        record.time_ns = time.time_ns()
        now = time.perf_counter()
        if self._closed_at is not None:
            record.step_time_ms = (now - self._closed_at) * 1e3
        self._closed_at = now
        self.step += not doubtful
        self._sees_forwards = self.forwards.count > 0
        self.forwards.step_over()
        self._settling.append(record)
        self.settle()
        sampling.begin(self.step)
        losses.begin_step(sampled=sampling.sampled)

    def _say_batch_size(self, record: StepRecord) -> None:
        change = self._batch_size.see(record.samples, record.step)
        if change is not None:
            since, before = change
            detail = {"from": before, "to": record.samples}
            self.event(EventKind.BATCH_SIZE_CHANGED, detail, step=since)

    def settle(self) -> None:
        """Hand over the records whose values have arrived, in their order; never waits."""
        settling = self._settling
        while settling and (settling[0].pack.copies is None or settling[0].pack.ready()):
            record = settling.popleft()
            left_out = record.unfollowed and was_left_out(record)
            if record.doubtful and not self._takes_a_number(left_out=left_out):
                continue
            if left_out:
                self.sampling.arm_after(self.step, failed=True, seen=record.sampled)
            elif overflowed(record):
                seen = record.layers is not None
                self.sampling.arm_after(self.step, failed=_has_failed(record), seen=seen)
                self.turns.remember_used(record)
            for turn in record.turns:
                if record.sampled or self.turns.unseen_edits:
                    self.turns.look_for_edits(turn, record)
                if turn.stale is not None:
                    self._say_stale(turn, turn.stale, record)
            self._deliver(record)

    def _takes_a_number(self, *, left_out: bool) -> bool:
        """A step that may not count has settled; if it does, those behind it move on by one."""
        if left_out:
            for later in self._settling:
                later.step += 1
            if self.open_step is not None:
                self.open_step.step += 1
            self.step += 1
        return left_out

    def _say_stale(self, turn: Turn, stale: Stale, record: StepRecord) -> None:
        said = stale.misuse(record)
        if said is not None:
            code, detail = said
            self.misuse(code, {"optimizer": turn.optimizer, **detail}, step=record.step)

    def close(self) -> None:
        """Close what is open and let go of every hook."""
        record = self.open_step
        if record is not None and self._is_a_row(record):
            if self.enabled:
                self.before_update()
            missing = record.unfollowed or (self.enabled and not _asks_for_no_update(record))
            self.close_step(update_seen=False if missing else None)
        for record in self._settling:
            record.pack.wait()
        self.settle()
        self.turns.release()
        self._own_steps.release()
        self._backward.release()
        self.losses.release()
        self.owner = None

    def _is_a_row(self, record: StepRecord) -> bool:
        """Whether the step in progress at the end is one: a guarded loop may have stopped here."""
        self.forwards.put(record)
        record.pack.seal()
        record.pack.wait()
        if record.pack.ready() and not was_left_out(record):
            record.forget_outputs()
        return record.unfollowed or record.has_content()


def _asks_for_no_update(record: StepRecord) -> bool:
    """Whether its optimizers stepped past the scaler: whatever came before has had its update."""
    return bool(record.turns) and all(turn.bypassed for turn in record.turns)


def _no_scaler() -> None:
    """There is none."""


def _has_failed(record: StepRecord) -> bool:
    """Whether a step's loss was not finite."""
    losses = (loss for turn in record.turns for loss in turn.losses if loss.counted)
    return not all(math.isfinite(loss.pack.values[loss.at]) for loss in losses)


def overflowed(record: StepRecord) -> bool:
    """Whether any optimizer of this step found an inf."""
    values = record.pack.values
    for turn in record.turns:
        for at in turn.found_inf_at:
            if values[at]:
                return True
    return False
