"""The callbacks' `mirror`: beside a framework's own logger, in real trainings by the frameworks."""

from __future__ import annotations

from pathlib import Path

import pytest
from mirror_parts import logged

ENVIRONMENT = {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "HF_HUB_OFFLINE": "1"}

LIGHTNING = """
import torch, warnings
warnings.simplefilter("ignore")
import lightning.pytorch as pl
from lightning.pytorch.loggers import WandbLogger
from ampwatch.integrations.lightning import AmpwatchCallback

class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(8, 3)
    def training_step(self, batch, index):
        loss = self.net(batch[0]).square().mean()
        self.log("theirs", loss)
        return loss
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)

data = torch.utils.data.TensorDataset(torch.ones(48, 8))
callback = AmpwatchCallback(run="fit", mirror="{mirror}")
pl.Trainer(accelerator="cpu", devices=1, max_epochs=1, log_every_n_steps=1, callbacks=[callback],
           logger={logger}, enable_progress_bar=False, enable_model_summary=False,
           enable_checkpointing=False).fit(Model(), torch.utils.data.DataLoader(data, batch_size=4))
"""

TRANSFORMERS = """
import torch, transformers, warnings
warnings.simplefilter("ignore")
from ampwatch.integrations.transformers import AmpwatchCallback
config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=32, n_positions=16)
rows = [{"input_ids": row, "labels": row} for row in torch.randint(0, 32, (24, 8))]
arguments = transformers.TrainingArguments(
    output_dir="out", max_steps=6, per_device_train_batch_size=2, report_to=["trackio"],
    logging_steps=1, disable_tqdm=True, use_cpu=True, save_strategy="no")
callback = AmpwatchCallback(run="hf", mirror="active")
transformers.Trainer(model=transformers.GPT2LMHeadModel(config), args=arguments, train_dataset=rows,
                     callbacks=[callback]).train()
"""


@pytest.fixture(autouse=True)
def _environment(tmp_path, monkeypatch):
    folders = {"AMPWATCH_DIR": "runs", "WANDB_DIR": ".", "TRACKIO_DIR": "trackio"}
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    for name, folder in folders.items():
        monkeypatch.setenv(name, str(tmp_path / folder))


@pytest.mark.slow_frameworks
def test_lightnings_wandb_run_has_its_points_and_ours(tmp_path, run_python):
    pytest.importorskip("lightning", reason="Lightning is not installed")
    pytest.importorskip("wandb", reason="no wandb here")
    from test_mirrors_wandb import files, history

    logger = "WandbLogger(project='theirs')"
    run_python(LIGHTNING.replace("{mirror}", "active").replace("{logger}", logger))
    [file] = files(tmp_path)
    rows = history(file)
    theirs = [row["trainer/global_step"] for row in rows if "theirs" in row]
    assert theirs == list(range(12))
    ours = [row for row in rows if "ampwatch/step" in row]
    truth = dict(logged(tmp_path / "runs" / "fit", "lr"))
    assert ours[-1]["ampwatch/step"] == max(truth)
    assert all(row["ampwatch/lr"] == truth[row["ampwatch/step"]] for row in ours)


@pytest.mark.slow_frameworks
def test_a_fit_that_cannot_be_mirrored_says_so_and_goes_on(tmp_path, run_python):
    pytest.importorskip("lightning", reason="Lightning is not installed")
    code = LIGHTNING.replace("{mirror}", "active").replace("{logger}", "False")
    said = run_python(code.replace('simplefilter("ignore")', 'simplefilter("always")'), errors=True)
    assert "this training is not mirrored: No run of W&B" in said
    assert len(logged(tmp_path / "runs" / "fit", "lr")) == 12


@pytest.mark.slow_frameworks
def test_transformers_trackio_run_has_its_points_and_ours(tmp_path, run_python):
    pytest.importorskip("transformers", reason="Transformers is not installed")
    pytest.importorskip("accelerate", reason="Accelerate is not installed")
    pytest.importorskip("trackio", reason="no trackio here")
    from test_mirrors_trackio import curve, rows

    run_python(TRANSFORMERS)
    found = []
    for path in Path(tmp_path / "trackio").rglob("*.db"):
        found += rows(tmp_path / "trackio", path.stem)[0]
    assert sum("train/loss" in values for _, _, values in found) == 6
    assert curve(found, "lr") == logged(tmp_path / "runs" / "hf", "lr")
