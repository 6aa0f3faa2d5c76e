"""What a sampled step costs a layer: in fp16 and bf16 without and with "what if", and in fp8.

CPU time in the hooks on the training thread and in the courier's rows, divided by the number of
layers. The trainings take a step each in turn, and the least disturbed rounds count. fp8 is
torchao's, emulated.

python benchmarks/low_precision.py [--rounds N] [--width W] [--batch B]
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import ampwatch
from ampwatch.probe.formats import casts
from ampwatch.probe.layer_observer import LayerObserver, MeasuredTensor
from ampwatch.probe.row_maker import RowMaker

LAYERS = 12
BEGIN = casts.Operands.begin


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
    "fp8, casts not looked at": Kind(
        lambda w: float8(Plain(w).bfloat16()), torch.bfloat16, autocast=False, casts=False
    ),
    "fp8 tensorwise": Kind(lambda w: float8(Plain(w).bfloat16()), torch.bfloat16, autocast=False),
}


USUAL = "fp16, casts not looked at"  # what others are compared with
WARM_UP = 3


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


class Training:
    """One way to train, watched; stepped in turn with the others."""

    def __init__(self, kind: Kind, args: argparse.Namespace, folder: str) -> None:
        torch.manual_seed(0)
        self.kind = kind
        self.model = kind.make(args.width)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)
        dtype = torch.bfloat16 if not kind.autocast else None
        self.x = torch.randn(args.batch, args.width, dtype=dtype)
        self.watch = ampwatch.attach(
            None, self.model, optimizer=self.optimizer, log_dir=folder, endpoint="off",
            layer_every=1,
        )  # fmt: skip

    def step(self) -> None:
        setattr(casts.Operands, "begin", BEGIN if self.kind.casts else _nothing)  # noqa: B010
        with torch.autocast("cpu", self.kind.dtype, enabled=self.kind.autocast):
            loss = self.model(self.x).float().square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def measure(args: argparse.Namespace, folder: str) -> dict[str, list[tuple[float, float]]]:
    """Microseconds a layer in the hooks and on the courier, by kind, of each round."""
    hooks, courier = Spent(), Spent()
    for name in ("_enter", "_leave", "collect"):
        hooks.count(LayerObserver, name)
    hooks.count(MeasuredTensor, "note_gradient")
    courier.count(RowMaker, "rows")
    every = {name: Training(kind, args, folder) for name, kind in KINDS.items()}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in every}
    for at in range(WARM_UP + args.rounds):
        for name, one in every.items():
            one.step()
            on_hooks = hooks.taken()
            time.sleep(0.5)  # the courier's part of this step
            if at >= WARM_UP:
                found[name].append((on_hooks, courier.taken()))
            courier.taken()
    for one in every.values():
        one.watch.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--batch", type=int, default=128)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(args, folder)
    print(f"width {args.width}, batch {args.batch}, {LAYERS} layers, load {os.getloadavg()[0]:.1f}")
    print("| µs a layer of a sampled step | training thread | times fp16 | courier |")
    print("|---|---:|---:|---:|")
    least = {name: [least_disturbed(part) for part in zip(*rounds, strict=True)]
             for name, rounds in found.items()}  # fmt: skip
    for name, (on_hooks, on_courier) in least.items():
        times = on_hooks / least[USUAL][0]
        print(f"| {name} | {on_hooks:.0f} | {times:.2f} | {on_courier:.0f} |")


def least_disturbed(times: Sequence[float]) -> float:
    """The tenth percentile: others who work on the machine only ever make a round longer."""
    return sorted(times)[len(times) // 10]


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["XDG_STATE_HOME"] = scratch
        main()
