"""An optimizer that evaluates the loss itself, several times a step: LBFGS with a closure."""

from __future__ import annotations

import pytest
import torch
from wrapper_parts import Net, batch, norm_of

import ampwatch

STEPS = 12


@pytest.mark.parametrize("with_scaler", [True, False], ids=["disabled scaler", "no scaler"])
def test_the_norm_is_that_of_the_closures_last_evaluation(tmp_path, with_scaler):
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", enabled=False) if with_scaler else None
    norms: list[list[float]] = []
    watch = ampwatch.attach(scaler, model, optimizer=optimizer, log_dir=tmp_path)
    for step in range(STEPS):
        norms.append([])
        optimizer.param_groups[0]["max_iter"] = 2 + step % 3

        def closure(step=step):
            optimizer.zero_grad()
            inputs, targets = batch(step)
            with torch.autocast("cpu", torch.bfloat16):
                outputs = model(inputs)
            loss = torch.nn.functional.mse_loss(outputs.float(), targets)
            (loss if scaler is None else scaler.scale(loss)).backward()
            norms[-1].append(norm_of(model.parameters()))
            return loss

        if scaler is None:
            optimizer.step(closure)
        else:
            scaler.step(optimizer, closure)
            scaler.update()
    watch.close()
    assert len({len(evaluations) for evaluations in norms}) > 1
    told = ampwatch.open_run(watch.run_folder).steps["grad_norm"].to_pylist()
    assert told == pytest.approx([evaluations[-1] for evaluations in norms], rel=1e-5)


def test_an_enabled_scaler_refuses_the_closure_in_torchs_words(tmp_path):
    model = Net()
    optimizer = torch.optim.LBFGS(model.parameters())
    scaler = torch.amp.GradScaler("cpu")
    with ampwatch.attach(scaler, model, log_dir=tmp_path):
        scaler.scale(model(batch(0)[0]).sum()).backward()
        with pytest.raises(RuntimeError, match="Closure use is not currently supported"):
            scaler.step(optimizer, closure=lambda: None)
