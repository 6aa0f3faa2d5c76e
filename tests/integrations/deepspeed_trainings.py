"""Trains with DeepSpeed's engine on a CPU, each case twice: `deepspeed_trainings.py FOLDER`.

Or the case alone that FOLDER/only.txt names, and once, without attaching.

What the engine itself says of each step, and a digest of the weights, go to FOLDER/told.json.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import deepspeed
import deepspeed.ops
import torch
from deepspeed.accelerator import get_accelerator
from torch import nn

from ampwatch.integrations.deepspeed import attach

BAD = 5  # in this step the input is inf

# Name, format, ZeRO stage, micro-batches of a step, steps.
CASES = (
    ("fp16-2", "fp16", 2, 1, 12),
    ("fp16-2-parts", "fp16", 2, 3, 12),
    ("fp16-0", "fp16", 0, 1, 12),
    ("bf16-0", "bf16", 0, 1, 12),
    ("bf16-1", "bf16", 1, 1, 12),
    ("bf16-3", "bf16", 3, 1, 12),
    ("healthy", "bf16", 2, 1, 60),
    ("silent", "bf16", 2, 1, 60),
)


class Rooted(nn.Module):
    """Adds nothing; but the root of zero has no finite gradient."""

    def forward(self, x):
        return x + (x * 0).sqrt()


def trained(folder, name, kind, stage, parts, steps, *, watched):
    torch.manual_seed(0)
    middle = Rooted() if name == "silent" else nn.ReLU()
    model = nn.Sequential(nn.Linear(8, 16), middle, nn.Linear(16, 1))
    settings = {
        "fp16": {"enabled": True, "initial_scale_power": 18, "hysteresis": 1},
        "bf16": {"enabled": True, "check_grad_overflow": True},
    }
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
        config={
            "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": parts,
            "zero_optimization": {"stage": stage}, "zero_allow_untested_optimizer": True,
            "gradient_clipping": 1.0, "steps_per_print": 10_000, kind: settings[kind],
        },
    )  # fmt: skip
    if watched:
        watch = attach(engine, log_dir=folder, run=name, endpoint="off")
    told = []
    for step in range(steps):
        losses = []
        scale = engine._get_optimizer_loss_scale() if kind == "fp16" else None
        for _ in range(parts):
            x = torch.randn(4, 8, dtype=getattr(torch, {"fp16": "float16"}.get(kind, "bfloat16")))
            loss = engine(x * float("inf") if (step, steps) == (BAD, 12) else x)
            loss = loss.float().square().mean()
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
        skipped = not engine.was_step_applied()
        norm = float(engine.get_global_grad_norm())
        told.append([sum(losses) / parts, norm, skipped, scale])
    if watched:
        watch.close()
        assert not {"_take_model_step", "backward"} & vars(engine).keys()
    weights = [p.ds_tensor if stage == 3 else p for p in engine.module.parameters()]
    flat = torch.cat([p.detach().float().reshape(-1) for p in weights])
    return hashlib.sha256(flat.numpy()).hexdigest(), told


if __name__ == "__main__":
    out = Path(sys.argv[1])
    # DeepSpeed would compile its shared-memory operation, and asks whether fp16 is quick here.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    get_accelerator().is_fp16_supported = lambda: True
    deepspeed.init_distributed("gloo")
    found = {}
    only = (out / "only.txt").read_text() if (out / "only.txt").exists() else ""
    for case in CASES:
        if only:
            if case[0] == only:
                found[only] = {"told": trained(out, *case, watched=False)[1]}
            continue
        alone, _ = trained(out, *case, watched=False)
        digest, told = trained(out, *case, watched=True)
        found[case[0]] = {"same": digest == alone, "told": told}
    (out / "told.json").write_text(json.dumps(found))
