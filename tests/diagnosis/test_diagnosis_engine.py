"""The engine fed bit by bit says what it says of the whole; whatever comes, it does not fail."""

from __future__ import annotations

import dataclasses
import json
import math
import pickle

import pyarrow as pa
import pytest
from hand_built import (
    DEFAULTS,
    HandBuiltRun,
    Info,
    device_table,
    event_table,
    layer_table,
    scaled_run,
    step_table,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from same_diagnosis import found, same

from ampwatch.diagnosis import Engine, diagnose
from ampwatch.diagnosis import engine as diagnosis_engine
from ampwatch.diagnosis.case import new_case

SMALL = {"block_rows": 16, "settled_rows": 4}
NUMBERS = st.sampled_from([None, 0.0, 1e-320, 0.5, 1.0, 2.0, 4.0, 1024.0, 65536.0, 2.0**-130,
                           -1.0, math.inf, math.nan])  # fmt: skip
TRUTHS = st.sampled_from([None, True, False, False])
KINDS = ["overflow", "overflow", "ended", "exception", "misuse", "gap", "state-loaded",
         "state-saved", "scale-set", "optimizer", "started", "scaler-replaced", "lr-changed",
         "batch-size-changed", "no such kind"]  # fmt: skip
DETAILS = st.one_of(
    st.none(),
    st.text(max_size=6),
    st.fixed_dictionaries(
        {},
        optional={
            "direction": st.sampled_from(["forward", "backward", "input", "weights", "loss", 7]),
            "layer": st.sampled_from(["up", "down", "", None, 3]),
            "exact": st.sampled_from([True, False, None]),
            "fatal": TRUTHS,
            "own_finite": TRUTHS,
            "own_exact": TRUTHS,
            "second_step": TRUTHS,
            "second_unscale": TRUTHS,
            "code": st.sampled_from(["AMP401", "AMP403", "AMP412", 9, None]),
            "scales": st.sampled_from([None, 3, [], [256.0, "inf", math.inf], [256.0, 512.0]]),
            "updates": st.sampled_from([None, 2, "two"]),
            "init_scale": NUMBERS,
            "backoff_factor": NUMBERS,
            "groups": st.sampled_from([None, [], [{"lr": 0.1}, 3], [{"betas": 1, "lr": "x"}]]),
            "optimizer": st.sampled_from([0, 1, None, "a"]),
            "message": st.sampled_from(["out of memory", "same dtype", ""]),
        },
    ).map(json.dumps),
)
STEP_ROWS = st.fixed_dictionaries(
    {"gap": st.sampled_from([0, 1, 1, 1, 1, 3]), "rank": st.sampled_from([0, 0, 0, 1, 2]),
     "optimizer": st.sampled_from([None, 0, 0, 1]), "scale": NUMBERS, "scale_after": NUMBERS,
     "skipped": TRUTHS, "loss": NUMBERS, "grad_norm": NUMBERS, "param_norm": NUMBERS,
     "input_finite": TRUTHS, "update_seen": TRUTHS}
)  # fmt: skip
LAYER_ROWS = st.fixed_dictionaries(
    {"step": st.integers(0, 80), "rank": st.sampled_from([0, 1]),
     "layer": st.sampled_from(["up", "attn.q", "attn.k", "attn.softmax", "head", None]),
     "input_finite": TRUTHS,
     "act_finite": TRUTHS, "weight_finite": TRUTHS, "underflow_share": NUMBERS,
     "log2_headroom": NUMBERS, "scale_low": NUMBERS, "scale_high": NUMBERS}
)  # fmt: skip
BYTES = st.sampled_from([None, 0, 1, 10**9, 2**40])
DEVICE_ROWS = st.fixed_dictionaries(
    {"rank": st.sampled_from([0, 1, 2]), "device": st.sampled_from(["cpu", "cuda:0", None]),
     "name": st.sampled_from([None, "Tesla T4"]), "utilisation": NUMBERS,
     "capability": st.sampled_from([None, "7.5", "gfx"]), "allocated_bytes": BYTES,
     "peak_bytes": BYTES, "used_bytes": BYTES, "reserved_bytes": BYTES, "total_bytes": BYTES,
     "gap": st.sampled_from([0, 1, 1, 5])}
)  # fmt: skip
EVENTS = st.tuples(st.one_of(st.none(), st.integers(0, 80)), st.sampled_from(KINDS), DETAILS,
                   st.sampled_from([0, 1, 2]))  # fmt: skip


@st.composite
def streams(draw):
    """Rows of four tables as they arrive, and where a look is taken."""
    steps, now = [], 0
    for row in draw(st.lists(STEP_ROWS, max_size=70)):
        now += row["gap"]
        steps.append(("steps", {**row, "step": now}))
    others = [("layers", row) for row in draw(st.lists(LAYER_ROWS, max_size=25))]
    others += [("events", event) for event in draw(st.lists(EVENTS, max_size=15))]
    arrivals = list(steps)
    for one in others:
        arrivals.insert(draw(st.integers(0, len(arrivals))), one)
    seconds, often = 0, draw(st.sampled_from([1, 40]))
    for row in draw(st.lists(DEVICE_ROWS, max_size=10)):
        at = draw(st.integers(0, len(arrivals)))
        times = [seconds + row["gap"] * n for n in range(1, often + 1)]
        arrivals[at:at] = [("devices", {**row, "time_ns": t * 10**9}) for t in times]
        seconds = times[-1]
    cuts = draw(st.lists(st.integers(0, len(arrivals)), max_size=5))
    return arrivals, sorted(cuts)


def run_of(arrivals, info=None):
    """The rows in canonical order: by step, then rank, then as they came."""
    steps = sorted((r for t, r in arrivals if t == "steps"), key=lambda r: (r["step"], r["rank"]))
    layers = sorted((r for t, r in arrivals if t == "layers"), key=lambda r: (r["step"], r["rank"]))
    devices = sorted((r for t, r in arrivals if t == "devices"), key=lambda r: r["time_ns"])
    devices = [{name: row[name] for name in row if name != "gap"} for row in devices]
    events, last = [], 0
    for table, event in arrivals:
        if table == "events":
            last = max(last, event[0] or 0)
            events.append((last if event[0] is None else event[0], event))
    events = [event for _, event in sorted(events, key=lambda pair: pair[0])]
    names = ("step", "rank", "optimizer", "scale", "scale_after", "skipped", "loss", "grad_norm",
             "param_norm", "input_finite", "update_seen")  # fmt: skip
    return HandBuiltRun(
        step_table(**{n: [row[n] for row in steps] for n in names}),
        layers=layer_table(layers),
        devices=device_table(devices),
        events=with_ranks(event_table([e[:3] for e in events], raw=True), [e[3] for e in events]),
        info=info or Info(scaler={**DEFAULTS, "growth_interval": 20}),
    )


def with_ranks(events, ranks):
    """Events of these ranks."""
    at = events.schema.get_field_index("rank")
    return events.set_column(at, "rank", pa.array(ranks, pa.int32()))


@settings(max_examples=settings().max_examples // 3, suppress_health_check=[HealthCheck.too_slow])
@given(streams())
def test_whatever_the_batches_the_engine_says_what_it_says_of_all_rows_at_once(stream):
    arrivals, cuts = stream
    engine = Engine(**SMALL)
    for cut in [*cuts, len(arrivals)]:
        run = run_of(arrivals[:cut])
        live = engine.feed(run).diagnosis()
        assert same(live, Engine(**SMALL).feed(run).diagnosis())
        assert same(live, engine.diagnosis())
        json.dumps(live.to_json(), allow_nan=False)


@settings(max_examples=settings().max_examples // 4, suppress_health_check=[HealthCheck.too_slow])
@given(streams())
def test_where_blocks_end_makes_no_difference_to_the_findings(stream):
    run = run_of(stream[0])
    small, large = (e.feed(run).diagnosis() for e in (Engine(**SMALL), Engine()))
    assert found(small) == found(large)


def test_a_step_that_an_exception_ended_is_known_across_the_end_of_a_block():
    missed = [None, None, None, False, None, None, False, None]
    rows = {"step": [0] * 8, "rank": [0] * 8, "update_seen": missed}
    events = event_table([(0, "exception", None)])
    run = HandBuiltRun(step_table(**rows), events=events)
    small, large = (Engine(**size).feed(run).diagnosis() for size in (SMALL, {}))
    assert found(small) == found(large)


@pytest.mark.parametrize("accepted", range(10, 18))
def test_a_scale_that_only_the_next_row_tells_is_known_across_the_end_of_a_block(accepted):
    count = accepted + 6
    steps = step_table(
        step=list(range(count)), rank=[0] * count,
        scale=[None] * (count - 2) + [0.0, 1024.0], scale_after=[None] * count,
        skipped=[False] * accepted + [True] * 5 + [False],
    )  # fmt: skip
    small, large = (Engine(**size).feed(HandBuiltRun(steps)).diagnosis() for size in (SMALL, {}))
    assert found(small) == found(large)


def test_a_restart_that_repeats_steps_is_the_same_live_and_replayed():
    first = scaled_run([False] * 60 + [True] * 3 + [False] * 20, growth_interval=25)
    again = scaled_run([False] * 50, growth_interval=25)
    steps = pa.concat_tables([first.steps, again.steps])
    engine = Engine(**SMALL)
    for end in range(1, steps.num_rows + 1, 7):
        run = HandBuiltRun(steps.slice(0, end), info=first.info)
        assert same(engine.feed(run).diagnosis(), Engine(**SMALL).feed(run).diagnosis())
    assert engine.diagnosis().run.steps == 83  # those that were taken again count once


def test_swarms_and_spikes_are_the_same_live_and_replayed_wherever_blocks_end():
    count = 300
    bad = {60, 63, 66, 69, 150, 151, 152, 153, 240}
    skipped = [step in bad for step in range(count)]
    scaled = scaled_run(skipped, growth_interval=25).steps.select(("scale", "scale_after"))
    steps = step_table(
        skipped=skipped,
        loss=[1.0] * count,
        input_amax=[300.0 if one else 3.0 for one in skipped],
        update_norm=[0.01] * count,
        **scaled.to_pydict(),
    )
    info = Info(scaler={**DEFAULTS, "growth_interval": 25})
    engine = Engine(**SMALL)
    for end in range(6, count + 1, 7):  # at every place in a block of 16, twice and more
        run = HandBuiltRun(steps.slice(0, end), info=info)
        live = engine.feed(run).diagnosis()
        assert same(live, Engine(**SMALL).feed(run).diagnosis())
        assert found(live) == found(diagnose(run))
    assert {"AMP206", "AMP303"} <= {finding.code for finding in live.findings}


def test_a_row_that_comes_long_after_its_step_still_counts():
    run = scaled_run([False] * 200)
    engine = Engine(**SMALL).feed(run)
    assert engine.diagnosis().findings == ()
    late = [{"step": 30, "layer": "up", "weight_finite": False}]
    told = dataclasses.replace(run, layers=layer_table(late))
    assert engine.feed(told).diagnosis().headline.code == "AMP207"
    assert same(engine.diagnosis(), diagnose(told))


def test_a_rank_that_comes_late_still_counts():
    run = scaled_run([False] * 200)
    engine = Engine(**SMALL).feed(run)
    steps = step_table(step=[10], rank=[1], skipped=[True], scale=[65536.0])
    joined = dataclasses.replace(run, steps=pa.concat_tables([run.steps, steps]))
    assert engine.feed(joined).diagnosis().run.skipped == 1


def test_what_is_remembered_does_not_grow_with_the_run():
    def size(steps):
        pattern = ([False] * 40 + [True]) * (steps // 41)
        rows = [
            {"step": s, "layer": f"block.{i}", "underflow_share": 0.9, "log2_headroom": 3.0}
            for s in range(0, len(pattern), 50)
            for i in range(20)
        ]
        events = [(s, "overflow", {"direction": "backward", "layer": f"l{s % 7}"})
                  for s in range(40, len(pattern), 41)]  # fmt: skip
        devices = [
            {"time_ns": n * 10**9, "device": f"cuda:{n % 8}", "allocated_bytes": n, "peak_bytes": n,
             "total_bytes": 10**9, "utilisation": n % 100 / 100} for n in range(steps)
        ]  # fmt: skip
        run = scaled_run(pattern, layers=layer_table(rows), events=event_table(events),
                         devices=device_table(devices))  # fmt: skip
        engine = Engine(block_rows=256, settled_rows=64).feed(run)
        return len(pickle.dumps((engine._settled.case, engine._devices.settled)))

    small, large = size(8_000), size(32_000)
    assert large < small * 1.05


@pytest.mark.parametrize("number", ["1e999", "1" + "0" * 400])
def test_numbers_without_end_are_no_reason_to_fail(number):
    detail = f'{{"optimizer": {number}, "groups": [{{"lr": {number}}}]}}'
    run = scaled_run([False] * 30, events=event_table([(0, "optimizer", detail)], raw=True))
    scaler = json.loads(f'{{"init_scale": {number}, "growth_interval": {number}}}')
    assert diagnose(dataclasses.replace(run, info=Info(scaler=scaler))).run.steps == 30


def test_an_engine_without_a_run_says_what_to_do():
    with pytest.raises(RuntimeError, match="feed"):
        Engine().diagnosis()


def test_a_rank_that_is_always_far_behind_costs_a_new_beginning_only_now_and_then(monkeypatch):
    monkeypatch.setattr(diagnosis_engine, "_PATIENCE_ROWS", 64)
    began = []

    def begin(run):
        began.append(run)
        return new_case(run)

    monkeypatch.setattr(diagnosis_engine, "new_case", begin)
    engine = Engine(**SMALL)
    for done in range(20, 3000, 20):
        behind = max(1, done - 1000)
        columns = {"step": [*range(done), *range(behind)], "rank": [0] * done + [1] * behind}
        skipped = [False] * (done + behind)
        engine.feed(HandBuiltRun(step_table(**columns, skipped=skipped)))
    assert 1 < len(began) <= 6  # the first, and once for each doubling up to its lag
