"""In which formats layers multiply, read from real layers of torchao and from stand-ins."""

from __future__ import annotations

import enum
import sys
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
import torch
from narrow_models import Language, float8, mxfp8, needs_torchao
from torch import nn

import ampwatch
from ampwatch.probe.formats import library_formats
from ampwatch.probe.formats.library_formats import (
    conversions_asked_for,
    formats_of,
    may_be_quantised,
)
from ampwatch.probe.models import survey


def texts(module: Any, weight: Any = None) -> list[str | None]:
    """Input, weight and gradient, as the columns show them."""
    weight = getattr(module, "weight", None) if weight is None else weight
    found = formats_of(module, weight)
    return [one and one.text for one in (found.input, found.weight, found.grad)]


# --- torchao, for real ----------------------------------------------------------------------------

E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"


@pytest.mark.parametrize(
    ("recipe", "granularity", "gradient"),
    [("tensorwise", "tensorwise", f"{E5M2}/tensorwise/dynamic"),
     ("rowwise", "rowwise", f"{E4M3}/rowwise/dynamic"),
     ("rowwise_with_gw_hp", "rowwise", f"{E4M3}/rowwise/dynamic/wide-weight-gradient")],
)  # fmt: skip
def test_each_recipe_of_torchao_is_told_by_role(recipe, granularity, gradient):
    needs_torchao()
    model = float8(nn.Sequential(nn.Linear(32, 32)), recipe)
    forward = f"{E4M3}/{granularity}/dynamic"
    assert texts(model[0]) == [forward, forward, gradient]


def test_a_linear_layer_with_an_mx_weight_is_no_plain_layer():
    needs_torchao()
    model = mxfp8(nn.Sequential(nn.Linear(32, 32, bias=False), nn.Linear(32, 32)),
                  lambda _module, name: name == "0")  # fmt: skip
    assert type(model[0]) is nn.Linear
    assert texts(model[0]) == ["mxfp8_e4m3/block32"] * 3
    assert texts(model[1]) == [None] * 3


def test_weights_that_are_quantised_already_say_so():
    needs_torchao()
    from torchao.prototype.mx_formats.mx_tensor import MXTensor
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor

    wide = torch.randn(32, 64, dtype=torch.bfloat16)
    mx = MXTensor.to_mx(wide, torch.float8_e5m2, 32)
    assert texts(None, mx) == [None, "mxfp8_e5m2/block32", None]
    assert texts(None, NVFP4Tensor.to_nvfp4(wide)) == [None, "nvfp4/block16", None]


@pytest.mark.parametrize("convert", [float8, mxfp8])
def test_a_layer_that_fsdp2_has_sharded_is_read_through_its_wrappers(convert, tmp_path):
    needs_torchao()
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    if not hasattr(fsdp, "fully_shard"):
        pytest.skip("this torch has no FSDP2")
    model = convert(Language().bfloat16())
    before = texts(model.blocks[0].up)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    try:
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
        fsdp.fully_shard(model.blocks[0], mesh=mesh)
        assert type(model.blocks[0].up.weight).__name__ == "DTensor"
        assert texts(model.blocks[0].up) == before
        assert None not in before
    finally:
        torch.distributed.destroy_process_group()


def test_a_compiled_model_is_read_though_no_hook_sees_inside():
    needs_torchao()
    model = torch.compile(float8(Language()))
    head = next(layer for layer in survey(model).layers if layer.name == "head")
    assert texts(head.module)[0] == f"{E4M3}/tensorwise/dynamic"


def test_a_conversion_that_reached_no_layer_is_known(monkeypatch):
    needs_torchao()
    monkeypatch.delitem(sys.modules, library_formats.CONVERSION_RAN, raising=False)
    monkeypatch.setattr(library_formats, "_SEEN_CONVERTED", set())
    model = Language()
    assert conversions_asked_for(survey(model)) == []
    float8(model, chosen=lambda _module, _name: False)
    assert library_formats.conversion_asked_for() == library_formats.CONVERSION
    kept_elsewhere = library_formats.has_converted_layers()  # by another test of this process
    assert conversions_asked_for(survey(model)) == ([] if kept_elsewhere else [
        library_formats.CONVERSION])  # fmt: skip
    assert conversions_asked_for(survey(float8(model))) == []


