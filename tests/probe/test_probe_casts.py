"""Shares cut off and flushed, against the casts themselves as torchao makes them."""

from __future__ import annotations

import math

import pytest
import torch
from narrow_models import needs_torchao
from torch import Tensor

from ampwatch.probe.formats import NumberFormat, casts
from ampwatch.probe.formats.casts import SAMPLE_LIMIT, CastBatches, sample
from ampwatch.probe.tensor_values import Pack
from ampwatch.rows import WHAT_IF_FORMATS

E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"
EXACT = 0.001


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=generator(seed))


def tensors() -> dict[str, Tensor]:
    """Kinds of operands, each of one sample's size at most."""
    one, other = normal(96, 320), normal(96, 320, seed=1)
    outliers = one.clone()
    outliers[:, 7] *= 3e4
    steps = torch.exp2(4 * other)  # blocks of very different sizes
    return {
        "normal": one,
        "an outlying channel": outliers,
        "heavy tails": one * torch.exp(3 * other),
        "tiny": one * 1e-9,
        "after a relu": one.relu(),
        "of uneven rows": one * steps[:, :1],
        "bfloat16": (one * torch.exp(other)).bfloat16(),
        "constant": torch.full((96, 320), 0.1),
    }


TENSORS = tensors()


def counted(tensor: Tensor, form: NumberFormat | None):
    low, high = torch.aminmax(tensor)
    taken = sample(tensor, (low, high), form)
    assert taken is not None
    batches, pack = CastBatches(), Pack()
    batches.add(taken)
    batches.put(pack)
    return taken.counts(pack.values)


def shares(tensor: Tensor, form: NumberFormat) -> tuple[float, float]:
    counts = counted(tensor, form)
    return counts.cut / counts.nonzero, counts.flushed / counts.nonzero


def truth(given: Tensor, back: Tensor, scaled_above: Tensor) -> tuple[float, float]:
    """Of a cast and its way back; `scaled_above` says where the element's end was passed."""
    there = given != 0
    count = there.sum()
    return ((scaled_above & there).sum() / count).item(), (
        (there & (back == 0)).sum() / count
    ).item()


def float8(tensor: Tensor, name: str, granularity: str, *, rounded: bool):
    """torchao's own cast."""
    from torchao.float8.config import ScalingGranularity
    from torchao.float8.float8_scaling_utils import hp_tensor_to_float8_dynamic
    from torchao.float8.float8_training_tensor import LinearMMConfig

    dtype = getattr(torch, name)
    by_row = granularity == "rowwise"
    cast = hp_tensor_to_float8_dynamic(
        tensor, dtype, LinearMMConfig(),
        scaling_granularity=ScalingGranularity("axiswise" if by_row else "tensorwise"),
        axiswise_dim=-1 if by_row else None, round_scales_to_power_of_2=rounded,
    )  # fmt: skip
    scaled = tensor.float() * cast._scale
    return truth(tensor, cast._data.float(), scaled.abs() > end_of(dtype))


def end_of(dtype: torch.dtype) -> float:
    """Half a spacing beyond the largest number, from all numbers that the format has."""
    every = torch.arange(256, dtype=torch.int16).to(torch.uint8).view(dtype).float()
    *_, below, largest = sorted(set(every[every.isfinite()].tolist()))
    return largest + (largest - below) / 2


def mx(tensor: Tensor, name: str, mode: str):
    from torchao.prototype.mx_formats.mx_tensor import ScaleCalculationMode, to_mx

    dtype = getattr(torch, name)
    scale, cast = to_mx(tensor, dtype, 32, ScaleCalculationMode(mode))
    wide = torch.exp2(scale.view(torch.uint8).float() - 127).repeat_interleave(32, dim=-1)
    return truth(tensor, cast.float(), (tensor.float() / wide).abs() > end_of(dtype))


def nvfp4(tensor: Tensor):
    from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize, per_tensor_amax_to_scale

    outer = per_tensor_amax_to_scale(tensor.abs().max())
    _, packed = nvfp4_quantize(tensor, 16, outer)
    pairs = packed.view(torch.uint8)
    codes = torch.stack([pairs & 0xF, pairs >> 4], dim=-1).flatten(-2)
    return truth(tensor, (codes & 0x7).float(), torch.zeros_like(tensor, dtype=torch.bool))


