"""What the process and its cards use; absent is None, and nothing stalls, fails or wakes a card."""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import children
import psutil
import pynvml
import pytest
import torch

from ampwatch.codec import decode, encode
from ampwatch.probe import devices
from ampwatch.probe.devices import Card, DeviceRow, DeviceSampler, Nvml, NvmlReader, NvmlReading
from ampwatch.rows import SCHEMAS, Table

GIB = 1 << 30
PATIENT_S = 30.0  # long enough for any machine; a failure, not a pace


@dataclass
class FakeCard:
    """One card of a faithful stand-in for NVML: what it answers and what it refuses."""

    uuid: str
    pci_bus_id: str = "00000000:3B:00.0"
    total: int = 80 * GIB
    used: int = 10 * GIB
    refuses: dict[str, int] = field(default_factory=dict)  # function name -> NVML error code


class FakeNvml:
    """The functions of pynvml that we use, with pynvml's own exceptions and calling rules.

    The real library cannot be had on a machine without NVIDIA's driver; the `gpu` tests ask it.
    """

    NVMLError = pynvml.NVMLError

    def __init__(self, *cards: FakeCard) -> None:
        self.cards = list(cards)
        self.users = 0
        self.init_error: int | None = None
        self.questions: list[str] = []

    def __getattr__(self, name: str):
        if name.startswith("NVML_ERROR_"):
            return getattr(pynvml, name)
        raise AttributeError(name)

    def nvmlInit(self):
        self.questions.append("nvmlInit")
        if self.init_error is not None:
            raise pynvml.NVMLError(self.init_error)
        self.users += 1

    def nvmlShutdown(self):
        if self.users == 0:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)
        self.users -= 1

    def _answer(self, function: str, card: FakeCard):
        self.questions.append(function)
        if self.users == 0:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)
        if function in card.refuses:
            raise pynvml.NVMLError(card.refuses[function])

    def _find(self, matches):
        for card in self.cards:
            if matches(card):
                return card
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    def nvmlDeviceGetHandleByUUID(self, uuid: str):
        return self._find(lambda card: card.uuid == uuid)

    def nvmlDeviceGetHandleByPciBusId(self, bus_id: str):
        return self._find(lambda card: card.pci_bus_id == bus_id)

    def nvmlDeviceGetMemoryInfo(self, card):
        self._answer("nvmlDeviceGetMemoryInfo", card)
        return SimpleNamespace(total=card.total, used=card.used, free=card.total - card.used)

    def nvmlDeviceGetUtilizationRates(self, card):
        self._answer("nvmlDeviceGetUtilizationRates", card)
        return SimpleNamespace(gpu=75, memory=20)

    def nvmlDeviceGetPowerUsage(self, card):
        self._answer("nvmlDeviceGetPowerUsage", card)
        return 312_500

    def nvmlDeviceGetTemperature(self, card, sensor):
        assert sensor == pynvml.NVML_TEMPERATURE_GPU
        self._answer("nvmlDeviceGetTemperature", card)
        return 61


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def nvml_of(module, clock=None) -> Nvml:
    return Nvml(load=lambda: module, clock=clock or Clock())


A = "11111111-2222-3333-4444-555555555555"
B = "66666666-7777-8888-9999-000000000000"


# --- NVML: which card is which --------------------------------------------------------------


def test_cards_are_matched_by_uuid_whatever_their_order():
    fake = FakeNvml(FakeCard(f"GPU-{A}", used=1 * GIB), FakeCard(f"GPU-{B}", used=2 * GIB))
    # CUDA_VISIBLE_DEVICES=1,0 : torch's first card is NVML's second
    cards = {"cuda:0": Card(B, None, 79 * GIB), "cuda:1": Card(A, None, 79 * GIB)}
    readings = nvml_of(fake).read(cards)
    assert readings["cuda:0"] == NvmlReading(2 * GIB, 80 * GIB, 0.75, 312.5, 61.0)
    assert readings["cuda:1"].used_bytes == 1 * GIB


def test_a_mig_slice_is_found_by_its_own_uuid_and_refuses_only_some_questions():
    refused = pynvml.NVML_ERROR_NOT_SUPPORTED
    refuses = {"nvmlDeviceGetUtilizationRates": refused, "nvmlDeviceGetPowerUsage": refused}
    fake = FakeNvml(
        FakeCard(f"GPU-{A}"),
        FakeCard(f"MIG-{B}", total=10 * GIB, used=3 * GIB, refuses=refuses),
    )
    readings = nvml_of(fake).read({"cuda:0": Card(B, None, 10 * GIB)})
    assert readings == {"cuda:0": NvmlReading(3 * GIB, 10 * GIB, None, None, 61.0)}


