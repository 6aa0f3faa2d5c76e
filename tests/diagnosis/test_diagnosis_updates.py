"""Gradients and updates that do not go together, beside those that do."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import torch
from hand_built import HandBuiltRun, event_table, layer_table, scaled_run, step_table
from torch import nn

import ampwatch
from ampwatch.diagnosis import diagnose
from ampwatch.store import open_run


def found(run):
    """{code: severity} of a run."""
    return {f.code: f.severity.value for f in diagnose(run).findings}


def with_columns(run, **columns):
    for name, values in columns.items():
        at = run.steps.schema.get_field_index(name)
        field = run.steps.schema.field(at)
        run.steps = run.steps.set_column(at, field, pa.array(values, field.type))
    return run


def test_torchs_complaint_about_missing_gradients_is_named():
    detail = {"type": "AssertionError", "message": "No inf checks were recorded for this optimizer"}
    run = scaled_run([False] * 3, events=event_table([(3, "exception", detail)]))
    assert found(run)["AMP410"] == "error"


def test_a_loss_that_hangs_on_no_parameter_is_named_though_no_step_was_made():
    message = "element 0 of tensors does not require grad and does not have a grad_fn"
    detail = {"exception": "RuntimeError", "message": message, "fatal": True}
    run = scaled_run([], events=event_table([(0, "exception", detail)]), clean_end=False)
    diagnosis = diagnose(run)
    assert diagnosis.headline.code == "AMP410"
    assert diagnosis.verdict.value == "failing"
    assert diagnosis.learning_rate.action.value == "not-the-cause"


def warmup(moves_on_skips):
    skipped = [True] * 5 + [False] * 95
    rate, lr = 0.0, []
    for skip in skipped:
        lr.append(rate)
        rate += 0.001 if moves_on_skips or not skip else 0.0
    return with_columns(scaled_run(skipped), lr=lr)


def test_a_scheduler_that_moves_on_skips_is_said_and_one_that_waits_is_not():
    assert found(warmup(moves_on_skips=True))["AMP411"] == "info"
    assert "AMP411" not in found(warmup(moves_on_skips=False))


def test_a_rate_that_changes_by_epochs_meets_a_skip_by_chance():
    skipped = [True] * 5 + [False] * 95
    assert "AMP411" not in found(with_columns(scaled_run(skipped), lr=[0.1] * 3 + [0.01] * 97))


def gan(together):
    """Two optimizers, a skip each 20 steps: of the second alone, or of both."""
    skip = [s % 20 == 19 for s in range(400)]
    first = skip if together else [False] * 400
    scale = 2.0**16
    rows = {"step": [], "optimizer": [], "skipped": [], "scale": [], "scale_after": []}
    for step in range(400):
        after = scale / 2 if skip[step] else scale
        for number, skipped in enumerate((first[step], skip[step])):
            values = (step, number, skipped, scale, after)
            for column, value in zip(rows.values(), values, strict=True):
                column.append(value)
        scale = after
    return HandBuiltRun(step_table(**rows))


def test_one_optimizer_that_skips_alone_lowers_everyones_scale():
    assert found(gan(together=False))["AMP413"] == "warning"
    assert "AMP413" not in found(gan(together=True))


def still(moves, **rest):
    count = len(moves)
    columns = {"lr": [0.1] * count, "grad_norm": [1.0] * count, **rest}
    return with_columns(scaled_run([False] * count), update_norm=moves, **columns)


def test_steps_that_move_nothing_are_lost_silently():
    assert found(still([0.0] * 100))["AMP417"] == "error"


def test_a_rate_of_zero_or_an_update_nobody_measured_is_no_silent_skip():
    assert "AMP417" not in found(still([0.0] * 100, lr=[0.0] * 100))
    assert "AMP417" not in found(still([0.0] * 100, grad_norm=[0.0] * 100))
    assert "AMP417" not in found(still([None] * 100))
    for steps, told in ((150, "info"), (1100, "warning")):
        no_rate = scaled_run([False] * steps)
        no_rate = with_columns(no_rate, lr=[0.0] * steps, update_norm=[0.0] * steps)
        assert found(no_rate)["AMP417"] == told
    assert "AMP417" not in found(still([0.01] * 95 + [0.0] * 5))


def starved(share, move, **rest):
    count = 100
    norms = {"grad_norm_applied": [share] * count, "param_norm": [10.0] * count}
    return still([10.0 * move] * count, **norms, **rest)


def test_gradients_lost_between_unscale_and_step_are_no_healthy_run():
    diagnosis = diagnose(starved(1e-4, 1e-7))
    assert diagnosis.headline.code == "AMP417"
    assert diagnosis.verdict.value == "failing"
    assert "once more" not in diagnosis.headline.cause
    assert "once more" in diagnose(starved(1 / 2**16, 1e-7)).headline.cause  # the scale's
    assert found(starved(1e-12, 1e-5))["AMP417"] == "error"  # below Adam's eps


def test_clipping_hard_and_a_run_that_has_converged_are_no_lost_gradients():
    assert "AMP417" not in found(starved(1e-4, 1e-4))
    assert "AMP417" not in found(starved(1.0, 1e-7))
    assert "AMP417" not in found(starved(0.01, 1e-7, lr=[1e-9] * 100))


@pytest.mark.parametrize(
    ("once_more", "rate", "told"), [(True, 0.1, True), (False, 0.1, False), (False, 1e-6, False)]
)
def test_a_training_that_divides_by_the_scale_twice_is_told_so(tmp_path, once_more, rate, told):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    scaler = torch.amp.GradScaler("cpu")
    with ampwatch.attach(scaler, model, log_dir=tmp_path, endpoint=None) as watch:
        for _ in range(60):
            inputs = torch.randn(32, 16)
            with torch.autocast("cpu", dtype=torch.float16):
                output = model(inputs)
            loss = nn.functional.mse_loss(output.float(), inputs[:, :1].sin())
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            if once_more:
                for parameter in model.parameters():
                    parameter.grad /= scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
    causes = [f.cause for f in diagnose(open_run(watch.run_folder)).findings if f.code == "AMP417"]
    assert ["divided by the loss scale once more" in cause for cause in causes] == [True] * told


@pytest.mark.parametrize("every", [1, 40])
def test_updates_that_round_to_nothing_are_explained_by_a_schedule_that_ended(tmp_path, every):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
    with ampwatch.attach(None, model, optimizer=optimizer, run="r", log_dir=tmp_path) as watch:
        for step in range(400):  # ten epochs
            inputs = torch.randn(32, 16)
            loss = nn.functional.mse_loss(model(inputs), inputs[:, :1].sin() + 0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if (step + 1) % every == 0:
                schedule.step()
    told = diagnose(open_run(watch.run_folder))
    codes = {one.code: one.because_of for one in told.findings}
    if every == 1:
        assert told.headline.code == "AMP308"
        assert codes["AMP417"] == "AMP308"
        assert told.learning_rate.action.value == "raise"
    else:
        assert not {"AMP308", "AMP417"} & set(codes)


@pytest.mark.parametrize(
    ("dtype", "loss_factor", "rate", "head", "remedy"),
    [
        (torch.bfloat16, 1.0, 1e-6, "AMP417", "Keep the weights in float32"),
        (torch.float32, 1e-9, 1e-2, "AMP417", "Check how large the updates are"),
        (torch.float16, 1e-4, 1e-2, "AMP201", "Use torch.amp.GradScaler"),
    ],
)
def test_updates_that_round_to_nothing_are_told_by_what_makes_them_small(
    tmp_path, dtype, loss_factor, rate, head, remedy
):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1)).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    with ampwatch.attach(None, model, optimizer=optimizer, log_dir=tmp_path) as watch:
        for _ in range(150):
            inputs = torch.randn(32, 16, dtype=dtype)
            output = model(inputs).float()
            loss = loss_factor * nn.functional.mse_loss(output, inputs[:, :1].float().sin())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    told = diagnose(open_run(watch.run_folder))
    assert told.headline.code == head
    assert told.headline.action.startswith(remedy)
    assert told.verdict.value == "failing"
    [still] = [one for one in told.findings if one.code == "AMP417"]
    assert still.because_of == (None if head == "AMP417" else head)


# --- layers that no optimizer has -----------------------------------------------------------------


def with_layers(groups, steps=60):
    """A run whose layers have gradients and these parameter groups; None is no optimizer's."""
    rows = [
        {"step": step, "layer": name, "trainable": True, "out_grad_finite": True,
         "param_group": group}
        for step in range(0, steps, 10) for name, group in groups.items()
    ]  # fmt: skip
    columns = step_table(
        loss=np.linspace(2.0, 1.0, steps).tolist(), grad_norm=[1.0] * steps,
        update_norm=[0.1] * steps, param_norm=[10.0] * steps, lr=[0.1] * steps,
    )  # fmt: skip
    return HandBuiltRun(columns, layers=layer_table(rows))


def test_a_layer_that_no_optimizer_has_is_named():
    told = diagnose(with_layers({"body.0": 0, "body.1": 0, "head": None}))
    [found] = [one for one in told.findings if one.code == "AMP417"]
    assert (found.severity.value, found.layer) == ("warning", "head")
    assert told.verdict.value == "warning"


def test_a_head_that_is_trained_alone_is_only_told_and_one_optimizer_for_all_says_nothing():
    alone = diagnose(with_layers({"body.0": None, "body.1": None, "head": 0}))
    assert [one.severity.value for one in alone.findings if one.code == "AMP417"] == ["info"]
    everything = diagnose(with_layers({"body.0": 0, "body.1": 1, "head": 0}))
    assert not [one for one in everything.findings if one.code == "AMP417"]


def test_layers_that_no_optimizer_has_are_named_in_the_order_of_their_samples():
    left_out = ["stem", "clock", "body.1", "neck", "arm"]
    told = diagnose(with_layers(dict.fromkeys(left_out) | {"body.0": 0, "head": 0}))
    [found] = [one for one in told.findings if one.code == "AMP417"]
    assert "stem, clock, body.1 and 2 more" in found.summary
