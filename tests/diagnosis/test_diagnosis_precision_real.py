"""Each rule about precision, on what the probe records of a real training."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import ampwatch

Step = Callable[[nn.Module, Tensor], Tensor]


class Wide(nn.Module):
    """A large layer beside a small one; the large one may leave autocast."""

    def __init__(self, *, wide: bool) -> None:
        super().__init__()
        self.large, self.small, self.wide = nn.Linear(32, 256), nn.Linear(256, 4), wide

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.float16, enabled=not self.wide):
            x = self.large(x.float() if self.wide else x)
        return self.small(x)


def outputs(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).float().square().mean()


def found(
    folder: Path,
    model: nn.Module,
    step: Step = outputs,
    *,
    dtype: torch.dtype = torch.float16,
    autocast: bool = True,
    ends_by: type[Exception] | None = None,
) -> dict[str, ampwatch.diagnosis.Finding]:
    """The findings on a short training under a scaler."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    ending = contextlib.nullcontext() if ends_by is None else pytest.raises(ends_by)
    with ending, ampwatch.attach(scaler, model, run="run", log_dir=folder, endpoint="off"):
        for number in range(15):
            x = torch.randn(8, 32, generator=torch.Generator().manual_seed(number))
            with torch.autocast("cpu", dtype, enabled=autocast):
                loss = step(model, x)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    diagnosis = ampwatch.diagnose(ampwatch.open_run(folder / "run"))
    return {finding.code: finding for finding in diagnosis.findings}


def test_most_work_outside_autocast_names_the_layer_that_does_it(tmp_path: Path) -> None:
    assert found(tmp_path / "wide", Wide(wide=True))["AMP502"].layer == "large"
    assert found(tmp_path / "half", Wide(wide=False)) == {}


def test_no_autocast_at_all_is_told(tmp_path: Path) -> None:
    told = found(tmp_path, nn.Linear(32, 4), autocast=False)
    assert set(told) == {"AMP405"}
    assert told["AMP405"].cause == "The output of 1 matrix product is float32."


def test_float64_is_not_told_as_float32(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(32, 16), nn.Linear(16, 4)).double()
    told = found(tmp_path, model, lambda m, x: outputs(m, x.double()), autocast=False)
    assert told["AMP405"].cause == "The output of 2 matrix products is float64."


def test_a_scaler_under_bfloat16_is_told(tmp_path: Path) -> None:
    assert set(found(tmp_path, nn.Linear(32, 4), dtype=torch.bfloat16)) == {"AMP407"}


def test_half_parameters_are_named(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(32, 16), nn.Linear(16, 4).half())
    one = found(tmp_path, model, ends_by=ValueError)["AMP406"]
    assert one.layer == "1"


class Exhausting(nn.Module):
    """A layer that asks for more memory than there is, once it has run for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == 12:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
        return x


def test_memory_that_runs_out_names_the_layer_that_asked(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(32, 16), Exhausting(), nn.Linear(16, 4))
    one = found(tmp_path, model, ends_by=torch.OutOfMemoryError)["AMP506"]
    assert one.layer == "1"


def test_half_that_meets_float_names_the_layer(tmp_path: Path) -> None:
    mixed = Wide(wide=False)  # half by its own autocast, float32 without one around it
    one = found(tmp_path, mixed, autocast=False, ends_by=RuntimeError)["AMP415"]
    assert one.layer == "small"
