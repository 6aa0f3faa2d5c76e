"""`Watch`: what `attach` returns. It lives as long as the training is watched."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import partial
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from ampwatch.environment import keeps, quiet
from ampwatch.errors import AmpwatchError, say_to_stderr, warn
from ampwatch.printable_text import printable
from ampwatch.probe import fatal_exceptions, hooks, run_identity, watched_scaler
from ampwatch.probe.backward_passes import hear_no_more, hear_of_losses
from ampwatch.probe.control import Control
from ampwatch.probe.courier import Courier, Log, MemoryLog
from ampwatch.probe.current_step import Sampling
from ampwatch.probe.devices import DeviceSampler
from ampwatch.probe.formats.library_formats import conversions_asked_for
from ampwatch.probe.hooks import FailureShield
from ampwatch.probe.hydra_config import hydra_config
from ampwatch.probe.layer_observer import LayerObserver
from ampwatch.probe.loop import Loop
from ampwatch.probe.models import Survey
from ampwatch.probe.records import EventRecord
from ampwatch.probe.row_maker import RowMaker
from ampwatch.rows import EventKind
from ampwatch.store import RankWriter, RunInfo, create_run, how_to_see, read_info, register_run
from ampwatch.store.console_and_diff import copy_console, keep_diff
from ampwatch.store.layout import rank_folder

if TYPE_CHECKING:
    from ampwatch.feed import Sender
    from ampwatch.report.restart_place import Checkpoint

_LONGEST_PATH = 1000
_CONSOLE_EVERY_S = 10.0
_SCALER_SETTINGS = ("growth_factor", "backoff_factor", "growth_interval")

_LIVE: weakref.WeakSet[Watch] = weakref.WeakSet()
_LOSSES = FailureShield()  # of what hears of the losses of all trainings in this process
_attached = 0
_copy_at_exit: Callable[..., object] | None = None
_told_in: int | None = None  # the process that has said where its run is


@dataclass(frozen=True, slots=True)
class Settings:
    """What the user asked for beside scaler and model."""

    run: str | None
    log_dir: str | Path | None
    endpoint: str | None
    layer_every: int
    config: Mapping[str, Any]
    start_step: int
    resume: bool
    control: bool


class Watch:
    """One watched training loop; ends with `close`, with a `with` block, or with the interpreter.

    Scaler, optimizers and model each keep it alive, and it keeps none of them alive. It also ends,
    without waiting, when the training cannot go on: when the models are garbage, or the scalers
    and every optimizer that it has seen.
    """

    def __init__(
        self, scaler: Any, survey: Survey, optimizers: Sequence[Any], settings: Settings
    ) -> None:
        hooks.remove_what_was_left()
        self.errors = FailureShield()  # counts our own failures
        composed = self.errors.run(hydra_config) or {}
        settings = replace(settings, config={**composed, **settings.config})
        own_info, self.rank = _run_info(scaler, settings)
        log, info, self.run_folder = _open_log(own_info, self.rank, settings)
        meeting = f"{own_info.id}/{_attached}"
        self.ranks = run_identity.Ranks(self.rank, own_info.world_size, meeting)
        control = Control(self.ranks) if settings.control else None
        self._row_maker: RowMaker | None = RowMaker(survey)
        self._devices = DeviceSampler(p.device for p in survey.parameters)
        self._courier = Courier(
            weakref.ref(self._row_maker),
            log,
            partial(_open_sender, info, self.rank, log, settings, control),
            self._devices.sample,
            control,
            FailureShield(),  # its own: the courier works on when the watch has ended
        )
        self._observer: LayerObserver | None = None
        # Public for what acts on it: `guarding`.
        self.loop = loop = self._watched_loop(scaler, survey, settings)
        loop.current.event(EventKind.STARTED, _started(own_info, settings, self.rank, survey))
        if control is not None:
            control.follow(loop.turns, loop.current)
            loop.control = control
        for optimizer in optimizers:
            loop.turns.view(optimizer)
        self.began_ns = time.time_ns()
        self._afterwards: list[Callable[[], None]] = []
        # Scalers, and the classes we gave them; a loop may make one each step and let it go.
        self._swapped: list[tuple[weakref.ref[Any], type]] = []
        self._scaled = scaler is not None
        self._tells_loss = False  # the user logs the loss
        self._on_gone = partial(_call_if_there, weakref.WeakMethod(self.end_if_over))
        self._roots = [weakref.ref(root, self._on_gone) for root in survey.roots]
        self._pid = os.getpid()
        self._closed = False
        self._names = {id(layer.module): layer.name for layer in survey.layers}
        self._reported_before = fatal_exceptions.last_reported()
        if scaler is not None:
            self.adopt(scaler)
        loop.current.owner = self
        _LIVE.add(self)
        at_exit = partial(_call_if_there, weakref.WeakMethod(self.close_at_exit))
        self._cancel = fatal_exceptions.at_end(at_exit)
        if scaler is None or not scaler.is_enabled():
            hear_of_losses(live_watches, _LOSSES)
        self.errors.run(_say_where, self.run_folder, self.rank)
        self._ended = threading.Event()
        if self.run_folder is not None:
            folder = rank_folder(self.run_folder, self.rank)
            self.errors.run(_keep_texts, folder, own_info.origin, self._ended)

    def _watched_loop(self, scaler: Any, survey: Survey, settings: Settings) -> Loop:
        """The loop, which hears of each forward pass where the model has layers."""
        if survey.layers:
            several_ranks = self.ranks.world_size > 1
            self._observer = LayerObserver(survey, self.errors, several_ranks=several_ranks)
        start = settings.start_step
        sampling = Sampling(self._observer, settings.layer_every, start)
        loop = Loop(scaler, survey, self._courier.deliver, sampling, self.errors, start)
        if self._observer is not None:
            self._observer.follow(loop)
        return loop

    @property
    def closed(self) -> bool:
        """Whether the watch has ended."""
        return self._closed

    @property
    def scales(self) -> bool:
        """Whether a scaler is in use: then losses are seen where they are scaled."""
        return self.loop.current.enabled and self.loop.current.used

    @property
    def has_scaled(self) -> bool:
        """Whether a scaler was given a loss since the last optimizer's step."""
        return bool(self.loop.losses.pending)

    @property
    def adopts_scalers(self) -> bool:
        """Whether it also watches a scaler that the loop makes later."""
        return self.loop.current.enabled

    def knows(self, optimizer: Any) -> bool:
        """Whether this optimizer's steps are this training's."""
        return not self._closed and self.loop.turns.knows(optimizer)

    def take_up(self, optimizer: Any) -> None:
        """Follow another optimizer of this training."""
        self.errors.run(self.loop.turns.view, optimizer)

    def watches(self, scaler: Any) -> bool:
        """Whether it is live and watches this scaler."""
        return not self._closed and any(ours() is scaler for ours, _ in self._swapped)

    def is_of(self, roots: tuple[nn.Module, ...], optimizers: Sequence[Any]) -> bool:
        """Whether it watches just these models, and knows one of these optimizers, if any."""
        views = self.loop.turns.views.values()
        has_one = not optimizers or any(v.is_of(one) for v in views for one in optimizers)
        return has_one and self._is_on(roots)

    def is_without_scaler_on(self, roots: tuple[nn.Module, ...]) -> bool:
        """Whether it watches just these models, and no scaler."""
        return not self._scaled and bool(roots) and self._is_on(roots)

    def layer(self, name: str) -> nn.Module | None:
        """The layer of this name; None if there is none, or it is gone."""
        roots = (reference() for reference in self._roots)
        layers = (layer for root in roots if root is not None for layer in root.modules())
        return next((layer for layer in layers if self._names.get(id(layer)) == name), None)

    def _is_on(self, roots: tuple[nn.Module, ...]) -> bool:
        return tuple(reference() for reference in self._roots) == roots

    def is_left_on(self, roots: tuple[nn.Module, ...]) -> bool:
        """Whether it watches one of these models, whose scaler or optimizers are gone."""
        shared = any(reference() is root for reference in self._roots for root in roots)
        return shared and not (self._has_scaler() if self._scaled else self._has_optimizer())

    def _is_over(self) -> bool:
        """Whether the training cannot go on."""
        if self._roots and all(reference() is None for reference in self._roots):
            return True
        if self._has_scaler() or self._has_optimizer():
            return False
        # The model may get another optimizer; another scaler only where none has stepped yet.
        return not self._roots or (self._scaled and bool(self.loop.turns.views))

    def _has_scaler(self) -> bool:
        return any(reference() is not None for reference, _ in self._swapped)

    def _has_optimizer(self) -> bool:
        return not all(view.is_gone for view in self.loop.turns.views.values())

    def adopt(self, scaler: Any) -> None:
        """Watch this scaler too: the loop steps with it."""
        watched = watched_scaler.swap(scaler, self.loop, self.errors)
        self._swapped = [pair for pair in self._swapped if pair[0]() is not None]
        self._swapped.append((weakref.ref(scaler, self._on_gone), watched))
        self._scaled = True

    @property
    def lost_rows(self) -> int:
        """How many rows could not be written."""
        return self._courier.lost_rows

    def log(
        self, values: Mapping[str, float | Tensor] | None = None, /, **scalars: float | Tensor
    ) -> None:
        """Add scalars to the step in progress; `loss` fills the loss column, tensors are late.

        They are given in a mapping, by keywords, or both: `log({"val/acc": 0.9}, loss=loss)`. Of a
        tensor with several elements the mean is recorded. What is no number is warned of once.
        A step ends at `scaler.update()`, or without an enabled scaler at `optimizer.step()`:
        what is logged after that belongs to the next one.
        """
        if self._closed:
            warn("log() after close() is ignored; attach again for a new run.")
            return
        told = values if isinstance(values, Mapping) else {}
        self._tells_loss |= "loss" in scalars or "loss" in told
        self.errors.run(self.loop.log, scalars, values)

    def found_loss(self, loss: Tensor) -> None:
        """Take the loss that went backward, unless the user logs it."""
        if not (self._tells_loss or self._closed):
            self.errors.run(self.loop.log, {"loss": loss})

    def saved(self, path: str | os.PathLike[str]) -> None:
        """Say where a checkpoint was written just now: `ampwatch plan` names it if it is clean."""
        if not self._closed:
            self.errors.run(self.loop.state_saved, os.fspath(path)[:_LONGEST_PATH])

    def last_clean_checkpoint(self) -> Checkpoint | None:
        """The last save before any trouble; None if there is none, or no log that tells of it.

        It reads the run's log as far as it is written: call it when something went wrong.
        """
        if self.run_folder is None:
            return None
        # By name: what judges runs stands above what runs beside a training.
        judged = import_module("ampwatch.recovery.restart_plan")
        checkpoint: Checkpoint | None = judged.last_clean_checkpoint(self.run_folder)
        return checkpoint

    def show(self) -> None:
        """Show the run in the output of this notebook's cell, and follow it there until its end."""
        # By name: what shows runs stands above what runs beside a training.
        self.errors.run(lambda: import_module("ampwatch.notebook").show(self))

    def _repr_html_(self) -> str | None:
        """The run in a notebook, as far as it is written."""
        with contextlib.suppress(AmpwatchError, OSError):
            if self.run_folder is not None:
                run = import_module("ampwatch.store").open_run(self.run_folder)
                return str(run._repr_html_())
        return None

    def on_save(self, save: Callable[[], object]) -> None:
        """Have this function write a checkpoint when a page asks for one; see `attach(control=)`.

        It is called on the training thread, after a step.
        """
        if self.loop.control is not None:
            self.loop.control.on_save(save)

    def on_stop(self, stop: Callable[[], object]) -> None:
        """Have this function end the training when a page asks for it, instead of Ctrl-C."""
        if self.loop.control is not None:
            self.loop.control.on_stop(stop)

    def after_close(self, callback: Callable[[], None]) -> None:
        """Call this once the log is complete: when the watch is closed, or the process ends."""
        self._afterwards.append(callback)

    def close(self) -> None:
        """End the watch: the scaler is as it was, the log complete. A second call does nothing."""
        if os.getpid() != self._pid:
            return
        self._close(wait=True)
        self._courier.join()  # where it had ended by itself, without waiting
        hooks.remove_what_was_left()

    def end(self) -> None:
        """End the watch without waiting: at any moment, and on any thread."""
        with hooks.removed_later():
            self._close(wait=False)

    def end_if_over(self) -> None:
        """End the watch if the training cannot go on."""
        if not self._closed and self._is_over():
            self.end()

    def __del__(self) -> None:
        """Nobody holds the watch any more: end it without waiting."""
        # At the interpreter's end it is closed, and our modules may be gone.
        if hasattr(self, "_cancel") and not self._closed:
            self.end()

    def _close(self, *, wait: bool) -> None:
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        for reference, watched in self._swapped:
            scaler = reference()
            if scaler is not None:
                watched_scaler.restore(scaler, watched)
        self.errors.off = False  # after too many failures, too, everything is given back
        self.errors.run(self.loop.close)
        self.errors.run(hear_no_more)
        if self._observer is not None:
            self.errors.run(self._observer.release)
        callbacks, self._afterwards = self._afterwards, []
        row_maker, self._row_maker, self._observer = self._row_maker, None, None
        if row_maker is not None:
            last = self._end_event()
            self._courier.close(last, row_maker, wait=wait, afterwards=() if wait else callbacks)
        self.errors.run(self._devices.close)
        self._cancel()
        self._ended.set()
        _LIVE.discard(self)
        for callback in callbacks if wait else ():
            self.errors.run(callback)
        self.errors.off = True  # a hook may be left somewhere, or our class under another's

    def record_exception(self, error: BaseException) -> None:
        """Note an exception that ends the training, with the layer it came from."""
        self.errors.run(self._note_exception, error)

    def _note_exception(self, error: BaseException) -> None:
        words = asdict(fatal_exceptions.describe(error, self._names, self._devices))
        fatal = not isinstance(error, KeyboardInterrupt)  # the user's own wish is not a failure
        self.loop.current.event(EventKind.EXCEPTION, {"fatal": fatal, **words})

    def _end_event(self) -> EventRecord:
        failures = self.errors.failures + self._courier.failures
        detail = {"steps": self.loop.current.number, "own_failures": failures}
        return EventRecord(self.loop.current.number, time.time_ns(), EventKind.ENDED, detail)

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        ending_error = fatal_exceptions.reason(error)
        if ending_error is not None:
            self.record_exception(ending_error)
        self.close()

    def close_at_exit(self) -> None:
        """The interpreter ends; record the exception that ended it, if one did."""
        if self._closed or os.getpid() != self._pid:
            return
        error = fatal_exceptions.ended_by(self._reported_before, self._names)
        if error is not None:
            self.record_exception(error)
        self.close()

    def disable_after_fork(self) -> None:
        """This is a forked child: send, write and close nothing from here on."""
        self.errors.off = True
        self._closed = True


