"""Each wrapper of one process against what is promised of it: a cell of the matrix is a test."""

from __future__ import annotations

import functools
from collections import Counter

import pytest
import torch
from torch._dynamo.utils import counters
from wrapper_cells import WRAPPERS
from wrapper_parts import RATE_STEPS, SPOILT, STEPS, culprits, unwatched, watched

import ampwatch
from ampwatch.diagnosis import Action

FIRST_COMPILED = next(one for one in WRAPPERS if one.compiled)


def row(wrapper):
    """Of those that compile one is tried every time; CI tries the others."""
    marks = [pytest.mark.slow_trainings] if wrapper.large else []
    if wrapper.compiled and wrapper is not FIRST_COMPILED:
        marks = [pytest.mark.slow_compile]
    return pytest.param(wrapper, id=wrapper.name, marks=marks)


every_wrapper = pytest.mark.parametrize("wrapper", [row(one) for one in WRAPPERS])
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning"),  # the compiler reads it
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Trains a wrapper's twins the first time it is asked for."""

    @functools.cache
    def both(wrapper):
        folder = tmp_path_factory.mktemp("runs")
        truth, graphs = compiling(lambda: unwatched(wrapper.make))
        (ends, run), graphs_watched = compiling(lambda: watched(wrapper.make, folder))
        return truth, graphs, ends, graphs_watched, run

    return both


def compiling(train):
    """What it returns, and the compiler's counts of graphs and of breaks."""
    torch._dynamo.reset()
    counters.clear()
    result = train()
    return result, (counters["stats"]["unique_graphs"], Counter(counters["graph_break"]))


@every_wrapper
def test_attach_changes_no_bit_and_every_step_has_its_row(wrapper, trained):
    truth, graphs, ends, graphs_watched, run = trained(wrapper)
    assert len(ends.weights) == len(truth.weights)
    assert all(torch.equal(a, b) for a, b in zip(ends.weights, truth.weights, strict=True))
    assert (ends.scaler, ends.hooks) == (truth.scaler, truth.hooks)
    assert torch.equal(ends.random, truth.random)
    assert run.steps.num_rows == len(truth.norms)
    assert {r["step"] for r in run.steps.to_pylist() if r["skipped"]} == {SPOILT}
    assert graphs_watched == graphs
    assert (graphs[0] > 0) == wrapper.compiled


@every_wrapper
def test_data_types_are_told_of_each_layer_that_can_be_seen(wrapper, trained):
    *_, run = trained(wrapper)
    layers = run.layers.to_pylist()
    told = {r["layer"]: r for r in layers if r["step"] == STEPS - 1}
    assert {name: told[name]["output_dtype"] for name in wrapper.dtypes} == dict(wrapper.dtypes)
    unseen = {name for name, dtype in wrapper.dtypes.items() if dtype is None}
    assert all(told[name]["observed"] for name in unseen)


@every_wrapper
def test_norms_are_those_of_the_unwatched_twin(wrapper, trained):
    truth, *_, run = trained(wrapper)
    told = {(r["step"], r["optimizer"]): r["grad_norm"] for r in run.steps.to_pylist()}
    unknown = {SPOILT, *wrapper.unknown}
    assert all(told[step, 0] is None for step in wrapper.unknown)
    good = {key: norm for key, norm in truth.norms.items() if key[0] not in unknown}
    assert {key: told[key] for key in good} == pytest.approx(good, rel=1e-5)
    layers = {(r["step"], r["layer"]): r["grad_norm"] for r in run.layers.to_pylist()}
    good = {key: norm for key, norm in truth.layer_norms.items() if key[0] not in unknown}
    assert {key: layers[key] for key in good} == pytest.approx(good, rel=1e-5)


@every_wrapper
def test_the_layer_that_overflows_is_named(wrapper, trained):
    *_, run = trained(wrapper)
    assert culprits(run) == {SPOILT: wrapper.culprit}


@pytest.mark.parametrize("wrapper", [row(one) for one in WRAPPERS if one.too_high])
def test_a_rate_that_is_too_high_is_to_be_lowered_and_one_that_is_not_is_not(wrapper, tmp_path):
    told = {}
    for factor in (1.0, wrapper.too_high):
        _, run = watched(wrapper.make, tmp_path, RATE_STEPS, spoilt=None, rate_factor=factor)
        told[factor] = ampwatch.diagnose(run).learning_rate
    assert told[1.0].action is not Action.LOWER
    high = told[wrapper.too_high]
    assert high.action is Action.LOWER
    assert high.recommended < high.current
