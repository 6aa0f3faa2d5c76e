"""Gradients that FSDP2 accumulates in the local part of a sharded one: real FSDP2, one rank."""

import pytest
import torch
import torch.distributed as dist

import ampwatch
from ampwatch.rows import Table

fsdp = pytest.importorskip("torch.distributed.fsdp")
STEPS, PARTS = 4, 3


@pytest.fixture
def process_group(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_micro_batches_that_each_synchronise_are_no_edit_of_gradients(process_group, tmp_path):
    if not hasattr(fsdp, "fully_shard"):
        pytest.skip("this torch has no FSDP2")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    fsdp.fully_shard(model, mesh=dist.init_device_mesh("cpu", (1,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    options = {"log_dir": tmp_path, "run": "it", "endpoint": "off"}
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    watch = ampwatch.attach(scaler, model, **options)
    losses, norms = [], []
    for _ in range(STEPS):
        losses.append(0.0)
        for _ in range(PARTS):
            loss = model(torch.randn(4, 8)).square().mean() / PARTS
            scaler.scale(loss).backward()
            losses[-1] += loss.item()
        local = [p.grad.to_local() / 8.0 for p in model.parameters()]
        norms.append(float(torch.nn.utils.get_total_norm(local)))
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    watch.close()
    run = ampwatch.open_run(tmp_path / "it")
    rows = run.read(Table.STEPS, columns=["loss", "grad_norm", "micro_batches"])
    assert rows.column("micro_batches").to_pylist() == [PARTS] * STEPS
    assert rows.column("loss").to_pylist() == pytest.approx(losses, rel=1e-6)
    assert rows.column("grad_norm").to_pylist() == pytest.approx(norms, rel=1e-5)
    assert not any(finding.code == "AMP401" for finding in ampwatch.diagnose(run).findings)
