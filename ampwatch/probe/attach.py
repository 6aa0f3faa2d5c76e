"""`attach`: check the arguments, say what is wrong with them, or begin to watch."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch
from torch import nn

from ampwatch.environment import switched_off
from ampwatch.errors import AttachError, warn
from ampwatch.printable_text import with_article
from ampwatch.probe import run_identity
from ampwatch.probe.models import Survey, survey
from ampwatch.probe.optimizers import takes_hooks
from ampwatch.probe.watch import NoWatch, Settings, Watch, live_watches

P = ParamSpec("P")
R = TypeVar("R")


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
    return Watch(scaler, surveyed, optimizers, settings)


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
