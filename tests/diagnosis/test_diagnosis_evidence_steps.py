"""What a finding says of a step stands in the rows there, as plain numpy reads them."""

import re

import numpy as np
import pytest
from letter_truth import untrue_evidence

from ampwatch.diagnosis import diagnose
from ampwatch.importers import import_log
from ampwatch.store import open_run

COUNT, FAULT = 20_000, 17_000


@pytest.fixture(scope="module")
def late_fault(tmp_path_factory):
    """A log of 20,000 rows, in which loss and gradient norm rise from row 17,000 on."""
    draw, step = np.random.default_rng(0), np.arange(COUNT)
    since = np.clip((step - FAULT) / (COUNT - FAULT), 0, 1)
    loss = 4 * np.exp(-step / 3000) + 1 + 0.05 * draw.standard_normal(COUNT) + 4 * since**2
    norm = 1.2 + 0.05 * np.abs(draw.standard_normal(COUNT)) + 26 * since**3
    rate = 0.0005 * (1 + np.cos(np.pi * step / COUNT))
    folder = tmp_path_factory.mktemp("late")
    lines = ["step,loss,grad_norm,lr"]
    lines += [
        f"{a},{b:.5g},{c:.5g},{d:.6g}" for a, b, c, d in zip(step, loss, norm, rate, strict=True)
    ]
    (folder / "late.csv").write_text("\n".join(lines))
    return open_run(import_log(folder / "late.csv", folder))


def test_the_evidence_of_a_late_fault_stands_at_the_steps_that_it_names(late_fault):
    assert list(untrue_evidence(late_fault)) == []


def test_what_a_late_fault_is_said_to_rise_from_is_where_it_begins(late_fault):
    drift = next(f for f in diagnose(late_fault).findings if f.code == "AMP304")
    assert FAULT - 300 <= drift.first_step <= FAULT + 600
    began, now, step = re.search(
        r"until step (\d+), and has risen since, to (\S+) at step (\d+)", drift.cause
    ).groups()
    assert int(began) == drift.first_step
    norm = np.asarray(late_fault.read("steps", ["grad_norm"])["grad_norm"].to_pylist())
    assert float(now) == pytest.approx(norm[int(step)], rel=5e-3)


def test_the_advice_of_a_late_fault_counts_no_step_of_the_trouble_as_worked(late_fault):
    because = diagnose(late_fault).learning_rate.because
    assert "Until then the learning rate had worked. It lasts to the end of the log" in because
    assert "20,000" not in because
