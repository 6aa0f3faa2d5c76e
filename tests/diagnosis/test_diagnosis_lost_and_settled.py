"""Losses that are settled at once, numbers that are lost to the end, and what is not too high."""

import numpy as np
import pytest
import torch

import ampwatch
from ampwatch.diagnosis import Action, Verdict, diagnose
from ampwatch.diagnosis.findings import FindingStatus
from ampwatch.importers import import_log
from ampwatch.store import open_run


def diagnosis_of(tmp_path, **columns):
    """The diagnosis of a log with these columns."""
    log = tmp_path / "log.csv"
    rows = zip(*columns.values(), strict=True)
    lines = [
        ",".join(["step", *columns]),
        *(f"{at},{','.join(map(str, r))}" for at, r in enumerate(rows)),
    ]
    log.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return diagnose(open_run(import_log(log, tmp_path / "out")))


def noise(count, seed=0):
    return np.exp(0.05 * np.random.default_rng(seed).standard_normal(count))


@pytest.mark.parametrize(
    ("end", "gradients", "verdict"),
    [(-1.0, 1e-3, Verdict.WARNING), (-1.0, 0.3, Verdict.HEALTHY), (1e-4, 1e-3, Verdict.HEALTHY)],
)
def test_outputs_that_become_alike_at_once_are_told(tmp_path, end, gradients, verdict):
    """As cosine losses do without a stop-gradient; not what falls to nothing, nor what learns."""
    fall = np.exp(-np.arange(600) / 4.0)
    loss = end + (0.5 - end) * fall + (1e-5 * noise(600))
    norms = (gradients + fall) * noise(600, 1)
    told = diagnosis_of(tmp_path, loss=loss, grad_norm=norms)
    assert told.verdict is verdict
    assert any(f.code == "AMP309" for f in told.findings) == (verdict is Verdict.WARNING)


def test_a_loss_without_a_lower_bound_is_told_by_loss_and_gradients_alone(tmp_path):
    grows = 2.0 ** np.maximum(0.0, (np.arange(1500) - 400) / 70)
    told = diagnosis_of(tmp_path, loss=-0.3 * grows * noise(1500), grad_norm=grows * noise(1500, 1))
    head = told.findings[0]
    assert head.code == "AMP304"
    assert head.action.startswith("Bound what is made large")


def test_a_return_that_began_with_one_lucky_episode_is_reached(tmp_path):
    """The first means over the last episodes are of one or two; the loss of values grows along."""
    count = 900
    score = 100 * (1 - np.exp(-np.arange(count) / 150)) * noise(count)
    score[:30] = 90.0
    loss = (1 + 50 * (1 - np.exp(-np.arange(count) / 40))) * noise(count, 2) ** 6
    told = diagnosis_of(tmp_path, loss=loss, lr=np.full(count, 1e-3), episode_return=score)
    assert told.verdict is Verdict.HEALTHY
    assert told.learning_rate.action is not Action.LOWER


def test_an_overflow_after_which_the_weights_are_lost_is_not_over(tmp_path):
    """Real: an output leaves float16 once, no scaler skips the step, and every weight is NaN."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    options = {"log_dir": tmp_path, "run": "it", "endpoint": "off", "layer_every": 1}
    watch = ampwatch.attach(None, model, optimizer=optimizer, **options)
    for step in range(80):
        with torch.autocast("cpu", torch.float16):
            output = model(torch.randn(16, 8)) * (1e6 if step == 40 else 1.0)
        output.float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    watch.close()
    told = diagnose(open_run(tmp_path / "it"))
    lost = [f for f in told.findings if f.code in {"AMP203", "AMP204", "AMP211"}]
    assert lost
    assert all(f.standing is FindingStatus.STANDS and not f.comes_and_goes for f in lost)
    assert not any("no longer" in f.summary for f in lost)