class NoWatch:
    """What `attach` returns where AMPWATCH=0: does nothing, at no cost."""

    run_folder: Path | None = None
    rank = 0
    began_ns = 0
    closed = True
    lost_rows = 0

    def log(
        self, values: Mapping[str, float | Tensor] | None = None, /, **scalars: float | Tensor
    ) -> None:
        """Ignored."""

    def saved(self, path: str | os.PathLike[str]) -> None:
        """Ignored."""

    def last_clean_checkpoint(self) -> Checkpoint | None:
        """None: nothing is recorded."""
        return None

    def show(self) -> None:
        """Ignored."""

    def on_save(self, save: Callable[[], object]) -> None:
        """Ignored."""

    def on_stop(self, stop: Callable[[], object]) -> None:
        """Ignored."""

    def close(self) -> None:
        """Ignored."""

    def after_close(self, callback: Callable[[], None]) -> None:
        """Ignored."""

    def record_exception(self, error: BaseException) -> None:
        """Ignored."""

    def __enter__(self) -> NoWatch:
        return self

    def __exit__(self, *_: object) -> None:
        return None


def _call_if_there(method: weakref.WeakMethod[Callable[[], None]], *_: object) -> None:
    call = method()
    if call is not None:
        call()


def live_watches() -> list[Watch]:
    """The watches of this process that have not ended."""
    return [watch for watch in _LIVE if not watch.closed]


