"""Trains with Megatron-core's own optimizers and schedules: `megatron_trainings.py FOLDER`.

Megatron asks for device 'cuda' by name. Here that name means the CPU; nothing else of it is
changed. Each case runs twice; or once without attaching, the case that FOLDER/only.txt names. What
Megatron itself says of each step, and a digest of the weights, go to FOLDER/told.json.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import sys
from pathlib import Path

import torch

from ampwatch.integrations.megatron import attach

BAD = 5  # in this step the loss is not finite
MICRO_BATCHES = 2


def let_cuda_mean_cpu():
    """Megatron's device 'cuda' becomes the CPU, and its tensors there name themselves so."""

    def on_cpu(make):
        @functools.wraps(make)
        def made(*arguments, **named):
            if "cuda" in str(named.get("device")):
                named["device"] = "cpu"
            return make(*arguments, **named)

        return made

    for name in ("tensor", "zeros", "ones", "empty"):
        setattr(torch, name, on_cpu(getattr(torch, name)))
    torch.cuda.current_device = lambda: "cpu"
    plain = torch.Tensor.type

    def kind(tensor, *arguments, **named):
        found = plain(tensor, *arguments, **named)
        return found.replace("torch.", "torch.cuda.") if isinstance(found, str) else found

    torch.Tensor.type = kind


# Name, format, distributed optimizer, clip, grad_scale_func before attach.
CASES = (
    ("fp16", "fp16", False, 1.0, True),
    ("fp16-distributed", "fp16", True, 0.5, False),
    ("bf16", "bf16", False, 1.0, False),
    ("bf16-distributed", "bf16", True, 0.0, True),
    ("fp32", "fp32", False, 1.0, True),
)
STEPS = 9
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}


def trained(folder, name, kind, distributed, clip, early, *, watched):
    torch.manual_seed(0)
    config = TransformerConfig(
        num_layers=2, hidden_size=16, num_attention_heads=2, use_cpu_initialization=True,
        fp16=kind == "fp16", bf16=kind == "bf16", params_dtype=DTYPES[kind], hidden_dropout=0.0,
        attention_dropout=0.0, bias_dropout_fusion=False, masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
    )  # fmt: skip
    model = GPTModel(config, get_gpt_layer_local_spec(), vocab_size=32, max_sequence_length=8)
    if kind != "fp32":
        model = Float16Module(config, model)
    settings = DistributedDataParallelConfig(
        use_distributed_optimizer=distributed, grad_reduce_in_fp32=True
    )
    model = DistributedDataParallel(config, settings, model)
    optimizer = get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam", lr=1e-3, clip_grad=clip, fp16=kind == "fp16", bf16=kind == "bf16",
            params_dtype=config.params_dtype, initial_loss_scale=2.0**12, loss_scale_window=3,
            hysteresis=1, use_distributed_optimizer=distributed,
        ),
        [model],
    )  # fmt: skip
    if early:
        config.grad_scale_func = optimizer.scale_loss
    if watched:
        watch = attach(optimizer, [model], log_dir=folder, run=name, endpoint="off")
    if not early:
        config.grad_scale_func = optimizer.scale_loss
    told = [step_of(config, model, optimizer, step) for step in range(STEPS)]
    if watched:
        watch.close()
        assert not {"step", "scale_loss"} & vars(optimizer).keys()
        assert not early or config.grad_scale_func == optimizer.scale_loss
    flat = torch.cat([p.detach().float().reshape(-1) for p in model.parameters()])
    return hashlib.sha256(flat.numpy()).hexdigest(), told


def step_of(config, model, optimizer, step):
    """One step of Megatron's, as its own training loop makes it; what it says of it."""

    def forward(batches, chunk):
        tokens = next(batches)
        places = torch.arange(8).expand(4, 8)
        mask = torch.ones(1, 1, 8, 8).triu(1).bool()

        def loss_of(outputs):
            loss = outputs.float().mean() * (float("inf") if step == BAD else 1.0)
            return loss, {"loss": loss.detach().clone()}

        return chunk(tokens, places, mask, labels=tokens), loss_of

    model.zero_grad_buffer()
    optimizer.zero_grad()
    scale = optimizer.get_loss_scale().item()
    reduced = get_forward_backward_func()(
        forward_step_func=forward,
        data_iterator=iter([torch.randint(0, 32, (4, 8)) for _ in range(MICRO_BATCHES)]),
        model=[model], num_microbatches=MICRO_BATCHES, seq_length=8, micro_batch_size=4,
        forward_only=False,
    )  # fmt: skip
    finalize_model_grads([model])
    for number, group in enumerate(optimizer.param_groups):
        group["lr"] = 1e-3 * (step + 1) / (number + 1)
    success, norm, _ = optimizer.step()
    losses = [one["loss"].item() for one in reduced]
    after = optimizer.get_loss_scale().item()
    return [sum(losses) / MICRO_BATCHES, norm, success, scale, after]


if __name__ == "__main__":
    out = Path(sys.argv[1])
    let_cuda_mean_cpu()
    from megatron.core import parallel_state
    from megatron.core.distributed import (
        DistributedDataParallel,
        DistributedDataParallelConfig,
        finalize_model_grads,
    )
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.pipeline_parallel import get_forward_backward_func
    from megatron.core.tensor_parallel import random
    from megatron.core.transformer.module import Float16Module
    from megatron.core.transformer.transformer_config import TransformerConfig

    torch.distributed.init_process_group("gloo")
    parallel_state.initialize_model_parallel()
    random.get_cuda_rng_tracker().fork = lambda *_: contextlib.nullcontext()
    only = (out / "only.txt").read_text() if (out / "only.txt").exists() else ""
    found = {}
    for case in CASES:
        if only and case[0] != only:
            continue
        alone, told = trained(out, *case, watched=False)
        found[case[0]] = {"told": told}
        if not only:
            digest, told = trained(out, *case, watched=True)
            found[case[0]] = {"same": digest == alone, "told": told}
    (out / "told.json").write_text(json.dumps(found))