def test_the_whole_cards_memory_is_not_passed_off_as_a_slices():
    fake = FakeNvml(FakeCard(f"GPU-{A}", total=80 * GIB, used=60 * GIB))
    reading = nvml_of(fake).read({"cuda:0": Card(A, None, 10 * GIB)})["cuda:0"]
    assert (reading.used_bytes, reading.total_bytes) == (None, None)
    assert reading.power_w == 312.5


def test_without_a_uuid_the_pci_bus_id_finds_the_card_and_without_both_none_is_guessed():
    fake = FakeNvml(FakeCard(f"GPU-{A}", "00000000:AF:00.0"), FakeCard(f"GPU-{B}"))
    cards = {"cuda:0": Card(None, "00000000:AF:00.0", 80 * GIB), "cuda:1": Card(None, None, GIB)}
    assert set(nvml_of(fake).read(cards)) == {"cuda:0"}


def test_a_card_that_nvml_does_not_know_has_no_reading():
    fake = FakeNvml(FakeCard(f"GPU-{A}"))
    assert nvml_of(fake).read({"cuda:0": Card(B, None, 80 * GIB)}) == {}


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_UNKNOWN, pynvml.NVML_ERROR_NO_PERMISSION])
def test_another_error_concerns_its_own_column_only(code):
    fake = FakeNvml(FakeCard(f"GPU-{A}", refuses={"nvmlDeviceGetMemoryInfo": code}))
    reading = nvml_of(fake).read({"cuda:0": Card(A, None, 80 * GIB)})["cuda:0"]
    assert reading == NvmlReading(None, None, 0.75, 312.5, 61.0)


def test_a_function_that_this_pynvml_lacks_is_a_missing_column():
    class Old(FakeNvml):
        nvmlDeviceGetPowerUsage = property()  # raises AttributeError, as an absent function does

    reading = nvml_of(Old(FakeCard(f"GPU-{A}"))).read({"cuda:0": Card(A, None, 80 * GIB)})
    assert reading["cuda:0"] == NvmlReading(10 * GIB, 80 * GIB, 0.75, None, 61.0)


# --- NVML: when it dies ---------------------------------------------------------------------


def test_a_lost_card_rests_nvml_for_a_minute_and_then_it_is_asked_again():
    lost = {"nvmlDeviceGetMemoryInfo": pynvml.NVML_ERROR_GPU_IS_LOST}
    fake, clock = FakeNvml(FakeCard(f"GPU-{A}", refuses=lost)), Clock()
    nvml, cards = nvml_of(fake, clock), {"cuda:0": Card(A, None, 80 * GIB)}
    assert nvml.read(cards) == {}
    asked = len(fake.questions)
    clock.now_s += 59.0
    assert nvml.read(cards) == {}
    assert len(fake.questions) == asked
    fake.cards[0].refuses = {}
    clock.now_s += 2.0
    assert nvml.read(cards)["cuda:0"].used_bytes == 10 * GIB
    assert fake.users == 1


def test_an_nvml_that_cannot_start_is_absent_and_asked_once_a_minute():
    fake, clock = FakeNvml(), Clock()
    fake.init_error = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    nvml, cards = nvml_of(fake, clock), {"cuda:0": Card(A, None, GIB)}
    for _ in range(5):
        assert nvml.read(cards) == {}
    assert fake.questions == ["nvmlInit"]
    clock.now_s += 61.0
    nvml.read(cards)
    assert fake.questions == ["nvmlInit", "nvmlInit"]


def test_closing_gives_nvml_back_once():
    fake = FakeNvml(FakeCard(f"GPU-{A}"))
    nvml = nvml_of(fake)
    nvml.read({"cuda:0": Card(A, None, 80 * GIB)})
    assert fake.users == 1
    nvml.close()
    nvml.close()
    assert fake.users == 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a card")
def test_the_real_nvml_is_absent_here_and_says_nothing():
    assert Nvml().read({"cuda:0": Card(A, None, GIB)}) == {}


def test_without_pynvml_there_is_no_nvml():
    assert Nvml(load=lambda: None).read({"cuda:0": Card(A, None, GIB)}) == {}


# --- NVML: when it hangs --------------------------------------------------------------------


