"""Several ranks: those that disagree, fall silent or do the same work, and healthy ones."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pytest
from hand_built import DEFAULTS, HandBuiltRun, Info, device_table, event_table, follow, step_table

from ampwatch.diagnosis import diagnose

SECOND = 1_000_000_000


def found(run):
    """{code: severity} of a run."""
    return {f.code: f.severity.value for f in diagnose(run).findings}


def two(count=200, *, other_loss=1.0, other_scale=None, other_skips=(), other_count=None, **rest):
    """Two ranks whose losses wander; the second one's as told."""
    loss = np.random.default_rng(0).normal(2.0, 0.1, count).tolist()
    there = other_count or count
    scale = other_scale or [65536.0] * there
    columns = {
        "step": [*range(count), *range(there)],
        "rank": [0] * count + [1] * there,
        "loss": [*loss, *(value * other_loss for value in loss[:there])],
        "scale": [65536.0] * count + scale,
        "scale_after": [65536.0] * count + scale,
        "skipped": [False] * count + [step in other_skips for step in range(there)],
        "time_ns": [SECOND * (1 + step) for step in (*range(count), *range(there))],
    }
    return HandBuiltRun(step_table(**columns), info=Info(scaler=DEFAULTS), **rest)


def test_ranks_that_agree_are_healthy():
    assert found(two(other_loss=1.01)) == {}


def test_a_scale_that_differs_between_ranks_is_an_error():
    run = two(other_loss=1.01, other_scale=[65536.0] * 100 + [32768.0] * 100)
    (one,) = [f for f in diagnose(run).findings if f.code == "AMP601"]
    assert (one.severity.value, one.first_step, one.ranks) == ("error", 100, (1,))


def test_ranks_that_started_with_different_scales_are_told_to_restore_one_state():
    """They never skip: no overflow flag would have kept them together."""
    run = two(other_loss=1.01, other_scale=[256.0] * 200)
    (one,) = [f for f in diagnose(run).findings if f.code == "AMP601"]
    assert one.summary == "The ranks started with different loss scales: 256, 65,536."
    assert "rank 0 at 65,536, rank 1 at 256" in one.cause
    assert one.action.startswith("Restore the same scaler state on all ranks")


def test_ranks_that_part_later_started_alike():
    run = two(other_loss=1.01, other_scale=[65536.0] * 3 + [32768.0] * 197)
    (one,) = [f for f in diagnose(run).findings if f.code == "AMP601"]
    assert "from step 3" in one.summary
    assert "Share the overflow flag" in one.action


def test_a_step_that_only_one_rank_skips_parts_them():
    assert found(two(other_loss=1.01, other_skips={50, 51, 52}))["AMP601"] == "error"


def test_a_rank_that_stops_while_the_other_goes_on_is_silent():
    run = two(other_loss=1.01, other_count=100, clean_end=False)
    (one,) = [f for f in diagnose(run).findings if f.code == "AMP603"]
    assert (one.first_step, one.ranks) == (99, (1,))


def test_a_rank_that_lags_a_little_is_not_silent():
    assert "AMP603" not in found(two(other_loss=1.01, other_count=150, clean_end=False))


def test_ranks_with_the_very_same_losses_see_the_same_data():
    assert found(two()) == {"AMP605": "warning"}


def test_a_constant_loss_says_nothing_of_the_data():
    run = two()
    at = run.steps.schema.get_field_index("loss")
    run.steps = run.steps.set_column(at, "loss", [[1.0] * run.steps.num_rows])
    assert "AMP605" not in found(run)


# -- whose overflow it was -------------------------------------------------------------------------


def overflowing(at, own, *, ranks=2, count=400, exact=True, direction=None, named=None):
    """Ranks that skip these steps together; `own` says for a step which ranks' own was finite.

    `named` says for a step what else the rank whose own was not finite tells.
    """
    skipped = [step in set(at) for step in range(count)]
    scale, after = follow(skipped, 65536.0, 2000)
    columns = {name: values * ranks for name, values in
               {"step": list(range(count)), "scale": scale, "scale_after": after,
                "skipped": skipped}.items()}  # fmt: skip
    columns["rank"] = [rank for rank in range(ranks) for _ in range(count)]
    columns["loss"] = np.random.default_rng(0).normal(2, 0.1, count * ranks).tolist()
    columns["time_ns"] = [SECOND * (1 + step) for step in columns["step"]]
    events = event_table([
        (step, "overflow", {"own_finite": own(step)[rank], "own_exact": exact}
         | ({"direction": direction} if direction and not own(step)[rank] else {})
         | (named(step) if named and not own(step)[rank] else {}))
        for step in at for rank in range(ranks)
    ])  # fmt: skip
    of_rank = [rank for _ in at for rank in range(ranks)]
    where = events.schema.get_field_index("rank")
    events = events.set_column(where, "rank", [of_rank])
    return HandBuiltRun(step_table(**columns), events=events, info=Info(scaler=DEFAULTS))


