"""AMP314: experts without tokens, by hand, live and afterwards, and on a real mixture."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hand_built import HandBuiltRun, layer_table, step_table
from same_diagnosis import same

from ampwatch.diagnosis import diagnose
from ampwatch.diagnosis.engine import Engine
from ampwatch.diagnosis.expert_history import (
    FAIR_TOKENS,
    FIRST_STEP,
    WINDOW_SAMPLES,
    WINDOW_STEPS,
)

EVERY = 50
ROUTER = "blocks.1.moe.gate"


def routed(*tokens, name=ROUTER, ranks=1, trainable=True, every=EVERY):
    """A run that sampled these tokens by expert, one list (or one a rank) for each sample."""
    steps = range(every * (1 + len(tokens)))
    rows = [
        {"step": every * (1 + at), "rank": rank, "layer": name, "trainable": trainable,
         "act_finite": True, "expert_tokens": mine, "experts_idle": float(mine.count(0))}
        for at, of_step in enumerate(tokens)
        for rank, mine in enumerate(of_step if ranks > 1 else [of_step])
    ]  # fmt: skip
    table = step_table(step=list(steps), loss=[1.0 - at / 1e4 for at in steps])
    return HandBuiltRun(table, layers=layer_table(rows))


def found(run):
    return [one for one in diagnose(run).findings if one.code == "AMP314"]


FAIR = 400
BUSY, ONE_IDLE = [500, 300, 100, 700], [500, 397, 3, 700]  # less than a hundredth of 400


def test_an_expert_with_next_to_no_tokens_is_a_warning_that_names_it():
    (one,) = found(routed(*[BUSY] * 5, *[ONE_IDLE] * 6))
    assert (one.layer, one.severity.value, one.because_of) == (ROUTER, "warning", None)
    assert (one.first_step, one.last_step) == (300, 500)
    assert one.summary == f"{ROUTER} sends next to no tokens to 1 of its 4 experts."
    assert "In 5 samples expert 2 received 15 tokens at most; an equal share is 2,000." in one.cause


LOOK_ALIKES = {
    "all experts are used": [[500, 375, 25, 700]] * 20,
    "for a short time": [BUSY, *[ONE_IDLE] * 4] * 4,
    "in every other sample": [ONE_IDLE, BUSY] * 10,
    "few tokens were seen": [[5, 4, 0, 7]] * 20,
    "it is over": [*[ONE_IDLE] * 10, *[BUSY] * 6],
}


@pytest.mark.parametrize("which", LOOK_ALIKES)
def test_what_is_no_idle_expert(which):
    assert found(routed(*LOOK_ALIKES[which])) == []


def test_the_first_steps_do_not_count():
    (one,) = found(routed(*[BUSY] * 4, *[ONE_IDLE] * 22, every=10))
    assert (one.first_step, one.last_step) == (FIRST_STEP, FIRST_STEP + WINDOW_STEPS)


def test_a_frozen_router_is_not_judged():
    assert found(routed(*[ONE_IDLE] * 20, trainable=False)) == []


def test_the_tokens_of_all_ranks_count():
    assert found(routed(*[[ONE_IDLE, BUSY]] * 20, ranks=2)) == []
    (one,) = found(routed(*[[ONE_IDLE, ONE_IDLE]] * 20, ranks=2))
    assert "In 5 samples expert 2 received 30 tokens at most" in one.cause


def test_one_idle_expert_of_many_is_information():
    (one,) = found(routed(*[[500] * 63 + [0]] * 20))
    assert one.severity.value == "info"


def test_it_is_told_with_the_sample_after_a_full_window():
    full = max(WINDOW_SAMPLES, 1 + WINDOW_STEPS // EVERY, FAIR_TOKENS / FAIR)
    at = [bool(found(routed(*[ONE_IDLE] * count))) for count in range(1, 10)]
    assert at == [count > full for count in range(1, 10)]


def test_it_is_no_cause_and_not_the_headline_beside_a_trouble():
    run = routed(*[ONE_IDLE] * 20)
    run.steps = step_table(loss=[1.0] * 500 + [float("nan")] * 500)
    first, *others = diagnose(run).findings
    assert first.code == "AMP204"
    assert all(one.because_of != "AMP314" for one in (first, *others))


def test_a_live_reader_is_told_the_same():
    samples, engine = [ONE_IDLE] * 5 + [BUSY] * 5 + [ONE_IDLE] * 6, Engine(block_rows=64)
    told = []
    for count in range(1, len(samples) + 1):
        run = routed(*samples[:count])
        live = engine.feed(run).diagnosis()
        assert same(live, diagnose(run))
        told.append(bool(found(run)))
    assert told == [False] * 5 + [True] * 5 + [False] * 5 + [True]


def test_a_restart_begins_a_new_window():
    first = routed(*[ONE_IDLE] * 5)
    again = HandBuiltRun(
        pa.concat_tables([first.steps, first.steps]),
        layers=pa.concat_tables([first.layers, first.layers]),
    )
    assert found(again) == []
