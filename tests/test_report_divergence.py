"""Where two runs diverge: in loss, scale and skips, in any column, and in which layer."""

from __future__ import annotations

import numpy as np
import pytest
from written_runs import fresh_id, step_columns

from ampwatch import codec, open_run, store
from ampwatch.report.comparison import difference_text
from ampwatch.report.comparison_text import grouped_partings, parting_sentences, parting_text
from ampwatch.report.divergence import GIVEN, RESULTS, divergence_of
from ampwatch.rows import DTYPES, Table

LOSS_STEPS = 600


def falling(seed, noise=0.05):
    """A loss that falls from 4 to 2, with a noise of its own."""
    random = np.random.default_rng(seed)
    return 2 + 2 * np.exp(-np.arange(LOSS_STEPS) / 150) + noise * random.standard_normal(LOSS_STEPS)


def run_with_loss(folder, name, loss, every=1, **changed):
    columns = {**step_columns(len(loss), 0, 0), "loss": loss, **changed}
    columns = {key: np.asarray(values)[::every] for key, values in columns.items()}
    path = store.create_run(folder, store.RunInfo(id=fresh_id(name), name=name))
    writer = store.RankWriter(path, 0)
    writer.append(codec.encode(Table.STEPS, columns))
    writer.close()
    return open_run(path)


def test_a_run_never_parts_from_itself(tmp_path):
    run = run_with_loss(tmp_path, "a", falling(0))
    parting = divergence_of(run, run)
    assert (parting.common_steps, parting.last_common_step) == (LOSS_STEPS, LOSS_STEPS - 1)
    assert (parting.loss_bits, parting.loss, parting.scale, parting.skips) == (None,) * 4


@pytest.mark.parametrize("seed", range(5))
def test_two_seeds_differ_at_once_and_never_beyond_noise(tmp_path, seed):
    a, b = (
        run_with_loss(tmp_path, "a", falling(seed)),
        run_with_loss(tmp_path, "b", falling(seed + 100)),
    )
    parting = divergence_of(a, b)
    assert parting.loss_bits.step == 0
    assert parting.loss is None


def loss_sentence(parting):
    return next(text for text in parting_sentences(parting, "A", "B") if text.startswith("Loss"))


def test_a_noisy_loss_and_one_that_was_learnt_at_once_differ_beyond_noise_and_by_how_much(tmp_path):
    noisy = 5 + np.random.default_rng(0).standard_normal(LOSS_STEPS)
    runs = [
        run_with_loss(tmp_path, "a", noisy),
        run_with_loss(tmp_path, "b", 4 * np.exp(-np.arange(LOSS_STEPS)) + 1e-8),
    ]
    parting = divergence_of(*runs)
    assert parting.loss_end.first == pytest.approx(np.median(noisy[-10:]))
    said = loss_sentence(parting)
    assert "beyond noise" in said
    assert said.endswith(f"; at the end {np.median(noisy[-10:]):.4g} against 1e-08.")


def test_losses_that_only_began_apart_are_said_by_their_size(tmp_path):
    one, other = falling(0), falling(1)
    one[0], other[0] = 14.56, 4.579
    runs = run_with_loss(tmp_path, "a", one), run_with_loss(tmp_path, "b", other)
    said = loss_sentence(divergence_of(*runs))
    assert said.startswith("Loss: differs from step 0 (14.56 against 4.579), later by no more")


@pytest.mark.parametrize("start", [100, 311])
def test_a_loss_that_climbs_parts_where_it_begins_to(tmp_path, start):
    climbing = falling(1)
    climbing[start:] += 0.05 * np.arange(LOSS_STEPS - start)
    parting = divergence_of(
        run_with_loss(tmp_path, "a", falling(0)), run_with_loss(tmp_path, "b", climbing)
    )
    assert start <= parting.loss.step <= start + 30


def test_a_loss_that_is_lost_soon_after_it_leapt_parts_at_the_leap(tmp_path):
    lost = falling(1)
    lost[300:308] += 50
    lost[308:] = np.nan
    parting = divergence_of(
        run_with_loss(tmp_path, "a", falling(0)), run_with_loss(tmp_path, "b", lost)
    )
    assert 298 <= parting.loss.step <= 302


def test_too_few_steps_are_not_told_from_noise(tmp_path):
    few = [run_with_loss(tmp_path, name, falling(seed)[:20]) for seed, name in enumerate("ab")]
    assert (divergence_of(*few).loss, divergence_of(*few).knows_noise) == (None, False)
    many = [run_with_loss(tmp_path, name, falling(seed)) for seed, name in enumerate("cd")]
    assert divergence_of(*many).knows_noise


def test_one_lost_step_is_no_parting_beyond_noise(tmp_path):
    lost = falling(1)
    lost[300] = np.inf
    assert (
        divergence_of(
            run_with_loss(tmp_path, "a", falling(0)), run_with_loss(tmp_path, "b", lost)
        ).loss
        is None
    )


