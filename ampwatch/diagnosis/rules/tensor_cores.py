"""AMP501 and AMP507: matrix shapes that tensor cores need, and GPUs without tensor cores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ampwatch.diagnosis.case import Case
from ampwatch.diagnosis.device_history import OneDeviceHistory
from ampwatch.diagnosis.findings import Evidence, Severity
from ampwatch.diagnosis.precision_history import LayerPrecision
from ampwatch.diagnosis.rule import Seen, rule
from ampwatch.diagnosis.value_text import list_text, percent_text

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
def misaligned_shapes(case: Case) -> Iterator[Seen]:
    """Half-precision matrix products whose sides do not fit tensor cores."""
    devices = [device for device in case.devices if _has_tensor_cores(device, "float16")]
    products = {name: one for name, one in case.precision.products.items() if one.runs_half}
    odd = {
        name: one.flops or 0.0
        for name, one in products.items()
        if any(side % ALIGNED_SIDE for side in one.sides)
    }
    total = sum(one.flops or 0.0 for one in products.values())
    if not devices or sum(odd.values()) < MISALIGNED_SHARE * total or not odd:
        return
    names = sorted(odd, key=lambda name: -odd[name])
    yield Seen(
        at=case.scale,
        layer=names[0],
        summary=f"{percent_text(sum(odd.values()) / total)} of the operations are in matrices "
        f"whose sides are no multiple of {ALIGNED_SIDE}.",
        cause=f"{list_text([f'{name}: {_sides_text(products[name].sides)}' for name in names])}.",
        action=f"Round up to a multiple of {ALIGNED_SIDE}: {_rounded(products, names)}.",
        evidence=(Evidence("odd_flops", case.scale.last_step, sum(odd.values()), total, "in all"),),
    )


def _sides_text(sides: Sequence[int]) -> str:
    rows = f", of {sides[2]} rows" if len(sides) > 2 else ""
    return f"{sides[0]} x {sides[1]}{rows}"


def _rounded(products: Mapping[str, LayerPrecision], names: Sequence[str]) -> str:
    """Which sides to round up for tensor cores, as text: each odd side of the largest layers."""
    sides = dict.fromkeys(side for name in names[:3] for side in products[name].sides)
    return list_text([f"{side} to {-(-side // 8) * 8}" for side in sides if side % ALIGNED_SIDE])


@rule("AMP507", "no-tensor-cores", Severity.INFO)
def no_tensor_cores(case: Case) -> Iterator[Seen]:
    """A GPU without tensor cores for the format of autocast."""
    for dtype in _HALF:
        devices = [device for device in case.devices if _has_tensor_cores(device, dtype) is False]
        if dtype in case.numbers.autocast_dtypes and devices:
            yield _slow(devices, dtype, case)
            return


def _slow(devices: Sequence[OneDeviceHistory], dtype: str, case: Case) -> Seen:
    device, needed = devices[0], TENSOR_CORES[dtype]
    return Seen(
        at=case.scale,
        ranks=tuple(sorted({device.rank for device in devices})),
        summary=f"The {device.name or 'GPU'} gains no speed from {dtype}.",
        cause=f"Its compute capability is {device.capability}; tensor cores for {dtype} came with "
        f"{needed}."
        if float(device.capability or 0) < needed
        else f"Cards of the {NO_TENSOR_CORES} series have no tensor cores.",
        evidence=(
            Evidence("capability", case.scale.first_step, device.capability, str(needed), "needed"),
        ),
    )


def _has_tensor_cores(device: OneDeviceHistory, dtype: str) -> bool | None:
    """Whether a device has tensor cores for this format; None if that is not known."""
    try:
        capability = float(device.capability or "")
    except ValueError:
        return None
    return capability >= TENSOR_CORES[dtype] and NO_TENSOR_CORES not in (device.name or "")
