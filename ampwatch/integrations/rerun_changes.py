"""Makes a rerun's change to torch in the process that trains, one function for each change.

A change notes that it was done when it meets what it is about: an autocast that was on, a scaler,
the layer. A training that has none of that was not changed, and a rerun of it proves nothing.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ampwatch.recovery.change import FLOAT32, LAYERS_BY, NOTHING, RATE, Change

if TYPE_CHECKING:
    import torch
    from torch import nn

# Rates that a scheduler is given, not its optimizer.
_GIVEN = {
    "OneCycleLR": ("max_lr",), "CyclicLR": ("base_lr", "max_lr"), "ReduceLROnPlateau": ("min_lr",),
    "CosineAnnealingLR": ("eta_min",), "CosineAnnealingWarmRestarts": ("eta_min",),
    "SWALR": ("swa_lr",),
}  # fmt: skip


def apply_change(change: Change) -> None:
    """Apply a rerun's change to torch: the script trains with it from now on."""
    CHANGES[change.name](change)


# --- the rate -------------------------------------------------------------------------------------


def _multiply_rates(change: Change) -> None:
    """Rerun change: multiply the learning rates of groups and schedulers that are made or loaded.

    What is saved is divided again: a file means the same in the run and in its rerun.
    """
    import torch

    from ampwatch.probe.learning_rates import scale_rates

    assert isinstance(change.value, float)
    factor, kind = change.value, torch.optim.Optimizer

    def added(made: Callable[..., None], self: Any, group: dict[str, Any]) -> None:
        made(self, group)
        change.note_done()
        scale_rates(self.param_groups[-1], factor)

    def loaded(load: Callable[..., Any], self: Any, state: Mapping[str, Any]) -> None:
        load(self, state)
        for group in self.param_groups:
            scale_rates(group, factor)

    def saved(save: Callable[..., Any], self: Any) -> dict[str, Any]:
        state: dict[str, Any] = save(self)
        groups = [dict(group) for group in state["param_groups"]]
        for group in groups:
            scale_rates(group, 1 / factor)
        return {**state, "param_groups": groups}

    _wrap_method(kind, "add_param_group", added)
    _wrap_method(kind, "load_state_dict", loaded)
    _wrap_method(kind, "state_dict", saved)
    _multiply_schedulers(factor)


def _multiply_schedulers(factor: float) -> None:
    from torch.optim import lr_scheduler

    from ampwatch.probe.learning_rates import scale_rates

    within: set[int] = set()  # some call the method of the class that they extend

    def loaded(load: Callable[..., Any], self: Any, state: Mapping[str, Any]) -> None:
        with _outermost(within, self) as is_outermost:
            load(self, state)
        if is_outermost:
            scale_rates(vars(self), factor)

    def saved(save: Callable[..., Any], self: Any) -> dict[str, Any]:
        with _outermost(within, self) as is_outermost:
            state = dict(save(self))
        if is_outermost:
            scale_rates(state, 1 / factor)
        return state

    def made(init: Callable[..., None], self: Any, *given: Any, **named: Any) -> None:
        bound = inspect.signature(init).bind(self, *given, **named)
        scale_rates(bound.arguments, factor, names=_GIVEN[type(self).__name__])
        init(*bound.args, **bound.kwargs)

    for name, kind in list(vars(lr_scheduler).items()):
        if inspect.isclass(kind) and issubclass(kind, lr_scheduler.LRScheduler):
            if "load_state_dict" in vars(kind):
                _wrap_method(kind, "load_state_dict", loaded)
                _wrap_method(kind, "state_dict", saved)
            if name in _GIVEN:
                _wrap_method(kind, "__init__", made)


@contextlib.contextmanager
def _outermost(within: set[int], one: object) -> Iterator[bool]:
    """Whether this is the outermost of nested calls for one object."""
    is_outermost = id(one) not in within
    within.add(id(one))
    try:
        yield is_outermost
    finally:
        if is_outermost:
            within.discard(id(one))


# --- autocast, the scaler, the layer --------------------------------------------------------------


def _autocast_off(change: Change) -> None:
    def made(init: Callable[..., None], self: Any, *given: Any, **named: Any) -> None:
        init(self, *given, **named)
        if self._enabled:
            change.note_done()
            self._enabled = False

    _wrap_autocast(made)


def _autocast_bfloat16(change: Change) -> None:
    import torch

    def made(init: Callable[..., None], self: Any, *given: Any, **named: Any) -> None:
        init(self, *given, **named)
        if self._enabled and self.fast_dtype == torch.float16:
            change.note_done()
            self.fast_dtype = torch.bfloat16

    _wrap_autocast(made)


