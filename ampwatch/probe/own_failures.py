"""The one guard at the probe's edge: what fails in us never reaches the training.

It warns once, counts, carries on, and after too many failures switches the watch off. Under our own
tests (`AMPWATCH_STRICT=1`) it re-raises, so that nothing hides there.
"""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from ampwatch.errors import warn

FAILURES_BEFORE_OFF = 100

_dispatch_modes = torch._C._len_torch_dispatch_stack
_function_modes = torch._C._len_torch_function_stack


@contextlib.contextmanager
def _apart_from_modes() -> Iterator[None]:
    """A mode of the user's (a counter, selective checkpointing, a default device) is not for us.

    It would take our operations for the training's.
    """
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        yield


class Guard:
    """Runs our code for its effect; its failures are counted, not raised."""

    def __init__(self) -> None:
        self.failures = 0
        self.off = False
        self._strict = os.environ.get("AMPWATCH_STRICT") == "1"

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """The function's result, or None if it failed or the watch is off."""
        if self.off:
            return None
        try:
            if _dispatch_modes() or _function_modes():
                with _apart_from_modes():
                    return function(*arguments)
            return function(*arguments)
        except Exception as error:  # noqa: BLE001 - the one place where everything is caught
            self.failed(error)
            return None

    def failed(self, error: Exception) -> None:
        """Count a failure; the first is said with its place."""
        if self._strict:
            raise error
        self.failures += 1
        if self.failures == 1:
            place = traceback.extract_tb(error.__traceback__)[-1]
            warn(
                f"could not observe this step ({type(error).__name__}: {error}; "
                f"{place.name}, line {place.lineno}). Training goes on; some figures are absent."
            )
        if self.failures >= FAILURES_BEFORE_OFF:
            self.off = True
            warn(f"switched off after {self.failures} failures of its own; training goes on.")
