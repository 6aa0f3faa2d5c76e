"""What this process and its cards use: rows of the `devices` table, about one a second.

Allocated, reserved and peak are torch's own for this process; used and total, utilisation, power
and temperature are the whole card's, from NVIDIA's management library (NVML). Nothing here
initialises a device, waits for one or raises; what cannot be had is None.

torch numbers the devices it may see and NVML all there are, so a card is found by its UUID. NVML
calls can hang when a card falls off the bus. `NvmlReader` calls it in a thread of its own and goes
on without an answer, so that the last rows of such a run are still written.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

_STATM = Path("/proc/self/statm")
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
class NvmlReading:
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
        self, load: Callable[[], Any] = load_nvml, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._load = load
        self._clock = clock
        self._module: Any = None
        self._handles: dict[Card, Any] = {}
        self._rests_until = -float("inf")

    def read(self, cards: Mapping[str, Card]) -> dict[str, NvmlReading]:
        """A reading for each card that NVML knows; empty while it rests or where it is absent."""
        if self._clock() < self._rests_until or not self._start():
            return {}
        try:
            handles = {name: (card, self._handle(card)) for name, card in cards.items()}
            return {
                name: self._reading(card, handle)
                for name, (card, handle) in handles.items()
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

    def _reading(self, card: Card, handle: Any) -> NvmlReading:
        memory = self._ask("nvmlDeviceGetMemoryInfo", handle)
        if memory is not None and abs(memory.total / card.total_bytes - 1) > _SAME_SIZE:
            memory = None  # the whole card's, of which this process sees a slice
        rates = self._ask("nvmlDeviceGetUtilizationRates", handle)
        milliwatts = self._ask("nvmlDeviceGetPowerUsage", handle)
        celsius = self._ask("nvmlDeviceGetTemperature", handle, _GPU_SENSOR)
        return NvmlReading(
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
        self._answer: dict[str, NvmlReading] = {}
        self._thread: threading.Thread | None = None

    def read(self, cards: Mapping[str, Card]) -> dict[str, NvmlReading]:
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


# -- rows of the `devices` table -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """One row of the `devices` table: one device at one moment."""

    time_ns: int
    device: str
    name: str | None = None
    capability: str | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    peak_bytes: int | None = None
    used_bytes: int | None = None
    total_bytes: int | None = None
    utilisation: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    host_rss_bytes: int | None = None


class DeviceSampler:
    """Samples the given devices, and whatever other card this process has put tensors on.

    A process without any card has one row, of the device "cpu".
    """

    def __init__(
        self, devices: Iterable[torch.device] = (), nvml: NvmlReader | None = None
    ) -> None:
        self._given = {_named(device): device for device in devices if device.type != "cpu"}
        self._nvml = nvml or NvmlReader()

    def sample(self, time_ns: int) -> dict[str, list[Any]]:
        """The columns of the `devices` table, a row for each device."""
        rows = self.rows(time_ns)
        return {field.name: [getattr(row, field.name) for row in rows] for field in fields(rows[0])}

    def rows(self, time_ns: int) -> list[DeviceRow]:
        """A row for each device, at least one."""
        devices = {**self._given, **_cuda_in_use()}
        rss_bytes = host_rss_bytes()
        if not devices:
            return [DeviceRow(time_ns, "cpu", host_rss_bytes=rss_bytes)]
        cards = {name: card for name, device in devices.items() if (card := _card(device))}
        readings = self._nvml.read(cards)
        return [
            replace(
                _with_reading(_counters(DeviceRow(time_ns, name), device), readings.get(name)),
                host_rss_bytes=rss_bytes,
            )
            for name, device in devices.items()
        ]

    def close(self) -> None:
        """Give NVML back."""
        self._nvml.close()


def host_rss_bytes() -> int | None:
    """This process's resident memory; its peak on systems without /proc."""
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError, AttributeError):
        pass
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def pressure(device: torch.device) -> dict[str, int]:
    """The figures of torch's memory summary that explain a failed allocation; empty if unknown.

    What was asked for against what is allocated, the cached blocks too split to be used, and how
    often the allocator flushed its cache and tried again, or gave up.
    """
    stats = _cuda_stats(device) if device.type == "cuda" else {}
    if not stats:
        return {}
    return {
        "requested_bytes": _current(stats, "requested_bytes") or 0,
        "inactive_split_bytes": _current(stats, "inactive_split_bytes") or 0,
        "alloc_retries": int(stats.get("num_alloc_retries", 0)),
        "ooms": int(stats.get("num_ooms", 0)),
    }


