"""Transformer Engine itself, on a GPU: formats of each recipe, shares, delayed scales, no waiting.

Not run yet: written from the source of 2.20. Elsewhere stand-ins mirror it, in
`test_probe_library_formats` and `test_probe_delayed_scales`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import ampwatch
from ampwatch.diagnosis import diagnose

WIDTH, ROWS, EXACT = 256, 64, 0.001  # whole tensors fit into a sample


def _library() -> Any:
    if not torch.cuda.is_available():
        return None
    try:
        return importlib.import_module("transformer_engine.pytorch")
    except ImportError:
        return None


te = _library()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(te is None, reason="needs a CUDA device and Transformer Engine"),
]

E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"
# Of each recipe: what the library calls it, its test of the card, and the formats by role.
RECIPES = {
    "delayed": ("DelayedScaling", "is_fp8_available",
                [f"{E4M3}/tensorwise/delayed"] * 2 + [f"{E5M2}/tensorwise/delayed"]),
    "current": ("Float8CurrentScaling", "is_fp8_available",
                [f"{E4M3}/tensorwise/dynamic"] * 2 + [f"{E5M2}/tensorwise/dynamic"]),
    "blockwise": ("Float8BlockScaling", "is_fp8_block_scaling_available",
                  [f"{E4M3}/block1x128/dynamic", f"{E4M3}/block128x128/dynamic",
                   f"{E4M3}/block1x128/dynamic"]),
    "MXFP8": ("MXFP8BlockScaling", "is_mxfp8_available", ["mxfp8_e4m3/block32"] * 3),
    "NVFP4": ("NVFP4BlockScaling", "is_nvfp4_available",
              ["nvfp4/block16", "nvfp4/block16x16", "nvfp4/block16"]),
}  # fmt: skip


def recipe_of(name: str) -> Any:
    """The recipe, where the card can run it."""
    kind, available, _ = RECIPES[name]
    ready = getattr(te, available, None)
    if ready is None or not ready():
        pytest.skip(f"this card or version has no {name}")
    made: Any = getattr(importlib.import_module("transformer_engine.common.recipe"), kind)()
    return made


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(
            [te.Linear(WIDTH, WIDTH, bias=False, params_dtype=torch.bfloat16) for _ in range(2)]
        )
        self.head = nn.Linear(WIDTH, 16)
        self.cuda().bfloat16()
        self.optimizer = torch.optim.SGD(self.parameters(), lr=1e-6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


def steps(model: Net, recipe: Any, count: int, growth: float = 1.0) -> Iterator[torch.Tensor]:
    """Train on inputs that grow; each step's loss."""
    optimizer = model.optimizer
    random = torch.Generator("cuda").manual_seed(1)
    for step in range(count):
        x = growth**step * torch.randn(ROWS, WIDTH, generator=random, device="cuda")
        with te.fp8_autocast(enabled=True, fp8_recipe=recipe):
            loss = model(x.bfloat16()).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach()


def made() -> Net:
    torch.manual_seed(0)
    return Net()


def watch_of(model: Net, folder: Any) -> ampwatch.Watch:
    return ampwatch.attach(
        None, model, optimizer=model.optimizer, run="run", log_dir=folder, endpoint="off",
        layer_every=1,
    )  # fmt: skip


def watched(folder: Any, recipe: Any, count: int = 10, growth: float = 1.0) -> tuple[Any, Net]:
    model = made()
    with watch_of(model, folder):
        list(steps(model, recipe, count, growth))
    return ampwatch.open_run(folder / "run"), model


def rows_of(run: Any, layer: str) -> list[dict[str, Any]]:
    return [row for row in run.layers.to_pylist() if row["layer"] == layer]


@pytest.mark.parametrize("name", RECIPES)
def test_each_recipe_is_told_by_role(name: str, tmp_path: Any) -> None:
    run, _ = watched(tmp_path, recipe_of(name))
    last = rows_of(run, "blocks.1")[-1]
    told = [last[f"{role}_format"] for role in ("input", "weight", "grad")]
    assert told == RECIPES[name][2]
    assert rows_of(run, "head")[-1]["input_format"] is None


@pytest.mark.parametrize("name", ["current", "MXFP8"])
def test_shares_are_those_of_a_cast_of_what_the_layer_took(name: str, tmp_path: Any) -> None:
    recipe = recipe_of(name)
    model, seen = made(), []
    with torch.no_grad():
        model.first.weight[3] *= 1e5  # an outlying channel
    model.blocks[0].register_forward_pre_hook(
        lambda _m, args: seen.append(args[0].detach().clone())
    )
    with watch_of(model, tmp_path):
        list(steps(model, recipe, 4))
    rows = rows_of(ampwatch.open_run(tmp_path / "run"), "blocks.0")
    for row, x in list(zip(rows, seen, strict=True))[1:]:
        assert row["input_flushed_share"] == pytest.approx(flushed(x.float(), name), abs=EXACT)
    if name == "current":
        assert rows[-1]["input_flushed_share"] > 0.3


def flushed(x: torch.Tensor, name: str) -> float:
    """By torch's own cast, at the scale that the recipe's paper gives."""
    parts = x.reshape(-1, 32) if name == "MXFP8" else x.reshape(1, -1)
    top = parts.abs().amax(-1, keepdim=True).clamp(min=2.0**-126)
    scale = 448.0 / top
    if name == "MXFP8":
        scale = torch.exp2(-torch.ceil(torch.log2(top / 448.0)))
    cast = (parts * scale).clamp(-448, 448).to(torch.float8_e4m3fn).float()
    return ((parts != 0) & (cast == 0)).sum().item() / (parts != 0).sum().item()


def test_delayed_scales_and_their_staleness_are_those_of_the_layer(tmp_path: Any) -> None:
    recipe = recipe_of("delayed")
    model, wanted = made(), []

    def after_forward(module: Any, _args: Any, _output: Any) -> None:
        state = module.fp8_meta["scaling_fwd"]
        used = (state.amax_history[0] * state.scale)[:2].max() / 448.0
        wanted.append((state.scale[:2].tolist(), used.item()))

    model.blocks[1].register_forward_hook(after_forward)
    with watch_of(model, tmp_path):
        list(steps(model, recipe, 10, growth=3.0))
    run = ampwatch.open_run(tmp_path / "run")
    for row, (scales, used) in zip(rows_of(run, "blocks.1"), wanted, strict=True):
        assert [row["input_scale"], row["weight_scale"]] == pytest.approx(scales)
        assert row["amax_staleness"] >= used * (1 - 1e-3)  # or that of the gradient
    assert "AMP703" in {finding.code for finding in diagnose(run).findings}


@pytest.mark.parametrize("name", RECIPES)
def test_a_sampled_step_waits_for_nothing(name: str, tmp_path: Any) -> None:
    recipe = recipe_of(name)
    for _ in steps(made(), recipe, 3):  # kernels are loaded, which may synchronise
        pass
    model = made()
    with watch_of(model, tmp_path):
        training = steps(model, recipe, 5)
        next(training)
        torch.cuda.set_sync_debug_mode("error")
        try:
            list(training)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert len(rows_of(ampwatch.open_run(tmp_path / "run"), "blocks.0")) == 5


@pytest.mark.parametrize("name", RECIPES)
def test_training_is_the_same_to_the_bit(name: str, tmp_path: Any) -> None:
    recipe = recipe_of(name)
    _, seen = watched(tmp_path, recipe)
    alone = made()
    list(steps(alone, recipe, 10))
    for one, other in zip(seen.parameters(), alone.parameters(), strict=True):
        assert torch.equal(one, other)
