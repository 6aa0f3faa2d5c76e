"""Watches a script that does not call ampwatch: finds scaler, optimizers, model, and attaches.

`ampwatch run` and AMPWATCH=1 begin it.

Nothing is read or changed before the script itself imports torch. From then on we hear of each
scaler and optimizer when it is made. The watch begins at the first forward pass in training mode of
a module whose parameters an optimizer holds; the hooks that waited for it are then removed. A
script that compiles is watched from its first loss on: torch warns of a hook on every module, and
would compile it too. With several scalers each is watched from its first step on, with the model of
the optimizer that it steps. Without a scaler the loss is what `backward` was called on.

An optimizer that is made later belongs to the watch whose parameters it holds, or whose scaler
steps it; any other one begins another run. Nothing here keeps a scaler, an optimizer, a model or a
watch alive.

No stack frame of ours stands between the script and torch: a wrapper around torch's function would
be named in warnings in place of the script's own line, and shown in tracebacks. So the script calls
torch's own function, and we hear of it when the function is looked up on an object. Likewise the
import of torch runs as ever, and tells when it is done.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import importlib.abc
import importlib.util
import json
import multiprocessing
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from types import MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from ampwatch.environment import switched_off
from ampwatch.errors import say_to_stderr
from ampwatch.integrations import rerun_process

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ampwatch.probe import NoWatch, Watch


OPTIONS = "AMPWATCH_RUN_OPTIONS"
"""Where `ampwatch run` leaves what it was asked for, as JSON."""

PROCESS_ID = "AMPWATCH_RUN_PROCESS"
"""Where it leaves its own process id, which is the script's too."""

STEPS_TO_SHOW_A_MODEL = 3
"""An optimizer that has stepped so often, with no module of its own ever run, trains none."""

ENGINES = (
    ("deepspeed", "deepspeed.runtime.engine", "DeepSpeedEngine", "forward"),
    ("megatron", "megatron.core.optimizer.optimizer", "MegatronOptimizer", "zero_grad"),
    ("torchtitan", "torchtitan.trainer", "Trainer", "train_step"),
    ("torchtitan", "torchtitan.train", "Trainer", "train_step"),  # until 0.2
)
"""Libraries whose engines make their steps themselves: our file, their module, the class, and the
method of it or of its subclasses with which a step begins."""

BY_HAND = "call ampwatch.attach(scaler, model, optimizer=...) in the script"
ITS_LOG = "give the log that it prints to `ampwatch report`"


_script: list[ScriptWatch] = []  # of this process; one at the most


def prepare() -> None:
    """Prepare to watch the script of `ampwatch run`: wait for it to import torch."""
    if not switched_off():
        _keep_closed_streams_closed()
        if rerun_process.is_rerun():
            rerun_process.redirect_outputs()
        when_torch_is_loaded(begin)


def begin() -> None:
    """Begin to watch the script in this process, which has loaded torch; once."""
    if _script:
        return
    try:
        _script.append(ScriptWatch(run_options()))
    except ImportError as error:  # of what we need beside torch
        say_to_stderr(f"this Python cannot watch ({error}); the script runs alone.")
        return
    _script[0].begin()
    if rerun_process.is_rerun():
        rerun_process.prepare_torch()


def add_scaler(scaler: Any) -> None:
    """Show the script's watch a scaler that was made before it began."""
    for script in _script:
        script.add_scaler(scaler)


def run_options() -> dict[str, Any]:
    """What `ampwatch run` was asked for, as arguments of `attach`; nothing without it."""
    asked: dict[str, Any] = json.loads(os.environ.get(OPTIONS, "{}"))
    return asked


def _keep_closed_streams_closed() -> None:
    """Keep the run's log from becoming stdout or stderr where the script has these closed.

    What is opened in their place refuses writes like a closed stream, and is closed in children.
    """
    if hasattr(os, "O_PATH"):
        place = os.open("/", os.O_PATH)
        while place <= 2:
            place = os.open("/", os.O_PATH)
        os.close(place)


@dataclass(slots=True)
class ScriptFacts:
    """What a script under `ampwatch run` did while nothing was attached."""

    optimizers: set[str] = field(default_factory=set)  # their classes' names
    ran: bool = False  # a module in training mode, though none that an optimizer trains
    evaluated: bool = False  # a module in eval mode, or without gradients
    went_back: bool = False
    watched: bool = False
    refused: bool = False  # and told why


