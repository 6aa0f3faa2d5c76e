"""A report of an exception that ended training: the place, the layer, the dtypes, the memory.

All of it is read from the traceback afterwards, so it costs nothing while training runs. It holds
text and numbers: no reference to a frame, a tensor or the exception outlives `describe`.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from ampwatch.probe.devices import DeviceSampler, pressure

_LONGEST_MESSAGE = 2000
_LONGEST_CHAIN = 10
_MOST_TENSORS = 16
_TORCH = Path(torch.__file__).parent
_OURS = Path(__file__).parents[1]
# MemoryError and torch's own class aside, these words in a RuntimeError: CUDA, MPS, the host.
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "Cannot allocate memory")


@dataclass(frozen=True, slots=True)
class ExceptionReport:
    """An exception that ended training. What is unknown is None or empty."""

    exception: str  # its type, as a traceback prints it
    message: str
    causes: tuple[str, ...]  # "type: message" of what it was raised from, nearest first
    layer: str | None  # the innermost watched module that was at work
    kind: str | None  # that layer's class
    param_dtypes: Mapping[str, str]  # that layer's own parameters, by name
    tensor_dtypes: Mapping[str, str]  # the tensors at hand in its innermost frame, by variable
    operation: str | None  # the innermost frame: "file:line, in function"
    user_frame: str | None  # the innermost frame that is not torch's: where to look first
    out_of_memory: bool
    memory: tuple[
        Mapping[str, Any], ...
    ]  # a row of each device; with its pressure if out of memory

    def to_json(self) -> dict[str, Any]:
        """The same as a dict that json can write."""
        return asdict(self)


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


# -- the chain and its frames --------------------------------------------------------------------


def _chain(error: BaseException) -> list[BaseException]:
    """The exception and what it was raised from, as a traceback would print them."""
    chain: list[BaseException] = []
    one: BaseException | None = error
    while one is not None and len(chain) < _LONGEST_CHAIN and not any(one is c for c in chain):
        chain.append(one)
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)
    return chain


def _places_to_read(error: BaseException, names: Mapping[int, str]) -> list[_Place]:
    """The traceback to read: the exception's own, or that of one it was raised from.

    `raise X from e` says that e is the reason, so e lies deeper. One that was merely being handled
    when X came may have nothing to do with it: it is read where X itself came out of no layer.
    """
    found: list[_Place] = []
    for one in _chain(error):
        places = _places(one)
        if any(place.module_id in names for place in places):
            found = places
        if found and one.__cause__ is None:
            break
    return found or _places(error)


def _places(error: BaseException) -> list[_Place]:
    """The lines of its traceback, outermost first."""
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
    """As in "torch/nn/functional.py:3554, in binary_cross_entropy"."""
    torchs = _TORCH in place.file.parents
    file = place.file.relative_to(_TORCH.parent) if torchs else place.file
    return f"{file}:{place.line}, in {place.function}"


# -- dtypes --------------------------------------------------------------------------------------


def _param_dtypes(module: Any) -> dict[str, str]:
    if module is None:
        return {}
    own = module._parameters.items()  # by name, those of children left out
    return {name: _dtype(value) for name, value in own if value is not None}


def _tensor_dtypes(place: _Place) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in place.variables.items():
        several = value if name == "args" and type(value) is tuple else ()
        named = [(name, value), *((f"args[{i}]", one) for i, one in enumerate(several))]
        found.update((key, _dtype(one)) for key, one in named if issubclass(type(one), Tensor))
    return dict(list(found.items())[:_MOST_TENSORS])


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


# -- words and memory ----------------------------------------------------------------------------


def _type_name(error: BaseException) -> str:
    kind = type(error)
    outside = "" if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}."
    return f"{outside}{kind.__qualname__}"


def _message(error: BaseException) -> str:
    """Its message, capped; `traceback` copes with an exception whose `__str__` raises."""
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
