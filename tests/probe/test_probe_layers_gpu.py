"""The layers on a CUDA device: no synchronisation, and the same figures as on the CPU."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator

import pytest
import torch
from layers_harness import Strict, Watched
from torch import nn

from ampwatch.probe.layer_observer import LayerObserver
from ampwatch.probe.models import survey
from ampwatch.probe.tensor_values import Pack

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device; none is here"),
]


@pytest.fixture
def forbid_synchronisation() -> Iterator[Callable[[], None]]:
    yield lambda: torch.cuda.set_sync_debug_mode("error")
    torch.cuda.set_sync_debug_mode("default")


def transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).cuda()


def backward(model: nn.Module, series: torch.Tensor) -> None:
    with torch.autocast("cuda", torch.float16):
        loss = model(series).float().pow(2).mean()
    (1024.0 * loss).backward()


@pytest.mark.parametrize("deterministic", [False, True])
def test_an_armed_step_adds_no_synchronisation(
    *, deterministic: bool, forbid_synchronisation: Callable[[], None]
) -> None:
    model, series = transformer(), torch.randn(8, 32, 64, device="cuda")
    observer = LayerObserver(survey(model), Strict())
    backward(model, series)  # kernels are loaded, which may synchronise
    torch.use_deterministic_algorithms(deterministic, warn_only=True)
    try:
        forbid_synchronisation()
        for _ in range(3):
            observer.arm()
            backward(model, series)
            pack = Pack()
            observer.collect().put(pack)
            observer.collect_first(pack)
            pack.seal()
            observer.disarm()
    finally:
        torch.use_deterministic_algorithms(False)


def test_training_is_the_same_to_the_last_bit_on_a_device() -> None:
    torch.manual_seed(0)
    bare = transformer()
    seen = copy.deepcopy(bare)
    series = torch.randn(8, 32, 64, device="cuda")
    watched = Watched(seen)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        backward(bare, series)
        watched_step(watched, series)
    finally:
        torch.use_deterministic_algorithms(False)
    for one, other in zip(bare.parameters(), seen.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)


def watched_step(watched: Watched, series: torch.Tensor) -> None:
    watched.observer.arm()
    backward(watched.model, series)
    pack = Pack()
    sampled = watched.observer.collect()
    sampled.put(pack)
    pack.seal()
    torch.cuda.synchronize()
    assert pack.ready()
    watched.read(sampled, pack)


def test_figures_on_a_device_equal_those_of_its_own_tensors() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8)).cuda()
    series = torch.randn(4, 64, device="cuda")
    kept: list[torch.Tensor] = []

    def keep(_module: nn.Module, _args: object, output: torch.Tensor) -> None:
        output.retain_grad()
        kept.append(output)

    handle = model[0].register_forward_hook(keep)
    watched = Watched(model)
    watched_step(watched, series)
    handle.remove()
    cells = watched.cells("0")
    assert cells.act_amax == kept[0].abs().max().item()
    assert cells.out_grad_amax == kept[0].grad.abs().max().item()
    magnitudes = kept[0].grad.abs().double()
    assert cells.exponents[0] == int((magnitudes == 0).sum())
    assert sum(cells.exponents) == magnitudes.numel()
    assert watched.dtype("0", "output_dtype") == "float16"
    norm = torch.cat([p.detach().flatten() for p in model[0].parameters()]).norm().item()
    assert cells.weight_norm == pytest.approx(norm, rel=1e-5)


def test_nan_is_told_from_inf_on_a_device() -> None:
    model = nn.Sequential(nn.Identity(), nn.Linear(4, 4)).cuda()
    with torch.no_grad():
        model[1].weight[0, 0] = torch.nan
    watched = Watched(model)
    series = torch.zeros(2, 4, device="cuda")
    series[0, 0] = torch.inf
    watched_step(watched, series)
    assert watched.cells("0").act_amax == math.inf
    assert math.isnan(watched.cells("1").act_amax)
    assert watched.cells("1").weight_finite is False