class ScriptWatch:
    """Watches a script that does not call ampwatch itself."""

    def __init__(self, options: dict[str, Any]) -> None:
        from ampwatch.probe import FailureShield

        self._options = options
        self._shield = FailureShield()
        self._scalers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()  # of no training so far
        self._fruitless: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._strangers: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # hold nothing of theirs
        self._engines: weakref.WeakSet[Any] = weakref.WeakSet()  # of ENGINES
        self._waiting: Any = None
        self._compiles = False
        self._seen = ScriptFacts()

    def begin(self) -> None:
        """Hear of every scaler and optimizer that the script makes, and of `torch.compile`."""
        import torch
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        from ampwatch.probe import live_watches
        from ampwatch.probe.backward_passes import hear_of_losses
        from ampwatch.probe.hooks import tell_of_lookups

        for kind, tell in (
            (torch.amp.GradScaler, self.add_scaler),
            (torch.optim.Optimizer, self._made_optimizer),
        ):
            tell_of_lookups(kind, "__init__", tell, also_by_class=True)
        tell_of_lookups(torch.Tensor, "backward", self._going_back)  # before the loss is taken
        tell_of_function(torch, "compile", self._compiling)
        self._losses = hear_of_losses(live_watches, self._shield)
        self._losses.is_kept = True
        register_optimizer_step_pre_hook(self._optimizer_begins)
        atexit.register(self._say_if_nothing)

    # -- what the script makes and does --------------------------------------------------------

    def add_scaler(self, scaler: Any) -> None:
        """Take up a scaler that the script has made."""
        import torch

        for kind in type(scaler).__mro__:
            if issubclass(kind, torch.amp.GradScaler):
                self._hear_calls_of(kind)
        self._scalers.add(scaler)

    def _hear_calls_of(self, kind: type) -> None:
        for name, tell in (("scale", self._scaling), ("step", self._stepping)):
            if name in vars(kind):
                tell_of_calls(kind, name, tell)

    def _made_optimizer(self, optimizer: Any) -> None:
        self._seen.optimizers.add(type(optimizer).__name__)
        self._optimizers.add(optimizer)
        self._strangers.clear()
        self._watch_forwards()
        for library, module, name, method in ENGINES:
            engine = getattr(sys.modules.get(module), name, None)
            if engine is not None:
                begins = functools.partial(self._engine_begins, library)
                for kind in [engine, *_subclasses(engine)]:
                    if method in vars(kind):
                        tell_of_calls(kind, method, begins)

    def _watch_forwards(self) -> None:
        """Look at the script's forward passes until there is nothing left to attach to."""
        from torch.nn.modules.module import register_module_forward_pre_hook

        if self._waiting is None and not self._compiles:
            self._waiting = register_module_forward_pre_hook(self._forward)

    def _stop_watching_forwards(self) -> None:
        if self._waiting is not None:
            self._waiting.remove()
            self._waiting = None

    def _compiling(self) -> None:
        """Called as the script compiles: from now on losses show its training."""
        self._compiles = True
        self._stop_watching_forwards()

    def _forward(self, module: nn.Module, _inputs: Any) -> None:
        import torch

        if not (module.training and torch.is_grad_enabled()):
            self._seen.evaluated = True
        elif module not in self._strangers:
            self._shield.run(self._begin_with, module)

    def _engine_begins(self, library: str, engine: Any, *_: Any, **__: Any) -> None:
        if engine not in self._engines:
            self._shield.run(self._begin_with_engine, library, engine)

    def _begin_with_engine(self, library: str, engine: Any) -> None:
        """Attach to an engine of the script's that trains, by our file for its library."""
        integration = importlib.import_module(f"ampwatch.integrations.{library}")
        inner = integration.optimizers_of(engine)
        if inner:
            self._engines.update([engine, *getattr(engine, "chained_optimizers", ())])
            made = [one for one in self._optimizers if hasattr(one, "param_groups")]
            held = _held_parameters(inner)
            own = [one for one in made if not held.isdisjoint(_held_parameters([one]))]
            begin = functools.partial(integration.attach_in_script, engine, trained_models)
            self._attach_by(lambda: begin(self._options), own, None)

    def _scaling(self, scaler: Any, outputs: Any, *_: Any, **__: Any) -> None:
        self._shield.run(self._losses.add_scaled, scaler, outputs)
        if self._compiles and self._optimizers:
            self._shield.run(self._begin_with, None)

    def _going_back(self, _loss: Tensor) -> None:
        self._seen.went_back = True
        if self._optimizers:
            self._shield.run(self._begin_unscaled)

    def _stepping(self, scaler: Any, optimizer: Any, *_: Any, **__: Any) -> None:
        self._shield.run(self._begin_with_step, scaler, optimizer)

    def _optimizer_begins(self, optimizer: Any, *_: Any) -> None:
        """Called as an optimizer without a watch steps in the script."""
        import torch

        if not torch.compiler.is_compiling() and optimizer in self._optimizers:
            self._shield.run(self._count_steps_without_module, optimizer)

    def _count_steps_without_module(self, optimizer: Any) -> None:
        steps = self._fruitless[optimizer] = self._fruitless.get(optimizer, 0) + 1
        self._strangers.clear()  # its parameters may have been others before
        if steps > STEPS_TO_SHOW_A_MODEL and not self._compiles:
            self._optimizers.discard(optimizer)

    # -- when to attach ------------------------------------------------------------------------

    def _begin_with(self, module: nn.Module | None) -> None:
        """Attach if this module of the script is trained by an optimizer that no watch knows."""
        self._give_to_watches()
        if not self._optimizers:
            self._stop_watching_forwards()
        elif module is not None and not is_trained(module, list(self._optimizers)):
            self._seen.ran = True
            self._strangers.add(module)
        elif self._free_scalers() or not _a_scaler_is_used():
            self._attach_to_all(module)

    def _begin_unscaled(self) -> None:
        """Attach at a backward pass of the script whose loss no scaler was given."""
        self._give_to_watches()
        scaled = any(watch.has_scaled for watch in _live_watches())
        if self._optimizers and not scaled and (self._compiles or _a_scaler_is_used()):
            self._attach_to_all(None)

    def _begin_with_step(self, scaler: Any, optimizer: Any) -> None:
        """Attach to a scaler of the script that no watch knows, at its first step."""
        if scaler not in self._free_scalers():
            return
        for watch in _live_watches():
            if watch.knows(optimizer):
                if watch.adopts_scalers:
                    return
                watch.close()  # it began before there was a scaler of use
        self._attach(scaler, [optimizer], None)
        self._losses.log_scaled(scaler)

    def _give_to_watches(self) -> None:
        """Give the optimizers of the script's watched trainings to their watches."""
        for optimizer in list(self._optimizers):
            if not hasattr(optimizer, "param_groups"):  # its making failed
                self._optimizers.discard(optimizer)
                continue
            owner = next((one for one in _live_watches() if one.knows(optimizer)), None)
            if owner is not None:
                self._seen.watched = True
                self._optimizers.discard(optimizer)
                if not owner.scales:  # else the scaler shows it
                    owner.take_up(optimizer)

    def _free_scalers(self) -> list[Any]:
        watches = _live_watches()
        return [one for one in self._scalers if not any(watch.watches(one) for watch in watches)]

    def _attach_to_all(self, running: nn.Module | None) -> None:
        """Attach to all new optimizers of the script, if only one scaler is new."""
        free = self._free_scalers()
        scalers = [scaler for scaler in free if scaler.is_enabled()] or free
        if len(scalers) > 1:
            return  # their first steps will tell which model each belongs to
        self._attach(next(iter(scalers), None), list(self._optimizers), running)

    # -- attaching -----------------------------------------------------------------------------

    def _attach(self, scaler: Any, optimizers: list[Any], running: nn.Module | None) -> None:
        from ampwatch.probe import attach

        def begin() -> Watch | NoWatch:
            models = trained_models(optimizers, running)
            own = optimizers if scaler is None else None
            return attach(scaler, models, optimizer=own, **self._options)

        self._attach_by(begin, optimizers, scaler)

    def _attach_by(
        self, begin: Callable[[], Watch | NoWatch], optimizers: Iterable[Any], scaler: Any
    ) -> None:
        """Begin the watch of the training that steps these optimizers of the script's."""
        from ampwatch.errors import AttachError
        from ampwatch.probe import Watch, warn

        for optimizer in optimizers:
            self._optimizers.discard(optimizer)
        if not self._optimizers:
            self._stop_watching_forwards()
        try:
            watch = begin()
        except AttachError as error:
            self._seen.refused = True
            self._scalers.discard(scaler)
            warn(f"this training is not watched: {error}")
            return
        if isinstance(watch, Watch):
            self._seen.watched = True

    def _say_if_nothing(self) -> None:
        """Say that nothing in the script was watched; not of a launcher, whose children train.

        Under AMPWATCH=1 every Python that loads torch comes here: most of them do not train.
        """
        seen = self._seen
        launches = not seen.optimizers and os.times().children_user > 0
        idle = OPTIONS not in os.environ and not (seen.optimizers or seen.went_back)
        asked = _is_own_process() and multiprocessing.parent_process() is None and not idle
        if not (seen.watched or seen.refused or launches) and asked:
            say_to_stderr(f"nothing was watched: {why_unwatched(seen)}")


