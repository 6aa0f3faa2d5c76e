"""AMP501, AMP503 to AMP505, AMP507 to AMP509, AMP606: GPUs that are full, slow or wait."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.device_history import MEMORY_LIMIT, OneDeviceHistory
from ampwatch.diagnosis.findings import Severity
from ampwatch.diagnosis.precision_history import LayerPrecision
from ampwatch.diagnosis.rule import RuleHit, rule
from ampwatch.diagnosis.value_text import (
    Evidence,
    bytes_text,
    count_text,
    duration_text,
    list_text,
    percent_text,
    time_text,
)

# The 95th percentile below 70 %: SageMaker Debugger's LowGPUUtilization rule. Seconds in which
# nothing ran at all (an evaluation on the host, a notebook at rest) are left out.
IDLE_UTILISATION, IDLE_QUANTILE, IDLE_SAMPLES = 0.7, 0.95, 256
MEMORY_LEFT = 1 - MEMORY_LIMIT
# A launch costs the host some 5 us; the slowest card with tensor cores (T4, 65 TFLOP/s) does this
# many operations in a third of that. Most products below it: the host cannot keep up.
LAUNCH_FLOPS, LAUNCH_SHARE = 1e8, 0.5
# Of several cards that hold at least a tenth of the others' memory, one is idle and one works.
UNUSED_UTILISATION, USED_UTILISATION, UNUSED_MEMORY = 0.05, 0.3, 0.1


@rule("AMP503", "memory-growth", Severity.WARNING)
def memory_growth(case: Case) -> Iterator[RuleHit]:
    """Device memory that is kept from step to step and grows."""
    grown = [(device, growth) for device in case.devices if (growth := device.growth()) is not None]
    if not grown:
        return
    device, growth = max(grown, key=lambda pair: pair[1].bytes_per_hour)
    yield RuleHit(
        severity=Severity.WARNING if growth.fills_device else Severity.INFO,
        at=case.scale,
        ranks=_ranks([device for device, _ in grown]),
        summary=f"Memory on {_where(case, device)} keeps growing: "
        f"{bytes_text(growth.bytes_per_hour)} an hour.",
        cause=f"The minimum of allocated memory rose from {bytes_text(growth.first_bytes)} to "
        f"{bytes_text(growth.last_bytes)}, and the peak rose with it: tensors are kept beyond "
        "their step.",
        evidence=_now(case, "allocated_bytes", growth.last_bytes, growth.first_bytes, "at first"),
    )


@rule("AMP504", "memory-near-limit", Severity.WARNING)
def memory_near_limit(case: Case) -> Iterator[RuleHit]:
    """Device memory whose peak is near the limit and still rising."""
    near = [
        (device, share) for device in case.devices if (share := device.limit_share()) is not None
    ]
    if not near:
        return
    device, share = max(near, key=lambda pair: pair[1])
    yield RuleHit(
        at=case.scale,
        ranks=_ranks([device for device, _ in near]),
        summary=f"{_where(case, device)} uses {percent_text(min(share, 1.0))} of its memory, and "
        "the peak still rises.",
        cause=f"The peak is {bytes_text(float(device.peak_bytes.whole[-1]))} of "
        f"{bytes_text(device.total_bytes)}, part of which other processes or the driver hold.",
        evidence=_now(case, "peak_share", share, MEMORY_LIMIT, "threshold"),
    )


@rule("AMP505", "gpu-idle", Severity.INFO)
def gpu_idle(case: Case) -> Iterator[RuleHit]:
    """Devices that wait: even in their busiest seconds kernels do not run all the time."""
    idle = _waiting_devices(case)
    if not idle:
        return
    device = min(idle, key=_busiest)
    yield RuleHit(
        at=case.scale,
        ranks=_ranks(idle),
        summary=f"{_where(case, device)} is often idle: kernels run in "
        f"{100 * device.utilisation_at(0.5, busy=True):.0f} % of a typical second.",
        cause=f"In its busiest seconds it is {100 * _busiest(device):.0f} %: the GPU waits for "
        "data, for the CPU or for copies.",
        evidence=_now(case, "utilisation", _busiest(device), IDLE_UTILISATION, "threshold"),
    )


@rule("AMP508", "host-bound", Severity.INFO)
def host_bound(case: Case) -> Iterator[RuleHit]:
    """Devices that wait for the CPU, because most matrix products are too small."""
    idle = _waiting_devices(case)
    work = [
        product.flops for product in case.precision.products.values() if product.flops is not None
    ]
    small = sum(flops < LAUNCH_FLOPS for flops in work)
    if not idle or not work or small < LAUNCH_SHARE * len(work):
        return
    yield RuleHit(
        at=case.scale,
        ranks=_ranks(idle),
        summary=f"{_where(case, idle[0])} is waiting for the CPU: the matrix products are small.",
        cause=f"{small} of {count_text(len(work), 'matrix product')} need fewer than "
        f"{LAUNCH_FLOPS:.0e} operations, less time than the CPU needs to launch them.",
        evidence=_now(case, "largest_flops", max(work), LAUNCH_FLOPS, "threshold"),
    )


# A part of a training may well take twice as long as another, as longer sequences do.
MUCH_SLOWER = 3.0


@rule("AMP509", "steps-slower", Severity.WARNING)
def steps_slower(case: Case) -> Iterator[RuleHit]:
    """Steps that take several times as long as before, until the end of the record."""
    slower = case.step_times.slowdown()
    if slower is None:
        return
    times = slower.now_ms / slower.before_ms
    yield RuleHit(
        severity=Severity.WARNING if times >= MUCH_SLOWER else Severity.INFO,
        first_step=slower.since_step,
        last_step=case.scale.last_step,
        summary=f"Since step {slower.since_step:,} a step takes {time_text(slower.now_ms)}, "
        f"{times:.2g} times as long as before.",
        cause=f"Before, the fastest steps took {time_text(slower.before_ms)}; now even the fastest "
        "take longer, so it is no single pause. This has cost "
        f"{duration_text(1e3 * slower.cost_s)} so far.",
        evidence=Evidence(
            "step_time_ms", case.scale.last_step, slower.now_ms, slower.before_ms, "before"
        ),
    )


@rule("AMP606", "device-idle", Severity.WARNING)
def device_idle(case: Case) -> Iterator[RuleHit]:
    """A device that holds memory and computes nothing, beside one that works."""
    sampled = [device for device in case.devices if device.seconds_used() >= IDLE_SAMPLES]
    busy = [device for device in sampled if device.utilisation_at(0.5) >= USED_UTILISATION]
    most = max((device.reserved_bytes for device in busy), default=0.0)
    idle = [
        device
        for device in sampled
        if device.reserved_bytes >= UNUSED_MEMORY * most
        and device.utilisation_at(IDLE_QUANTILE) <= UNUSED_UTILISATION
    ]
    if not busy or not idle:
        return
    kernels = idle[0].utilisation_at(IDLE_QUANTILE)
    names = list_text([_where(case, device) for device in idle])
    works = list_text([_where(case, device) for device in busy])
    yield RuleHit(
        at=case.scale,
        ranks=_ranks(idle),
        summary=f"{names} {'is' if len(idle) == 1 else 'are'} idle, and {works} "
        f"{'does' if len(busy) == 1 else 'do'} all the work.",
        cause=f"It holds {bytes_text(idle[0].reserved_bytes)}, and a kernel runs there in at most "
        f"{100 * kernels:.0f} % of its busiest seconds.",
        evidence=_now(case, "utilisation", kernels, busy[0].utilisation_at(0.5), "on the busy GPU"),
    )


def _waiting_devices(case: Case) -> list[OneDeviceHistory]:
    return [
        device
        for device in case.devices
        if device.seconds_used(busy=True) >= IDLE_SAMPLES and _busiest(device) < IDLE_UTILISATION
    ]


def _now(case: Case, signal: str, value: float, against: float, against_is: str) -> Evidence:
    return Evidence(signal, case.scale.last_step, value, against, against_is)


def _busiest(device: OneDeviceHistory) -> float:
    return device.utilisation_at(IDLE_QUANTILE, busy=True)


def _where(case: Case, device: OneDeviceHistory) -> str:
    return (
        device.device if len(case.record.ranks) == 1 else f"{device.device} of rank {device.rank}"
    )


def _ranks(devices: Sequence[OneDeviceHistory]) -> tuple[int, ...]:
    return tuple(sorted({device.rank for device in devices}))


# Half-precision products are fastest where every side is a multiple of 8 (16 bytes; NVIDIA, "Matrix
# Multiplication Background"). Below a tenth of the operations, as in a first layer of three
# channels, there is little to gain.
ALIGNED_SIDE, MISALIGNED_SHARE = 8, 0.1
# Volta was the first with tensor cores, Ampere the first that multiplies bf16 there; the GTX 16
# series calls itself Turing and has none (NVIDIA's tables of compute capabilities).
TENSOR_CORES = {"float16": 7.0, "bfloat16": 8.0}
NO_TENSOR_CORES = "GTX 16"

_HALF = ("bfloat16", "float16")


@rule("AMP501", "misaligned-shapes", Severity.INFO)
def misaligned_shapes(case: Case) -> Iterator[RuleHit]:
    """Half-precision matrix products whose sides do not fit tensor cores."""
    devices = [device for device in case.devices if _has_tensor_cores(device, "float16")]
    products = {
        name: product for name, product in case.precision.products.items() if product.runs_half
    }
    odd = {
        name: product.flops or 0.0
        for name, product in products.items()
        if any(side % ALIGNED_SIDE for side in product.sides)
    }
    total = sum(product.flops or 0.0 for product in products.values())
    if not devices or sum(odd.values()) < MISALIGNED_SHARE * total or not odd:
        return
    names = sorted(odd, key=lambda name: -odd[name])
    yield RuleHit(
        at=case.scale,
        layer=names[0],
        summary=f"{percent_text(sum(odd.values()) / total)} of the operations are in matrices "
        f"whose sides are no multiple of {ALIGNED_SIDE}.",
        cause=f"{list_text([f'{name}: {_sides_text(products[name].sides)}' for name in names])}.",
        action=f"Round up to a multiple of {ALIGNED_SIDE}: {_rounded(products, names)}.",
        evidence=Evidence("odd_flops", case.scale.last_step, sum(odd.values()), total, "in all"),
    )


def _sides_text(sides: Sequence[int]) -> str:
    rows = f", of {sides[2]} rows" if len(sides) > 2 else ""
    return f"{sides[0]} x {sides[1]}{rows}"


def _rounded(products: Mapping[str, LayerPrecision], names: Sequence[str]) -> str:
    """Which sides to round up for tensor cores, as text: each odd side of the largest layers."""
    sides = dict.fromkeys(side for name in names[:3] for side in products[name].sides)
    return list_text([f"{side} to {-(-side // 8) * 8}" for side in sides if side % ALIGNED_SIDE])


@rule("AMP507", "no-tensor-cores", Severity.INFO)
def no_tensor_cores(case: Case) -> Iterator[RuleHit]:
    """A GPU without tensor cores for the format of autocast."""
    for dtype in _HALF:
        devices = [device for device in case.devices if _has_tensor_cores(device, dtype) is False]
        if dtype in case.numbers.autocast_dtypes and devices:
            yield _slow(devices, dtype, case)
            return


def _slow(devices: Sequence[OneDeviceHistory], dtype: str, case: Case) -> RuleHit:
    device, needed = devices[0], TENSOR_CORES[dtype]
    return RuleHit(
        at=case.scale,
        ranks=_ranks(devices),
        summary=f"The {device.name or 'GPU'} gains no speed from {dtype}.",
        cause=f"Its compute capability is {device.capability}; tensor cores for {dtype} came with "
        f"{needed}."
        if float(device.capability or 0) < needed
        else f"Cards of the {NO_TENSOR_CORES} series have no tensor cores.",
        evidence=Evidence(
            "capability", case.scale.first_step, device.capability, str(needed), "needed"
        ),
    )


def _has_tensor_cores(device: OneDeviceHistory, dtype: str) -> bool | None:
    """Whether a device has tensor cores for this format; None if that is not known."""
    try:
        capability = float(device.capability or "")
    except ValueError:
        return None
    return capability >= TENSOR_CORES[dtype] and NO_TENSOR_CORES not in (device.name or "")
