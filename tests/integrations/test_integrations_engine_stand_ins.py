"""Megatron's and torchtitan's engines by stand-ins: what they report becomes the step's row."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch
from integrations.engine_stand_ins import (
    ChainStand,
    Float16Stand,
    ScalerStand,
    TrainerStand,
    clips_stand,
)
from torch import nn

import ampwatch
from ampwatch.errors import AttachError
from ampwatch.integrations import megatron, torchtitan

BAD = 3  # in this step the loss is not finite


def megatron_trained(half, scale, folder=None, before=lambda optimizer: None):
    """A chain of two optimizers; returns the weights and what it says of each step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)).to(half)
    config = SimpleNamespace(clip_grad=0.1)
    chain = ChainStand(
        [
            Float16Stand(
                torch.optim.AdamW(layer.parameters(), lr=lr),
                config,
                None if scale is None else ScalerStand(scale),
            )
            for layer, lr in ((model[0], 1e-2), (model[2], 1e-3))
        ]
    )
    if folder is not None:
        watch = megatron.attach(chain, [model], log_dir=folder, run="it", endpoint="off")
        before(chain)
    told = []
    for step in range(6):
        losses = []
        for _ in range(2):
            x = torch.randn(4, 4, dtype=half)
            loss = model(x).float().square().mean() / 2 * (torch.inf if step == BAD else 1.0)
            chain.scale_loss(loss).backward()
            losses.append(loss.item())
        now = None if scale is None else chain.get_loss_scale().item()
        success, norm, _ = chain.step()
        after = None if scale is None else chain.get_loss_scale().item()
        told.append((sum(losses), norm, not success, now, after))
        chain.zero_grad()
    if folder is not None:
        watch.close()
        assert not {"step", "scale_loss"} & vars(chain).keys()
    return torch.cat([p.detach().float().reshape(-1) for p in model.parameters()]), told


@pytest.mark.parametrize(("half", "scale"), [(torch.float16, 256.0), (torch.bfloat16, None)])
def test_a_stand_in_for_megatrons_chain_trains_to_the_same_bit_and_each_step_is_as_it_says(
    tmp_path, half, scale
):
    alone, _ = megatron_trained(half, scale)
    weights, told = megatron_trained(half, scale, tmp_path)
    torch.testing.assert_close(weights, alone, rtol=0, atol=0, equal_nan=True)
    rows = ampwatch.open_run(tmp_path / "it").steps.to_pylist()
    assert [row["step"] for row in rows] == list(range(6))
    for row, (loss, norm, skipped, now, after) in zip(rows, told, strict=True):
        assert row["loss"] == pytest.approx(loss, nan_ok=True)
        assert row["grad_norm"] == pytest.approx(norm, nan_ok=True)
        assert (row["skipped"], row["stepped"]) == (skipped, not skipped)
        assert (row["scale"], row["scale_after"]) == (now, after)
        assert row["lrs"] == [1e-2, 1e-3]
        assert norm is None or not norm > 0.1 or row["grad_norm_applied"] < 0.1001
    assert [row["skipped"] for row in rows] == [
        step == BAD and scale is not None for step in range(6)
    ]


def test_a_stand_in_for_megatron_that_reports_nothing_trains_on(tmp_path, monkeypatch, recwarn):
    monkeypatch.setenv("AMPWATCH_STRICT", "0")
    alone, _ = megatron_trained(torch.float16, 256.0)

    monkeypatch.setattr(megatron._MegatronSteps, "outcome", lambda steps, result: 1 / 0)
    monkeypatch.setattr(megatron._MegatronSteps, "scale", lambda steps: 1 / 0)
    weights, _ = megatron_trained(torch.float16, 256.0, tmp_path)
    assert torch.equal(weights, alone)
    assert len(ampwatch.open_run(tmp_path / "it").steps) == 6


def test_what_is_no_optimizer_of_megatrons_and_no_trainer_of_torchtitans_is_refused():
    model = nn.Linear(2, 2)
    with pytest.raises(AttachError, match="none of Megatron's"):
        megatron.attach(torch.optim.SGD(model.parameters(), lr=0.1), model)
    with pytest.raises(AttachError, match="none of torchtitan's"):
        torchtitan.attach(model)


def trainer_trained(max_norm, folder=None):
    torch.manual_seed(0)
    trainer = TrainerStand(max_norm)
    batches = (({"input": torch.randn(4, 4)}, torch.randn(4, 1)) for _ in range(99))
    if folder is not None:
        watch = torchtitan.attach(trainer, log_dir=folder, run="it", endpoint="off")
    for _ in range(6):
        trainer.train_step(batches)
    if folder is not None:
        watch.close()
        assert "forward_backward_step" not in vars(trainer)
    return [p.detach() for part in trainer.model_parts for p in part.parameters()], trainer.told


@pytest.mark.parametrize("max_norm", [0.1, 1e6])
def test_a_stand_in_for_torchtitans_trainer_makes_one_row_a_step_with_the_norm_of_all_ranks(
    tmp_path, monkeypatch, max_norm
):
    clips = clips_stand()
    plain = clips.clip_grad_norm_
    monkeypatch.setitem(sys.modules, clips.__name__, clips)
    alone, _ = trainer_trained(max_norm)
    weights, told = trainer_trained(max_norm, tmp_path)
    assert all(map(torch.equal, weights, alone))
    assert clips.clip_grad_norm_ is plain
    rows = ampwatch.open_run(tmp_path / "it").steps.to_pylist()
    assert [row["step"] for row in rows] == list(range(6))
    for row, (loss, norm) in zip(rows, told, strict=True):
        assert (row["loss"], row["grad_norm"]) == pytest.approx((loss, norm))
        assert row["grad_norm_applied"] == pytest.approx(min(norm, max_norm), rel=1e-4)
        assert row["lrs"] == [1e-2, 1e-2]
        assert row["update_norm"] > 0
