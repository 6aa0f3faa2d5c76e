"""Being told of what a script makes and calls, without standing in its way."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def tell_of_each(kind: type, tell: Callable[[Any], None]) -> None:
    """Call `tell` with each object of this class, and of its subclasses, once it is made."""
    make = kind.__init__  # type: ignore[misc]

    @functools.wraps(make)
    def init(self: Any, *arguments: Any, **named: Any) -> None:
        make(self, *arguments, **named)
        tell(self)

    kind.__init__ = init  # type: ignore[misc]


def tell_of_calls(kind: Any, name: str, tell: Callable[..., None]) -> None:
    """Call `tell` with the same before each call of a method; a class that it swaps takes it."""
    plain = getattr(kind, name)

    @functools.wraps(plain)
    def method(self: Any, *arguments: Any, **named: Any) -> Any:
        before = type(self)
        tell(self, *arguments, **named)
        if type(self) is not before:
            return getattr(self, name)(*arguments, **named)
        return plain(self, *arguments, **named)

    setattr(kind, name, method)


def tell_of_function(module: Any, name: str, tell: Callable[[], None]) -> None:
    """Call `tell` before each call of a module's function."""
    plain = getattr(module, name)

    @functools.wraps(plain)
    def function(*arguments: Any, **named: Any) -> Any:
        tell()
        return plain(*arguments, **named)

    setattr(module, name, function)
