"""AMPWATCH=1 without a line of code: what torch, Lightning and Fabric load of the package.

Each child is a fresh Python, which finds the entry points as an installation declares them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import ampwatch
from ampwatch.integrations import entry_points

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli", reason="no reader of TOML before Python 3.11")

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.slow_starts, pytest.mark.slow_frameworks]

# Ends with what the weights are, to the last bit; half precision on a CPU, some steps skipped.
PLAIN = """
import sys, torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30)
for _ in range(20):
    with torch.autocast("cpu", torch.float16):
        loss = model(torch.randn(4, 8)).float().square().mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
SHOWN = """
from hashlib import sha256
print(sha256(nn.utils.parameters_to_vector(model.parameters()).detach().numpy()).hexdigest())
print(sorted(name for name in sys.modules if name.startswith("ampwatch.")))
"""
LIGHTNING = """
import sys, torch
from torch import nn
import {package} as lightning
from {package}.plugins.precision import MixedPrecision
torch.manual_seed(0)
class Fitted(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(8, 1)
    def training_step(self, batch, _number):
        return self.net(batch[0]).float().square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)
data = torch.utils.data.TensorDataset(torch.randn(40, 8))
model = Fitted()
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30)
callbacks = []
{more}
trainer = lightning.Trainer(
    accelerator="cpu", devices=1, max_epochs=1, logger=False, callbacks=callbacks,
    enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
    plugins=[MixedPrecision("16-mixed", "cpu", scaler=scaler)],
)
trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=4))
"""
OWN = """
from ampwatch.integrations.lightning import AmpwatchCallback
callbacks.append(AmpwatchCallback(run="own"))
"""
FABRIC = """
import sys, torch
from torch import nn
from lightning.fabric import Fabric
from lightning.fabric.plugins.precision import MixedPrecision
torch.manual_seed(0)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30)
fabric = Fabric(accelerator="cpu", devices=1, plugins=[MixedPrecision("16-mixed", "cpu", scaler)])
net = nn.Linear(8, 1)
model, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.05))
for _ in range(10):
    optimizer.zero_grad()
    fabric.backward(model(torch.randn(4, 8)).float().square().mean())
    optimizer.step()
"""
ACCELERATE = """
import sys, torch
from torch import nn
from accelerate import Accelerator
torch.manual_seed(0)
accelerator = Accelerator(cpu=True)
model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.05))
for _ in range(10):
    optimizer.zero_grad()
    accelerator.backward(model(torch.randn(4, 8)).float().square().mean())
    optimizer.step()
"""
RAY = """
import ray, ray.train
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model
def trained(prepare):
    import torch
    from torch import nn
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
    model = prepare(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30)
    for _ in range(10):
        with torch.autocast("cpu", torch.float16):
            loss = model(torch.randn(4, 8)).float().square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return nn.utils.parameters_to_vector(net.parameters()).tolist()
def loop(_config):
    weights = trained(prepare_model)
    with open(f"{FOLDER}/weights-{ray.train.get_context().get_world_rank()}", "w") as file:
        file.write(str(weights))
ray.init(
    num_cpus=3, include_dashboard=False, log_to_driver=False,
    runtime_env={"env_vars": {"AMPWATCH": "1"}},
)
TorchTrainer(
    loop, scaling_config=ScalingConfig(num_workers=2), run_config=RunConfig(storage_path=FOLDER)
).fit()
print(trained(lambda net: net))
"""


@pytest.fixture
def environment(tmp_path):
    """Makes the environment of a Python that has ampwatch installed as pyproject.toml says."""
    told = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["entry-points"]
    lines = [line for group, named in told.items() for line in (f"[{group}]", *_lines(named))]
    installed = tmp_path / "site" / "ampwatch-0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: ampwatch\nVersion: 0\n")
    (installed / "entry_points.txt").write_text("\n".join(lines))
    paths = os.pathsep.join([str(installed.parent), str(ROOT)])
    plain = {name: value for name, value in os.environ.items() if name != "AMPWATCH"}
    return lambda **more: {
        **plain, "PYTHONPATH": paths, "AMPWATCH_ENDPOINT": "off", "AMPWATCH_QUIET": "",
        "XDG_STATE_HOME": str(tmp_path / "state"), "OMP_NUM_THREADS": "1", **more,
    }  # fmt: skip


def _lines(named):
    return [f"{name} = {function}" for name, function in named.items()]


def ended(folder, text, environment, *launcher, patience_s=170):
    """What a script prints on both streams, started by a launcher or by Python."""
    (folder / "train.py").write_text(text)
    done = subprocess.run(
        [sys.executable, *launcher, "train.py"],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
        timeout=patience_s,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), [s for s in done.stderr.splitlines() if "ampwatch: " in s]


def the_runs(folder):
    return [ampwatch.open_run(one) for one in sorted((folder / "ampwatch-runs").iterdir())]


