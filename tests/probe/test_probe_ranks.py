"""Two real ranks over gloo: what each one's own backward gave, and what is made of it."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path

import children
import pytest
import torch
from ranks_training import SCENARIOS

import ampwatch

pytestmark = [
    pytest.mark.skipif(not torch.distributed.is_available(), reason="needs torch.distributed"),
    pytest.mark.skipif(sys.platform == "win32", reason="gloo meets in a file here"),
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Every scenario, trained once by two processes, watched and unwatched."""
    folder = tmp_path_factory.mktemp("ranks")
    script = Path(__file__).with_name("ranks_training.py")
    environment = {**os.environ, "AMPWATCH_ENDPOINT": "off", "AMPWATCH_STRICT": "1",
                   "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(ampwatch.__file__).parents[1]),
                   "XDG_STATE_HOME": str(folder)}  # fmt: skip
    done = children.run(script, folder / "meet", folder, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return folder


def ranks_findings(trained, scenario):
    """{code: (severity, ranks)} of what is said of ranks."""
    findings = ampwatch.diagnose(ampwatch.open_run(trained / scenario)).findings
    return {f.code: (f.severity.value, f.ranks) for f in findings if f.code.startswith("AMP60")}


def overflows(trained, scenario):
    """(step, rank) and the detail of each overflow event."""
    events = ampwatch.open_run(trained / scenario).events.to_pylist()
    return {(e["step"], e["rank"]): json.loads(e["detail"]) for e in events
            if e["kind"] == "overflow"}  # fmt: skip


def test_weights_scaler_and_random_state_are_those_of_the_unwatched_ranks(trained):
    for scenario in SCENARIOS:
        for rank in (0, 1):
            ends = [torch.load(trained / f"{scenario}-{rank}-{watched}.pt", weights_only=False)
                    for watched in (False, True)]  # fmt: skip
            assert all(torch.equal(a, b) for a, b in zip(ends[0][0], ends[1][0], strict=True))
            assert ends[0][1] == ends[1][1]
            assert torch.equal(ends[0][2], ends[1][2])


def test_a_healthy_pair_of_ranks_has_finite_gradients_of_its_own_and_no_finding(trained):
    run = ampwatch.open_run(trained / "healthy")
    layers = [row for row in run.layers.to_pylist() if row["grad_finite"] is not None]
    assert {row["grad_finite_local"] for row in layers} == {True}
    assert ampwatch.diagnose(run).verdict.value == "healthy"
    assert ranks_findings(trained, "healthy") == {}


@pytest.mark.parametrize("scenario", ["labels", "inputs"])
def test_the_rank_whose_batches_are_bad_is_named(trained, scenario):
    assert ranks_findings(trained, scenario) == {"AMP602": ("warning", (1,))}


def test_a_rank_that_was_spoilt_by_another_knows_that_its_own_gradients_were_finite(trained):
    found = overflows(trained, "labels")
    assert {rank: {d["own_finite"] for (_, r), d in found.items() if r == rank}
            for rank in (0, 1)} == {0: {True}, 1: {False}}  # fmt: skip
    assert all("layer" not in detail for (_, rank), detail in found.items() if rank == 0)
    assert all(detail["layer"] in {"2", "4"} for (_, rank), detail in found.items() if rank == 1)


def test_only_steps_that_were_armed_are_known_exactly(trained):
    run = ampwatch.open_run(trained / "labels")
    first = min(step for step, _ in overflows(trained, "labels"))
    rows = [r for r in run.layers.to_pylist() if r["step"] == first and r["grad_finite"] is False]
    known = Counter((row["rank"], row["layer"], row["grad_finite_local"]) for row in rows)
    # What reached the first layer proves that rank 1's gradient there was bad, and nothing more.
    assert known == {(0, "0", None): 1, (0, "2", None): 1, (1, "0", False): 1, (1, "2", None): 1}


def test_a_reduction_that_overflows_is_told_from_gradients_that_do(trained):
    assert ranks_findings(trained, "compressed") == {"AMP604": ("error", (0, 1))}
    diagnosis = ampwatch.diagnose(ampwatch.open_run(trained / "compressed"))
    assert diagnosis.headline.code == "AMP604"
    assert diagnosis.learning_rate.action.value == "not-the-cause"


def test_the_same_gradients_reduced_in_float32_are_no_finding(trained):
    assert ranks_findings(trained, "uncompressed") == {}


def test_ranks_that_share_their_batches_and_ranks_that_part_are_told(trained):
    assert ranks_findings(trained, "same-data") == {"AMP605": ("warning", (0, 1))}
    assert ranks_findings(trained, "apart") == {"AMP601": ("error", (1,))}