SPREAD = range(40, 400, 30)  # a dozen, each an episode of its own


def by_ranks(run):
    return {
        f.code: (f.severity.value, f.ranks)
        for f in diagnose(run).findings
        if f.code in {"AMP602", "AMP604"}
    }


def test_the_one_rank_that_always_overflows_is_named():
    run = overflowing(SPREAD, lambda _: (True, False))
    assert by_ranks(run) == {"AMP602": ("warning", (1,))}


@pytest.mark.parametrize(
    ("exact", "said"), [(True, "first in layer head."), (False, "in or beside layer head.")]
)
def test_the_layer_that_every_overflow_of_the_rank_begins_in_is_named_too(exact, said):
    tells = {"layer": "head", "exact": exact}
    run = overflowing(SPREAD, lambda _: (True, False), named=lambda _: tells)
    (one,) = [f for f in diagnose(run).findings if f.code == "AMP602"]
    assert (one.layer, one.summary.endswith(said)) == ("head", True)


def test_a_rank_that_overflows_now_here_and_now_there_is_named_without_a_layer():
    run = overflowing(
        SPREAD, lambda _: (True, False),
        named=lambda step: {"layer": "head" if step > SPREAD[3] else "embed", "exact": True},
    )  # fmt: skip
    (one,) = [f for f in diagnose(run).findings if f.code == "AMP602"]
    assert (one.layer, one.ranks) == (None, (1,))
    assert "layer" not in one.summary


def test_ranks_that_take_turns_are_not_blamed():
    assert by_ranks(overflowing(SPREAD, lambda step: (step % 60 == 10, step % 60 != 10))) == {}


def test_a_few_overflows_of_one_of_two_ranks_may_be_chance():
    assert by_ranks(overflowing(SPREAD[-4:], lambda _: (True, False))) == {}


def test_of_eight_ranks_it_takes_fewer_to_be_no_chance():
    own = (*(True,) * 7, False)
    run = overflowing(SPREAD[-4:], lambda _: own, ranks=8)
    assert by_ranks(run) == {"AMP602": ("warning", (7,))}


def test_a_loss_that_only_one_rank_loses_is_told_at_once_and_is_a_warning_when_it_repeats():
    once = overflowing(SPREAD[-1:], lambda _: (True, False), direction="loss")
    assert by_ranks(once) == {"AMP602": ("info", (1,))}
    often = overflowing(SPREAD[-3:], lambda _: (True, False), direction="forward")
    assert by_ranks(often) == {"AMP602": ("warning", (1,))}


def test_a_rank_that_has_long_been_well_is_told_of_without_alarm():
    own = (*(True,) * 7, False)
    run = overflowing(SPREAD[:4], lambda _: own, ranks=8, count=2000)
    assert by_ranks(run) == {"AMP602": ("info", (7,))}


def test_a_rank_whose_fall_of_the_scale_still_stands_is_the_headline_though_it_is_well_by_now():
    run = overflowing(SPREAD, lambda _: (True, False), count=2000)
    found = {f.code: f for f in diagnose(run).findings}
    assert by_ranks(run) == {"AMP602": ("warning", (1,))}
    assert diagnose(run).headline.code == "AMP602"
    assert found["AMP103"].because_of == "AMP602"
    assert "nothing is learnt" not in found["AMP103"].action


@pytest.mark.parametrize("direction", ["forward", "input"])
def test_what_leaves_its_format_on_one_rank_alone_says_so(direction):
    tells = {"layer": "head", "exact": True} if direction == "forward" else {}
    run = overflowing(
        SPREAD, lambda _: (True, False), direction=direction, named=lambda _: tells
    )  # fmt: skip
    head = diagnose(run).headline
    assert (head.code, head.ranks) == ({"forward": "AMP203", "input": "AMP209"}[direction], (1,))
    assert "on rank 1 alone" in head.summary


def test_finite_gradients_on_every_rank_leave_the_reduction():
    run = overflowing(SPREAD, lambda _: (True, True))
    assert by_ranks(run) == {"AMP604": ("error", (0, 1))}


def test_gradients_that_nobody_saw_whole_prove_nothing_of_the_reduction():
    assert by_ranks(overflowing(SPREAD, lambda _: (True, True), exact=False)) == {}


