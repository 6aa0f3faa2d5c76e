"""Trains torchtitan's debug model with its own Trainer: `torchtitan_trainings.py FOLDER`.

torchtitan asks a device for its name and memory, which torch's CPU does not have; its attention has
no backward pass there, and gets torch's own; FSDP adds up gradients as gloo can. Nothing else of it
is changed. Each case runs twice, once watched; or once without attaching, the case that
FOLDER/only.txt names. What torchtitan itself says of each step, and a digest of the weights, go to
FOLDER/told-RANK.json.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import torch
import torch._utils
from torch.distributed.fsdp import FSDPModule

from ampwatch.integrations.torchtitan import attach

torch._utils._get_available_device_type = lambda: "cpu"
for name, answer in {
    "get_device_name": "cpu",
    "get_device_properties": SimpleNamespace(total_memory=1 << 30),
    "reset_peak_memory_stats": None,
    "empty_cache": None,
    "memory_stats": {},
}.items():
    setattr(torch.cpu, name, lambda *_, answer=answer: answer)

from torchtitan.components.dataloader import BaseDataLoader  # noqa: E402 - asks for the device
from torchtitan.components.tokenizer import BaseTokenizer  # noqa: E402
from torchtitan.distributed import utils as distributed  # noqa: E402
from torchtitan.models.common.attention import FlexAttention  # noqa: E402
from torchtitan.models.llama3.config_registry import llama3_debugmodel  # noqa: E402
from torchtitan.trainer import Trainer  # noqa: E402

# Name, the largest norm, micro-batches, steps, the step before which the weights are broken.
CASES = (("clipped", 0.5, 2, 4, None), ("broken", 1e6, 1, 4, 2))


def attention(q, k, v, **named):
    mixed = torch.nn.functional.scaled_dot_product_attention
    return mixed(q, k, v, is_causal=True, enable_gqa=named["enable_gqa"]), None


FlexAttention._compiled_flex_attn = staticmethod(attention)


class Random(BaseDataLoader):
    """Tokens that depend on the rank alone."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        pass

    def __init__(self, config, *, dp_rank, seq_len, local_batch_size, **more):
        self.size = local_batch_size, seq_len
        self.random = torch.Generator().manual_seed(dp_rank)

    def __iter__(self):
        rows, length = self.size
        while True:
            tokens = torch.randint(0, 2048, (rows, length + 1), generator=self.random)
            positions = torch.arange(length).expand(rows, length)
            yield {"input": tokens[:, :-1], "positions": positions}, tokens[:, 1:]

    def state_dict(self):
        return {}

    def load_state_dict(self, state_dict):
        pass


class NoTokenizer(BaseTokenizer):
    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        pass

    def __init__(self, config, **more):
        pass

    encode = decode = get_vocab_size = None


NoTokenizer.__abstractmethods__ = frozenset()


def made(folder, limit, parts, steps):
    config = llama3_debugmodel()
    config.dataloader, config.tokenizer = Random.Config(), NoTokenizer.Config()
    config.training.local_batch_size, config.training.seq_len = 2, 16
    config.training.global_batch_size = 2 * parts * int(os.environ["WORLD_SIZE"])
    config.training.steps, config.training.max_norm = steps, limit
    config.training.disable_cuda_graphs = True
    config.checkpoint.enable = config.validator.enable = False
    config.optimizer.implementation, config.dump_folder = "for-loop", str(folder / "dump")
    config.debug.seed, config.parallelism.spmd_backend = 0, "partial_dtensor"
    trainer = Trainer(config)
    for module in trainer.model_parts[0].modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)  # gloo has no other
    return trainer


def trained(folder, name, limit, parts, steps, bad, *, watched):
    trainer = made(folder, limit, parts, steps)
    told = []

    def note(step, loss, _largest, norm, extra_metrics):
        told.append([loss, norm, extra_metrics["lr/AdamW"]])

    trainer.metrics_processor.log = note
    if watched:
        watch = attach(trainer, log_dir=folder, run=name, endpoint="off")
    batches = trainer.batch_generator(trainer.dataloader)
    failed = None
    for step in range(steps):
        trainer.step += 1
        if step == bad:
            with torch.no_grad():
                next(trainer.model_parts[0].parameters()).fill_(float("nan"))
        try:
            trainer.train_step(batches)
        except RuntimeError as error:
            failed = str(error)
            break
    if watched:
        watch.close()
        assert not {"train_step", "forward_backward_step"} & vars(trainer).keys()
        assert "step" not in vars(trainer.optimizers)
        assert distributed.clip_grad_norm_ is CLIP
    held = [
        getattr(p, "_local_tensor", p) for part in trainer.model_parts for p in part.parameters()
    ]
    flat = torch.cat([p.detach().reshape(-1) for p in held])
    trainer.close()
    return hashlib.sha256(flat.numpy()).hexdigest(), told, failed


CLIP = distributed.clip_grad_norm_

if __name__ == "__main__":
    out = Path(sys.argv[1])
    only = (out / "only.txt").read_text() if (out / "only.txt").exists() else ""
    found = {}
    for case in CASES:
        if only and case[0] != only:
            continue
        alone, told, failed = trained(out, *case, watched=False)
        if not only:
            digest, told, failed = trained(out, *case, watched=True)
        found[case[0]] = {"same": only or digest == alone, "told": told, "failed": failed}
    (out / f"told-{os.environ['RANK']}.json").write_text(json.dumps(found))
