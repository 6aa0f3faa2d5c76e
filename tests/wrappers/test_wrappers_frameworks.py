"""Each framework against what is promised of it: the same training, its loop written by others."""

from __future__ import annotations

import functools

import pytest
import torch
from framework_loops import FRAMEWORKS, Drive
from wrapper_cells import EAGER
from wrapper_parts import RATE_STEPS, SPOILT, STEPS, Training, culprits, unwatched

import ampwatch
from ampwatch.diagnosis import Action

every_framework = pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda one: one.name)
pytestmark = [
    pytest.mark.slow_frameworks,
    pytest.mark.filterwarnings("ignore"),  # the frameworks' own, many and changing
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Trains a framework's twins the first time it is asked for: their weights, and the run."""

    @functools.cache
    def both(framework):
        if framework.needs:
            pytest.importorskip(framework.needs, reason=f"{framework.needs} is not installed")
        folder = tmp_path_factory.mktemp("runs")
        weights = [framework.train(Drive(folder, watched=watched)) for watched in (False, True)]
        return *weights, ampwatch.open_run(folder / "r")

    return both


@pytest.fixture(scope="module")
def truth():
    """The plain loop of the same training, unwatched."""
    return unwatched(Training)


@every_framework
def test_attach_changes_no_bit_and_every_step_has_its_row(framework, trained):
    bare, ends, run = trained(framework)
    assert all(torch.equal(a, b) for a, b in zip(bare, ends, strict=True))
    rows = run.steps.to_pylist()
    assert [row["step"] for row in rows] == list(range(STEPS))
    assert [row["step"] for row in rows if row["skipped"]] == [SPOILT]
    assert run.clean_end


@every_framework
def test_data_types_are_told_of_each_layer(framework, trained):
    *_, run = trained(framework)
    told = {r["layer"]: r for r in run.layers.to_pylist() if r["step"] == STEPS - 1}
    names = {framework.holder + name: dtype for name, dtype in EAGER.items()}
    assert {name: told[name]["output_dtype"] for name in names} == names


@every_framework
def test_norms_are_those_of_the_plain_unwatched_loop(framework, trained, truth):
    *_, run = trained(framework)
    told = {row["step"]: row["grad_norm"] for row in run.steps.to_pylist()}
    good = {step: norm for (step, _), norm in truth.norms.items() if step != SPOILT}
    assert {step: told[step] for step in good} == pytest.approx(good, rel=1e-5)
    layers = {(r["step"], r["layer"]): r["grad_norm"] for r in run.layers.to_pylist()}
    good = {
        (step, framework.holder + layer): norm
        for (step, layer), norm in truth.layer_norms.items()
        if step != SPOILT
    }
    assert {key: layers[key] for key in good} == pytest.approx(good, rel=1e-5)


@every_framework
def test_the_layer_that_overflows_is_named(framework, trained):
    *_, run = trained(framework)
    assert culprits(run) == {SPOILT: f"{framework.holder}gain"}


@every_framework
def test_a_rate_that_is_too_high_is_to_be_lowered_and_one_that_is_not_is_not(framework, tmp_path):
    if framework.needs:
        pytest.importorskip(framework.needs, reason=f"{framework.needs} is not installed")
    told = []
    for rate in (0.1, 20.0):
        folder = tmp_path / str(rate)
        folder.mkdir()
        framework.train(Drive(folder, RATE_STEPS, spoilt=None, rate=rate))
        told.append(ampwatch.diagnose(ampwatch.open_run(folder / "r")).learning_rate)
    well, high = told
    assert well.action is not Action.LOWER
    assert high.action is Action.LOWER
    assert high.current == pytest.approx(20.0)
    assert high.recommended < high.current