def test_a_loss_logged_now_and_then_is_compared_where_both_tell_it(tmp_path):
    parting = divergence_of(
        run_with_loss(tmp_path, "a", falling(0)), run_with_loss(tmp_path, "b", falling(0), every=10)
    )
    assert (parting.common_steps, parting.loss_bits, parting.loss) == (60, None, None)


def test_scale_and_skips_part_where_one_alone_has_them(tmp_path):
    scale, skipped = np.full(LOSS_STEPS, 65536.0), np.zeros(LOSS_STEPS, bool)
    scale[251:], skipped[250] = 32768.0, True
    a = run_with_loss(tmp_path, "a", falling(0))
    b = run_with_loss(tmp_path, "b", falling(0), scale=scale, skipped=skipped)
    parting = divergence_of(a, b)
    assert (parting.scale.step, parting.scale.first, parting.scale.second) == (251, 65536, 32768)
    assert (parting.skips.step, parting.skips.second) == (250, 1.0)


# --- any column and layer -------------------------------------------------------------------------

STEPS = 200
LAYERS = ("(root)", "head", "body", "body.fc")  # as they are numbered
ORDER = (0, 3, 1, 2)  # as they run: head last


def columns(**changed):
    """Every column that is compared; `changed` gives the step from which one differs."""
    random = np.random.default_rng(1)
    found = step_columns(STEPS, 0, 0) | {name: random.random(STEPS) + 1 for name in RESULTS}
    found |= {"input_amax": random.random(STEPS), "micro_batches": np.full(STEPS, 2)}
    found |= {"skipped": np.zeros(STEPS, bool), "autocast_dtype": np.full(STEPS, 1)}
    for name, step in changed.items():
        values = found[name].copy()
        values[step:] = ~values[step:] if values.dtype == bool else values[step:] + 1
        found[name] = values
    return found


def run_of(folder, name, samples=None, layers=None, **changed):
    """A run; `layers` gives a layer's column, and the step from which it differs."""
    path = store.create_run(folder, store.RunInfo(id=fresh_id(name), name=name))
    writer = store.RankWriter(path, 0)
    writer.append(codec.encode(Table.STEPS, columns(**changed)))
    if samples is not None:
        info = {"step": [0] * 4, "layer": range(4), "name": list(LAYERS), "order": list(ORDER)}
        writer.append(codec.encode(Table.LAYER_INFO, info))
        step = np.repeat(np.asarray(samples), 4)
        layer = np.tile(np.arange(4), len(samples))
        rows = {"step": step, "layer": layer}
        for column in ("act_amax", "grad_norm", "weight_norm"):
            values = 1 + layer.astype(float)
            for (named, of), (start, times) in (layers or {}).items():
                if of == column:
                    changed_there = (layer == LAYERS.index(named)) & (step >= start)
                    values = np.where(changed_there, values * times, values)
            rows[column] = values
        writer.append(codec.encode(Table.LAYERS, rows))
    writer.close()
    return open_run(path)


@pytest.mark.parametrize("name", [*GIVEN, *RESULTS])
def test_each_column_is_named_at_the_step_where_it_was_changed(tmp_path, name):
    found = divergence_of(run_of(tmp_path, "a"), run_of(tmp_path, "b", **{name: 120})).first
    assert (found.step, [one.column for one in found.columns], found.later) == (120, [name], ())
    assert found.same_before == 120


def test_what_comes_from_outside_is_named_before_what_follows_and_the_rest_later(tmp_path):
    other = run_of(tmp_path, "b", loss=50, input_amax=50, grad_norm=51, skipped=90)
    found = divergence_of(run_of(tmp_path, "a"), other).first
    assert [one.column for one in found.columns] == ["input_amax", "loss"]
    assert [(one.column, one.step) for one in found.later] == [("grad_norm", 51), ("skipped", 90)]


def test_runs_that_never_part_are_identical_to_the_bit_over_so_many_steps(tmp_path):
    one = divergence_of(run_of(tmp_path, "a"), run_of(tmp_path, "b"))
    assert one.first is None
    assert set(one.compared) == {*GIVEN, *RESULTS}
    assert parting_text(one, "A", "B").startswith("Identical to the bit over 200 steps")


def test_two_values_that_are_not_finite_are_the_same(tmp_path):
    lost = np.full(STEPS, np.nan)
    for name in "ab":
        path = store.create_run(tmp_path, store.RunInfo(id=fresh_id(name), name=name))
        writer = store.RankWriter(path, 0)
        writer.append(codec.encode(Table.STEPS, columns() | {"loss": lost}))
        writer.close()
    one = divergence_of(open_run(tmp_path / "a"), open_run(tmp_path / "b"))
    assert (one.first, "loss" in one.compared) == (None, True)


def test_a_column_that_one_run_alone_has_is_not_compared(tmp_path):
    rows = columns()
    del rows["grad_norm"]
    path = store.create_run(tmp_path, store.RunInfo(id=fresh_id("b"), name="b"))
    writer = store.RankWriter(path, 0)
    writer.append(codec.encode(Table.STEPS, rows))
    writer.close()
    one = divergence_of(run_of(tmp_path, "a"), open_run(path))
    assert one.first is None
    assert "grad_norm" not in one.compared