def _live_watches() -> list[Watch]:
    from ampwatch.probe import live_watches

    return live_watches()


def _a_scaler_is_used() -> bool:
    """Whether a watched training of the script scales: a later optimizer may be its next one."""
    return any(watch.scales for watch in _live_watches())


def _is_own_process() -> bool:
    """Whether `ampwatch run` started this process, directly or as a launcher's rank.

    The script may read what other processes of its own print.
    """
    asked = os.environ.get(PROCESS_ID)
    own = os.getpid() if sys.platform != "win32" else os.getppid()
    return asked is None or asked == str(own) or "LOCAL_RANK" in os.environ


def why_unwatched(seen: ScriptFacts) -> str:
    """A sentence that says why nothing in the script was watched, and what to do."""
    named = " and ".join(sorted(seen.optimizers))
    if not named and not seen.went_back:
        return (
            "this process made no torch.optim.Optimizer and no loss went backward in it; "
            "if it starts others that train, run those under ampwatch."
        )
    if not named:
        return (
            "losses went backward, but no torch.optim.Optimizer was made: what moves the weights "
            f"is of another kind (Keras's own, one by hand), which shows no steps; {ITS_LOG}."
        )
    if seen.ran:
        return (
            f"modules ran in training mode, but none holds a parameter of {named}: it was given "
            f"copies, as Apex makes them; {ITS_LOG}, or {BY_HAND}."
        )
    if seen.evaluated:
        return (
            f"{named} was made, but after it modules ran only in eval mode or without gradients; "
            "call model.train() before the loop."
        )
    if seen.went_back:
        return (
            f"{named} was made and losses went backward, but no module ran: its parameters are "
            f"used outside of one; {BY_HAND}."
        )
    return (
        f"{named} was made, but no optimizer's model ran in training mode after it, and no loss "
        "went backward."
    )