def _disable_all_after_fork() -> None:
    for watch in live_watches():
        watch.disable_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disable_all_after_fork)


# -- what a watch begins with ----------------------------------------------------------------------


def _say_where(run_folder: Path | None, rank: int) -> None:
    """Write one line to stderr that says where the run is, and how to see it.

    Only rank 0 does; a fork of a process that has said it does not.
    """
    global _told_in  # noqa: PLW0603 - a fork inherits it
    if run_folder is None or rank or quiet() or _told_in not in (None, os.getpid()):
        return
    _told_in = os.getpid()
    say_to_stderr(printable(f"watching; see {how_to_see(run_folder)}, or `ampwatch dashboard`"))


def _keep_texts(folder: Path, origin: Mapping[str, str], ended: threading.Event) -> None:
    """Keep what AMPWATCH_KEEP names, on threads that nobody waits for."""
    global _copy_at_exit  # noqa: PLW0603 - of the runs of a process the last has what ended it
    shield = FailureShield()  # its own: the watch's is off when the last lines are copied
    script, start = origin.get("script"), origin.get("folder")
    if keeps("diff") and start is not None:
        code = Path(script).parent if script else Path(start)
        work = (keep_diff, folder, code, os.environ)
        threading.Thread(target=shield.run, args=work, daemon=True).start()
    if keeps("console"):
        copy = partial(shield.run, copy_console, folder, os.environ)
        if _copy_at_exit is not None:
            atexit.unregister(_copy_at_exit)
        atexit.register(copy)  # what ends a program is printed after the watch has ended
        _copy_at_exit = copy
        threading.Thread(target=_now_and_then, args=(copy, ended), daemon=True).start()


