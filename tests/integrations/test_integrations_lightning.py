"""Real fits by Lightning, in half precision on the CPU."""

import json
import warnings

import pytest
import torch
from torch import nn

import ampwatch

lightning = pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")
from lightning.pytorch.plugins.precision import MixedPrecision  # noqa: E402

from ampwatch.integrations.lightning import AmpwatchCallback  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's own, many and changing


class Classifier(lightning.LightningModule):
    def __init__(self, poison_at=None, fail_at=None):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
        self.poison_at, self.fail_at = poison_at, fail_at
        self.losses = []

    def training_step(self, batch, index):
        x, y = batch
        if index == self.poison_at:
            x = x * 1e6  # float16 ends at 65504
        if index == self.fail_at:
            raise RuntimeError("the loader broke")
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.losses.append(float(loss.detach()))
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


def batches(count=12):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count * 4, 8, generator=generator)
    y = torch.randint(0, 3, (count * 4,), generator=generator)
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=4)


def half_on_cpu():
    return MixedPrecision("16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu", init_scale=2.0**10))


def trainer(folder, callback, plugin=None, **options):
    precision = {"plugins": [plugin]} if plugin else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return lightning.Trainer(
            accelerator="cpu",
            devices=1,
            default_root_dir=folder,
            callbacks=[callback],
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            **precision,
            **{"max_epochs": 1, "enable_checkpointing": False, **options},
        )


def fit(folder, model, plugin=None, callback=None, ckpt_path=None, **options):
    callback = callback or AmpwatchCallback(log_dir=folder / "runs", run="fit")
    one = trainer(folder, callback, plugin, **options)
    one.fit(model, batches(), ckpt_path=ckpt_path)
    return one


def test_a_half_precision_fit_is_logged_with_its_scale_skip_and_layers(tmp_path):
    model, plugin = Classifier(poison_at=5), half_on_cpu()
    fit(tmp_path, model, plugin, gradient_clip_val=0.5)
    run = ampwatch.open_run(tmp_path / "runs" / "fit")
    steps = run.steps
    assert steps["loss"].to_pylist() == pytest.approx(model.losses, nan_ok=True)
    assert [i for i, skipped in enumerate(steps["skipped"].to_pylist()) if skipped] == [5]
    assert steps["scale_after"].to_pylist()[-1] == plugin.scaler.get_scale() == 2.0**9
    assert max(n for n in steps["grad_norm_applied"].to_pylist() if n == n) <= 0.5 + 1e-6
    assert "net.0" in run.layers["layer"].to_pylist()
    assert run.clean_end
    assert type(plugin.scaler) is torch.amp.GradScaler


@pytest.mark.parametrize("accumulate", [1, 3])
def test_without_a_scaler_the_loss_is_the_accumulated_one(tmp_path, accumulate):
    model = Classifier()
    fit(tmp_path, model, MixedPrecision("bf16-mixed", "cpu"), accumulate_grad_batches=accumulate)
    logged = ampwatch.open_run(tmp_path / "runs" / "fit").steps["loss"].to_pylist()
    parts = [model.losses[i : i + accumulate] for i in range(0, len(model.losses), accumulate)]
    assert logged == pytest.approx([sum(part) / accumulate for part in parts], rel=1e-6)


def test_a_fit_that_fails_says_how(tmp_path):
    with pytest.raises(RuntimeError, match="the loader broke"):
        fit(tmp_path, Classifier(fail_at=4), half_on_cpu())
    run = ampwatch.open_run(tmp_path / "runs" / "fit")
    assert run.clean_end
    assert len(run.steps) == 4
    details = [e["detail"] for e in run.events.to_pylist() if e["kind"] == "exception"]
    assert len(details) == 1
    assert "the loader broke" in details[0]


