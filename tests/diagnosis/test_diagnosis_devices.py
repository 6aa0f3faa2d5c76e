"""Cards by hand-built rows: torch's allocator counters and NVML's readings as their makers say.

`memory_allocated` falls to weights and optimizer state between steps and rises to the activations'
peak within one; a sample falls anywhere in between. NVML's utilisation is the share of a second in
which any kernel ran.
"""

from __future__ import annotations

import numpy as np
import pytest
from hand_built import HandBuiltRun, device_table, event_table, layer_table, scaled_run, step_table

from ampwatch.diagnosis import diagnose
from ampwatch.diagnosis.doubling_windows import DoublingWindows

GB = 1e9
TOTAL = 80e9
SECOND = 1_000_000_000


def found(run):
    """{code: severity} of a run."""
    return {f.code: f.severity.value for f in diagnose(run).findings}


def finding(run, code):
    (one,) = [f for f in diagnose(run).findings if f.code == code]
    return one


def card(
    count=1200, *, kept=8 * GB, active=20 * GB, busy=0.95, device="cuda:0", rank=0, seed=0, **same
):
    """A card sampled once a second: what is kept, and activations at a random moment of a step."""
    moment = np.random.default_rng(seed).random(count)
    kept, active, busy = (np.broadcast_to(x, count).astype(float) for x in (kept, active, busy))
    peak = np.maximum.accumulate(kept + active)
    allocated = kept + active * moment
    facts = {"name": "NVIDIA A100-SXM4-80GB", "capability": "8.0", "total_bytes": int(TOTAL)}
    return [
        {"time_ns": (1 + n) * SECOND, "rank": rank, "device": device, **facts,
         "allocated_bytes": int(allocated[n]), "peak_bytes": int(peak[n]),
         "reserved_bytes": int(1.1 * peak[n]), "used_bytes": int(1.1 * peak[n] + 0.5 * GB),
         "utilisation": float(busy[n]), **same}
        for n in range(count)
    ]  # fmt: skip


def run_with(*cards, steps=300, **rest):
    """A healthy run with these cards."""
    rows = sorted((row for one in cards for row in one), key=lambda row: row["time_ns"])
    return scaled_run([False] * steps, devices=device_table(rows), **rest)


def rise(first, last, count=1200, start=0.0, stop=1.0):
    """From `first` to `last` between two moments of the record, constant before and after."""
    at = np.linspace(0, 1, count)
    return first + (last - first) * np.clip((at - start) / (stop - start), 0, 1)


# -- memory ----------------------------------------------------------------------------------------


def test_memory_that_is_kept_from_step_to_step_is_a_warning():
    run = run_with(card(kept=rise(8 * GB, 30 * GB)))
    assert found(run) == {"AMP503": "warning"}
    assert finding(run, "AMP503").summary.startswith("Memory on cuda:0 keeps growing: 6")


def test_a_leak_that_would_take_days_to_fill_the_card_is_told_without_alarm():
    run = run_with(card(kept=rise(1 * GB, 1.4 * GB), active=0.2 * GB))
    assert found(run) == {"AMP503": "info"}
    assert diagnose(run).verdict.value == "healthy"


BENIGN = {
    "a steady run": {},
    "the allocator's warm-up": {"kept": rise(1 * GB, 8 * GB, stop=0.03)},
    "the first evaluation": {"active": np.where(np.arange(1200) < 500, 20 * GB, 45 * GB)},
    "sequences that grow and then stay": {"active": rise(5 * GB, 60 * GB, stop=0.5)},
    "sequences that grow to the end": {"active": rise(5 * GB, 40 * GB)},
    "a card filled on purpose": {"active": 70.5 * GB, "reserved_bytes": int(79 * GB)},
    "a buffer that is filled and then stays": {"kept": rise(8 * GB, 40 * GB, stop=0.6)},
    "layers that are unfrozen one by one": {
        "kept": 8 * GB + 4 * GB * np.floor(np.linspace(0, 3.99, 1200))
    },
    "an evaluation that collects its outputs": {
        "kept": 8 * GB + 20 * GB * (np.arange(1200) % 300 > 250)
    },
    "another process that comes and goes": {
        "used_bytes": int(50 * GB),
    },
    "batches of every length": {
        "active": np.random.default_rng(1).uniform(5, 40, 1200) * GB,
    },
}


@pytest.mark.parametrize("name", BENIGN)
def test_memory_that_only_looks_like_a_leak_is_none(name):
    assert found(run_with(card(**BENIGN[name]))) == {}