def test_what_only_some_ranks_tell_proves_nothing():
    run = overflowing(SPREAD, lambda _: (True, False))
    run.events = run.events.filter(pa.compute.equal(run.events["rank"], 1))
    assert by_ranks(run) == {}


def test_a_reduction_that_overflows_while_the_scale_is_searched_is_the_search():
    assert by_ranks(overflowing(range(8), lambda _: (True, True))) == {}


def test_growth_that_the_reduction_caps_is_a_saw_and_no_error():
    own = lambda _: (True, True)  # noqa: E731
    run = overflowing(range(2000, 12000, 2001), own, count=12100)
    assert found(run) == {"AMP102": "info"}


# -- signs of life ---------------------------------------------------------------------------------


def marks(*events):
    """Events as (step, rank, kind)."""
    table = event_table([(step, kind, {}) for step, _, kind in events])
    where = table.schema.get_field_index("rank")
    return table.set_column(where, "rank", [[rank for _, rank, _ in events]])


def test_a_rank_that_said_that_it_ended_is_not_silent():
    run = two(other_loss=1.01, other_count=100, events=marks((100, 1, "ended")))
    assert "AMP603" not in found(run)


def test_a_rank_that_began_again_after_its_end_and_stopped_is_silent():
    events = marks((0, 0, "started"), (0, 1, "started"), (50, 1, "ended"), (50, 0, "started"),
                   (50, 1, "started"))  # fmt: skip
    assert "AMP603" in found(two(other_loss=1.01, other_count=100, events=events))


def test_a_rank_that_a_restart_no_longer_has_is_not_silent():
    events = marks((0, 0, "started"), (0, 1, "started"), (100, 0, "started"))
    assert "AMP603" not in found(two(other_loss=1.01, other_count=100, events=events))


def test_a_clock_that_is_two_minutes_behind_is_no_silence():
    run = two(other_loss=1.01)
    times = [SECOND * (1 + step - 120 * rank) for rank in (0, 1) for step in range(200, 400)]
    run.steps = run.steps.set_column(run.steps.schema.get_field_index("time_ns"), "time_ns",
                                     [times])  # fmt: skip
    assert found(run) == {}


def living(rank, first, last):
    return [
        {"time_ns": SECOND * n, "rank": rank, "device": "cpu", "host_rss_bytes": 1}
        for n in range(first, last)
    ]


def test_a_rank_that_died_while_the_other_waits_for_it_is_silent():
    """Both stop at one collective; the devices of the one that lives are sampled on."""
    devices = device_table([*living(0, 1, 400), *living(1, 1, 200)])
    (one,) = [
        f for f in diagnose(two(other_loss=1.01, devices=devices)).findings if f.code == "AMP603"
    ]
    assert one.ranks == (1,)
    assert "process lives" not in one.cause


def test_a_rank_that_hangs_while_others_go_on_is_silent_though_its_process_lives():
    devices = device_table([*living(0, 1, 200), *living(1, 1, 200)])
    run = two(other_loss=1.01, other_count=100, devices=devices)
    (one,) = [f for f in diagnose(run).findings if f.code == "AMP603"]
    assert (one.ranks, "process lives" in one.cause) == ((1,), True)


def ends(*told):
    """What ranks 0 and 1 say at their end: (rank, kind, detail)."""
    events = [(0, "started", {}), (1, "started", {}), *told]
    table = event_table([(199 * (kind != "started"), kind, d) for _, kind, d in events])
    where = table.schema.get_field_index("rank")
    return table.set_column(where, "rank", [[rank for rank, _, _ in events]])


LOST = {"fatal": True, "exception": "RuntimeError", "message": "Connection closed by peer [::1]"}


def test_a_rank_that_was_killed_is_told_by_what_the_other_met():
    events = ends((0, "exception", LOST), (0, "ended", {}))
    diagnosis = diagnose(two(other_loss=1.01, events=events, clean_end=False))
    assert (diagnosis.headline.code, diagnosis.headline.ranks) == ("AMP603", (1,))
    assert {f.code: f.because_of for f in diagnosis.findings}["AMP902"] == "AMP603"


def test_a_rank_that_ended_by_its_own_error_is_not_silent():
    own = {"fatal": True, "exception": "ValueError", "message": "bad batch"}
    events = ends((1, "exception", own), (0, "exception", LOST), (0, "ended", {}))
    assert "AMP603" not in found(two(other_loss=1.01, events=events, clean_end=False))


def test_an_error_that_is_not_about_the_connection_accuses_no_other_rank():
    own = {"fatal": True, "exception": "ValueError", "message": "bad batch"}
    events = ends((0, "exception", own), (0, "ended", {}))
    assert "AMP603" not in found(two(other_loss=1.01, events=events, clean_end=False))