def test_a_resumed_fit_goes_on_in_its_run(tmp_path):
    first = fit(tmp_path, Classifier(), half_on_cpu())
    first.save_checkpoint(tmp_path / "no-run.ckpt")  # after the end there is no run in progress
    saver = lightning.callbacks.ModelCheckpoint(dirpath=tmp_path, every_n_train_steps=6)
    second = trainer(
        tmp_path,
        AmpwatchCallback(log_dir=tmp_path / "runs", run="again"),
        half_on_cpu(),
        enable_checkpointing=True,
        max_steps=8,
    )
    second.callbacks.append(saver)
    second.fit(Classifier(), batches())
    callback = AmpwatchCallback(log_dir=tmp_path / "runs")
    fit(
        tmp_path,
        Classifier(),
        half_on_cpu(),
        callback,
        ckpt_path=tmp_path / "epoch=0-step=6.ckpt",
        max_epochs=2,
        max_steps=10,
    )
    run = ampwatch.open_run(tmp_path / "runs" / "again")
    assert run.steps["step"].to_pylist() == [*range(8), *range(6, 10)]


def test_the_fit_is_the_same_to_the_last_bit(tmp_path):
    def weights(callback):
        torch.manual_seed(1)
        model = Classifier(poison_at=5)
        fit(tmp_path, model, half_on_cpu(), callback)
        return nn.utils.parameters_to_vector(model.parameters())

    watched = weights(AmpwatchCallback(log_dir=tmp_path / "runs"))
    assert torch.equal(watched, weights(lightning.Callback()))


class Regression(lightning.LightningModule):
    """Some batches are bad, and of some the user's own step makes nothing."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))

    def training_step(self, batch, _index):
        x, factor = batch
        if factor[0] == 0:
            return None
        loss = (self.net(x).squeeze(1).float() - x.sin().sum(1)).square().mean()
        return loss * factor[0]

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def fit_regression(folder, bad, own, leave_out=(), count=110, **options):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, 8, 6, generator=generator)
    factor = torch.ones(count, 8)
    factor[list(bad)], factor[list(own)] = 1000.0, 0.0
    kept = [step for step in range(count) if step not in leave_out]
    data = torch.utils.data.TensorDataset(x[kept].flatten(0, 1), factor[kept].flatten())
    model, loader = Regression(), torch.utils.data.DataLoader(data, batch_size=8)
    callback = AmpwatchCallback(log_dir=folder, run="fit", endpoint="off", **options)
    one = trainer(folder, callback, precision="bf16-mixed", gradient_clip_val=1.0)
    one.fit(model, loader)
    return callback, one, model.state_dict()


def guard_events(folder):
    rows = ampwatch.open_run(folder / "fit").events.to_pylist()
    told = [(row["step"], json.loads(row["detail"])) for row in rows if row["kind"] == "guard"]
    return [(step, one["decided"]) for step, one in told]


def test_a_guard_and_steps_that_the_module_leaves_out_itself_go_together(tmp_path):
    guarded = {"dry_run": False}
    _, _, weights = fit_regression(tmp_path / "a", {90}, {30, 91}, guard=guarded)
    _, _, never = fit_regression(tmp_path / "b", {90}, {30, 91}, leave_out={90})
    assert all(torch.equal(weights[name], never[name]) for name in never)
    assert guard_events(tmp_path / "a") == [(0, "begin"), (90, "leave-out")]
    assert guard_events(tmp_path / "b") == []


def test_a_guard_that_may_stops_the_fit_with_a_plan_and_its_exit_code(tmp_path):
    guarded = {"dry_run": False, "stop": True, "lower_rate": False, "most": (2, 1000)}
    callback, one, _ = fit_regression(tmp_path, {80, 84, 88, 92}, (), guard=guarded)
    assert one.global_step == 89
    assert guard_events(tmp_path)[-1] == (88, "stop")
    assert callback.exit_code == 11
    plan = json.loads((tmp_path / "fit" / "plan.json").read_text("utf-8"))
    assert plan["action"] == "stop"
