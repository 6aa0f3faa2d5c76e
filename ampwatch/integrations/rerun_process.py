"""A rerun that `ampwatch prove` started, in the process that trains: its change, and its files.

One function makes each change to torch. A change notes that it was done when it meets what it is
about: an autocast that was on, a scaler, the layer. A training that has none of that was not
changed, and a rerun of it proves nothing.

The script's files are not overwritten: what it opens for writing goes to a folder of the rerun's,
and is read from there again; so do folders that it makes. Parts that write without Python are not
held back.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import inspect
import io
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ampwatch.environment import state_folder
from ampwatch.recovery.change import (
    CHANGE,
    FLOAT32,
    LAYERS_BY,
    NOTHING,
    RATE,
    Change,
    changes_from_text,
)

if TYPE_CHECKING:
    import torch
    from torch import nn


# Rates that a scheduler is given, not its optimizer.
_GIVEN = {
    "OneCycleLR": ("max_lr",), "CyclicLR": ("base_lr", "max_lr"), "ReduceLROnPlateau": ("min_lr",),
    "CosineAnnealingLR": ("eta_min",), "CosineAnnealingWarmRestarts": ("eta_min",),
    "SWALR": ("swa_lr",),
}  # fmt: skip


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


# -- the files that a rerun writes -----------------------------------------------------------------


_SYSTEMS = ("/dev/", "/proc/", "/sys/")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def is_rerun() -> bool:
    """Whether this process is a rerun that `ampwatch prove` started."""
    return CHANGE in os.environ


def redirect_outputs() -> None:
    """Redirect a rerun's writes to the user's files into its own folder, from now on."""
    outputs = RerunOutputs(Path(_changes()[0].outputs))
    builtins.open = io.open = outputs.opening(builtins.open)
    os.open = outputs.opening_descriptor(os.open)
    for name in ("remove", "unlink", "rmdir", "rename", "replace", "truncate"):
        setattr(os, name, outputs.changing(getattr(os, name)))
    for name in ("stat", "lstat", "listdir", "scandir"):
        setattr(os, name, outputs.looking(getattr(os, name)))
    os.mkdir = outputs.making(os.mkdir)


def prepare_torch() -> None:
    """Apply the rerun's changes to torch, and let `torch.save` write through Python."""
    import torch

    for change in _changes():
        CHANGES[change.name](change)
    save = torch.save

    @functools.wraps(save)
    def saved(thing: Any, f: Any, *more: Any, **named: Any) -> None:
        if not isinstance(f, (str, os.PathLike)):
            return save(thing, f, *more, **named)
        with Path(f).open("wb") as file:  # the C++ writer would open the path itself
            return save(thing, file, *more, **named)

    setattr(torch, "save", saved)  # noqa: B010


def _changes() -> list[Change]:
    return changes_from_text(os.environ[CHANGE])


