"""One training of the variety as a script with a command line, as `ampwatch prove` starts it again.

    python benchmarks/prove_training.py DRAWN --lr RATE [--plan plan.json]

DRAWN is the training's plan as JSON, with the name of its fault if it has one. It saves as it goes
and follows a plan of `ampwatch plan --json` to the letter.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import ampwatch  # noqa: E402 - the checkout's own, found above
from examples.gallery.variety.training.faults import FAULTS  # noqa: E402
from examples.gallery.variety.training.loops import Loop, Plan  # noqa: E402

SAVE_EVERY = 40


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("drawn", type=json.loads)
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--plan", type=lambda path: json.loads(Path(path).read_text()))
    parser.add_argument("--run", default="run")
    parser.add_argument("--losses", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    fault = options.drawn.pop("fault", None)
    drawn = Plan(**options.drawn)
    loop, first = begun(Loop if fault is None else FAULTS[fault], drawn, options.lr, options.plan)
    try:
        with watched(loop, options.run, first) as loop.watch:
            train(loop, first)
    finally:
        if options.losses:
            options.losses.write_text(json.dumps(loop.losses))


def begun(kind: type[Loop], drawn: Plan, rate: float, told: Any) -> tuple[Loop, int]:
    """The training where it begins; with a plan, as that says."""
    if told is None:
        return kind(drawn, rate), 0
    asked = told["learning_rate"]
    rate = asked["groups"][0] if asked["groups"] else rate
    if asked["clip"]:
        drawn = replace(drawn, clip=min(asked["clip"], drawn.clip or asked["clip"]))
    drawn = replace(drawn, precision=_precision(drawn.precision, told["settings"]))
    loop, saved = kind(drawn, rate), told["checkpoint"]
    for name in told["keep_in_float32"]:
        ampwatch.run_in_float32(loop.model, name)
    if loop.scaler is not None:
        loop.scaler.load_state_dict(loop.scaler.state_dict() | _scaler_state(told["scaler"]))
    first = saved["step"] if saved else 0
    if saved:
        state = torch.load(saved["path"], weights_only=True)
        loop.model.load_state_dict(state["model"])
        loop.optimizer.load_state_dict(state["optimizer"])
        if loop.scaler is not None and told["scaler"]["restore"]:
            loop.scaler.load_state_dict(state["scaler"])
        for _ in range(first):
            loop.batch()  # those that were trained with
    for group in loop.optimizer.param_groups:
        group["lr"] = group["initial_lr"] = rate
    steps = asked["warmup_steps"] or 1

    def factor(step: int) -> float:
        return loop.factor(step) * min(1.0, (step - first + 1) / steps)

    loop.scheduler = torch.optim.lr_scheduler.LambdaLR(loop.optimizer, factor, first - 1)
    return loop, first


def _scaler_state(told: dict[str, Any]) -> dict[str, Any]:
    """The settings of a scaler that a plan names."""
    named = {"scale": told["init_scale"], "growth_interval": told["growth_interval"]}
    return {name: value for name, value in named.items() if value is not None}


def _precision(drawn: str, settings: dict[str, str]) -> str:
    """With autocast switched as the plan says."""
    if settings.get("autocast") == "off":
        return "fp32"
    return "bf16" if settings.get("autocast") == "bfloat16" and drawn == "fp16" else drawn


def train(loop: Loop, first: int) -> None:
    """From the first step to the last, saving in between."""
    saves = Path("checkpoints")
    saves.mkdir(exist_ok=True)
    for step in range(first, loop.plan.steps):
        if step and step % SAVE_EVERY == 0:
            path = saves / f"step-{step}.pt"
            scaler = {} if loop.scaler is None else loop.scaler.state_dict()
            torch.save({"model": loop.model.state_dict(), "scaler": scaler,
                        "optimizer": loop.optimizer.state_dict()}, path)  # fmt: skip
            loop.watch.saved(path)
        loop.now = step
        loop.one()


def watched(loop: Loop, run: str, first: int) -> Any:
    return ampwatch.attach(
        loop.scaler, loop.model, optimizer=loop.optimizer, run=run, endpoint="off",
        start_step=first, layer_every=25,
    )  # fmt: skip


if __name__ == "__main__":
    main()
