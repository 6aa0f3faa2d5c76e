"""What Hydra composed is in the run, its secrets are not, and no resolver of the program's runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import ampwatch

pytest.importorskip("hydra", reason="Hydra is not installed")
pytestmark = pytest.mark.slow_starts

PROGRAM = """
import hydra, random, torch
from omegaconf import OmegaConf
import ampwatch
OmegaConf.register_new_resolver("drawn", lambda: random.random(), use_cache=False)

@hydra.main(version_base=None, config_path=".", config_name="config")
def main(cfg):
    random.seed(0)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=cfg.optimizer.lr)
    options = {"optimizer": optimizer, "run": "it", "config": {"own": 1, "name": "given"}}
    ampwatch.attach(None, model, log_dir="runs", **options).close()
    assert random.random() == random.Random(0).random()

main()
"""
CONFIG = """
name: night
base: 0.001
factor: 3
label: ${name}-${optimizer.lr}
optimizer: {lr: "${base}", job: "${hydra:job.name}"}
noise: ${drawn:}
wandb: {api_key: abc123, mode: "${oc.env:MODE}", tag: "${oc.env:HF_TOKEN}"}
absent: ${oc.env:NOT_THERE_AT_ALL}
sizes: [1, "${factor}"]
"""


def test_the_resolved_configuration_is_the_runs_and_secrets_are_not(tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "config.yaml").write_text(CONFIG)
    environment = {
        **os.environ, "MODE": "offline", "HF_TOKEN": "very-much-hidden", "AMPWATCH_ENDPOINT": "off",
        "PYTHONPATH": os.pathsep.join([str(Path(ampwatch.__file__).parents[1]), *sys.path]),
    }  # fmt: skip
    subprocess.run(
        [sys.executable, "train.py", "base=0.5", "hydra.run.dir=."],
        cwd=tmp_path, env=environment, check=True, timeout=150,
    )  # fmt: skip
    run = ampwatch.open_run(tmp_path / "runs" / "it")
    assert run.info.config == {
        "own": 1, "name": "given", "base": 0.5, "factor": 3, "label": "night-0.5",
        "optimizer": {"lr": 0.5, "job": "train"}, "noise": "${drawn:}",
        "wandb": {"api_key": "***", "mode": "offline", "tag": "${oc.env:HF_TOKEN}"},
        "absent": "${oc.env:NOT_THERE_AT_ALL}", "sizes": [1, 3],
    }  # fmt: skip
    assert "very-much-hidden" not in json.dumps((tmp_path / "runs" / "it" / "run.json").read_text())