# -- hooks on what the script imports, makes and calls ---------------------------------------------


def when_torch_is_loaded(tell: Callable[[], None]) -> None:
    """Call `tell` once the script has loaded torch: now, or as its import ends."""
    torch = sys.modules.get("torch")
    if torch is None:
        sys.meta_path.insert(0, _TorchFinder(tell))
    elif not (getattr(torch.__spec__, "_initializing", False) and _hook(torch.__spec__, tell)):
        tell()  # a package's .pth file has imported it before us


def tell_of_calls(kind: Any, name: str, tell: Callable[..., None]) -> None:
    """Hook: call `tell` before each call of a method by the script; a second hook does nothing.

    A class that the object is given meanwhile takes the call, be it while the arguments are
    evaluated: in `scaler.scale(loss_of(model(x)))` the method is looked up first.
    """
    if not isinstance(vars(kind).get(name), _Called):
        setattr(kind, name, _Called(name, getattr(kind, name), tell))


def tell_of_function(module: Any, name: str, tell: Callable[[], None]) -> None:
    """Hook: call `tell` before each call of a module's function by the script."""
    plain = getattr(module, name)

    @functools.wraps(plain)
    def function(*arguments: Any, **named: Any) -> Any:
        tell()
        return plain(*arguments, **named)

    setattr(module, name, function)