class RerunOutputs:
    """A rerun's own copies of the files it writes, by the paths that it gave."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        own = f"{os.path.realpath(folder.parent)}{os.sep}"
        self._free = (own, f"{os.path.realpath(state_folder())}{os.sep}", *_SYSTEMS)
        self._asked = threading.local()  # whether the thread is in here: its calls are ours

    def opening(self, really: Callable[..., Any]) -> Callable[..., Any]:
        """`open` for a rerun: what it writes goes to its own folder."""

        @functools.wraps(really)
        def opened(file: Any, mode: str = "r", *more: Any, **named: Any) -> Any:
            if isinstance(file, int) or named.get("opener"):
                return really(file, mode, *more, **named)
            if set(mode) & set("wax+"):
                file = self._to_write(file, keeps="w" not in mode)
            return really(self._to_read(file), mode, *more, **named)

        return opened

    def opening_descriptor(self, really: Callable[..., int]) -> Callable[..., int]:
        """`os.open` for a rerun: what it writes goes to its own folder."""

        @functools.wraps(really)
        def opened(path: Any, flags: int, *more: Any, **named: Any) -> int:
            if named.get("dir_fd") is not None:
                return really(path, flags, *more, **named)
            if flags & _WRITES:
                path = self._to_write(path, keeps=not flags & os.O_TRUNC)
            return really(self._to_read(path), flags, *more, **named)

        return opened

    def changing(self, really: Callable[..., Any]) -> Callable[..., Any]:
        """A call that removes or moves files, for a rerun: the user's files are copied first."""

        @functools.wraps(really)
        def changed(*paths: Any, **named: Any) -> Any:
            if any(value is not None for value in named.values()):  # relative to an open folder
                inside = next((fd for fd in named.values() if isinstance(fd, int)), -1)
                return really(*paths, **named) if self._is_free(_folder_of(inside)) else None
            if any(_is_folder(one) and not self._is_free(one) for one in paths[:1]):
                return None
            return really(*(self._to_write(one, keeps=True) for one in paths))

        return changed

    def looking(self, really: Callable[..., Any]) -> Callable[..., Any]:
        """A call that looks at a path, for a rerun: at its own file where it made one."""

        @functools.wraps(really)
        def looked(path: Any = ".", *more: Any, **named: Any) -> Any:
            if named.get("dir_fd") is None and not getattr(self._asked, "inside", False):
                path = self._to_look_at(path)
            return really(path, *more, **named)

        return looked

    def making(self, really: Callable[..., None]) -> Callable[..., None]:
        """`os.mkdir` for a rerun, in its own folder; a folder of the run may be made again."""

        @functools.wraps(really)
        def made(path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
            if dir_fd is not None or self._is_free(path):
                return really(path, mode, dir_fd=dir_fd)
            own = self._own(path)
            with self._inside():
                own.parent.mkdir(parents=True, exist_ok=True)
                really(str(own), mode)
            return None

        return made

    @contextlib.contextmanager
    def _inside(self) -> Iterator[None]:
        was, self._asked.inside = getattr(self._asked, "inside", False), True
        try:
            yield
        finally:
            self._asked.inside = was

    def _to_look_at(self, path: Any) -> Any:
        """The path a rerun looks at: its own file, if it has one; the user's folders stay whole."""
        with self._inside():
            if isinstance(path, int) or not path or self._is_free(path):
                return path
            own, theirs = self._own(path), Path(os.fsdecode(path))
            return str(own) if own.exists() and not theirs.is_dir() else path

    def _to_write(self, path: Any, *, keeps: bool) -> Any:
        """The path a rerun writes to; a file that is changed, not replaced, is copied first."""
        if isinstance(path, int) or self._is_free(path):
            return path
        own = self._own(path)
        own.parent.mkdir(parents=True, exist_ok=True)
        if keeps and not own.exists() and Path(os.fsdecode(path)).is_file():
            own.write_bytes(Path(os.fsdecode(path)).read_bytes())
        return str(own)

    def _to_read(self, path: Any) -> Any:
        """The path a rerun reads: its own copy of the file, if it has one."""
        if isinstance(path, int) or self._is_free(path):
            return path
        own = self._own(path)
        return str(own) if own.exists() else path

    def _own(self, path: Any) -> Path:
        with self._inside():
            return self._folder / os.path.realpath(os.fsdecode(path)).lstrip(os.sep)

    def _is_free(self, path: Any) -> bool:
        """Whether a path belongs to the rerun or the system, so that it is not redirected."""
        with self._inside():
            return os.path.realpath(os.fsdecode(path)).startswith(self._free)


def _is_folder(path: Any) -> bool:
    return not isinstance(path, int) and Path(os.fsdecode(path)).is_dir()


def _folder_of(descriptor: int) -> str:
    try:
        return str(Path(f"/proc/self/fd/{descriptor}").readlink())
    except OSError:
        return os.sep  # not known: not ours