def _now_and_then(copy: Callable[[], None], ended: threading.Event) -> None:
    while not ended.wait(_CONSOLE_EVERY_S):
        copy()
    copy()


def _run_info(scaler: Any, settings: Settings) -> tuple[RunInfo, int]:
    """What run.json says, and this process's rank."""
    global _attached  # noqa: PLW0603 - each watch of a process has its own run
    who = run_identity.identify(os.environ, sys.argv, datetime.now(), _attached)
    _attached += 1
    info = RunInfo(
        id=who.run_id,
        name=settings.run or who.name,
        started_ns=time.time_ns(),
        host=run_identity.host(),
        command=tuple(sys.argv),
        origin=_origin(),
        environment=run_identity.telling_environment(os.environ),
        versions=run_identity.versions(),
        config=settings.config,
        scaler=_scaler_facts(scaler),
        world_size=who.world_size,
        layer_every=settings.layer_every,
    )
    return info, who.rank


def _origin() -> dict[str, str]:
    try:
        return run_identity.origin(sys.argv, Path.cwd())
    except OSError:  # the working folder is gone
        return {}


def _scaler_facts(scaler: Any) -> dict[str, Any]:
    """The scaler's settings, by its public getters; nothing here waits for a device."""
    if scaler is None:
        return {}
    enabled = scaler.is_enabled()
    return {
        "class": type(scaler).__name__,
        "enabled": enabled,
        "init_scale": getattr(scaler, "_init_scale", None),
        **{
            name: getattr(scaler, f"get_{name}")() if enabled else None for name in _SCALER_SETTINGS
        },
    }


