"""What a bf16 run is told of fp8, against really casting it; and what keeping layers in bf16 gains.

    python benchmarks/low_precision_what_if.py [--steps N] [--seeds N]

A small transformer is trained in bf16 under a watch. At its last sampled step the operands of every
layer are kept, and cast by torchao as each format casts them: the shares that became zero stand
beside those that the watch told, and the layer's product beside that of the operands themselves.
In three of its layers one channel of the normalisation is far larger than the rest, as large models
have them; the next layer makes up for it.

Then a residual network with such channels learns a function: in bf16, in fp8 with all its inner
layers cast, and in fp8 with those left in bf16 of which the watch of the bf16 run had told that
they would lose too much.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import statistics
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]
logging.disable(logging.WARNING)  # torchao tells of kernels that a CPU does not have
warnings.simplefilter("ignore")

from low_precision_models import Shape, loss_of, make_model  # noqa: E402

import ampwatch  # noqa: E402
from ampwatch.diagnosis.rules.precision import FLUSHED_SHARE  # noqa: E402
from ampwatch.rows import WHAT_IF_FORMATS  # noqa: E402

SHAPE = Shape("transformer", 64, 3, "lm_head", "gelu", tied=False, router="")
RESIDUAL = Shape("mlp", 64, 4, "head", "gelu", tied=False, router="")
# A normalisation with a large channel, and the layer after it.
OUTLYING = {
    "layers.1.norm": "layers.1.up", "layers.3.norm": "layers.3.up", "layers.4.norm": "layers.4.qkv",
}  # fmt: skip
IN_BLOCKS = {f"blocks.{n}.norm": f"blocks.{n}.up" for n in range(RESIDUAL.blocks)}
FACTOR = 3e5
WORDS, LENGTH, BATCH = 64, 32, 5  # no operand is larger than a sample of it
ROLES = ("input", "weight", "grad")
EVERY = 20
WIDE = {"first", "head", "lm_head"}  # usually kept in bf16
Batch = Callable[[int], tuple[Tensor, Tensor]]


def plain(inputs: int, outputs: int, _part: str) -> nn.Module:
    """A layer of torch's own."""
    return nn.Linear(inputs, outputs, bias=False)


def made(shape: Shape, outlying: dict[str, str], seed: int) -> nn.Module:
    """A model in bf16 with outlying channels, which the optimizer leaves as they are.

    One step of it would make such a channel all that the next layer sees.
    """
    torch.manual_seed(seed)
    model = make_model(shape, plain)
    with torch.no_grad():
        for at, (norm, layer) in enumerate(outlying.items()):
            model.get_submodule(norm).weight[7 + at] *= FACTOR
            model.get_submodule(layer).weight[:, 7 + at] /= FACTOR
    model = model.bfloat16()
    for at, names in enumerate(outlying.items()):
        for name in names:
            weight = model.get_submodule(name).weight
            kept = torch.ones_like(weight)
            kept[..., 7 + at] = 0
            weight.register_hook(kept.mul)
    return model


def words(step: int) -> tuple[Tensor, Tensor]:
    """Each word follows from the one before it; one in twenty is any."""
    draw = torch.Generator().manual_seed(step)
    tokens = torch.randint(WORDS, (BATCH, LENGTH + 1), generator=draw)
    noise = torch.rand(tokens.shape, generator=draw) < 0.05
    for at in range(1, LENGTH + 1):
        next_word = (5 * tokens[:, at - 1] + 7) % WORDS
        tokens[:, at] = torch.where(noise[:, at], tokens[:, at], next_word)
    return tokens[:, :-1], tokens[:, 1:]


def numbers(step: int) -> tuple[Tensor, Tensor]:
    """A function of 32 numbers that is not linear."""
    x = torch.randn(128, 32, generator=torch.Generator().manual_seed(step))
    return x.bfloat16(), torch.sin(2 * x) + 0.5 * x.roll(1, 1) * x


