"""Calls back while the exception that ends a process of multiprocessing is still in flight.

Up to Python 3.12 such a process runs its finalizers then. Since 3.13 it first prints the exception
and forgets it, and nothing that runs later can know it. So the lines of the one function that
catches it are watched, by `sys.monitoring`: no other code is, and none runs slower.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from multiprocessing import parent_process
from multiprocessing.process import BaseProcess
from types import CodeType
from typing import Any

_TOOL = "ampwatch"
_TOOL_IDS = (4, 3)  # those that Python keeps for nobody

_callbacks: list[Callable[[], None]] = []


def while_a_child_fails(callback: Callable[[], None]) -> Callable[[], None]:
    """Call back when an exception has reached the top of this child; returns what calls it off.

    Nothing happens where this is no child of multiprocessing, or where its finalizers suffice.
    """
    monitoring: Any = getattr(sys, "monitoring", None)
    catcher: CodeType = BaseProcess._bootstrap.__code__  # type: ignore[attr-defined]
    if monitoring is None or parent_process() is None or "_exit_function" in catcher.co_names:
        return lambda: None
    if not _callbacks and not _watch_lines(monitoring, catcher):
        return lambda: None
    _callbacks.append(callback)

    def call_off() -> None:
        if callback in _callbacks:
            _callbacks.remove(callback)
            if not _callbacks:
                _stop(monitoring)

    return call_off


def _watch_lines(monitoring: Any, code: CodeType) -> bool:
    """Whether a free place among Python's monitoring tools was found."""
    free = [number for number in _TOOL_IDS if monitoring.get_tool(number) is None]
    if not free:
        return False

    def at_line(*_: object) -> None:
        if sys.exc_info()[1] is not None:
            for callback in tuple(_callbacks):
                callback()

    line = monitoring.events.LINE
    monitoring.use_tool_id(free[0], _TOOL)
    monitoring.register_callback(free[0], line, at_line)
    monitoring.set_local_events(free[0], code, line)
    return True


def _stop(monitoring: Any) -> None:
    code = BaseProcess._bootstrap.__code__  # type: ignore[attr-defined]
    for number in _TOOL_IDS:
        if monitoring.get_tool(number) == _TOOL:
            monitoring.set_local_events(number, code, 0)
            monitoring.register_callback(number, monitoring.events.LINE, None)
            monitoring.free_tool_id(number)
