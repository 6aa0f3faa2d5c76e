"""Hooks on what a script imports, makes and calls, with no stack frame of ours in between.

A wrapper around torch's function would be named in warnings in place of the script's own line, and
shown in tracebacks. So the script calls torch's own function, and we hear of it when the function
is looked up on an object. Likewise the import of torch runs as ever, and tells when it is done.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import MethodType, ModuleType
from typing import Any


def when_torch_is_loaded(tell: Callable[[], None]) -> None:
    """Call `tell` once the script has loaded torch: now, or as its import ends."""
    if "torch" in sys.modules:  # a package's .pth file has imported it before us
        tell()
    else:
        sys.meta_path.insert(0, _TorchFinder(tell))


def tell_of_each(kind: type, tell: Callable[[Any], None]) -> None:
    """Hook: call `tell` with each object of this class as the script begins to make it."""
    kind.__init__ = _Making(kind.__init__, tell)  # type: ignore[misc]


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


class _Making:
    """The hook in place of `__init__`."""

    def __init__(self, plain: Callable[..., None], tell: Callable[[Any], None]) -> None:
        self._plain = plain
        self._tell = tell

        @functools.wraps(plain)
        def init(made: Any, *arguments: Any, **named: Any) -> None:
            tell(made)
            plain(made, *arguments, **named)

        self._by_name = init  # for subclasses that write `Base.__init__(self, ...)`

    def __get__(self, made: Any, _kind: Any = None) -> Any:
        if made is None:
            return self._by_name
        self._tell(made)
        return MethodType(self._plain, made)


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
        if spec is not None and type(spec) is ModuleSpec:
            vars(spec)["_loaded"] = self._loaded
            spec.__class__ = _HookedSpec
        return spec

    def _loaded(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            self._tell()


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
