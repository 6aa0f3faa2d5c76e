"""How people scale, clip and accumulate: healthy loops are healthy, and each number is torch's."""

from __future__ import annotations

import math

import pytest
import torch
from program_parts import Net, Told, codes, half, loss_of, parts, true_or_null, verdict, watched
from torch import nn

STEPS = 60


class NativeScaler:
    """As in timm, MAE and Swin: one object that scales, goes back, clips, steps and updates."""

    def __init__(self):
        self._scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)

    def __call__(self, loss, optimizer, parameters, clip_grad, update_grad=True):
        self._scaler.scale(loss).backward()
        if not update_grad:
            return None
        self._scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(parameters, clip_grad)
        self._scaler.step(optimizer)
        self._scaler.update()
        return norm


def test_a_scaler_of_the_programs_own_that_does_everything(tmp_path):
    def program(told: Told) -> None:
        scale = NativeScaler()
        _, model, optimizer = parts()
        told.watch(scale._scaler, model)
        for _ in range(STEPS):
            parts_of = [loss_of(model) / 2 for _ in range(2)]
            scale(parts_of[0], optimizer, list(model.parameters()), 0.5, update_grad=False)
            norm = scale(parts_of[1], optimizer, list(model.parameters()), 0.5)
            told.step(sum(part.item() for part in parts_of), norm)
            optimizer.zero_grad()

    (run,), told = watched(program, tmp_path)
    assert verdict(run) == "healthy"
    true_or_null(run, "loss", told.losses)
    true_or_null(run, "grad_norm", told.norms)


def test_an_accumulation_that_grows_is_no_divergence(tmp_path):
    """YOLOv5's warm-up: the losses of ever more micro-batches are summed into a step."""

    def program(told: Told) -> None:
        scaler, model, optimizer = parts(rate=0.001)
        told.watch(scaler, model)
        for step in range(120):
            total = 0.0
            for _ in range(1 + step * 15 // 119):
                loss = loss_of(model)
                total += loss.item()
                scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            told.step(total, nn.utils.clip_grad_norm_(model.parameters(), 10.0))
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

    (run,), told = watched(program, tmp_path)
    assert verdict(run) == "healthy"
    true_or_null(run, "loss", told.losses)
    true_or_null(run, "grad_norm", told.norms)


def test_a_loss_summed_over_the_batch(tmp_path):
    def program(told: Told) -> None:
        scaler, model, optimizer = parts(rate=0.0005)
        told.watch(scaler, model)
        for _ in range(STEPS):
            loss = loss_of(model, rows=32) * 32
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            told.step(loss, nn.utils.get_total_norm([p.grad for p in model.parameters()]))
            scaler.step(optimizer)
            scaler.update()

    (run,), told = watched(program, tmp_path)
    assert verdict(run) == "healthy"
    true_or_null(run, "loss", told.losses)
    true_or_null(run, "grad_norm", told.norms)


def clip_data(parameters, most: float) -> float:
    """As DINO and VITS do it: no version counter tells."""
    norms = [p.grad.data.norm(2) for p in parameters]
    total = math.sqrt(sum(float(norm) ** 2 for norm in norms))
    for parameter in parameters:
        parameter.grad.data.mul_(min(1.0, most / (total + 1e-6)))
    return total


@pytest.mark.parametrize("unscaled_first", [True, False])
def test_a_clipping_of_data_is_seen_before_unscale_as_a_mistake_and_after_as_the_norm_applied(
    tmp_path, unscaled_first
):
    def program(told: Told) -> None:
        scaler, model, optimizer = parts(rate=0.05)
        told.watch(scaler, model)
        for _ in range(STEPS):
            loss = loss_of(model)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            if unscaled_first:
                scaler.unscale_(optimizer)
            told.step(loss, clip_data(list(model.parameters()), 0.1))
            scaler.step(optimizer)
            scaler.update()

    (run,), told = watched(program, tmp_path)
    true_or_null(run, "loss", told.losses)
    if unscaled_first:
        assert verdict(run) == "healthy"
        true_or_null(run, "grad_norm", told.norms)
        applied = [min(norm, 0.1) for norm in told.norms]
        recorded = run.steps["grad_norm_applied"].to_pylist()
        assert recorded == pytest.approx(applied, rel=1e-4)
    else:
        assert "AMP401" in codes(run)
        true_or_null(run, "grad_norm", [norm / 2.0**10 for norm in told.norms], null=STEPS)


class Encoder(nn.Module):
    """Its parts are called one by one: the root itself never runs (TRL, diffusion models)."""

    def __init__(self):
        super().__init__()
        self.body, self.head = Net(outputs=4), nn.Linear(4, 1)

    def encode(self, x):
        return self.body(x)


def test_a_root_that_never_runs_has_its_norms_before_clipping_from_the_first_step_on(tmp_path):
    def program(told: Told) -> None:
        _, model, optimizer = parts(Encoder())
        told.watch(None, model, optimizer=optimizer)
        for _ in range(STEPS):
            x = torch.randn(8, 8)
            with torch.autocast("cpu", torch.bfloat16):
                out = model.head(model.encode(x))
            loss = (out.float() - x[:, :1]).square().mean()
            for watch in told.watches:
                watch.log(loss=loss)
            optimizer.zero_grad()
            loss.backward()
            told.step(loss, nn.utils.clip_grad_norm_(model.parameters(), 0.1))
            optimizer.step()

    (run,), told = watched(program, tmp_path)
    assert verdict(run) == "healthy"
    true_or_null(run, "loss", told.losses)
    true_or_null(run, "grad_norm", told.norms)


def test_two_models_of_an_adversarial_pair_and_one_scaler(tmp_path):
    def program(told: Told) -> None:
        scaler, maker, first = parts(Net(outputs=8), rate=0.01)
        _, judge, second = parts(rate=0.01)
        told.watch(scaler, [maker, judge])
        for _ in range(STEPS):
            with half():
                made = maker(torch.randn(8, 8))
                true, false = judge(torch.randn(8, 8) + 1).float(), judge(made.detach()).float()
                judged = nn.functional.softplus(-true).mean() + nn.functional.softplus(false).mean()
            for optimizer, model in ((second, judge), (first, maker)):
                loss = judged
                if model is maker:
                    with half():
                        loss = nn.functional.softplus(-judge(made).float()).mean()
                optimizer.zero_grad()
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                told.step(loss, nn.utils.clip_grad_norm_(model.parameters(), 5.0))
                scaler.step(optimizer)
            scaler.update()

    (run,), told = watched(program, tmp_path)
    assert verdict(run) == "healthy"
    true_or_null(run, "loss", told.losses)
    true_or_null(run, "grad_norm", told.norms)