def test_a_precision_is_told_by_its_name(tmp_path):
    one = divergence_of(run_of(tmp_path, "a"), run_of(tmp_path, "b", autocast_dtype=0))
    text = parting_text(one, "A", "B")
    assert f"precision of autocast ({DTYPES[1]} against {DTYPES[2]})" in text


# --- layers --------------------------------------------------------------------------------------


def layer_of(folder, samples, layers, **changed):
    first = run_of(folder, "a", samples)
    return divergence_of(first, run_of(folder, "b", samples, layers, **changed)).first.layer


def test_the_layer_is_the_first_in_the_forward_pass_not_the_first_by_number(tmp_path):
    layers = {("head", "act_amax"): (60, 2), ("body.fc", "act_amax"): (60, 2)}
    layers |= {("body", "act_amax"): (60, 2), ("(root)", "act_amax"): (60, 2)}
    found = layer_of(tmp_path, range(0, STEPS, 20), layers, loss=60)
    assert (found.step, found.layer, found.column) == (60, "body.fc", "act_amax")
    assert (found.is_where_it_began, found.differing) == (True, 4)


def test_where_the_forward_pass_is_the_same_the_last_layer_is_the_first_of_the_backward(tmp_path):
    layers = {("head", "grad_norm"): (60, 2), ("body.fc", "grad_norm"): (60, 2)}
    found = layer_of(tmp_path, range(0, STEPS, 20), layers, grad_norm=60)
    assert (found.layer, found.column) == ("head", "grad_norm")


def test_layers_that_were_sampled_later_are_told_as_such_and_by_how_much_they_differ(tmp_path):
    layers = {("body.fc", "act_amax"): (60, 2), ("head", "act_amax"): (60, 50)}
    found = layer_of(tmp_path, [0, 150, 199], layers, loss=61)
    assert (found.step, found.layer, found.is_where_it_began) == (150, "head", False)
    assert (found.first, found.second, found.differing, found.sampled) == (2, 100, 2, 4)


def test_a_rate_that_differs_points_to_no_layer(tmp_path):
    layers = {("head", "act_amax"): (61, 2)}
    assert layer_of(tmp_path, range(STEPS), layers, lr=60, loss=61) is None


def test_runs_without_layers_part_all_the_same(tmp_path):
    assert layer_of(tmp_path, None, None, loss=10) is None


# --- words ---------------------------------------------------------------------------------------


def test_the_sentence_names_step_column_both_values_and_layer(tmp_path):
    layers = {("head", "act_amax"): (60, 2)}
    first = run_of(tmp_path, "a", range(STEPS))
    one = divergence_of(first, run_of(tmp_path, "b", range(STEPS), layers, input_amax=60, loss=60))
    text = parting_text(one, "A", "B")
    assert text.startswith("They diverge at step 60, in the batch (largest input ")
    assert "The 60 common steps before are identical to the bit." in text
    assert "There also: loss (" in text
    assert "The first layer to differ is head (activation maximum 2 against 4)." in text


def test_values_that_differ_in_their_last_bit_are_written_so_that_it_is_seen(tmp_path):
    path = store.create_run(tmp_path, store.RunInfo(id=fresh_id("b"), name="b"))
    writer = store.RankWriter(path, 0)
    rows = columns()
    loss = rows["loss"].copy()
    loss[7] = np.nextafter(loss[7], 2)
    writer.append(codec.encode(Table.STEPS, rows | {"loss": loss}))
    writer.close()
    text = parting_text(divergence_of(run_of(tmp_path, "a"), open_run(path)), "A", "B")
    before, after = text.partition("loss (")[2].partition(")")[0].split(" against ")
    assert before != after
    assert float(after) == loss[7]


def test_runs_that_part_alike_are_one_group_and_the_largest_is_first(tmp_path):
    first = run_of(tmp_path, "a")
    steps = {"b": 10, "c": 30, "d": 30, "e": 30}
    partings = [divergence_of(first, run_of(tmp_path, n, lr=s)) for n, s in steps.items()]
    groups = grouped_partings(partings)
    assert groups == [
        ("diverge at step 30 in the learning rate", [2, 3, 4]),
        ("diverge at step 10 in the learning rate", [1]),
    ]


@pytest.mark.parametrize(
    ("number", "base", "text"),
    [
        (2.0, 2.0, "the same"), (1.1, 1.0, "+10 %"), (0.968, 1.0, "-3.2 %"),
        (370.0, 10.0, "37 times"), (7e-6, 70.0, "1/1e+07 of it"),
        (1.00001, 1.0, "about the same"), (None, 1.0, ""),
        (float("nan"), 1.0, ""), (5.0, 0.0, "+5"), (-1.0, 1.0, "-2"), (0.0, 0.0, "the same"),
    ],
)  # fmt: skip
def test_differences_are_told_as_people_say_them(number, base, text):
    assert difference_text(number, base) == text
