"""`attach`: check the arguments, say what is wrong with them, or begin to watch."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import torch
from torch import nn

from ampwatch.environment import quiet, switched_off
from ampwatch.errors import AmpwatchError, AttachError, say_to_stderr, warn
from ampwatch.printable_text import printable, with_article
from ampwatch.probe import hooks, run_identity
from ampwatch.probe.backward_passes import hear_of_losses
from ampwatch.probe.control import Control
from ampwatch.probe.courier import Courier, Log, MemoryLog
from ampwatch.probe.current_step import Sampling
from ampwatch.probe.devices import DeviceSampler
from ampwatch.probe.layer_observer import LayerObserver
from ampwatch.probe.library_formats import conversions_asked_for
from ampwatch.probe.loop import Loop
from ampwatch.probe.models import Survey, survey
from ampwatch.probe.optimizers import takes_hooks
from ampwatch.probe.own_failures import Guard
from ampwatch.probe.row_maker import RowMaker
from ampwatch.probe.run_identity import Ranks, origin, store_of_process_group
from ampwatch.probe.watch import NoWatch, Watch, live_watches
from ampwatch.rows import EventKind
from ampwatch.store import RankWriter, RunInfo, create_run, how_to_see, read_info, register_run

if TYPE_CHECKING:
    from ampwatch.feed import Sender

_SETTINGS = ("growth_factor", "backoff_factor", "growth_interval")  # of a scaler
_attached = 0
_LOSSES = Guard()  # of what hears of the losses of all trainings in this process
_told_in: int | None = None  # the process that has said where its run is

P = ParamSpec("P")
R = TypeVar("R")


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


def _with_clear_errors(attach: Callable[P, R]) -> Callable[P, R]:
    """`attach`, which says what is meant where it is given too few or too many arguments."""

    @wraps(attach)
    def checked(*given: P.args, **named: P.kwargs) -> R:
        _check_positional(given, named)
        return attach(*given, **named)

    return checked


@_with_clear_errors
def attach(
    scaler: Any,
    model: Any,
    *,
    optimizer: Any = None,
    run: str | None = None,
    log_dir: str | Path | None = None,
    endpoint: str | None = None,
    layer_every: int = 50,
    config: Mapping[str, Any] | None = None,
    start_step: int = 0,
    resume: bool = False,
    control: bool = False,
) -> Watch | NoWatch:
    """Watch a mixed-precision training loop; the one line to add to it.

    `scaler` is a torch.amp.GradScaler or a subclass; a disabled one or None is fine (bf16, fp32),
    and with None the `optimizer` must be given. `model` is a module, a list or dict of them, or
    None for the scalars alone. The run is written to `log_dir`/`run` and sent to `endpoint` ("off"
    for none). With `control` a page may change the learning rate, ask for a checkpoint and stop
    the training. One line on stderr says where the run is; AMPWATCH_QUIET=1 leaves it out. Wrong
    arguments raise AttachError here; nothing of ours raises later.
    """
    if switched_off():
        return NoWatch()
    optimizers = _optimizers(optimizer)
    _check(scaler, model, optimizers, config, layer_every)
    surveyed = survey(model)
    known = _watch_of(scaler, surveyed)
    if known is not None and not known.is_of(surveyed.roots, optimizers):
        gc.collect()  # that watch may be of a model or of optimizers that are garbage
        known = _watch_of(scaler, surveyed)
    if known is not None:
        warn(
            "this scaler is watched already; the watch that is there goes on. close() it first.",
            stacklevel=4,  # the caller's line, past the check of the arguments
        )
        return known
    feed_to = run_identity.endpoint(os.environ, endpoint)
    settings = Settings(
        run, log_dir, feed_to, layer_every, dict(config or {}), start_step, resume, control
    )
    return _begin(scaler, surveyed, optimizers, settings)


# -- what was given --------------------------------------------------------------------------------


def _check_positional(given: Sequence[Any], named: Mapping[str, Any]) -> None:
    """Raise AttachError unless scaler and model were given, and nothing else without its name."""
    if len(given) > 2:
        if hasattr(given[2], "param_groups"):
            raise AttachError(
                "pass the optimizer by name: attach(scaler, model, optimizer=optimizer)."
            )
        raise AttachError(
            "attach takes the scaler and the model; pass everything else by its name, such as "
            "attach(scaler, model, run='night-3')."
        )
    has_scaler, has_model = bool(given) or "scaler" in named, len(given) == 2 or "model" in named
    if has_scaler and has_model:
        return
    if (given and isinstance(given[0], torch.amp.GradScaler)) or "scaler" in named:
        raise AttachError(
            "attach needs the model, too: attach(scaler, model), or attach(scaler, None) to watch "
            "the scaler alone."
        )
    raise AttachError(
        "attach needs a scaler: attach(scaler, model), or attach(None, model, optimizer=optimizer)."
    )


def _check(
    scaler: Any, model: Any, optimizers: Sequence[Any], config: Any, layer_every: int
) -> None:
    if isinstance(scaler, nn.Module) or isinstance(model, torch.amp.GradScaler):
        raise AttachError(
            "the arguments are swapped: call ampwatch.attach(scaler, model), the scaler first."
        )
    if isinstance(scaler, torch.optim.Optimizer):
        raise AttachError(
            "the first argument is an optimizer; call ampwatch.attach(scaler, model), or without a "
            "scaler ampwatch.attach(None, model, optimizer=optimizer)."
        )
    if scaler is not None and not isinstance(scaler, torch.amp.GradScaler):
        raise AttachError(
            f"the scaler is {with_article(type(scaler).__name__)}, not a torch.amp.GradScaler; "
            "pass the GradScaler that your loop steps with, or None for bf16 and fp32."
        )
    if scaler is None and not optimizers:
        raise AttachError(
            "without a scaler nothing shows ampwatch the optimizer; call "
            "ampwatch.attach(None, model, optimizer=optimizer)."
        )
    if scaler is None and not all(map(takes_hooks, optimizers)):
        raise AttachError(
            "the optimizer takes no step hooks, so nothing shows ampwatch its steps; pass a "
            "torch.optim.Optimizer (the one inside, if yours wraps it), or a scaler (a disabled "
            "one is fine)."
        )
    if config is not None and not isinstance(config, Mapping):
        kind = with_article(type(config).__name__)
        raise AttachError(f"config is {kind}; pass a dict, such as vars(args).")
    if not isinstance(layer_every, int) or layer_every < 1:
        raise AttachError(
            f"layer_every is {layer_every!r}; pass a whole number of steps from 1 on."
        )


def _optimizers(optimizer: Any) -> tuple[Any, ...]:
    given = () if optimizer is None else optimizer
    several = tuple(given) if isinstance(given, (list, tuple)) else (given,)
    for one in several:
        if not hasattr(one, "param_groups"):
            raise AttachError(
                f"optimizer is {with_article(type(one).__name__)} without param_groups; pass the "
                "torch.optim.Optimizer of your loop, or a list of them."
            )
    return several


def _watch_of(scaler: Any, surveyed: Survey) -> Watch | None:
    """The live watch of this scaler or, without a scaler, of this model."""
    for watch in live_watches():
        if watch.is_left_on(surveyed.roots):
            watch.end()
    if scaler is not None:
        return next((watch for watch in live_watches() if watch.watches(scaler)), None)
    return next(
        (watch for watch in live_watches() if watch.is_without_scaler_on(surveyed.roots)), None
    )


# -- beginning -------------------------------------------------------------------------------------


def _begin(scaler: Any, surveyed: Survey, optimizers: Sequence[Any], settings: Settings) -> Watch:
    hooks.remove_what_was_left()
    guard = Guard()
    own_info, rank = _run_info(scaler, settings)
    log, info, run_folder = _open_log(own_info, rank, settings)
    row_maker = RowMaker(surveyed)
    devices = DeviceSampler(p.device for p in surveyed.parameters)
    meeting = partial(store_of_process_group, f"{own_info.id}/{_attached}")
    ranks = Ranks(rank, own_info.world_size, meeting)
    control = Control(ranks) if settings.control else None
    courier = Courier(
        weakref.ref(row_maker),
        log,
        lambda: _open_sender(info, rank, log, settings, control),
        devices.sample,
        control,
        Guard(),  # its own: the courier works on when the watch has ended
    )
    observer = None
    if surveyed.layers:
        observer = LayerObserver(surveyed, guard, several_ranks=ranks.world_size > 1)
    sampling = Sampling(observer, settings.layer_every, settings.start_step)
    loop = Loop(scaler, surveyed, courier.deliver, sampling, guard, settings.start_step)
    if observer is not None:
        observer.follow(loop)
    loop.current.event(EventKind.STARTED, _started(own_info, settings, rank, surveyed))
    if control is not None:
        control.follow(loop.turns, loop.current, courier.deliver)
        loop.control = control
    for one in optimizers:
        loop.turns.view(one)
    watch = Watch(
        scaler, surveyed, loop, observer, row_maker, courier, devices, guard, run_folder, ranks
    )
    if scaler is None or not scaler.is_enabled():
        hear_of_losses(live_watches, _LOSSES)
    guard.run(_say_where, run_folder, rank)
    return watch


def _say_where(run_folder: Path | None, rank: int) -> None:
    """Write one line to stderr that says where the run is, and how to see it.

    Only rank 0 does; a fork of a process that has said it does not.
    """
    global _told_in  # noqa: PLW0603 - a fork inherits it
    if run_folder is None or rank or quiet() or _told_in not in (None, os.getpid()):
        return
    _told_in = os.getpid()
    say_to_stderr(printable(f"watching; see {how_to_see(run_folder)}, or `ampwatch dashboard`"))


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
        return origin(sys.argv, Path.cwd())
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
        **{name: getattr(scaler, f"get_{name}")() if enabled else None for name in _SETTINGS},
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
