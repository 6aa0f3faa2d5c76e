"""What a sampled step costs a layer: in fp16 without and with "what if", in bf16, in emulated fp8.

Every second step is sampled; the difference of the medians is divided by the number of layers. The
training thread's own time and that of the whole process, courier included, both in CPU time: the
machine may be busy.

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


def added(kind: Kind, args: argparse.Namespace) -> tuple[float, float]:
    """Microseconds that sampling adds a layer: to the training thread, and to the process.

    Every second step is sampled, so both kinds of steps see the same machine.
    """
    setattr(operand_casts.Operands, "begin", BEGIN if kind.casts else _nothing)  # noqa: B010
    torch.manual_seed(0)
    model = kind.make(args.width)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    x = torch.randn(args.batch, args.width, dtype=torch.bfloat16 if not kind.autocast else None)
    thread: dict[bool, list[float]] = {True: [], False: []}
    process: dict[bool, list[float]] = {True: [], False: []}
    with (
        tempfile.TemporaryDirectory() as folder,
        ampwatch.attach(
            None, model, optimizer=optimizer, log_dir=folder, endpoint="off", layer_every=2
        ),
    ):
        for number in range(12 + 2 * args.steps):
            began = time.thread_time(), time.process_time()
            with torch.autocast("cpu", kind.dtype, enabled=kind.autocast):
                loss = model(x).float().square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            spent = time.thread_time() - began[0]
            time.sleep(0.3)  # the courier's part of this step
            if number >= 12:  # the first ten are sampled always
                thread[number % 2 == 0].append(1e6 * spent)
                process[number % 2 == 0].append(1e6 * (time.process_time() - began[1]))
    return _difference(thread), _difference(process)


def _difference(found: dict[bool, list[float]]) -> float:
    return (statistics.median(found[True]) - statistics.median(found[False])) / LAYERS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--batch", type=int, default=128)
    args = parser.parse_args()
    print(f"width {args.width}, batch {args.batch}, {LAYERS} layers, load {os.getloadavg()[0]:.1f}")
    print("| µs that sampling adds, a layer | training thread | whole process |")
    print("|---|---:|---:|")
    for name, kind in KINDS.items():
        thread, process = added(kind, args)
        print(f"| {name} | {thread:.0f} | {process:.0f} |", flush=True)


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["XDG_STATE_HOME"] = scratch
        main()
