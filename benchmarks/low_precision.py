"""What a sampled step costs a layer: in fp16 without and with "what if", in bf16, in emulated fp8.

Interleaved: each round trains every kind for some sampled and some other steps; the difference of
their medians is divided by the number of layers. The training thread's own time and that of the
whole process, courier included, both in CPU time: the machine may be busy.

python benchmarks/low_precision.py [--rounds N] [--width W] [--batch B]
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import ampwatch
from ampwatch.probe import operand_casts

LAYERS, STEPS, NEVER = 12, 6, 10**9
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


def step_times(kind: Kind, args: argparse.Namespace, *, sampled: bool) -> tuple[float, float]:
    """Median CPU milliseconds of a step: of the training thread, and of the process."""
    setattr(operand_casts.Operands, "begin", BEGIN if kind.casts else _nothing)  # noqa: B010
    torch.manual_seed(0)
    model = kind.make(args.width)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    x = torch.randn(args.batch, args.width, dtype=torch.bfloat16 if not kind.autocast else None)
    thread, process = [], []
    every = 1 if sampled else NEVER
    with (
        tempfile.TemporaryDirectory() as folder,
        ampwatch.attach(
            None, model, optimizer=optimizer, log_dir=folder, endpoint="off", layer_every=every
        ),
    ):
        for number in range(12 + STEPS):
            began = time.thread_time(), time.process_time()
            with torch.autocast("cpu", kind.dtype, enabled=kind.autocast):
                loss = model(x).float().square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if number >= 11:  # the first ten are sampled always
                thread.append(1e3 * (time.thread_time() - began[0]))
                time.sleep(0.25)  # the courier's part of this step
                process.append(1e3 * (time.process_time() - began[1]))
    return statistics.median(thread), statistics.median(process)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--batch", type=int, default=128)
    args = parser.parse_args()
    added: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for _ in range(args.rounds):
        for name, kind in KINDS.items():
            sampled, other = (step_times(kind, args, sampled=s) for s in (True, False))
            added[name].append((sampled[0] - other[0], sampled[1] - other[1]))
    print(f"width {args.width}, batch {args.batch}, {LAYERS} layers, load {os.getloadavg()[0]:.1f}")
    print("| µs that sampling adds, a layer | training thread | whole process |")
    print("|---|---:|---:|")
    for name, found in added.items():
        thread, process = (
            1e3 * statistics.median(part) / LAYERS for part in zip(*found, strict=True)
        )
        print(f"| {name} | {thread:.0f} | {process:.0f} |")


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["XDG_STATE_HOME"] = scratch
        main()
