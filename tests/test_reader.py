"""The reader's test of the page: its questions and its key are those of the trainings."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks" / "reader"))
from failures import FAILURES, Failure

from examples.gallery.registry import all_cases

CASES = {case.name: case for case in all_cases()}


@pytest.fixture(scope="module")
def reader():
    from importlib import util

    place = Path(__file__).parents[1] / "benchmarks" / "reader" / "__main__.py"
    spec = util.spec_from_file_location("reader", place)
    made = util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.mark.parametrize("failure", FAILURES[1:], ids=lambda failure: failure.name)
def test_the_layer_to_name_is_the_one_that_the_training_breaks(failure):
    label = CASES[failure.name].label
    if label.layer is None:  # of nan weights it is the layer that the case writes them to
        assert failure.layer is None or failure.name == "weights-become-nan"
    else:
        assert failure.layer.replace("\\b", "").replace("\\", "") == label.layer


def test_what_is_not_said_is_missing(reader):
    failure = Failure("x", cause="rate is too high", action=r"lower to 0\.\d+", layer="head")
    assert reader.missing(failure, "The rate is\n too high in head. Lower to 0.03") == []
    assert reader.missing(failure, "The rate is too high") == ["layer", "action"]
