"""Does each change of a rerun in a process of its own, and prints what it came to as JSON.

torch is loaded once; each change is done in a fork of this process.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from torch import nn

import ampwatch
from ampwatch.integrations.rerun_process import CHANGES
from ampwatch.recovery.change import Change


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.second(self.first(x))


def autocast_dtypes():
    """What each layer's output is under autocast to float16."""
    model, found = Model(), {}
    for name, layer in model.named_children():
        layer.register_forward_hook(
            lambda _m, _i, out, name=name: found.update({name: str(out.dtype)})
        )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ampwatch.attach(None, model, optimizer=optimizer, endpoint="off", run="one"):
        for _ in range(2):
            with torch.autocast("cpu", torch.float16):
                out = model(torch.ones(2, 4))
            out.float().sum().backward()
            optimizer.step()
    return found


def scaler_facts():
    made = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=7)
    facts = {"enabled": made.is_enabled(), "scale": made.get_scale()}
    if made.is_enabled():
        facts["interval"] = made.get_growth_interval()
        made.scale(torch.ones(1))
        saved = {"scale": 2.0, "growth_factor": 2.0, "backoff_factor": 0.5,
                 "growth_interval": 9, "_growth_tracker": 0}  # fmt: skip
        made.load_state_dict(saved)
        facts |= {"loaded": made.get_scale(), "loaded_interval": made.get_growth_interval()}
    return facts


def norm_at_the_step():
    weight = nn.Parameter(torch.zeros(4))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    weight.grad = torch.full((4,), 10.0)
    optimizer.step()
    return float(weight.detach().norm())


def optimizer_settings():
    optimizer = torch.optim.Adam(Model().parameters(), foreach=True)
    return [optimizer.param_groups[0]["foreach"], optimizer.param_groups[0]["fused"]]


def rates():
    model = Model()
    optimizer = torch.optim.SGD(
        [{"params": model.first.parameters(), "lr": 0.4}, {"params": model.second.parameters()}],
        lr=0.2,
    )
    made = [group["lr"] for group in optimizer.param_groups]
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (step + 1))
    saved, planned = optimizer.state_dict(), schedule.state_dict()
    optimizer.step()
    schedule.step()
    stepped = [group["lr"] for group in optimizer.param_groups]
    optimizer.load_state_dict(saved)
    schedule.load_state_dict(planned)
    loaded = [group["lr"] for group in optimizer.param_groups]
    optimizer.step()
    schedule.step()
    other = torch.optim.SGD(model.parameters(), lr=1.0)
    torch.optim.lr_scheduler.OneCycleLR(other, max_lr=8.0, total_steps=10, div_factor=4.0)
    return {
        "made": made, "stepped": stepped, "saved": [g["lr"] for g in saved["param_groups"]],
        "planned": planned["base_lrs"], "loaded": loaded,
        "again": [group["lr"] for group in optimizer.param_groups],
        "cycle": other.param_groups[0]["max_lr"],
    }  # fmt: skip


def is_compiled():
    model = Model()
    return torch.compile(model) is not model


CASES = {
    "nothing": ("nothing", None, autocast_dtypes),
    "autocast-off": ("autocast-off", True, autocast_dtypes),
    "bfloat16": ("bfloat16", True, autocast_dtypes),
    "float32": ("float32", "second", autocast_dtypes),
    "float32 twice": ("float32", "first, second", autocast_dtypes),
    "float32 absent": ("float32", "third", autocast_dtypes),
    "scaler": ("nothing", None, scaler_facts),
    "scaler-off": ("scaler-off", True, scaler_facts),
    "init_scale": ("init_scale", 64.0, scaler_facts),
    "growth_interval": ("growth_interval", 50, scaler_facts),
    "clip": ("clip", 0.5, norm_at_the_step),
    "plain-optimizer": ("plain-optimizer", True, optimizer_settings),
    "deterministic": ("deterministic", True, torch.are_deterministic_algorithms_enabled),
    "compile-off": ("compile-off", True, is_compiled),
    "lr": ("lr", 0.5, rates),
}


def main(folder):
    for name, (change, value, look) in CASES.items():
        place = Path(folder) / name
        place.mkdir()
        child = os.fork()
        if not child:
            os.chdir(place)
            asked = Change(change, value, str(place / "outputs"))
            CHANGES[asked.name](asked)
            facts = look()
            (place / "facts.json").write_text(json.dumps([facts, asked.was_done]))
            os._exit(0)
        os.waitpid(child, 0)
    facts = {name: json.loads((Path(folder) / name / "facts.json").read_text()) for name in CASES}
    print(json.dumps(facts))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1])