def _wrap_autocast(made: Callable[..., None]) -> None:
    import torch

    _wrap_method(torch.autocast, "__init__", made)


def _scaler_off(change: Change) -> None:
    _set_scaler(change, {"enabled": False})


def _init_scale(change: Change) -> None:
    _set_scaler(change, {"init_scale": change.value}, {"scale": change.value})


def _growth_interval(change: Change) -> None:
    _set_scaler(change, {"growth_interval": change.value}, {"growth_interval": change.value})


def _set_scaler(
    change: Change, given_: Mapping[str, Any], loaded_: Mapping[str, Any] | None = None
) -> None:
    """Rerun change: make each scaler with these settings; a loaded state keeps them, too."""
    import torch

    def made(init: Callable[..., None], self: Any, *given: Any, **named: Any) -> None:
        bound = inspect.signature(init).bind(self, *given, **named)
        if bound.arguments.get("enabled", True):
            change.note_done()
            bound.arguments.update(given_)
        init(*bound.args, **bound.kwargs)

    def loaded(load: Callable[..., Any], self: Any, state: Mapping[str, Any]) -> None:
        load(self, {**state, **(loaded_ or {})} if state else state)

    _wrap_method(torch.amp.GradScaler, "__init__", made)
    _wrap_method(torch.amp.GradScaler, "load_state_dict", loaded)


def _layers_in_float32(change: Change) -> None:
    """Rerun change: run the layers of these names in float32 under autocast."""
    from torch.nn.modules.module import register_module_forward_pre_hook

    from ampwatch.probe import live_watches
    from ampwatch.probe.float32_layers import run_layer_in_float32

    names = str(change.value).split(LAYERS_BY)

    def look(_module: nn.Module, _inputs: Any) -> None:
        for watch in live_watches():
            layers = [watch.layer(name) for name in names]
            if None not in layers:
                waiting.remove()
                for layer in filter(None, layers):
                    run_layer_in_float32(layer)
                change.note_done()
                return

    waiting = register_module_forward_pre_hook(look)


# --- the optimizer, the kernels -------------------------------------------------------------------


def _clip(change: Change) -> None:
    """Rerun change: clip the gradients of each optimizer's step, after the script's own way."""
    from torch.nn.utils import clip_grad_norm_
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    assert isinstance(change.value, float)
    most = change.value

    def before_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        change.note_done()
        scale = getattr(optimizer, "grad_scale", None)  # fused: its gradients are still scaled
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        clip_grad_norm_(parameters, most if scale is None else most * float(scale))

    register_optimizer_step_pre_hook(before_step)


def _plain_optimizer(change: Change) -> None:
    import torch

    def added(made: Callable[..., None], self: Any, group: dict[str, Any]) -> None:
        made(self, group)
        for name in ("foreach", "fused"):
            if name in self.param_groups[-1]:
                change.note_done()
                self.param_groups[-1][name] = False

    _wrap_method(torch.optim.Optimizer, "add_param_group", added)


def _deterministic(change: Change) -> None:
    import torch

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(mode=True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    change.note_done()


def _compile_off(change: Change) -> None:
    import torch

    def uncompiled(model: Any = None, **_: Any) -> Any:
        change.note_done()
        return (lambda one: one) if model is None else model

    torch.compile = uncompiled


def _tf32_off(change: Change) -> None:
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    if torch.cuda.is_available():
        change.note_done()


def _nothing(change: Change) -> None:
    change.note_done()


CHANGES: Mapping[str, Callable[[Change], None]] = {
    NOTHING: _nothing,
    RATE: _multiply_rates,
    "autocast-off": _autocast_off,
    "bfloat16": _autocast_bfloat16,
    "scaler-off": _scaler_off,
    FLOAT32: _layers_in_float32,
    "init_scale": _init_scale,
    "growth_interval": _growth_interval,
    "clip": _clip,
    "plain-optimizer": _plain_optimizer,
    "deterministic": _deterministic,
    "compile-off": _compile_off,
    "tf32-off": _tf32_off,
}


def _wrap_method(kind: Any, name: str, around: Callable[..., Any]) -> None:
    """Replace a method of torch by `around`, which gets the original method first."""
    plain = getattr(kind, name)

    @functools.wraps(plain)
    def wrapped(self: Any, *given: Any, **named: Any) -> Any:
        return around(plain, self, *given, **named)

    with contextlib.suppress(AttributeError):
        setattr(kind, name, wrapped)