@pytest.mark.parametrize("kind", list(TENSORS))
@pytest.mark.parametrize("name", [E4M3, E5M2])
@pytest.mark.parametrize("granularity", ["tensorwise", "rowwise"])
@pytest.mark.parametrize("rounded", [False, True])
def test_shares_of_fp8_are_those_of_torchaos_cast(kind, name, granularity, rounded):
    needs_torchao()
    form = NumberFormat(name, granularity, "dynamic", rounded_scales="down" if rounded else "")
    wanted = float8(TENSORS[kind], name, granularity, rounded=rounded)
    assert shares(TENSORS[kind], form) == pytest.approx(wanted, abs=EXACT)


@pytest.mark.parametrize("kind", list(TENSORS))
@pytest.mark.parametrize(
    ("name", "mode"),
    [(E4M3, "rceil"), (E4M3, "floor"), (E4M3, "ceil"), (E4M3, "even"),
     (E5M2, "rceil"), (E5M2, "floor"), (E5M2, "ceil")],
)  # fmt: skip
def test_shares_of_mx_are_those_of_torchaos_cast(kind, name, mode):
    needs_torchao()
    rounding = {"rceil": "up"}.get(mode, mode)
    short = {E4M3: "mxfp8_e4m3", E5M2: "mxfp8_e5m2"}[name]
    wanted = mx(TENSORS[kind], name, mode)
    form = NumberFormat(short, "block32", rounded_scales=rounding)
    assert shares(TENSORS[kind], form) == pytest.approx(wanted, abs=EXACT)


@pytest.mark.parametrize("kind", list(TENSORS))
def test_shares_of_nvfp4_are_those_of_torchaos_cast(kind):
    needs_torchao()
    assert shares(TENSORS[kind], NumberFormat("nvfp4", "block16")) == pytest.approx(
        nvfp4(TENSORS[kind]), abs=EXACT
    )


@pytest.mark.parametrize("kind", list(TENSORS))
def test_what_if_is_what_each_cast_would_flush(kind):
    needs_torchao()
    tensor = TENSORS[kind]
    wanted = {
        "float8_e4m3fn/tensorwise": float8(tensor, E4M3, "tensorwise", rounded=False)[1],
        "float8_e5m2/tensorwise": float8(tensor, E5M2, "tensorwise", rounded=False)[1],
        "mxfp8_e4m3/block32": mx(tensor, E4M3, "rceil")[1],
        "nvfp4/block16": nvfp4(tensor)[1],
    }
    counts = counted(tensor, None)
    found = [lost / counts.nonzero for lost in counts.what_if]
    assert dict(zip(WHAT_IF_FORMATS, found, strict=True)) == pytest.approx(wanted, abs=EXACT)