def test_a_script_is_watched_with_the_variable_alone_and_without_it_nothing_is_loaded(
    tmp_path, environment
):
    alone, said = ended(tmp_path, PLAIN + SHOWN, environment())
    assert (alone[1], said) == (
        str(
            ["ampwatch.environment", "ampwatch.integrations", "ampwatch.integrations.entry_points"]
        ),
        [],
    )
    assert not (tmp_path / "ampwatch-runs").exists()
    watched, said = ended(tmp_path, PLAIN + SHOWN, environment(AMPWATCH="1"))
    assert watched[0] == alone[0]
    (run,) = the_runs(tmp_path)
    assert len(run.steps) == 20
    assert any(run.steps["skipped"].to_pylist())
    assert [line.partition(";")[0] for line in said] == ["ampwatch: watching"]


def test_a_python_that_only_loads_torch_says_nothing(tmp_path, environment):
    assert ended(tmp_path, "import torch", environment(AMPWATCH="1")) == ([], [])


def test_the_ranks_of_torchrun_are_one_run(tmp_path, environment):
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2"]
    _, said = ended(tmp_path, PLAIN, environment(AMPWATCH="1"), *launcher)
    (run,) = the_runs(tmp_path)
    assert [path.name for path in sorted(run.path.glob("rank-*"))] == ["rank-0", "rank-1"]
    assert len(said) == 1


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_a_fit_of_lightning_has_one_run_and_the_same_weights(tmp_path, environment, package):
    pytest.importorskip(package.partition(".")[0], reason=f"{package} is not installed")
    text = LIGHTNING.format(package=package, more="") + SHOWN
    alone, _ = ended(tmp_path, text, environment())
    watched, said = ended(tmp_path, text, environment(AMPWATCH="1"))
    assert watched[0] == alone[0]
    (run,) = the_runs(tmp_path)
    assert len(run.steps) == 10
    assert "net" in run.layers["layer"].to_pylist()
    assert len(said) == 1


def test_a_fit_with_a_callback_of_its_own_has_one_watch_and_one_sentence(tmp_path, environment):
    pytest.importorskip("lightning", reason="Lightning is not installed")
    text = LIGHTNING.format(package="lightning.pytorch", more=OWN)
    _, said = ended(tmp_path, text, environment(AMPWATCH="1"))
    assert [run.path.name for run in the_runs(tmp_path)] == ["own"]
    where, both = said
    assert "watching; see" in where or "watching; see" in both
    assert sum("AMPWATCH=1 adds none" in line for line in said) == 1


@pytest.mark.parametrize("autoload", ["1", "0"], ids=["by torch", "by Fabric alone"])
def test_a_loop_of_fabric_is_watched_with_the_scaler_that_was_there_before(
    tmp_path, environment, autoload
):
    pytest.importorskip("lightning", reason="Lightning is not installed")
    asked = {"AMPWATCH": "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": autoload}
    text = FABRIC + SHOWN.replace("model.param", "net.param")
    alone, _ = ended(tmp_path, text, environment())
    watched, said = ended(tmp_path, text, environment(**asked))
    assert watched[0] == alone[0]
    (run,) = the_runs(tmp_path)
    assert len(run.steps) == 10
    assert any(run.steps["skipped"].to_pylist())
    assert len(said) == 1


def test_accelerate_is_watched_and_what_its_config_file_says_is_in_the_run(tmp_path, environment):
    pytest.importorskip("accelerate", reason="Accelerate is not installed")
    (tmp_path / "accelerate.yaml").write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: 'NO'\nmixed_precision: bf16\n"
        "num_machines: 1\nnum_processes: 1\nuse_cpu: true\n"
    )
    launcher = ["-m", "accelerate.commands.launch", "--config_file", "accelerate.yaml"]
    ended(tmp_path, ACCELERATE, environment(AMPWATCH="1"), *launcher)
    (run,) = the_runs(tmp_path)
    assert len(run.steps) == 10
    assert set(run.steps["autocast_dtype"].to_pylist()) == {"bfloat16"}
    assert run.info.environment["ACCELERATE_MIXED_PRECISION"] == "bf16"


@pytest.mark.slow_clusters
@pytest.mark.timeout(360)
def test_the_workers_of_ray_train_are_one_run_and_end_with_the_same_weights(tmp_path, environment):
    """The ranks have the same batches: their mean gradient is that of one process, to the bit."""
    pytest.importorskip("ray.train", reason="Ray Train is not installed")
    text = f"FOLDER = {str(tmp_path)!r}\n{RAY}"
    where = environment(AMPWATCH_DIR=str(tmp_path / "ampwatch-runs"))
    alone, _ = ended(tmp_path, text, where, patience_s=350)
    assert [(tmp_path / f"weights-{rank}").read_text() for rank in (0, 1)] == 2 * alone[-1:]
    (run,) = the_runs(tmp_path)
    assert sorted(run.steps["rank"].to_pylist()) == [0] * 10 + [1] * 10
    assert run.clean_end
    assert run.path.name.startswith("ray-")


def test_torch_is_imported_though_the_watch_cannot_begin(monkeypatch):
    monkeypatch.setenv("AMPWATCH", "1")
    monkeypatch.delenv("AMPWATCH_RUN_OPTIONS", raising=False)
    monkeypatch.setitem(sys.modules, "ampwatch.integrations.script_watch", None)
    with pytest.warns(UserWarning, match="ampwatch does not watch, though AMPWATCH=1"):
        entry_points.torch_backend()