def _open_log(info: RunInfo, rank: int, settings: Settings) -> tuple[Log, RunInfo, Path | None]:
    """The log on disk; if it cannot be made, one that only numbers what is sent."""
    try:
        folder = run_identity.log_dir(os.environ, settings.log_dir)
        run_folder = create_run(folder, info, resume=settings.resume)
        kept = read_info(run_folder)
        log = RankWriter(run_folder, rank, kept)
    except (AmpwatchError, OSError) as error:
        warn(f"there will be no log ({error}); training goes on, and is only seen live.")
        return MemoryLog(), info, None
    with contextlib.suppress(AmpwatchError, OSError):
        register_run(run_folder)
    return log, kept, run_folder


def _open_sender(
    info: RunInfo, rank: int, log: Log, settings: Settings, control: Control | None
) -> Sender | None:
    endpoint = settings.endpoint
    if endpoint is None:
        return None
    from ampwatch.feed import Hello, Sender  # "off" loads no zmq

    version = info.versions.get("ampwatch", "")
    hello = Hello(info.id, rank, info.to_json(), info.format, version)
    try:
        return Sender(
            endpoint, hello, log, on_instruction=None if control is None else control.take
        )
    except (AmpwatchError, OSError) as error:
        warn(f"nothing is sent live ({error}); the log on disk is complete.")
        return None


def _started(info: RunInfo, settings: Settings, rank: int, surveyed: Survey) -> dict[str, Any]:
    """The detail of the event that begins an attempt."""
    plain = json.loads(info.to_json())  # in plain types: an object's `str` may raise
    return {
        "rank": rank,
        "pid": os.getpid(),
        "host": run_identity.host(),
        "start_step": settings.start_step,
        "resume": settings.resume,
        "scaler": dict(info.scaler),
        "models": [asdict(root) for root in surveyed.described],
        "origin": plain["origin"],
        "config": {key: str(value)[:200] for key, value in plain["config"].items()},
        "conversions": conversions_asked_for(surveyed),
    }