def test_a_model_that_was_converted_and_watched_before_accounts_for_the_call(monkeypatch):
    needs_torchao()
    monkeypatch.setattr(library_formats, "_SEEN_CONVERTED", set())
    assert conversions_asked_for(survey(float8(Language()))) == []
    monkeypatch.setattr(library_formats, "has_converted_layers", lambda: False)  # it is gone
    assert conversions_asked_for(survey(Language())) == []


def test_a_teacher_that_was_converted_accounts_for_the_call():
    needs_torchao()
    teacher = float8(Language())
    assert library_formats.has_converted_layers()
    assert conversions_asked_for(survey(Language())) == []
    del teacher


# --- Transformer Engine, by stand-ins that mirror its source (2.20) -------------------------------


class FormatMaxima(NamedTuple):
    max_fwd: float
    max_bwd: float


class Format(enum.Enum):
    E4M3 = FormatMaxima(448, 448)
    E5M2 = FormatMaxima(57344, 57344)
    HYBRID = FormatMaxima(448, 57344)


class Recipe:
    backward_override = None


@dataclass
class DelayedScaling(Recipe):
    margin: int = 0
    fp8_format: Format = Format.HYBRID
    amax_history_len: int = 1024


@dataclass
class Float8CurrentScaling(Recipe):
    fp8_format: Format = Format.HYBRID
    use_power_2_scales: bool = False


@dataclass
class MXFP8BlockScaling(Recipe):
    fp8_format: Format = Format.E4M3


@dataclass
class Float8BlockScaling(Recipe):
    fp8_format: Format = Format.E4M3


@dataclass
class NVFP4BlockScaling(Recipe):
    fp8_format: Format = Format.E4M3
    disable_2d_quantization: bool = False


@dataclass
class CustomRecipe(Recipe):
    qfactory: Any = field(default=None)


class StandIn(nn.Module):
    """The attributes of TransformerEngineBaseModule after a forward pass."""

    def __init__(self, recipe: Any, *, enabled: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(16, 16))
        self.fp8_initialized = self.fp8 = enabled
        self.fp8_meta: dict[str, Any] = {"fp8_checkpoint": enabled, "recipe": recipe}
        self.quantizers: dict[str, list[Any]] = {"scaling_fwd": [], "scaling_bwd": []}


@pytest.mark.parametrize(
    ("recipe", "told"),
    [(DelayedScaling(), [f"{E4M3}/tensorwise/delayed"] * 2 + [f"{E5M2}/tensorwise/delayed"]),
     (DelayedScaling(fp8_format=Format.E4M3), [f"{E4M3}/tensorwise/delayed"] * 3),
     (Float8CurrentScaling(), [f"{E4M3}/tensorwise/dynamic"] * 2 + [f"{E5M2}/tensorwise/dynamic"]),
     (MXFP8BlockScaling(), ["mxfp8_e4m3/block32"] * 3),
     (Float8BlockScaling(), [f"{E4M3}/block1x128/dynamic", f"{E4M3}/block128x128/dynamic",
                             f"{E4M3}/block1x128/dynamic"]),
     (NVFP4BlockScaling(), ["nvfp4/block16", "nvfp4/block16x16", "nvfp4/block16"]),
     (NVFP4BlockScaling(disable_2d_quantization=True), ["nvfp4/block16"] * 3),
     (CustomRecipe(), ["fp8/custom/CustomRecipe"] * 3)],
)  # fmt: skip
def test_each_recipe_of_transformer_engine_is_told_by_role(recipe, told):
    assert texts(StandIn(recipe)) == told


def test_a_layer_of_transformer_engine_outside_of_its_autocast_is_not_quantised():
    assert texts(StandIn(DelayedScaling(), enabled=False)) == [None] * 3


