"""The exception that ended a training: found when the process ends, and reported.

No hook of the interpreter is replaced. Before any hook runs, the interpreter leaves the uncaught
exception in `sys.last_value`. A notebook, an interactive session or a test runner leaves there
every exception that it has shown, and goes on: so what stands there need not have ended a training.

The report names the place, the layer, the dtypes and the memory. All of it is read from the
traceback afterwards, so it costs nothing while training runs. It holds text and numbers: no
reference to a frame, a tensor or the exception outlives `describe`.
"""

from __future__ import annotations

import atexit
import builtins
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from multiprocessing import util
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor

from ampwatch.probe.devices import DeviceSampler, pressure
from ampwatch.probe.tensor_values import dtype_name

# Children of multiprocessing run these, highest first, while their exception is still in flight.
_CHILD_PRIORITY = 1000

_TOOL = "ampwatch"
_TOOL_IDS = (4, 3)  # of Python's monitoring: those that it keeps for nobody

_LONGEST_MESSAGE = 2000
_LONGEST_CHAIN = 10
_MOST_TENSORS = 16
_TORCH = Path(torch.__file__).parent
_OURS = Path(__file__).parents[1]
# MemoryError and torch's own class aside, these words in a RuntimeError: CUDA, MPS, the host.
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "Cannot allocate memory")


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


# -- the report ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ExceptionReport:
    """An exception that ended training, as json can write it. What is unknown is None or empty."""

    exception: str  # its type, as a traceback prints it
    message: str
    causes: tuple[str, ...]  # "type: message" of what it was raised from, nearest first
    layer: str | None  # the innermost watched module that was at work
    kind: str | None  # that layer's class
    param_dtypes: Mapping[str, str]  # that layer's own parameters, by name
    tensor_dtypes: Mapping[str, str]  # the tensors at hand in its innermost frame, by variable
    input_finite: bool | None  # of the outermost watched module; None where nobody looked
    operation: str | None  # the innermost frame: "file:line, in function"
    user_frame: str | None  # the innermost frame that is not torch's: where to look first
    out_of_memory: bool
    memory: tuple[
        Mapping[str, Any], ...
    ]  # a row of each device; with its pressure if out of memory


@dataclass(frozen=True, slots=True)
class _Place:
    """One line of a traceback."""

    file: Path
    line: int
    function: str
    variables: Mapping[str, Any]

    @property
    def module_id(self) -> int:
        """The id of `self`; asking the object for anything more would run its code."""
        return id(self.variables.get("self"))


def describe(
    error: BaseException, names: Mapping[int, str], devices: DeviceSampler | None = None
) -> ExceptionReport:
    """Report an exception; `names` gives each watched module's layer name by its id."""
    chain = _chain(error)
    places = _places_to_read(error, names)
    at_work = [place for place in places if place.module_id in names]
    module = at_work[-1].variables["self"] if at_work else None
    out_of_memory = any(_is_out_of_memory(one) for one in chain)
    return ExceptionReport(
        exception=_type_name(error),
        message=_message(error),
        causes=tuple(f"{_type_name(one)}: {_message(one)}" for one in chain[1:]),
        layer=names.get(id(module)),
        kind=None if module is None else type(module).__name__,
        param_dtypes=_param_dtypes(module),
        tensor_dtypes=_tensor_dtypes(at_work[-1]) if at_work else {},
        input_finite=_input_finite(at_work[0], chain) if at_work else None,
        operation=_written(places[-1]) if places else None,
        user_frame=next((_written(place) for place in reversed(places) if _is_users(place)), None),
        out_of_memory=out_of_memory,
        memory=_memory(devices, under_pressure=out_of_memory),
    )


def passed_through(error: BaseException, names: Mapping[int, str]) -> bool:
    """Whether the exception came out of a watched module, or through the watch itself."""
    return any(
        place.module_id in names or _OURS in place.file.parents
        for one in _chain(error)
        for place in _places(one)
    )


# -- the chain and its frames ----------------------------------------------------------------------


def _chain(error: BaseException) -> list[BaseException]:
    """The exception and what it was raised from, as a traceback would print them."""
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and len(chain) < _LONGEST_CHAIN and not any(link is c for c in chain):
        chain.append(link)
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return chain


