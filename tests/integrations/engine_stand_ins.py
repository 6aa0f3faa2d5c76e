"""Stand-ins for engines that need more than this machine has, with their sources' own names.

`Float16Stand` and `ChainStand` follow Float16OptimizerWithFloat16Params, DynamicGradScaler and
ChainedOptimizer of megatron-core 0.16.1; `TrainerStand` follows Trainer.train_step,
OptimizersContainer and clip_grad_norm_ of torchtitan 0.3.0. Same attributes, signatures, order of
calls; without process groups, checkpoints and timers.
"""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import torch
from torch import nn

# -- Megatron-core ---------------------------------------------------------------------------------


class ScalerStand:
    def __init__(self, initial_scale):
        self._scale = torch.tensor([initial_scale])

    @property
    def scale(self):
        return self._scale

    def update(self, found_inf):
        if found_inf:
            self._scale = torch.max(self._scale * 0.5, torch.tensor([1.0]))


class Float16Stand:
    def __init__(self, optimizer, config, grad_scaler, init_state_fn=None):
        self.optimizer, self.config, self.grad_scaler = optimizer, config, grad_scaler
        self.float16_groups, self.fp32_from_float16_groups = [], []
        self.fp32_from_fp32_groups = []
        for group in optimizer.param_groups:
            own = list(group["params"])
            copies = [p.detach().clone().float() for p in own]
            for parameter, copy in zip(own, copies, strict=True):
                parameter.main_param = copy
            group["params"] = copies
            self.float16_groups.append(own)
            self.fp32_from_float16_groups.append(copies)
            self.fp32_from_fp32_groups.append([])
        self.is_stub_optimizer = False

    @property
    def param_groups(self):
        return self.optimizer.param_groups

    def pairs(self):
        for own, copies in zip(self.float16_groups, self.fp32_from_float16_groups, strict=True):
            yield from zip(own, copies, strict=True)

    def zero_grad(self, set_to_none=True):
        for pair in self.pairs():
            for one in pair:
                one.grad = None

    def get_loss_scale(self):
        return torch.tensor([1.0]) if self.grad_scaler is None else self.grad_scaler.scale

    def scale_loss(self, loss):
        return self.get_loss_scale() * loss

    @torch.no_grad()
    def prepare_grads(self):
        for own, copy in self.pairs():
            copy.grad, own.grad = own.grad.float(), None
        if self.grad_scaler is None:
            return False
        found = False
        for _, copy in self.pairs():
            copy.grad /= self.grad_scaler.scale
            found |= not copy.grad.isfinite().all()
        self.grad_scaler.update(found)
        return found

    def get_grad_norm(self):
        return torch.cat([copy.grad.reshape(-1) for _, copy in self.pairs()]).norm().item()

    @torch.no_grad()
    def step_with_ready_grads(self):
        self.optimizer.step()
        for own, copy in self.pairs():
            own.copy_(copy)
        return True


class ChainStand:
    def __init__(self, chained_optimizers):
        self.config = chained_optimizers[0].config
        self.chained_optimizers = chained_optimizers

    @property
    def param_groups(self):
        return [group for one in self.chained_optimizers for group in one.param_groups]

    def zero_grad(self, set_to_none=True):
        for optimizer in self.chained_optimizers:
            optimizer.zero_grad(set_to_none)

    def get_loss_scale(self):
        return self.chained_optimizers[0].get_loss_scale()

    def scale_loss(self, loss):
        return self.get_loss_scale() * loss

    @torch.no_grad()
    def step(self):
        found_inf_flag = False
        for optimizer in self.chained_optimizers:
            found_inf_flag |= optimizer.prepare_grads()
        if found_inf_flag:
            return False, None, None
        grad_norm = sum(one.get_grad_norm() ** 2 for one in self.chained_optimizers) ** 0.5
        factor = self.config.clip_grad / (grad_norm + 1e-6)
        for optimizer in self.chained_optimizers if factor < 1.0 else ():
            for _, copy in optimizer.pairs():
                copy.grad *= factor
        for optimizer in self.chained_optimizers:
            optimizer.step_with_ready_grads()
        return True, grad_norm, None


# -- torchtitan ------------------------------------------------------------------------------------


def clips_stand():
    """The module torchtitan.distributed.utils, on one of two ranks with half of the gradients."""

    def clip_grad_norm_(parameters, max_norm, norm_type=2.0, error_if_nonfinite=False, **more):
        norm = torch.nn.utils.get_total_norm([p.grad for p in parameters]) * 2**0.5
        torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
        return norm

    module = ModuleType("torchtitan.distributed.utils")
    module.clip_grad_norm_ = clip_grad_norm_
    return module


class ContainerStand(torch.optim.Optimizer):
    def __init__(self, model_parts):
        self.optimizers = [torch.optim.AdamW(part.parameters(), lr=1e-2) for part in model_parts]
        torch.optim.Optimizer.__init__(self, [p for m in model_parts for p in m.parameters()], {})

    def __iter__(self):
        return iter(self.optimizers)

    def step(self, closure=None):
        for optimizer in self.optimizers:
            optimizer.step()

    def zero_grad(self, set_to_none=True):
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=set_to_none)


class TrainerStand:
    """Two model parts, each with an optimizer; this rank has half of the tokens."""

    def __init__(self, max_norm):
        self.config = SimpleNamespace(training=SimpleNamespace(max_norm=max_norm))
        mesh = SimpleNamespace(size=lambda: 2)
        self.parallel_dims = SimpleNamespace(get_optional_mesh=lambda name: mesh)
        self.model_parts = [nn.Linear(4, 8), nn.Linear(8, 1)]
        self.optimizers = ContainerStand(self.model_parts)
        self.gradient_accumulation_steps = 2
        self.told = []

    def forward_backward_step(self, *, input_dict, labels, global_valid_tokens):
        pred = self.model_parts[1](self.model_parts[0](input_dict["input"]).relu())
        loss = (pred - labels).square().sum() / global_valid_tokens
        loss.backward()
        return loss

    def train_step(self, data_iterator):
        self.optimizers.zero_grad()
        accumulated_loss = 0.0
        for _ in range(self.gradient_accumulation_steps):
            input_dict, labels = next(data_iterator)
            valid = torch.tensor(4 * len(labels))  # of both ranks, in two micro-batches
            loss = self.forward_backward_step(
                input_dict=input_dict, labels=labels, global_valid_tokens=valid
            )
            accumulated_loss += loss.detach()
        dist_utils = sys.modules["torchtitan.distributed.utils"]
        grad_norm = dist_utils.clip_grad_norm_(
            [p for m in self.model_parts for p in m.parameters()],
            self.config.training.max_norm,
            foreach=True,
        )
        self.optimizers.step()
        self.told.append((2 * float(accumulated_loss), grad_norm.item()))
