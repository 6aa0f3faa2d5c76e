"""Real loops of Accelerate and of Lightning's Fabric."""

import pytest
import torch
from torch import nn

import ampwatch

pytestmark = pytest.mark.filterwarnings("ignore")  # the frameworks' own, many and changing


def parts():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def batch():
    return torch.randn(16, 4, generator=torch.Generator().manual_seed(2))


@pytest.fixture
def accelerator():
    accelerate = pytest.importorskip("accelerate", reason="Accelerate is not installed")
    yield lambda **options: accelerate.Accelerator(cpu=True, **options)
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


def test_an_accelerate_loop_in_half_is_logged_with_its_skips(tmp_path, accelerator):
    from ampwatch.integrations.accelerate import attach

    one = accelerator()
    one.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30)  # Accelerate makes none on a CPU
    model, optimizer = one.prepare(*parts())
    losses = []
    with attach(one, model, optimizer, log_dir=tmp_path, run="a"):
        for _ in range(30):
            with torch.autocast("cpu", dtype=torch.float16):
                loss = model(batch()).float().square().mean()
            one.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(loss))
    run = ampwatch.open_run(tmp_path / "a")
    assert run.steps["loss"].to_pylist() == pytest.approx(losses)
    skips = sum(map(bool, run.steps["skipped"].to_pylist()))
    assert 0 < skips < 30
    assert one.scaler.get_scale() == 2.0 ** (30 - skips)


def test_an_accelerate_loop_in_bf16_is_logged(tmp_path, accelerator):
    from ampwatch.integrations.accelerate import attach

    one = accelerator(mixed_precision="bf16")
    model, optimizer = one.prepare(*parts())
    with attach(one, model, optimizer, log_dir=tmp_path, run="a") as watch:
        for _ in range(5):
            loss = model(batch()).float().square().mean()
            one.backward(loss)
            watch.log(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
    run = ampwatch.open_run(tmp_path / "a")
    assert len(run.steps) == 5
    assert set(run.steps["autocast_dtype"].to_pylist()) == {"bfloat16"}
    assert None not in run.steps["loss"].to_pylist()


@pytest.fixture
def fabric():
    lightning = pytest.importorskip("lightning.fabric", reason="Lightning is not installed")
    precision = pytest.importorskip("lightning.fabric.plugins.precision")

    def make(kind):
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30) if kind == "16-mixed" else None
        plugin = precision.MixedPrecision(kind, "cpu", scaler=scaler)
        return lightning.Fabric(accelerator="cpu", devices=1, plugins=[plugin])

    return make


@pytest.mark.parametrize("kind", ["16-mixed", "bf16-mixed"])
def test_a_fabric_loop_is_logged_under_the_models_own_layer_names(tmp_path, fabric, kind):
    from ampwatch.integrations.fabric import attach

    one = fabric(kind)
    model, optimizer = one.setup(*parts())
    with attach(one, model, optimizer, log_dir=tmp_path, run="f") as watch:
        for _ in range(30):
            loss = model(batch()).float().square().mean()
            one.backward(loss)
            if kind == "bf16-mixed":
                watch.log(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
    run = ampwatch.open_run(tmp_path / "f")
    assert {"(root)", "0", "2"} <= set(run.layers["layer"].to_pylist())
    assert len(run.steps) == 30
    assert None not in run.steps["loss"].to_pylist()
    skips = [bool(s) for s in run.steps["skipped"].to_pylist()]
    assert any(skips) == (kind == "16-mixed")


def test_an_accelerate_loop_takes_a_guard(tmp_path, accelerator):
    from ampwatch.integrations.accelerate import attach

    one = accelerator()
    model, optimizer = one.prepare(*parts())
    before = []
    with attach(
        one, model, optimizer, log_dir=tmp_path, run="a", endpoint="off", guard={"dry_run": False}
    ):
        for step in range(90):
            before.append([p.detach().clone() for p in model.parameters()])
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = model(batch()).float().square().mean() * (1e6 if step == 80 else 1.0)
            one.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    assert all(map(torch.equal, before[80], before[81]))
    assert not any(map(torch.equal, before[81], before[82]))
