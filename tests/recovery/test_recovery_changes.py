"""Each thing that a rerun does otherwise, checked in what torch then does."""

from __future__ import annotations

import json
import os
from pathlib import Path

import children
import pytest

import ampwatch
from ampwatch.diagnosis.causes import CAUSES
from ampwatch.recovery.change import NOTHING, RATE, WORDS, switch_text
from ampwatch.recovery.prove import MOST_LAYERS, with_next_layer
from ampwatch.recovery.switches import SWITCHES

FULL, HALF, BRAIN = "torch.float32", "torch.float16", "torch.bfloat16"

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="does each change in a fork")


@pytest.fixture(scope="module")
def facts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("changes")
    script = Path(__file__).with_name("changed_trainings.py")
    root = str(Path(ampwatch.__file__).parents[1])
    environment = os.environ | {"PYTHONPATH": root, "OMP_NUM_THREADS": "1"}
    done = children.run(script, folder, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@needs_fork
@pytest.mark.slow_starts
def test_autocast_and_the_layers_precision_are_changed(facts):
    assert facts["nothing"][0] == {"first": HALF, "second": HALF}
    assert facts["autocast-off"][0] == {"first": FULL, "second": FULL}
    assert facts["bfloat16"][0] == {"first": BRAIN, "second": BRAIN}
    assert facts["float32"][0] == {"first": HALF, "second": FULL}
    assert facts["float32 twice"][0] == {"first": FULL, "second": FULL}


@needs_fork
@pytest.mark.slow_starts
def test_the_scaler_is_made_and_loaded_with_the_setting_and_the_others_stay(facts):
    plain = {"enabled": True, "scale": 4.0, "interval": 7, "loaded": 2.0, "loaded_interval": 9}
    assert facts["scaler"][0] == plain
    assert facts["scaler-off"][0] == {"enabled": False, "scale": 1.0}
    assert facts["init_scale"][0] == plain | {"scale": 64.0, "loaded": 64.0}
    assert facts["growth_interval"][0] == plain | {"interval": 50, "loaded_interval": 50}


@needs_fork
@pytest.mark.slow_starts
def test_the_optimizer_the_kernels_and_the_compiler_are_changed(facts):
    assert facts["clip"][0] == pytest.approx(0.5, rel=1e-3)
    assert facts["plain-optimizer"][0] == [False, False]
    assert facts["deterministic"][0] is True
    assert facts["compile-off"][0] is False


@needs_fork
@pytest.mark.slow_starts
def test_rates_are_multiplied_as_they_are_made_and_loaded_and_divided_as_they_are_saved(facts):
    found = facts["lr"][0]
    assert found["made"] == pytest.approx([0.2, 0.1])
    assert found["stepped"] == pytest.approx([0.1, 0.05])
    assert found["saved"] == pytest.approx([0.4, 0.2])
    assert found["planned"] == pytest.approx([0.4, 0.2])
    assert found["loaded"] == pytest.approx([0.2, 0.1])
    assert found["again"] == pytest.approx([0.1, 0.05])
    assert found["cycle"] == pytest.approx(4.0)


@needs_fork
@pytest.mark.slow_starts
def test_a_change_notes_whether_it_met_what_it_is_about(facts):
    done = {name for name, (_, was_done) in facts.items() if was_done}
    assert set(facts) - done == {"float32 absent"}


def test_every_switch_has_words_a_way_to_be_done_and_every_cure_is_a_switch():
    pytest.importorskip("torch")
    from ampwatch.integrations.rerun_process import CHANGES

    assert set(SWITCHES) == set(WORDS) == set(CHANGES) - {RATE, NOTHING}
    named = {cure for row in CAUSES.values() for cure in row.cures}
    assert named
    assert named <= set(SWITCHES)


def test_a_change_is_said_in_words():
    assert switch_text("float32", "block.3") == "block.3 in float32"
    assert switch_text("clip", 0.123456) == "the gradient norm clipped at 0.1235"
    assert switch_text("of another version", 1.0) == "of another version"


def test_a_layer_that_a_rerun_names_next_is_kept_in_float32_too():
    assert with_next_layer("float32", "a", "b") == "a, b"
    assert with_next_layer("float32", "a, b", "a") is None
    assert with_next_layer("float32", "a", None) is None
    assert with_next_layer("float32", "a", "(root)") is None
    assert with_next_layer("clip", 1.0, "a") is None
    assert with_next_layer("float32", ", ".join("abcd"[:MOST_LAYERS]), "z") is None