def test_a_hanging_nvml_holds_nobody_up_and_is_heard_again_when_it_answers():
    released = threading.Event()

    class Hanging(FakeNvml):
        def nvmlDeviceGetPowerUsage(self, card):
            released.wait(PATIENT_S)
            return super().nvmlDeviceGetPowerUsage(card)

    fake = Hanging(FakeCard(f"GPU-{A}"))
    cards = {"cuda:0": Card(A, None, 80 * GIB)}
    reader = NvmlReader(nvml_of(fake), wait_s=0.0)
    assert reader.read(cards) == {}
    assert reader.read(cards) == {}
    asked = fake.questions.count("nvmlDeviceGetMemoryInfo")
    assert asked <= 1, "a second question must not queue up behind the first"
    released.set()
    assert reader._answered.wait(PATIENT_S)
    patient = NvmlReader(nvml_of(fake), wait_s=PATIENT_S)
    assert patient.read(cards)["cuda:0"].power_w == 312.5
    reader._wait_s = PATIENT_S
    assert reader.read(cards)["cuda:0"].power_w == 312.5
    reader.close()
    patient.close()


def test_closing_the_reader_ends_its_thread_and_gives_nvml_back():
    fake = FakeNvml(FakeCard(f"GPU-{A}"))
    reader = NvmlReader(nvml_of(fake), wait_s=PATIENT_S)
    reader.read({"cuda:0": Card(A, None, 80 * GIB)})
    thread = reader._thread
    assert thread is not None
    assert thread.daemon
    reader.close()
    thread.join(PATIENT_S)
    assert not thread.is_alive()
    assert fake.users == 0


def test_without_cards_no_thread_is_started():
    reader = NvmlReader(nvml_of(FakeNvml()))
    assert reader.read({}) == {}
    assert reader._thread is None


# --- rows -----------------------------------------------------------------------------------


def test_a_cpu_process_has_one_row_with_its_memory_and_nothing_made_up():
    columns = DeviceSampler([torch.device("cpu")]).sample(time_ns=7)
    held_bytes = psutil.Process().memory_info().rss
    assert columns.pop("time_ns") == [7]
    assert columns.pop("device") == ["cpu"]
    assert columns.pop("host_rss_bytes")[0] == pytest.approx(held_bytes, rel=0.1)
    assert set(map(tuple, columns.values())) == {(None,)}


def test_the_columns_are_those_of_the_table_and_survive_the_codec():
    columns = DeviceSampler().sample(time_ns=7)
    assert list(columns) == SCHEMAS[Table.DEVICES].names
    read = decode(Table.DEVICES, encode(Table.DEVICES, columns).payload)
    assert read.to_pylist()[0]["device"] == "cpu"
    assert read.to_pylist()[0]["used_bytes"] is None


def test_the_memory_of_the_process_is_seen_to_grow():
    before = devices.host_rss_bytes()
    held = torch.ones(64 << 20, dtype=torch.uint8)
    assert devices.host_rss_bytes() - before > held.numel() / 2


def test_without_proc_the_peak_stands_for_the_memory(monkeypatch):
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(devices, "_STATM", Path("/nonexistent/statm"))
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    assert devices.host_rss_bytes() >= peak


def test_sampling_never_initialises_cuda_nor_starts_a_thread_where_there_is_none():
    code = """
import threading, torch
from ampwatch.probe.devices import DeviceSampler
sampler = DeviceSampler([torch.device("cuda", 0), torch.device("xpu", 0), torch.device("cpu")])
columns = sampler.sample(1)
print(columns["device"], columns["allocated_bytes"], columns["total_bytes"],
      torch.cuda.is_initialized(), threading.active_count())
"""
    done = children.run("-c", code, env=os.environ)
    assert done.stdout.strip() == "['cuda:0', 'xpu:0'] [None, None] [None, None] False 1"


@pytest.fixture
def two_cards(monkeypatch):
    """torch.cuda as it looks with two visible cards, the second of which holds tensors.

    Figures in the shape that torch 2.4 to 2.13 return them; the card itself is not to be had here.
    """

    def stats(device):
        held = {0: 0, 1: 6 * GIB}[device]
        one = {"current": held, "peak": 2 * held, "allocated": 9 * held, "freed": 8 * held}
        kinds = ("allocated_bytes", "reserved_bytes", "requested_bytes", "inactive_split_bytes")
        pools = {"all": one, "small_pool": {}, "large_pool": {}}
        return {**dict.fromkeys(kinds, pools), "num_alloc_retries": 3, "num_ooms": 1}

    def properties(device):
        return SimpleNamespace(
            name="NVIDIA H100", major=9, minor=0, total_memory=79 * GIB, uuid=(A, B)[device]
        )

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", stats)
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    fake = FakeNvml(FakeCard(f"GPU-{A}", used=1 * GIB), FakeCard(f"GPU-{B}", used=70 * GIB))
    reader = NvmlReader(nvml_of(fake), wait_s=PATIENT_S)
    yield reader
    reader.close()