class _Called:
    """The hook in place of a method of objects that may be given another class."""

    def __init__(self, name: str, plain: Callable[..., Any], tell: Callable[..., None]) -> None:
        self._name = name
        self._plain = plain
        self._tell = tell

    def __get__(self, asked: Any, _kind: Any = None) -> Any:
        if asked is None:
            return self._plain
        before = type(asked)
        if not self._is_the_first_of(before):  # what overrides it calls it, and has told
            return MethodType(self._plain, asked)

        def call(*arguments: Any, **named: Any) -> Any:
            if type(asked) is before:
                self._tell(asked, *arguments, **named)
            if type(asked) is before:
                return self._plain(asked, *arguments, **named)
            return getattr(asked, self._name)(*arguments, **named)

        return call

    def _is_the_first_of(self, kind: type) -> bool:
        held = (vars(one).get(self._name) for one in kind.__mro__)
        return next(filter(None, held), None) is self


class _TorchFinder(importlib.abc.MetaPathFinder):
    """The hook on the import of torch; some callers only ask whether torch is installed."""

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell = tell
        self._asks = False

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find torch for the import hook; leave every other module to the other finders."""
        if name != "torch" or self._asks:
            return None
        self._asks = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._asks = False
        _hook(spec, self._loaded)
        return spec

    def _loaded(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            self._tell()


def _hook(spec: ModuleSpec | None, loaded: Callable[[], None]) -> bool:
    """Have `loaded` called as the import ends that goes by this spec; whether that can be had."""
    if type(spec) is not ModuleSpec:
        return False
    vars(spec)["_loaded"] = loaded
    spec.__class__ = _HookedSpec
    return True


class _HookedSpec(ModuleSpec):
    """Calls the hook at the end of the import, as the import system sets `_initializing` here."""

    _loaded: Callable[[], None]

    @property
    def _initializing(self) -> bool:
        return bool(vars(self).get("_initializing"))

    @_initializing.setter
    def _initializing(self, value: bool) -> None:
        was, vars(self)["_initializing"] = self._initializing, value
        if was and not value and self.name in sys.modules:  # else it has failed
            loaded = vars(self).pop("_loaded")
            self.__class__ = ModuleSpec  # type: ignore[assignment]
            loaded()


# -- the models around the parameters that its optimizers hold -------------------------------------


def is_trained(module: nn.Module, optimizers: Iterable[Any]) -> bool:
    """Whether an optimizer holds a parameter of this model."""
    held = _held_parameters(optimizers)
    return any(id(parameter) in held for parameter in module.parameters())


def trained_models(optimizers: Iterable[Any], running: nn.Module | None) -> Any:
    """The models that these optimizers train, several by class name; `running` if none is found."""
    from ampwatch.probe.models import unwrap

    models = _outermost_modules(_held_parameters(optimizers)) or (
        [running] if running is not None else []
    )
    if len(models) < 2:
        return models[0] if models else None
    names = [type(unwrap(model)[0]).__name__ for model in models]
    if len(set(names)) == len(names):
        return dict(zip(names, models, strict=True))
    return models


def _subclasses(kind: Any) -> Iterator[Any]:
    for one in kind.__subclasses__():
        yield one
        yield from _subclasses(one)


def _held_parameters(optimizers: Iterable[Any]) -> set[int]:
    return {
        id(parameter)
        for optimizer in optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
    }


def _outermost_modules(held: set[int]) -> list[nn.Module]:
    """The outermost modules in the process around the parameters that optimizers hold."""
    from torch import nn

    modules = [thing for thing in gc.get_objects() if issubclass(type(thing), nn.Module)]
    around: dict[int, list[nn.Module]] = {}
    for module in modules:
        for child in module.__dict__.get("_modules", {}).values():
            around.setdefault(id(child), []).append(module)
    found: dict[int, nn.Module] = {}
    seen: set[int] = set()
    reached = [m for m in modules if any(id(p) in held for p in _own_parameters(m))]
    while reached:
        module = reached.pop()
        if id(module) not in seen:
            seen.add(id(module))
            outer = around.get(id(module), [])
            reached += outer
            if not outer:
                found[id(module)] = module
    return [module for module in modules if id(module) in found]


def _own_parameters(module: nn.Module) -> list[Any]:
    return list(module.__dict__.get("_parameters", {}).values())