def train(
    model: nn.Module,
    batch: Batch,
    steps: int,
    folder: Path,
    before: Callable[[int], None] = lambda _step: None,
) -> float:
    """Train under a watch; the mean loss of the last tenth of the steps."""
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    losses = []
    watch = ampwatch.attach(
        None, model, optimizer=optimizer, run="run", log_dir=folder, endpoint="off",
        layer_every=EVERY,
    )  # fmt: skip
    with watch:
        for step in range(steps):
            before(step)
            x, wanted = batch(step)
            loss = loss_of(model(x), wanted)
            watch.log(loss=loss)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    return statistics.fmean(losses[-steps // 10 :])


def would_lose(folder: Path) -> list[str]:
    """The layers whose input or weight would lose too much in E4M3, as the run's last rows tell."""
    last: dict[str, list[float]] = {}
    for row in ampwatch.open_run(folder / "run").layers.to_pylist():
        told = [row[f"{role}_what_if"] for role in ("input", "weight")]
        if all(told):
            last[row["layer"]] = [shares[0] for shares in told]
    return [name for name, shares in last.items() if max(shares) > FLUSHED_SHARE]


# --- really cast ---------------------------------------------------------------------------------


def float8(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Cast with one scale for the tensor, and back."""
    from torchao.float8.config import ScalingGranularity
    from torchao.float8.float8_scaling_utils import hp_tensor_to_float8_dynamic
    from torchao.float8.float8_training_tensor import LinearMMConfig

    cast = hp_tensor_to_float8_dynamic(
        tensor, dtype, LinearMMConfig(), scaling_granularity=ScalingGranularity.TENSORWISE
    )
    return cast._data.float() / cast._scale.float()


def mxfp8(tensor: Tensor) -> Tensor:
    """Cast in blocks of 32, and back."""
    from torchao.prototype.mx_formats.mx_tensor import ScaleCalculationMode, to_mx

    scale, cast = to_mx(tensor.contiguous(), torch.float8_e4m3fn, 32, ScaleCalculationMode.RCEIL)
    wide = torch.exp2(scale.view(torch.uint8).float() - 127).repeat_interleave(32, dim=-1)
    return cast.float() * wide


def nvfp4(tensor: Tensor) -> Tensor:
    """Cast in blocks of 16 with one scale for the tensor, and back."""
    from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize, per_tensor_amax_to_scale

    tensor = tensor.contiguous()
    outer = per_tensor_amax_to_scale(tensor.abs().max())
    scale, packed = nvfp4_quantize(tensor, 16, outer)
    pairs = packed.view(torch.uint8)
    codes = torch.stack([pairs & 0xF, pairs >> 4], dim=-1).flatten(-2).long()
    numbers = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    values = torch.where(codes > 7, -numbers[codes & 7], numbers[codes & 7])
    blocks = scale.view(torch.float8_e4m3fn).float().reshape(tensor.shape[0], -1)
    return values * blocks.repeat_interleave(16, dim=-1) * outer.float()


CASTS: dict[str, Callable[[Tensor], Tensor]] = dict(
    zip(
        WHAT_IF_FORMATS,
        (lambda t: float8(t, torch.float8_e4m3fn), lambda t: float8(t, torch.float8_e5m2),
         mxfp8, nvfp4),
        strict=True,
    )
)  # fmt: skip


@dataclasses.dataclass
class Operands:
    """What a layer multiplied at the sampled step."""

    input: Tensor
    weight: Tensor
    grad: Tensor

    def error(self, cast: Callable[[Tensor], Tensor]) -> float:
        """Of the product of cast operands, against that of the operands; in norms."""
        x, weight = self.input.float(), self.weight.float()
        exact = x @ weight.t()
        return ((cast(self.input) @ cast(self.weight).t() - exact).norm() / exact.norm()).item()


def kept_operands(model: nn.Module, at_step: int) -> tuple[dict[str, Operands], Callable]:
    """Filled in the course of that step; and what has to be called before each step."""
    found: dict[str, Operands] = {}
    now = {"step": -1}

    def hook(name: str) -> Callable[..., None]:
        def seen(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            if now["step"] != at_step:
                return
            x = inputs[0].detach().flatten(0, -2).clone()
            held = Operands(x, module.weight.detach().clone(), x)
            found[name] = held
            output.register_hook(
                lambda grad: setattr(held, "grad", grad.detach().flatten(0, -2).clone())
            )

        return seen

    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(hook(name))
    return found, lambda step: now.__setitem__("step", step)


# --- the tables ----------------------------------------------------------------------------------


def shares_tables(steps: int, folder: Path) -> None:
    """Print told and real shares of the last sampled step, and the errors of the products."""
    at_step = (steps - 1) // EVERY * EVERY
    model = made(SHAPE, OUTLYING, seed=0)
    operands, before = kept_operands(model, at_step)
    train(model, words, steps, folder, before)
    rows = ampwatch.open_run(folder / "run").layers.to_pylist()
    told = {row["layer"]: row for row in rows if row["step"] == at_step and row["input_what_if"]}
    heads = [text.split("/")[0].replace("float8_", "") for text in WHAT_IF_FORMATS]
    print(f"Told / really flushed, %, at step {at_step}; and the error of the product.\n")
    print("| layer | operand | " + " | ".join(heads) + " |")
    print("|---|---|" + "---:|" * len(heads))
    worst = 0.0
    for name, held in operands.items():
        for role in ROLES:
            real = [_flushed(getattr(held, role), cast) for cast in CASTS.values()]
            said = told[name][f"{role}_what_if"]
            worst = max(worst, *(abs(a - b) for a, b in zip(real, said, strict=True)))
            shown = [f"{100 * a:.2f} / {100 * b:.2f}" for a, b in zip(said, real, strict=True)]
            print(f"| {name} | {role} | " + " | ".join(shown) + " |")
        errors = [f"{100 * held.error(cast):.1f}" for cast in CASTS.values()]
        print("| | *error of the product* | " + " | ".join(errors) + " |")
    print(f"\nLargest difference of a told share from the real one: {worst:.5f}.")


def _flushed(tensor: Tensor, cast: Callable[[Tensor], Tensor]) -> float:
    there = tensor != 0
    return int((there & (cast(tensor) == 0)).sum()) / max(1, int(there.sum()))


def gain_table(steps: int, seeds: int) -> None:
    """Print the loss after equal steps: bf16, fp8, and fp8 with the told layers left in bf16."""
    print(f"\n| loss after {steps} steps | bf16 | fp8 | fp8, told layers in bf16 | told layers |")
    print("|---|---:|---:|---:|---|")
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as folder:
            wide = _loss(seed, steps, Path(folder), None)
            told = would_lose(Path(folder))
        losses = [_loss(seed, steps, None, left) for left in ([], told)]
        shown = " | ".join(f"{loss:.3f}" for loss in (wide, *losses))
        print(f"| seed {seed} | {shown} | {', '.join(told)} |", flush=True)


def _loss(seed: int, steps: int, folder: Path | None, left: list[str] | None) -> float:
    """In fp8, tensorwise, if layers to be left in bf16 are given."""
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    model = made(RESIDUAL, IN_BLOCKS, seed)
    if left is not None:
        kept = WIDE | set(left)
        convert_to_float8_training(
            model, config=Float8LinearConfig(emulate=True),
            module_filter_fn=lambda _module, name: name not in kept,
        )  # fmt: skip
    with tempfile.TemporaryDirectory() as other:
        return train(model, numbers, steps, folder or Path(other))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=601)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        shares_tables(options.steps, Path(folder))
    gain_table(options.steps, options.seeds)


if __name__ == "__main__":
    main()