def test_a_short_record_is_all_warm_up():
    assert found(run_with(card(200, kept=rise(8 * GB, 30 * GB, 200)))) == {}


def test_a_peak_that_creeps_to_the_end_of_the_card_is_near_the_limit():
    full = {"reserved_bytes": int(78.5 * GB), "used_bytes": int(79 * GB)}
    run = run_with(card(active=rise(62 * GB, 69 * GB), **full))
    assert found(run) == {"AMP504": "warning"}
    assert (
        finding(run, "AMP504").summary
        == "cuda:0 uses 97 % of its memory, and the peak still rises."
    )


def test_what_others_hold_of_the_card_is_not_there_for_this_process():
    rows = card(active=rise(25 * GB, 31 * GB))
    for row in rows:
        row["used_bytes"] = row["reserved_bytes"] + 40 * 10**9
    assert found(run_with(rows)) == {"AMP504": "warning"}


def test_a_leak_explains_the_memory_that_ran_out():
    words = {"message": "CUDA out of memory", "type": "OutOfMemoryError"}
    events = event_table([(299, "exception", words)])
    run = run_with(card(kept=rise(8 * GB, 40 * GB)), events=events)
    assert finding(run, "AMP506").because_of == "AMP503"


def test_memory_that_ran_out_in_splinters_is_told_with_its_remedy():
    card_then = {"device": "cuda:0", "allocated_bytes": 50e9, "total_bytes": 80e9,
                 "inactive_split_bytes": 20e9}  # fmt: skip
    words = {"message": "CUDA out of memory", "out_of_memory": True, "memory": [card_then, 3]}
    run = run_with(card(10), events=event_table([(299, "exception", words)]))
    cause = finding(run, "AMP506").cause
    assert "cuda:0 held 50.0 GB of 80.0 GB. 20.0 GB more is cached" in cause
    assert "expandable_segments" in cause


# -- work ------------------------------------------------------------------------------------------


def products(flops, count=4):
    """Sampled layers that multiply in fp16."""
    return layer_table(
        [{"step": s, "layer": f"l{n}", "output_dtype": "float16", "flops": flops,
          "param_dtype": "float32", "trainable": True} for s in (0, 100, 200) for n in range(count)]
    )  # fmt: skip


def waits(count=1200, level=0.3, seed=2):
    return np.clip(np.random.default_rng(seed).normal(level, 0.05, count), 0.01, 1)


def test_a_card_that_waits_even_in_its_busiest_seconds_is_idle():
    run = run_with(card(busy=waits()), layers=products(1e11))
    assert found(run) == {"AMP505": "info"}


def test_products_too_small_for_their_launch_explain_the_waiting():
    run = run_with(card(busy=waits()), layers=products(1e6))
    assert found(run) == {"AMP505": "info", "AMP508": "info"}
    assert finding(run, "AMP505").because_of == "AMP508"


def test_small_products_on_a_busy_card_are_no_finding():
    assert found(run_with(card(), layers=products(1e6))) == {}


PAUSES = {
    "evaluations and checkpoints": np.where(np.arange(1200) % 100 < 30, 0.0, 0.95),
    "data that comes in bursts": np.where(np.arange(1200) % 10 < 3, 0.2, 0.9),
    "a notebook at rest": np.where(np.arange(1200) < 300, 0.95, 0.0),
    "a start that compiles": np.where(np.arange(1200) < 600, 0.0, 0.95),
}


@pytest.mark.parametrize("name", PAUSES)
def test_a_card_that_only_pauses_is_not_idle(name):
    assert found(run_with(card(busy=PAUSES[name]), layers=products(1e6))) == {}


def test_one_of_two_cards_that_does_all_the_work_is_told_by_name():
    run = run_with(card(busy=0.96), card(busy=0.0, device="cuda:1"))
    assert found(run) == {"AMP606": "warning"}
    assert finding(run, "AMP606").summary == "cuda:1 is idle, and cuda:0 does all the work."


COMPANIONS = {
    "as busy": {"busy": 0.9},
    "taking turns": {"busy": 0.45},
    "holding next to nothing": {"busy": 0.0, "kept": 0.1 * GB, "active": 0.1 * GB},
    "not told of by NVML": {"utilisation": None},
    "used now and then": {"busy": np.where(np.arange(1200) % 10 == 0, 0.5, 0.0)},
}


@pytest.mark.parametrize("name", COMPANIONS)
def test_two_cards_of_which_none_is_idle_are_no_finding(name):
    assert "AMP606" not in found(run_with(card(), card(device="cuda:1", **COMPANIONS[name])))


