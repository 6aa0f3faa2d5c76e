"""A save of broken weights is marked and said; the last clean one is found."""

import json
import warnings

import pytest
import torch
from torch import nn

import ampwatch
from ampwatch.errors import AmpwatchWarning


def trained(folder, saves, broken_at=None, healed_at=None):
    """A run that says it saved before these steps; its weights are nan for a while."""
    torch.manual_seed(0)
    model = nn.Linear(8, 8)
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with ampwatch.attach(
        None, model, optimizer=optimizer, run="run", log_dir=folder, endpoint="off"
    ) as watch:
        for step in range(60):
            if step in saves:
                watch.saved(folder / f"{step}.pt")
            x = torch.randn(4, 8)
            if step == broken_at:
                x = x * torch.nan
            if step == healed_at:
                model.load_state_dict(kept)
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        found = watch
    return found, ampwatch.open_run(folder / "run")


def saves_of(run):
    rows = [row for row in run.events.to_pylist() if row["kind"] == "state-saved"]
    return {row["step"]: json.loads(row["detail"]) for row in rows}


def test_a_save_of_weights_that_are_not_finite_is_marked_and_said_at_once(tmp_path):
    with pytest.warns(AmpwatchWarning, match=r"before step 40 \(.*40\.pt\).*do not keep this one"):
        watch, run = trained(tmp_path, (20, 40), broken_at=30)
    told = saves_of(run)
    assert "state" not in told[20]
    assert told[40]["state"] == "poisoned"
    assert told[40]["path"] == str(tmp_path / "40.pt")
    clean = watch.last_clean_checkpoint()
    assert (clean.step, clean.path, clean.state) == (20, str(tmp_path / "20.pt"), "clean")


def test_once_the_weights_are_finite_again_a_save_is_not_marked(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, run = trained(tmp_path, (20, 55), broken_at=30, healed_at=45)
    assert [told.get("state") for told in saves_of(run).values()] == [None, None]


def test_of_a_healthy_run_the_last_save_is_clean(tmp_path):
    watch, _ = trained(tmp_path, (20, 40))
    assert watch.last_clean_checkpoint().step == 40


def test_a_run_that_saves_nothing_has_no_checkpoint(tmp_path):
    watch, _ = trained(tmp_path, ())
    assert watch.last_clean_checkpoint() is None


def test_a_save_of_a_scaler_whose_scale_cannot_be_used_is_marked(tmp_path):
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**-125, backoff_factor=0.5)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        save_with_scaler(tmp_path, model, optimizer, scaler)
    assert any("holds a loss scale that cannot be used since" in str(w.message) for w in warned)
    assert saves_of(ampwatch.open_run(tmp_path / "run"))[6]["state"] == "poisoned"


def save_with_scaler(folder, model, optimizer, scaler):
    """Train on inputs that overflow at every step, and save before the seventh."""
    with ampwatch.attach(
        scaler, model, optimizer=optimizer, run="run", log_dir=folder, endpoint="off"
    ) as watch:
        for step in range(8):
            if step == 6:
                watch.saved(folder / "6.pt")
            optimizer.zero_grad()
            loss = model(torch.randn(4, 8) * torch.inf).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()


def saved_with(folder, spoil, make=lambda weights: torch.optim.Adam(weights, lr=1e-3)):
    """A run that saves before step 5, where this has been done to its optimizer."""
    model = nn.Linear(8, 8)
    optimizer = make(model.parameters())
    with ampwatch.attach(
        None, model, optimizer=optimizer, run="run", log_dir=folder, endpoint="off"
    ) as watch:
        for step in range(8):
            if step == 5:
                spoil(optimizer.state[model.weight])
                watch.saved(folder / "5.pt")
                assert torch.isfinite(model.weight).all()
            optimizer.zero_grad()
            model(torch.randn(4, 8)).square().mean().backward()
            optimizer.step()
    return saves_of(ampwatch.open_run(folder / "run"))[5]


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("moment", ["exp_avg", "exp_avg_sq"])
def test_a_save_of_moments_that_are_not_finite_is_marked_though_the_weights_are(
    tmp_path, moment, value
):
    def spoil(state):
        state[moment][3, 5] = value

    said = "holds optimizer moments that are not finite: do not keep this one"
    with pytest.warns(AmpwatchWarning, match=said):
        told = saved_with(tmp_path, spoil)
    assert told["state"] == "poisoned"


def test_moments_that_are_finite_but_huge_are_no_reason_to_warn(tmp_path):
    def spoil(state):
        state["exp_avg_sq"].fill_(3e38)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "state" not in saved_with(tmp_path, spoil)


def test_a_save_is_recorded_whatever_its_optimizer_keeps(tmp_path):
    def spoil(state):
        state |= {"name": "one", "list": [torch.ones(2)], "empty": torch.empty(0),
                  "codes": torch.ones(4, dtype=torch.uint8), "none": None,
                  "sparse": torch.eye(3).to_sparse()}  # fmt: skip

    def without_foreach(weights):
        return torch.optim.SGD(weights, lr=0.01, momentum=0.9, foreach=False)

    assert saved_with(tmp_path, spoil, without_foreach)["path"] == str(tmp_path / "5.pt")