def test_a_stale_scale_cuts_off_what_it_really_does():
    tensor = normal(96, 320)
    scale = torch.tensor(448.0)  # of a maximum of 1
    form = NumberFormat(E4M3, "tensorwise", "delayed")
    taken = sample(tensor, torch.aminmax(tensor), form, scale)
    batches, pack = CastBatches(), Pack()
    batches.add(taken)
    batches.put(pack)
    counts = taken.counts(pack.values)
    cast = (tensor * scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() / scale
    lost = (cast.abs() == 1.0) & (tensor.abs() > 464 / 448)
    assert counts.cut / counts.nonzero == pytest.approx(lost.float().mean().item(), abs=EXACT)
    assert sample(tensor, torch.aminmax(tensor), form).form is None  # the scale is not known


def test_spread_is_octaves_from_the_mean_of_a_block_to_its_maximum():
    tensor = torch.ones(8, 64)
    tensor[:, ::32] = 33.0  # mean 2, maximum 33
    counts = counted(tensor, None)
    assert counts.spread_sum / counts.blocks == pytest.approx(math.log2(16.5))


@pytest.mark.parametrize("shape", [(4096, 1024), (3, 700, 1024), (50_000, 48), (7, 100_000)])
def test_a_large_tensor_is_sampled_evenly_and_not_beyond_the_limit(shape):
    tensor = normal(*shape)
    taken = sample(tensor, torch.aminmax(tensor), None)
    if shape[-1] == 100_000:
        assert taken.values.shape[-1] == 32
    assert 0.4 * SAMPLE_LIMIT <= taken.values.numel() <= SAMPLE_LIMIT
    counts = counted(tensor, None)
    low, high = torch.aminmax(tensor)
    exact = (tensor.abs() <= max(-low, high) * 2.0**-10 / 448).float().mean().item()
    assert counts.what_if[0] / counts.nonzero == pytest.approx(exact, abs=EXACT)


def test_a_transposed_tensor_is_sampled_without_copying_it_whole():
    tensor = normal(512, 64, 128).transpose(0, 1)
    taken = sample(tensor, torch.aminmax(tensor), None)
    assert taken.values.numel() <= SAMPLE_LIMIT


@pytest.mark.parametrize(
    "form",
    [NumberFormat("float8_e4m3fn", "block128x128", "dynamic"), NumberFormat("fp8", "custom"),
     NumberFormat("nvfp4", "block16x16")],
)  # fmt: skip
def test_a_format_that_we_cannot_scale_tells_only_what_if(form):
    counts = counted(normal(64, 128), form)
    assert math.isnan(counts.cut)
    assert counts.what_if[0] == 0


def test_rows_that_are_no_whole_blocks_tell_nothing_of_blocks():
    counts = counted(normal(64, 40), None)
    assert [math.isnan(lost) for lost in counts.what_if] == [False, False, True, True]


def test_a_tensor_that_is_not_finite_has_no_counts():
    tensor = normal(64, 32)
    tensor[3, 3] = math.inf
    assert counted(tensor, None) is None


def test_samples_that_are_counted_together_give_the_same_counts(monkeypatch):
    """As on a device, where several make one batch."""
    forms = [None, NumberFormat(E4M3, "tensorwise", "dynamic"), None, None]
    given = [normal(64, 32, seed=seed) * 10.0**seed for seed in range(4)]

    def run():
        batches, pack = CastBatches(), Pack()
        taken = [sample(t, torch.aminmax(t), f) for t, f in zip(given, forms, strict=True)]
        for one in taken:
            batches.add(one)
        batches.put(pack)
        return [one.counts(pack.values) for one in taken]

    alone = run()
    real = casts.counts_of
    waiting = []

    def together(samples):
        waiting.append(len(samples))
        return real(samples)

    monkeypatch.setattr(casts, "counts_of", together)
    monkeypatch.setattr(CastBatches, "_is_on_host", lambda _self, _one: False)
    assert [repr(one) for one in run()] == [repr(one) for one in alone]
    assert max(waiting) == 3


@pytest.mark.parametrize("name", ["float8_e4m3fn/tensorwise", "float8_e4m3fn/rowwise",
                                  "float8_e4m3fn/block1x128", "mxfp8_e4m3/block32",
                                  "nvfp4/block16"])  # fmt: skip
def test_counting_on_a_device_never_waits_for_it(name):
    """On `meta` as on a device, but no value can be read: whatever asks for one raises."""
    form = NumberFormat(*name.split("/"))
    given = normal(96, 256).to("meta")
    batches = CastBatches()
    for found in (None, torch.aminmax(given)):
        taken = sample(given, found, form)
        assert taken.values.is_meta
        batches.add(taken)
    counts = []
    pack = Pack()
    pack.put = lambda value: counts.append(value) or 0  # it copies without waiting; its own tests
    batches.put(pack)
    assert [one.is_meta for one in counts] == [True, True]
    with pytest.raises(RuntimeError, match="meta"):
        counts[0].sum().item()


def test_a_sample_that_is_the_whole_tensor_knows_the_maximum_itself():
    tensor = normal(96, 320)
    form = NumberFormat(E4M3, "tensorwise", "dynamic")

    def of(found):
        taken, batches, pack = sample(tensor, found, form), CastBatches(), Pack()
        batches.add(taken)
        batches.put(pack)
        return taken.counts(pack.values)

    assert repr(of(None)) == repr(of(torch.aminmax(tensor)))
    assert sample(normal(4096, 320), None, form).extremes is not None
