"""Reads a card's figures from NVIDIA's management library (NVML) without failing or stalling.

torch numbers the devices it may see and NVML all there are, so a card is found by its UUID. NVML
calls can hang when a card falls off the bus. `NvmlReader` calls it in a thread of its own and goes
on without an answer, so that the last rows of such a run are still written.
"""

from __future__ import annotations

import contextlib
import importlib
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_REST_S = 60.0
# After these NVML knows nothing more of any card; other errors concern the one question.
_FATAL = (
    "UNINITIALIZED",
    "DRIVER_NOT_LOADED",
    "TIMEOUT",
    "LIBRARY_NOT_FOUND",
    "GPU_IS_LOST",
    "RESET_REQUIRED",
    "LIB_RM_VERSION_MISMATCH",
)
_GPU_SENSOR = 0  # NVML_TEMPERATURE_GPU
_SAME_SIZE = 0.1  # NVML counts what the driver keeps, torch does not: 1 to 5 % of the memory


@dataclass(frozen=True, slots=True)
class Card:
    """What torch knows of one of its devices, and NVML can find it by."""

    uuid: str | None  # without a prefix
    pci_bus_id: str | None
    total_bytes: int


@dataclass(frozen=True, slots=True)
class Reading:
    """One card as NVML sees it, all processes together; None: it gave no answer."""

    used_bytes: int | None = None
    total_bytes: int | None = None
    utilisation: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None


def load_nvml() -> Any:
    """The pynvml module (of nvidia-ml-py); None where it cannot be imported."""
    try:
        return importlib.import_module("pynvml")
    except (ImportError, OSError):
        return None


class Nvml:
    """NVML, asked in the caller's thread. Rests for a minute after it died."""

    def __init__(
        self,
        load: Callable[[], Any] = load_nvml,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._load = load
        self._clock = clock
        self._module: Any = None
        self._handles: dict[Card, Any] = {}
        self._rests_until = -float("inf")

    def read(self, cards: Mapping[str, Card]) -> dict[str, Reading]:
        """A reading for each card that NVML knows; empty while it rests or where it is absent."""
        if self._clock() < self._rests_until or not self._start():
            return {}
        try:
            found = {name: (card, self._handle(card)) for name, card in cards.items()}
            return {
                name: self._reading(card, handle)
                for name, (card, handle) in found.items()
                if handle is not None
            }
        except self._module.NVMLError:
            self._rest()
            return {}

    def close(self) -> None:
        """Give NVML back; it counts its users."""
        if self._module is not None:
            with contextlib.suppress(self._module.NVMLError):  # it may have died before
                self._module.nvmlShutdown()
        self._module = None
        self._handles.clear()

    def _start(self) -> bool:
        if self._module is None:
            module = self._load()
            try:
                if module is not None:
                    module.nvmlInit()
            except module.NVMLError:
                module = None
            if module is None:
                self._rest()
            self._module = module
        return self._module is not None

    def _rest(self) -> None:
        self._rests_until = self._clock() + _REST_S
        self.close()

    def _handle(self, card: Card) -> Any:
        """The card's handle, or None if NVML does not know it; raises what is fatal."""
        if card not in self._handles:
            self._handles[card] = self._find(card)
        return self._handles[card]

    def _find(self, card: Card) -> Any:
        handle = None
        if card.uuid:
            # The CUDA runtime gives a MIG slice's own UUID or, in some versions, its card's.
            for prefix in ("MIG-", "GPU-"):
                handle = handle or self._ask("nvmlDeviceGetHandleByUUID", prefix + card.uuid)
        if handle is None and card.pci_bus_id:
            handle = self._ask("nvmlDeviceGetHandleByPciBusId", card.pci_bus_id)
        return handle

    def _reading(self, card: Card, handle: Any) -> Reading:
        memory = self._ask("nvmlDeviceGetMemoryInfo", handle)
        if memory is not None and abs(memory.total / card.total_bytes - 1) > _SAME_SIZE:
            memory = None  # the whole card's, of which this process sees a slice
        rates = self._ask("nvmlDeviceGetUtilizationRates", handle)
        milliwatts = self._ask("nvmlDeviceGetPowerUsage", handle)
        celsius = self._ask("nvmlDeviceGetTemperature", handle, _GPU_SENSOR)
        return Reading(
            used_bytes=None if memory is None else int(memory.used),
            total_bytes=None if memory is None else int(memory.total),
            utilisation=None if rates is None else rates.gpu / 100,
            power_w=None if milliwatts is None else milliwatts / 1000,
            temperature_c=None if celsius is None else float(celsius),
        )

    def _ask(self, question: str, *arguments: Any) -> Any:
        """The answer, or None where this card has none (MIG and vGPU refuse some questions)."""
        nvml = self._module
        function = getattr(nvml, question, None)  # versions of pynvml differ
        try:
            return None if function is None else function(*arguments)
        except nvml.NVMLError as error:
            if error.value in {getattr(nvml, f"NVML_ERROR_{name}", None) for name in _FATAL}:
                raise
            return None


class NvmlReader:
    """NVML, asked from a daemon thread that is started at the first question."""

    def __init__(self, nvml: Nvml | None = None, wait_s: float = 0.05) -> None:
        self._nvml = nvml or Nvml()
        self._wait_s = wait_s
        self._questions: queue.SimpleQueue[Mapping[str, Card] | None] = queue.SimpleQueue()
        self._answered = threading.Event()
        self._answered.set()
        self._answer: dict[str, Reading] = {}
        self._thread: threading.Thread | None = None

    def read(self, cards: Mapping[str, Card]) -> dict[str, Reading]:
        """As `Nvml.read`, but empty if the answer takes longer than `wait_s`."""
        if not cards or not self._answered.is_set():  # an earlier question is still out
            return {}
        if self._thread is None and not self._start():
            return {}
        self._answered.clear()
        self._questions.put(dict(cards))
        return self._answer if self._answered.wait(self._wait_s) else {}

    def close(self) -> None:
        """Let the thread end when it can; never waits for it."""
        if self._thread is not None:
            self._questions.put(None)
            self._thread = None

    def _start(self) -> bool:
        thread = threading.Thread(target=self._serve, name="ampwatch-nvml", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the interpreter is shutting down, or there are too many threads
            return False
        self._thread = thread
        return True

    def _serve(self) -> None:
        while (cards := self._questions.get()) is not None:
            self._answer = self._nvml.read(cards)
            self._answered.set()
        self._nvml.close()
