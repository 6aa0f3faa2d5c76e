"""How this process ends: a call when it does, and the exception that ended it.

No hook of the interpreter is replaced. Before any hook runs, the interpreter leaves the uncaught
exception in `sys.last_value`. A notebook, an interactive session or a test runner leaves there
every exception that it has shown, and goes on: so what stands there need not have ended a training.
"""

from __future__ import annotations

import atexit
import builtins
import multiprocessing
import os
import sys
from collections.abc import Callable, Mapping
from multiprocessing import util
from multiprocessing.process import BaseProcess
from types import CodeType
from typing import Any

from ampwatch.probe.exception_report import passed_through

# Children of multiprocessing run these, highest first, while their exception is still in flight.
_CHILD_PRIORITY = 1000

_TOOL = "ampwatch"
_TOOL_IDS = (4, 3)  # of Python's monitoring: those that it keeps for nobody


def last_reported() -> int:
    """The id of the exception reported last; a reference would keep its frames' tensors alive."""
    return id(_reported())


def ended_by(reported_before: int, names: Mapping[int, str]) -> BaseException | None:
    """The exception that ends this process, asked at its end; None if it ends well.

    `reported_before` is what `last_reported` gave when the watch began; `names` gives the names of
    the watched modules by their ids.
    """
    in_flight = sys.exc_info()[1]
    if in_flight is not None:
        return reason(in_flight)
    reported = _reported()
    if reported is None or id(reported) == reported_before:
        return None
    return reported if _is_uncaught(reported) or passed_through(reported, names) else None


def reason(error: BaseException | None) -> BaseException | None:
    """The exception to record for a `with` block, or a process, ended by `error`; None if none.

    `sys.exit()`, `sys.exit(0)` and a generator that is closed are ends like any other. Ctrl-C is
    not: the training was to go on. Behind a `sys.exit(1)` from an `except` block stands what that
    block caught; this is how processes spawned by torch end.
    """
    if isinstance(error, SystemExit):
        if error.code in (None, 0):
            return None
        return (None if error.__suppress_context__ else error.__context__) or error
    return None if isinstance(error, GeneratorExit) else error


def at_end(callback: Callable[[], None]) -> Callable[[], None]:
    """Call back once when this process ends; returns what calls it off.

    Callbacks at exit run last in, first out, and torch and multiprocessing put theirs in when they
    are imported: ours runs while threads, sockets and children still live. Not in a forked child,
    nor where a process ends without asking anybody (`os._exit`, a signal).
    """
    own_pid = os.getpid()

    def run_once() -> None:
        cancel()
        if os.getpid() == own_pid:
            callback()

    def cancel() -> None:
        atexit.unregister(run_once)
        if finalizer is not None:
            finalizer.cancel()
        stop_looking()

    atexit.register(run_once)
    finalizer = None
    stop_looking = _while_a_child_fails(run_once)
    if multiprocessing.parent_process() is not None:  # ends by os._exit, after its own finalizers
        finalizer = util.Finalize(None, run_once, exitpriority=_CHILD_PRIORITY)
    return cancel


def _reported() -> BaseException | None:
    """The exception that the interpreter or an interactive session has reported last."""
    return getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)


def _is_uncaught(error: BaseException) -> bool:
    """Whether it left the program itself, and was not shown by a host that goes on."""
    outermost = error.__traceback__
    if outermost is None or outermost.tb_frame.f_back is not None or _is_session():
        return False  # since Python 3.13 a host that shows it takes its own frame away
    module = outermost.tb_frame.f_globals.get("__name__")
    return module in ("__main__", "runpy")


def _is_session() -> bool:
    """Whether the interpreter is interactive: a notebook, IPython, the prompt, `python -i`."""
    return hasattr(sys, "ps1") or hasattr(builtins, "__IPYTHON__") or bool(sys.flags.interactive)


# -- children of multiprocessing, since Python 3.13 ------------------------------------------------

_callbacks: list[Callable[[], None]] = []


def _while_a_child_fails(callback: Callable[[], None]) -> Callable[[], None]:
    """Call back when an exception has reached the top of this child; returns what calls it off.

    Up to Python 3.12 a child of multiprocessing runs its finalizers while that exception is still
    in flight. Since 3.13 it first prints the exception and forgets it. So the lines of the one
    function that catches it are watched, by `sys.monitoring`: no other code runs slower. Nothing
    happens where this is no such child, or where its finalizers suffice.
    """
    monitoring: Any = getattr(sys, "monitoring", None)
    catcher: CodeType = BaseProcess._bootstrap.__code__  # type: ignore[attr-defined]
    if (
        monitoring is None
        or multiprocessing.parent_process() is None
        or "_exit_function" in catcher.co_names
    ):
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
