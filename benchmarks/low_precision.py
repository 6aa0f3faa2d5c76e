"""What a sampled step costs a layer: in fp16 and bf16 without and with "what if", and in fp8.

CPU time in the hooks on the training thread and in the courier's rows, divided by the number of
layers; medians, for the machine may be busy. fp8 is torchao's, emulated.

python benchmarks/low_precision.py [--steps N] [--width W] [--batch B]
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import ampwatch
from ampwatch.probe import operand_casts
from ampwatch.probe.layer_observer import LayerObserver
from ampwatch.probe.row_maker import RowMaker
from ampwatch.probe.sampled_layers import SeenTensor

LAYERS = 12
BEGIN = operand_casts.Operands.begin


class Plain(nn.Module):
    """Linear layers with something between them, as in a transformer's feed-forward part."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width, bias=False) for _ in range(LAYERS)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return x


def float8(model: nn.Module) -> nn.Module:
    """Converted by torchao, emulated."""
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    config = dataclasses.replace(Float8LinearConfig.from_recipe_name("tensorwise"), emulate=True)
    converted: nn.Module = convert_to_float8_training(model, config=config)
    return converted


@dataclasses.dataclass(frozen=True)
class Kind:
    """One way to train."""

    make: Callable[[int], nn.Module]
    dtype: torch.dtype
    autocast: bool
    casts: bool = True


KINDS = {
    "fp16, casts not looked at": Kind(Plain, torch.float16, autocast=True, casts=False),
    "fp16, with what if": Kind(Plain, torch.float16, autocast=True),
    "bf16, casts not looked at": Kind(
        lambda w: Plain(w).bfloat16(), torch.bfloat16, autocast=False, casts=False
    ),
    "bf16, with what if": Kind(lambda w: Plain(w).bfloat16(), torch.bfloat16, autocast=False),
    "fp8 tensorwise": Kind(lambda w: float8(Plain(w).bfloat16()), torch.bfloat16, autocast=False),
}


def _nothing(*_args: Any, **_named: Any) -> None:
    """In the place of `Operands.begin`."""


class Spent:
    """CPU time inside some functions, on whatever thread they run."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def count(self, owner: Any, name: str) -> None:
        """Count a method from now on."""
        inner = getattr(owner, name)

        def counted(*args: Any, **named: Any) -> Any:
            began = time.thread_time()
            try:
                return inner(*args, **named)
            finally:
                self.seconds += time.thread_time() - began

        setattr(owner, name, counted)

    def taken(self) -> float:
        """Microseconds a layer since the last call."""
        seconds, self.seconds = self.seconds, 0.0
        return 1e6 * seconds / LAYERS


def cost(kind: Kind, args: argparse.Namespace, hooks: Spent, courier: Spent) -> list[float]:
    """Microseconds a layer of a sampled step, the median: in the hooks, and on the courier."""
    setattr(operand_casts.Operands, "begin", BEGIN if kind.casts else _nothing)  # noqa: B010
    torch.manual_seed(0)
    model = kind.make(args.width)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    x = torch.randn(args.batch, args.width, dtype=torch.bfloat16 if not kind.autocast else None)
    found: list[tuple[float, float]] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        ampwatch.attach(
            None, model, optimizer=optimizer, log_dir=folder, endpoint="off", layer_every=1
        ),
    ):
        for _ in range(args.steps):
            with torch.autocast("cpu", kind.dtype, enabled=kind.autocast):
                loss = model(x).float().square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            on_hooks = hooks.taken()
            time.sleep(0.5)  # the courier's part of this step
            found.append((on_hooks, courier.taken()))
    return [statistics.median(part) for part in zip(*found[3:], strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--batch", type=int, default=128)
    args = parser.parse_args()
    hooks, courier = Spent(), Spent()
    for name in ("_enter", "_leave", "collect"):
        hooks.count(LayerObserver, name)
    hooks.count(SeenTensor, "note_gradient")
    courier.count(RowMaker, "rows")
    print(f"width {args.width}, batch {args.batch}, {LAYERS} layers, load {os.getloadavg()[0]:.1f}")
    print("| µs a layer of a sampled step | training thread | courier |")
    print("|---|---:|---:|")
    for name, kind in KINDS.items():
        on_hooks, on_courier = cost(kind, args, hooks, courier)
        print(f"| {name} | {on_hooks:.0f} | {on_courier:.0f} |", flush=True)


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["XDG_STATE_HOME"] = scratch
        main()
