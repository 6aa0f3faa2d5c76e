"""The loss of a training without a scaler, as it goes backward."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ampwatch


def training(tmp_path, *, parts=1, steps=4, tells=None):
    """Real steps in `parts` micro-batches; the losses that went backward, and the run's."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = ampwatch.attach(None, model, optimizer=optimizer, run="r", log_dir=tmp_path)
    went = []
    for step in range(steps):
        optimizer.zero_grad()
        total = 0.0
        for _ in range(parts):
            x = torch.randn(8, 4)
            loss = F.mse_loss(model(x), x.sum(1, keepdim=True)) / parts
            loss.backward()
            total += loss.item()
        if tells is not None and step >= tells:
            watch.log(loss=100.0 + step)
        optimizer.step()
        went.append(total)
    watch.close()
    return went, ampwatch.open_run(watch.run_folder).steps["loss"].to_pylist()


@pytest.mark.parametrize("parts", [1, 3])
def test_the_loss_of_a_step_is_the_sum_of_those_that_went_backward(tmp_path, parts):
    went, recorded = training(tmp_path, parts=parts)
    assert recorded == pytest.approx(went, rel=1e-6)


def test_from_the_first_loss_that_the_user_logs_on_only_theirs_are_taken(tmp_path):
    went, recorded = training(tmp_path, tells=2)
    assert recorded == pytest.approx([*went[:2], 102.0, 103.0], rel=1e-6)


def test_backward_is_torchs_own_again_once_no_such_training_is_watched(tmp_path):
    plain = torch.Tensor.__dict__["backward"]
    training(tmp_path)
    assert torch.Tensor.__dict__["backward"] is plain


def test_two_optimizers_of_one_training_have_a_loss_each(tmp_path):
    torch.manual_seed(0)
    model = nn.ModuleList([nn.Linear(4, 1), nn.Linear(4, 1)])
    both = [torch.optim.SGD(part.parameters(), lr=0.1) for part in model]
    watch = ampwatch.attach(None, model, optimizer=both, run="r", log_dir=tmp_path)
    went = []
    for _ in range(3):
        for part, optimizer in zip(model, both, strict=True):
            optimizer.zero_grad()
            loss = part(torch.randn(8, 4)).pow(2).mean()
            loss.backward()
            optimizer.step()
            went.append(loss.item())
    watch.close()
    recorded = ampwatch.open_run(watch.run_folder).steps["loss"].to_pylist()
    assert recorded == pytest.approx(went, rel=1e-6)