def autocast(dtype, devices):
    steps = step_table(scale=[65536.0] * 100, scale_after=[65536.0] * 100,
                       skipped=[False] * 100, autocast_dtype=[dtype] * 100)  # fmt: skip
    return HandBuiltRun(steps, devices=device_table(devices))


CARDS = [
    ("NVIDIA GeForce GTX 1080", "6.1", "float16", True),
    ("NVIDIA GeForce GTX 1660 Ti", "7.5", "float16", True),
    ("Tesla T4", "7.5", "float16", False),
    ("Tesla V100-SXM2-16GB", "7.0", "float16", False),
    ("Tesla V100-SXM2-16GB", "7.0", "bfloat16", True),
    ("NVIDIA B200", "10.0", "bfloat16", False),
    ("NVIDIA GeForce GTX 1080", "6.1", None, False),
    ("AMD Instinct MI250X", "9.0", "float16", False),
    ("NVIDIA GeForce GTX 1080", "six", "float16", False),
    ("NVIDIA GeForce GTX 1080", None, "float16", False),
]


@pytest.mark.parametrize(("name", "capability", "dtype", "lacks"), CARDS)
def test_a_card_without_tensor_cores_for_the_format_is_named(name, capability, dtype, lacks):
    run = autocast(dtype, card(10, name=name, capability=capability))
    assert ("AMP507" in found(run)) is lacks


# -- what there may be -----------------------------------------------------------------------------


def test_rows_of_a_processor_and_of_a_card_that_failed_say_nothing():
    rows = [{"time_ns": n * SECOND, "device": "cpu", "host_rss_bytes": n * 10**7}
            for n in range(600)]  # fmt: skip
    failed = [{"time_ns": n * SECOND, "device": "cuda:0"} for n in range(600)]
    assert found(run_with(rows, failed)) == {}


@pytest.mark.parametrize("parts", [[1] * 500, [499, 1], [3, 200, 297], [500]])
@pytest.mark.parametrize("operation", [np.fmin, np.add])
def test_windows_are_the_same_however_the_series_came(parts, operation):
    series = np.random.default_rng(3).random(500)
    windows, at = DoublingWindows.empty(operation, 32), 0
    for size in parts:
        windows, at = windows.with_next(series[at : at + size]), at + size
    at_once = DoublingWindows.empty(operation, 32).with_next(series)
    whole = [operation.reduce(series[n : n + 16]) for n in range(0, 500, 16)]
    assert windows.values.tolist() == at_once.values.tolist()
    assert (windows.width, windows.values.tolist()) == (16, pytest.approx(whole, rel=1e-12))
    assert len(windows.whole) == 500 // 16


# -- shapes ----------------------------------------------------------------------------------------


def product(name, shape, flops, rows=None, dtype="float16"):
    return {"step": 50, "layer": name, "output_dtype": dtype, "flops": flops, "rows": rows,
            "weight_shape": list(shape)}  # fmt: skip


BODY = product("body", (1024, 768), 1e12, 8192)
HEAD = product("head", (50257, 768), 8e11, 8192)


def test_a_large_matrix_of_odd_sides_is_told_with_the_sides_to_take():
    run = run_with(card(), layers=layer_table([BODY, HEAD]))
    assert found(run) == {"AMP501": "info"}
    one = finding(run, "AMP501")
    assert one.layer == "head"
    assert one.summary.startswith("44 % of the operations")
    assert "50257 to 50264" in one.action


def test_a_batch_that_is_no_multiple_of_eight_is_told():
    run = run_with(card(), layers=layer_table([product("body", (1024, 768), 1e12, 8190)]))
    assert "8190 to 8192" in finding(run, "AMP501").action


WELL = {
    "aligned": (card, [BODY]),
    "a first layer of three channels": (
        card, [BODY, product("stem", (64, 3, 7, 7), 3e10), product("classes", (10, 768), 1e6, 8)],
    ),
    "one channel a group": (card, [product("depthwise", (96, 1, 3, 3), 1e12)]),
    "float32": (card, [product("head", (50257, 768), 1e12, 8192, dtype="float32")]),
    "a card without tensor cores": (
        lambda: card(name="NVIDIA GeForce GTX 1660", capability="7.5"), [HEAD],
    ),
    "a processor": (
        lambda: card(device="cpu", name=None, capability=None, utilisation=None), [HEAD],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WELL)
def test_shapes_that_lose_little_are_no_finding(name):
    make, rows = WELL[name]
    assert "AMP501" not in found(run_with(make(), layers=layer_table(rows)))
