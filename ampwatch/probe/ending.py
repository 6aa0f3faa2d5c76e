"""How this process ends: when to say so, and which exception did it.

No hook of the interpreter is replaced. Before any hook runs, the interpreter leaves the uncaught
exception in `sys.last_value`; but a notebook, an interactive session or a test runner leaves there
every exception it has shown and lives on, so what stands there is not always the end of a training.
"""

from __future__ import annotations

import atexit
import builtins
import multiprocessing
import os
import sys
from collections.abc import Callable, Mapping
from multiprocessing import util

from ampwatch.probe.child_ending import while_a_child_fails
from ampwatch.probe.last_words import passed_through

# Children of multiprocessing run these, highest first, while their exception is still in flight.
_CHILD_PRIORITY = 1000


def standing() -> int:
    """Which exception was reported last, as a number: holding it would hold its frames' tensors."""
    return id(_reported())


def ended_by(stood: int, names: Mapping[int, str]) -> BaseException | None:
    """The exception that ends this process, asked at its end; None if it ends well.

    `stood` is what `standing` said when the watch began; `names` are the watched modules by id.
    """
    in_flight = sys.exc_info()[1]
    if in_flight is not None:
        return reason(in_flight)
    reported = _reported()
    if reported is None or id(reported) == stood:
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
    stop_looking = while_a_child_fails(run_once)
    if multiprocessing.parent_process() is not None:  # ends by os._exit, after its own finalizers
        finalizer = util.Finalize(None, run_once, exitpriority=_CHILD_PRIORITY)
    return cancel


def _reported() -> BaseException | None:
    """The exception that the interpreter, or a session in its place, has reported last."""
    return getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)


def _is_uncaught(error: BaseException) -> bool:
    """Whether it left the program itself: nobody shows it and goes on."""
    outermost = error.__traceback__
    if outermost is None or outermost.tb_frame.f_back is not None or _is_session():
        return False  # since Python 3.13 a host that shows it takes its own frame away
    module = outermost.tb_frame.f_globals.get("__name__")
    return module in ("__main__", "runpy")


def _is_session() -> bool:
    """Whether somebody types: a notebook, IPython, the plain prompt, or `python -i`."""
    return hasattr(sys, "ps1") or hasattr(builtins, "__IPYTHON__") or bool(sys.flags.interactive)
