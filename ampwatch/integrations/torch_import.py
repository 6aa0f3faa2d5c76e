"""Being told when a script has imported torch, with no frame of ours in that import."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


def when_torch_is_loaded(tell: Callable[[], None]) -> None:
    """Call `tell` once torch is there: now, or as its import ends."""
    if "torch" in sys.modules:  # a package's .pth file has imported it before us
        tell()
    else:
        sys.meta_path.insert(0, _Torch(tell))


class _Torch(importlib.abc.MetaPathFinder):
    """Lets torch be imported as ever; many only ask whether it is installed."""

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell = tell
        self._asks = False

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Only torch's own; every other module is somebody else's to find."""
        if name != "torch" or self._asks:
            return None
        self._asks = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._asks = False
        if spec is not None and type(spec) is ModuleSpec:
            vars(spec)["_loaded"] = self._loaded
            spec.__class__ = _ToldSpec
        return spec

    def _loaded(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            self._tell()


class _ToldSpec(ModuleSpec):
    """Is told of the import's end by the import itself, which notes it here."""

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
