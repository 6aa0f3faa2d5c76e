"""Being told of what a script makes and calls, without standing in its way.

What is called is torch's own function, not a wrapper of ours: we are told when it is looked up on
an object. So no frame of ours comes between the script and torch, where a warning would name our
line instead of the script's and a traceback would show it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import MethodType
from typing import Any


def tell_of_each(kind: type, tell: Callable[[Any], None]) -> None:
    """Call `tell` with each object of this class and of its subclasses as its making begins."""
    kind.__init__ = _Making(kind.__init__, tell)  # type: ignore[misc]


def tell_of_lookups(kind: Any, name: str, tell: Callable[[Any], None]) -> None:
    """Call `tell` with the object whose method is looked up, which is to say about to be called."""
    setattr(kind, name, _LookedUp(getattr(kind, name), tell))


def tell_of_calls(kind: Any, name: str, tell: Callable[..., None]) -> None:
    """Call `tell` with the same before each call of a method; does nothing the second time.

    A class that the object is given meanwhile takes the call, be it while the arguments are
    evaluated: in `scaler.scale(loss_of(model(x)))` the method is looked up first.
    """
    if not isinstance(vars(kind).get(name), _Called):
        setattr(kind, name, _Called(name, getattr(kind, name), tell))


def tell_of_function(module: Any, name: str, tell: Callable[[], None]) -> None:
    """Call `tell` before each call of a module's function."""
    plain = getattr(module, name)

    @functools.wraps(plain)
    def function(*arguments: Any, **named: Any) -> Any:
        tell()
        return plain(*arguments, **named)

    setattr(module, name, function)


class _Making:
    """Stands for `__init__`."""

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


class _LookedUp:
    """Stands for a method."""

    def __init__(self, plain: Callable[..., Any], tell: Callable[[Any], None]) -> None:
        self._plain = plain
        self._tell = tell

    def __get__(self, asked: Any, _kind: Any = None) -> Any:
        if asked is None:
            return self._plain
        self._tell(asked)
        return MethodType(self._plain, asked)


class _Called:
    """Stands for a method of objects that may be given another class."""

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
