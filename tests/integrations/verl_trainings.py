"""Trains with the FSDP engine of verl's actor in fp16 on a CPU: `verl_trainings.py FOLDER`.

The engine's own methods build FSDP2, the ShardedGradScaler and the optimizer, go backward and step;
their device is the CPU. The model, its loss and the split into micro-batches are this file's. It
trains twice, once watched. What the engine says of each step goes to FOLDER/told.json.
"""

from __future__ import annotations

import functools
import hashlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
import verl.utils.fsdp_utils as fsdp
import verl.workers.engine.fsdp.transformer_impl as actor
import verl.workers.engine.fsdp.utils as meshes
from tensordict import TensorDict
from torch import nn
from torch.distributed.fsdp import sharded_grad_scaler
from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig

import ampwatch

BAD = 4  # in this step the loss is not finite


class Net(nn.Module):
    _no_split_modules = ("Linear",)

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 1)
        self.config = SimpleNamespace(tie_word_embeddings=False)

    def forward(self, x):
        return self.last(self.first(x).relu())


class Engine(actor.FSDPEngine):
    def __init__(self):
        half = {"param_dtype": "fp16", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
        self.engine_config = FSDPEngineConfig(strategy="fsdp2", mixed_precision=half)
        self.optimizer_config = FSDPOptimizerConfig(lr=1e-3, clip_grad=0.5)
        self.model_config = SimpleNamespace(lora_rank=0, enable_activation_offload=False)
        self._qat_enabled, self.rank, self.losses = False, 0, []
        self._init_device_mesh()
        self.module = self._build_fsdp_module(Net())
        self.optimizer = self._build_optimizer(self.module)

    def forward_step(self, micro_batch, loss_function, forward_only):
        outputs = self.module(micro_batch["x"]).float()
        loss = outputs.square().mean() * micro_batch["factor"].max() / 2
        self.losses.append(loss.item())
        return loss, {}


def trained(folder, *, watched):
    torch.manual_seed(0)
    engine, told = Engine(), []
    if watched:
        parts, optimizer = (engine.scaler, engine.module), engine.optimizer
        options = {"log_dir": folder, "run": "it", "endpoint": "off"}
        watch = ampwatch.attach(*parts, optimizer=optimizer, **options)
    for step in range(8):
        engine.losses = []
        scale = engine.scaler.get_scale()
        engine.optimizer_zero_grad()
        factor = torch.full((4,), torch.inf if step == BAD else 1.0)
        parts = {"x": torch.randn(4, 8), "factor": factor, "loss_mask": torch.ones(4)}
        engine.forward_backward_batch(TensorDict(parts, batch_size=4), None)
        told.append([engine.losses[-1], engine.optimizer_step(), scale])
    if watched:
        watch.close()
    flat = torch.cat([p._local_tensor.detach().reshape(-1) for p in engine.module.parameters()])
    return hashlib.sha256(flat.numpy()).hexdigest(), told


if __name__ == "__main__":
    out = Path(sys.argv[1])
    actor.get_device_id = fsdp.get_device_id = lambda: torch.device("cpu")
    meshes.get_device_name = fsdp.get_device_name = lambda: "cpu"
    actor.log_gpu_memory_usage = lambda *_, **__: None
    actor.prepare_micro_batches = lambda data, **_: ([data[:2], data[2:]], None)
    actor.postprocess_batch_func = lambda **_: None
    sharded_grad_scaler.ShardedGradScaler = functools.partial(
        sharded_grad_scaler.ShardedGradScaler, "cpu"
    )
    torch.distributed.init_process_group("gloo")
    alone, _ = trained(out, watched=False)
    digest, told = trained(out, watched=True)
    (out / "told.json").write_text(json.dumps({"it": {"same": digest == alone, "told": told}}))