def _places_to_read(error: BaseException, names: Mapping[int, str]) -> list[_Place]:
    """The traceback to read: the exception's own, or that of one it was raised from.

    `raise X from e` says that e is the reason, so e lies deeper. One that was merely being handled
    when X came may have nothing to do with it: it is read where X itself came out of no layer.
    """
    all_places: list[_Place] = []
    for one in _chain(error):
        places = _places(one)
        if any(place.module_id in names for place in places):
            all_places = places
        if all_places and one.__cause__ is None:
            break
    return all_places or _places(error)


def _places(error: BaseException) -> list[_Place]:
    """The lines of an exception's traceback, outermost first."""
    running = _running()
    places = []
    link = error.__traceback__
    while link is not None:
        frame, code = link.tb_frame, link.tb_frame.f_code
        # Python before 3.13 keeps what `f_locals` showed for as long as the frame runs, and with it
        # tensors that the user may have let go of. Only the frame of the `with` block runs on.
        variables = {} if id(frame) in running else frame.f_locals
        places.append(_Place(Path(code.co_filename), link.tb_lineno, code.co_name, variables))
        link = link.tb_next
    return places


def _running() -> frozenset[int]:
    """The ids of this thread's frames: a reference to our own would tie it to itself."""
    ids = set()
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        ids.add(id(frame))
        frame = frame.f_back
    return frozenset(ids)


def _is_users(place: _Place) -> bool:
    """Whether the line is neither torch's nor ours nor the interpreter's own."""
    parents = place.file.parents
    return not (_TORCH in parents or _OURS in parents or place.file.name.startswith("<frozen"))


def _written(place: _Place) -> str:
    """A line of the traceback as in "torch/nn/functional.py:3554, in binary_cross_entropy"."""
    torchs = _TORCH in place.file.parents
    file = place.file.relative_to(_TORCH.parent) if torchs else place.file
    return f"{file}:{place.line}, in {place.function}"


# -- dtypes ----------------------------------------------------------------------------------------


def _param_dtypes(module: Any) -> dict[str, str]:
    if module is None:
        return {}
    own = module._parameters.items()  # by name, those of children left out
    return {name: dtype_name(value.dtype) for name, value in own if value is not None}


def _tensor_dtypes(place: _Place) -> dict[str, str]:
    dtypes: dict[str, str] = {}
    for name, value in place.variables.items():
        several = value if name == "args" and type(value) is tuple else ()
        named = [(name, value), *((f"args[{i}]", one) for i, one in enumerate(several))]
        dtypes |= {k: dtype_name(one.dtype) for k, one in named if issubclass(type(one), Tensor)}
    return dict(list(dtypes.items())[:_MOST_TENSORS])


def _input_finite(place: _Place, chain: Sequence[BaseException]) -> bool | None:
    """Whether the tensors given to a module were finite; a device that failed is not asked."""
    given = place.variables.get("args")
    if type(given) is not tuple or any(isinstance(one, RuntimeError) for one in chain):
        return None
    floats = [one for one in given if type(one) is Tensor and one.is_floating_point()]
    try:
        return all(bool(torch.isfinite(one).all()) for one in floats) if floats else None
    except RuntimeError:  # of a tensor that holds no values
        return None


# -- words and memory ------------------------------------------------------------------------------


def _type_name(error: BaseException) -> str:
    kind = type(error)
    outside = "" if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}."
    return f"{outside}{kind.__qualname__}"


def _message(error: BaseException) -> str:
    """The exception's message, capped; `traceback` copes with one whose `__str__` raises."""
    safely = traceback.TracebackException(
        type(error), error, None, limit=1, lookup_lines=False, capture_locals=False
    )
    text = str(safely).encode(errors="replace").decode()
    return text if len(text) <= _LONGEST_MESSAGE else text[: _LONGEST_MESSAGE - 1] + "…"


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(
        words in _message(error) for words in _OUT_OF_MEMORY
    )


def _memory(
    devices: DeviceSampler | None, *, under_pressure: bool
) -> tuple[Mapping[str, Any], ...]:
    """Each device's memory now, which is that of the failure: the traceback holds the tensors."""
    sampler = devices or DeviceSampler()
    rows = [asdict(row) for row in sampler.rows(time.time_ns())]
    if devices is None:
        sampler.close()
    for row in rows:
        if under_pressure and row["device"].startswith("cuda"):
            row.update(pressure(torch.device(row["device"])))
    return tuple({key: value for key, value in row.items() if value is not None} for row in rows)