def test_the_cards_that_hold_tensors_are_sampled_without_being_named(two_cards):
    (row,) = DeviceSampler([torch.device("cpu")], two_cards).rows(time_ns=7)
    assert row == DeviceRow(
        time_ns=7, device="cuda:1", name="NVIDIA H100", capability="9.0",
        allocated_bytes=6 * GIB, reserved_bytes=6 * GIB, peak_bytes=12 * GIB,
        used_bytes=70 * GIB, total_bytes=80 * GIB,
        utilisation=0.75, power_w=312.5, temperature_c=61.0, host_rss_bytes=row.host_rss_bytes,
    )  # fmt: skip
    assert row.host_rss_bytes > 0


def test_a_given_card_has_a_row_before_it_holds_anything(two_cards):
    rows = DeviceSampler([torch.device("cuda")], two_cards).rows(time_ns=7)
    assert [(row.device, row.allocated_bytes) for row in rows] == [
        ("cuda:0", 0),
        ("cuda:1", 6 * GIB),
    ]


def test_without_nvml_the_total_is_torchs_and_the_rest_is_absent(two_cards):
    absent = NvmlReader(Nvml(load=lambda: None), wait_s=PATIENT_S)
    (row,) = DeviceSampler([], absent).rows(time_ns=7)
    absent.close()
    assert row.total_bytes == 79 * GIB
    assert (row.used_bytes, row.utilisation, row.power_w) == (None, None, None)


def test_a_card_that_fails_still_has_a_row_with_what_the_others_say(two_cards, monkeypatch):
    def broken(device):
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(torch.cuda, "get_device_properties", broken)
    (row,) = DeviceSampler([], two_cards).rows(time_ns=7)
    assert (row.device, row.name) == ("cuda:1", None)
    assert row.host_rss_bytes > 0


def test_an_allocator_without_figures_is_absent_not_an_error(two_cards, monkeypatch):
    def unsupported(device):
        raise RuntimeError("the pluggable allocator does not support getDeviceStats")

    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", unsupported)
    (row,) = DeviceSampler([torch.device("cuda", 1)], two_cards).rows(time_ns=7)
    assert (row.allocated_bytes, row.used_bytes) == (None, 70 * GIB)


def test_pressure_tells_why_an_allocation_failed(two_cards):
    assert devices.pressure(torch.device("cuda", 1)) == {
        "requested_bytes": 6 * GIB, "inactive_split_bytes": 6 * GIB, "alloc_retries": 3, "ooms": 1,
    }  # fmt: skip
    assert devices.pressure(torch.device("cpu")) == {}


def test_another_kind_of_device_is_counted_by_its_own_module(monkeypatch):
    xpu = SimpleNamespace(
        is_initialized=lambda: True,
        get_device_name=lambda index: f"Arc {index}",
        memory_allocated=lambda index: 5,
        memory_reserved=lambda index: 8,
    )
    monkeypatch.setattr(torch, "xpu", xpu)
    (row,) = DeviceSampler([torch.device("xpu", 1)]).rows(time_ns=7)
    assert (row.device, row.name, row.allocated_bytes, row.reserved_bytes, row.peak_bytes) == (
        "xpu:1", "Arc 1", 5, 8, None,
    )  # fmt: skip


# --- a real card ----------------------------------------------------------------------------

needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device: NVML and torch's counters on it"
)


@pytest.mark.gpu
@needs_gpu
def test_on_a_real_card_torch_and_nvml_agree():
    reader = NvmlReader(wait_s=PATIENT_S)
    held = torch.zeros(256 << 20, dtype=torch.uint8, device="cuda:0")
    (row, *_) = DeviceSampler([held.device], reader).rows(time_ns=7)
    reader.close()
    assert row.device == "cuda:0"
    assert held.numel() <= row.allocated_bytes <= row.reserved_bytes <= row.used_bytes
    assert row.used_bytes <= row.total_bytes
    assert row.peak_bytes >= row.allocated_bytes
    free, total = torch.cuda.mem_get_info(0)
    assert row.used_bytes == pytest.approx(total - free, rel=0.2)
    assert row.utilisation is None or 0 <= row.utilisation <= 1


@pytest.mark.gpu
@needs_gpu
def test_on_a_real_card_sampling_does_not_synchronise():
    sampler = DeviceSampler([torch.device("cuda:0")])
    torch.zeros(1, device="cuda:0")
    torch.cuda.set_sync_debug_mode("error")
    try:
        sampler.sample(time_ns=7)
    finally:
        torch.cuda.set_sync_debug_mode("default")
        sampler.close()
