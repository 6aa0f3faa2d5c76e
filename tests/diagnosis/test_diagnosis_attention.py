"""Attention scores that drift towards the format's end, beside those that do not."""

from __future__ import annotations

import numpy as np
import pytest
from hand_built import layer_table, scaled_run

from ampwatch.diagnosis import Engine, diagnose
from ampwatch.diagnosis.layer_history import is_attention, scores_of

STEPS = 6000
EVERY = 50


def run_of(**headrooms):
    """A healthy run of 6,000 steps; octaves of headroom by layer, at every fiftieth step."""
    at = np.arange(0, STEPS, EVERY)
    rows = [
        {"step": int(step), "layer": name.replace("__", "."), "log2_headroom": float(values[n])}
        for n, step in enumerate(at)
        for name, values in headrooms.items()
    ]
    return scaled_run([False] * STEPS, layers=layer_table(rows), growth_interval=100_000)


def line(begin, end, *, noise=0.1, seed=0):
    count = STEPS // EVERY
    return np.linspace(begin, end, count) + noise * np.random.default_rng(seed).normal(size=count)


def found(run):
    return {f.code: f for f in diagnose(run).findings}


def test_scores_that_climb_for_thousands_of_steps_are_told_with_the_steps_that_are_left():
    one = found(run_of(attn__scores=line(12, 4)))["AMP210"]
    assert one.layer == "attn.scores"
    assert one.severity.value == "warning"
    assert one.first_step < 512
    left = int(one.summary.split("about ")[1].split(" steps")[0].replace(",", ""))
    assert left == pytest.approx(4 / (8 / STEPS), rel=0.25)
    assert "q.float()" in one.action


def test_a_query_and_a_key_that_grow_together_stand_for_their_scores():
    one = found(run_of(attn__q_proj=line(14, 10), attn__k_proj=line(14, 10, seed=1)))["AMP210"]
    assert one.layer == "attn.q_proj"
    assert "times the largest key" in one.cause
    assert one.evidence[0].value == pytest.approx(10 + 10 - 16, abs=0.7)


@pytest.mark.parametrize(
    "headroom",
    [
        line(12, 12),  # as it was
        line(4, 12),  # shrinks
        line(12, 11),  # hardly moves
        line(14, 11),  # moves, and has a long way to go
        9 + 5 * np.exp(-np.arange(STEPS // EVERY) / 10),  # grew at first, and slowed down
        line(12, 4)[np.random.default_rng(0).permutation(STEPS // EVERY)],  # restless
        np.where(np.arange(STEPS // EVERY) < 90, line(12, 4), 9.0),  # came back
    ],
)
def test_scores_that_stay_shrink_slow_down_or_come_back_are_no_drift(headroom):
    assert "AMP210" not in found(run_of(attn__scores=headroom))


def test_a_drift_of_a_few_hundred_steps_is_too_short_to_be_one():
    short = np.where(np.arange(STEPS // EVERY) < 110, 12.0, line(12 + 11 * 8, 4))
    assert "AMP210" not in found(run_of(attn__scores=np.minimum(short, 12.0)))


def test_other_layers_that_grow_are_not_called_attention():
    assert "AMP210" not in found(run_of(mlp__up=line(12, 4), head=line(12, 4)))
    assert "AMP210" not in found(run_of(attn__q_proj=line(12, 6)))  # a query without its key


def test_low_headroom_of_scores_is_the_consequence_of_their_growth():
    growing = found(run_of(attn__scores=line(3.5, 0.2, noise=0.01)))
    assert growing["AMP210"].because_of is None
    assert growing["AMP205"].because_of == "AMP210"


def test_whatever_the_blocks_the_drift_is_the_same():
    run = run_of(attn__q=line(14, 10), attn__k=line(14, 10, seed=1))
    small = Engine(block_rows=100, settled_rows=16).feed(run).diagnosis()
    (one,) = [f for f in small.findings if f.code == "AMP210"]
    other = found(run)["AMP210"]
    assert (one.first_step, one.last_step, one.layer) == (
        other.first_step,
        other.last_step,
        other.layer,
    )
    assert one.evidence[0].value == pytest.approx(other.evidence[0].value)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("layers.0.self_attn.q_proj", "layers.0.self_attn.k_proj"), {"layers.0.self_attn.q_proj"}),
        (("encoder.layer.1.attention.self.query", "encoder.layer.1.attention.self.key"),
         {"encoder.layer.1.attention.self.query"}),
        (("h.0.attn.c_attn",), {"h.0.attn.c_attn"}),
        (("blocks.3.attn.qkv", "blocks.3.attn.proj"), {"blocks.3.attn.qkv"}),
        (("unet.attn1.to_q", "unet.attn1.to_k", "unet.attn1.to_v"), {"unet.attn1.to_q"}),
        (("attention.wq", "attention.wk", "attention.wo"), {"attention.wq"}),
        (("attn.q", "attn.k", "attn.softmax"), {"attn.softmax"}),
        (("mixer.in_proj", "head.softmax", "classifier", "logits"), set()),
    ],
)  # fmt: skip
def test_layers_are_known_by_the_names_that_libraries_give_them(names, expected):
    ours = tuple(name for name in names if is_attention(name))
    assert {score.layer for score in scores_of(ours)} == expected