def test_a_backward_pass_in_high_precision_has_no_gradient_format():
    recipe = Float8CurrentScaling()
    recipe.backward_override = "high_precision"
    assert texts(StandIn(recipe)) == [f"{E4M3}/tensorwise/dynamic"] * 2 + [None]


# --- libraries that we do not know ----------------------------------------------------------------


class Keeps(nn.Module):
    """A weight in fp8 beside its scales, as several libraries keep it."""

    def __init__(self, scales: tuple[int, ...] | None) -> None:
        super().__init__()
        stored = torch.zeros(256, 512).to(torch.float8_e4m3fn)
        self.weight = nn.Parameter(stored, requires_grad=False)
        if scales is not None:
            self.register_buffer("weight_scale_inv", torch.ones(scales))


@pytest.mark.parametrize(
    ("scales", "granularity"),
    [((), "tensorwise"), ((1,), "tensorwise"), ((256,), "rowwise"), ((256, 1), "rowwise"),
     ((2, 4), "block128x128"), ((256, 16), "block32"), ((3, 2, 2), "blocks"), (None, "unscaled")],
)  # fmt: skip
def test_a_stored_weight_tells_its_granularity_by_the_shape_of_its_scales(scales, granularity):
    assert texts(Keeps(scales)) == [None, f"{E4M3}/{granularity}", None]


class Wrapped(torch.Tensor):
    """A weight that looks wide, and holds fp8 numbers and a scale a row inside."""

    @staticmethod
    def __new__(cls, wide):
        made = torch.Tensor._make_wrapper_subclass(cls, wide.shape, dtype=wide.dtype)
        made._scale_inv = wide.abs().amax(1) / 448
        made._fp8_data = (wide / made._scale_inv[:, None]).to(torch.float8_e4m3fn)
        return made

    @classmethod
    def __torch_dispatch__(cls, called, _types, args=(), kwargs=None):
        def plain(one):
            if not isinstance(one, Wrapped):
                return one
            return one._fp8_data.to(one.dtype) * one._scale_inv[:, None].to(one.dtype)

        if called is torch.ops.aten.detach.default:
            return args[0]
        return called(*map(plain, args), **(kwargs or {}))


class Frozen(nn.Module):
    """A layer of a library of its own: its weight has another name and another layout."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.matrix = nn.Parameter(Wrapped(torch.randn(width, width)), requires_grad=False)

    def forward(self, x: Any) -> Any:
        return x @ (self.matrix.t() * 1.0)


def test_a_weight_of_a_library_of_its_own_says_what_it_holds_inside(tmp_path):
    model = nn.Sequential(nn.Linear(32, 32), Frozen(32), nn.Linear(32, 8))
    assert texts(model[1], model[1].matrix) == [None, f"{E4M3}/rowwise", None]
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    with ampwatch.attach(
        None, model, optimizer=optimizer, run="run", log_dir=tmp_path, endpoint="off"
    ):
        for _ in range(3):
            model(torch.randn(4, 32)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    rows = ampwatch.open_run(tmp_path / "run").layers.to_pylist()
    told = {row["layer"]: row["weight_format"] for row in rows}
    assert told == {"(root)": None, "0": None, "1": f"{E4M3}/rowwise", "2": None}


# --- layers that are none of this -----------------------------------------------------------------


class Odd(nn.Module):
    """Attributes that look like those of a library, and are not."""

    def __init__(self) -> None:
        super().__init__()
        self.config = {"fp8": True}
        self.fp8 = True
        self.scale = 2.0
        self.weight = nn.Parameter(torch.zeros(4, 4))


def test_a_users_own_module_with_similar_attributes_is_not_quantised():
    assert texts(Odd()) == [None] * 3


def test_torchs_own_layers_are_not_even_looked_into():
    for layer in (nn.Linear(2, 2), nn.Linear(2, 2).half(), nn.LayerNorm(2), nn.GELU()):
        assert not may_be_quantised(layer, getattr(layer, "weight", None))