def _named(device: torch.device) -> str:
    """The device with its number: "cuda" alone is the first."""
    return device.type if device.type == "mps" else f"{device.type}:{device.index or 0}"


def _cuda_in_use() -> dict[str, torch.device]:
    """The CUDA devices on which torch's allocator of this process holds memory."""
    if not _cuda_is_initialized():
        return {}
    devices = (torch.device("cuda", number) for number in range(torch.cuda.device_count()))
    return {_named(d): d for d in devices if _current(_cuda_stats(d), "reserved_bytes")}


def _cuda_is_initialized() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _card(device: torch.device) -> Card | None:
    """What NVML can find the device by; None for what is no initialised CUDA device."""
    if device.type != "cuda" or not _cuda_is_initialized():
        return None
    try:
        facts = torch.cuda.get_device_properties(device.index or 0)
    except (RuntimeError, AssertionError):
        return None
    uuid = getattr(facts, "uuid", None)
    return Card(None if uuid is None else str(uuid), _pci_bus_id(facts), facts.total_memory)


def _pci_bus_id(facts: Any) -> str | None:
    try:
        domain, bus, slot = facts.pci_domain_id, facts.pci_bus_id, facts.pci_device_id
    except AttributeError:  # torch before 2.8
        return None
    return f"{domain:08X}:{bus:02X}:{slot:02X}.0"


def _counters(row: DeviceRow, device: torch.device) -> DeviceRow:
    """The row with torch's counters for this process."""
    count = _COUNTERS.get(device.type, _count_other)
    try:
        return replace(row, **count(device))
    except (RuntimeError, AssertionError):  # a device that failed; its row says that it was there
        return row


def _count_cuda(device: torch.device) -> dict[str, Any]:
    stats = _cuda_stats(device)
    if not stats:
        return {}
    facts = torch.cuda.get_device_properties(device.index or 0)
    return {
        "name": facts.name,
        "capability": f"{facts.major}.{facts.minor}",
        "allocated_bytes": _current(stats, "allocated_bytes"),
        "reserved_bytes": _current(stats, "reserved_bytes"),
        "peak_bytes": _current(stats, "allocated_bytes", "peak"),
        "total_bytes": facts.total_memory,
    }


def _count_mps(_device: torch.device) -> dict[str, Any]:
    return {
        "allocated_bytes": torch.mps.current_allocated_memory(),
        "reserved_bytes": torch.mps.driver_allocated_memory(),
        "total_bytes": torch.mps.recommended_max_memory(),
    }


def _count_other(device: torch.device) -> dict[str, Any]:
    """XPU and out-of-tree devices: the counters that their torch module has."""
    module = getattr(torch, device.type, None)
    if module is None or not getattr(module, "is_initialized", lambda: False)():
        return {}
    functions = {
        "name": "get_device_name",
        "allocated_bytes": "memory_allocated",
        "reserved_bytes": "memory_reserved",
        "peak_bytes": "max_memory_allocated",
    }
    return {
        column: getattr(module, function)(device.index or 0)
        for column, function in functions.items()
        if hasattr(module, function)
    }


_COUNTERS: Mapping[str, Callable[[torch.device], dict[str, Any]]] = {
    "cuda": _count_cuda,
    "mps": _count_mps,
}


def _cuda_stats(device: torch.device) -> dict[str, Any]:
    """The allocator's figures, empty before CUDA is initialised; no device call behind it."""
    try:
        return dict(torch.cuda.memory_stats_as_nested_dict(device.index or 0))
    except RuntimeError:  # an allocator of the user's own may keep no figures
        return {}


def _current(stats: Mapping[str, Any], what: str, which: str = "current") -> int | None:
    count: int | None = stats.get(what, {}).get("all", {}).get(which)
    return count


def _with_reading(row: DeviceRow, reading: NvmlReading | None) -> DeviceRow:
    """The row with what NVML says; the total is torch's own word where NVML has none."""
    values = {} if reading is None else asdict(reading)
    return replace(row, **{name: value for name, value in values.items() if value is not None})
