"""Where two runs part: told from noise, at the step where it happened."""

from __future__ import annotations

import numpy as np
import pytest
from written_runs import fresh_id, step_columns

from ampwatch import codec, open_run, store
from ampwatch.report.divergence import divergence_of
from ampwatch.rows import Table

STEPS = 600


def falling(seed, noise=0.05):
    """A loss that falls from 4 to 2, with a noise of its own."""
    random = np.random.default_rng(seed)
    return 2 + 2 * np.exp(-np.arange(STEPS) / 150) + noise * random.standard_normal(STEPS)


def run_of(folder, name, loss, every=1, **changed):
    columns = {**step_columns(len(loss), 0, 0), "loss": loss, **changed}
    columns = {key: np.asarray(values)[::every] for key, values in columns.items()}
    path = store.create_run(folder, store.RunInfo(id=fresh_id(name), name=name))
    writer = store.RankWriter(path, 0)
    writer.append(codec.encode(Table.STEPS, columns))
    writer.close()
    return open_run(path)


def test_a_run_never_parts_from_itself(tmp_path):
    run = run_of(tmp_path, "a", falling(0))
    parting = divergence_of(run, run)
    assert (parting.common_steps, parting.last_common_step) == (STEPS, STEPS - 1)
    assert (parting.loss_bits, parting.loss, parting.scale, parting.skips) == (None,) * 4


@pytest.mark.parametrize("seed", range(5))
def test_two_seeds_differ_at_once_and_never_beyond_noise(tmp_path, seed):
    a, b = run_of(tmp_path, "a", falling(seed)), run_of(tmp_path, "b", falling(seed + 100))
    parting = divergence_of(a, b)
    assert parting.loss_bits.step == 0
    assert parting.loss is None


@pytest.mark.parametrize("start", [100, 311])
def test_a_loss_that_climbs_parts_where_it_begins_to(tmp_path, start):
    climbing = falling(1)
    climbing[start:] += 0.05 * np.arange(STEPS - start)
    parting = divergence_of(run_of(tmp_path, "a", falling(0)), run_of(tmp_path, "b", climbing))
    assert start <= parting.loss.step <= start + 30


def test_a_loss_that_is_lost_soon_after_it_leapt_parts_at_the_leap(tmp_path):
    lost = falling(1)
    lost[300:308] += 50
    lost[308:] = np.nan
    parting = divergence_of(run_of(tmp_path, "a", falling(0)), run_of(tmp_path, "b", lost))
    assert 298 <= parting.loss.step <= 302


def test_too_few_steps_are_not_told_from_noise(tmp_path):
    few = [run_of(tmp_path, name, falling(seed)[:20]) for seed, name in enumerate("ab")]
    assert (divergence_of(*few).loss, divergence_of(*few).knows_noise) == (None, False)
    many = [run_of(tmp_path, name, falling(seed)) for seed, name in enumerate("cd")]
    assert divergence_of(*many).knows_noise


def test_one_lost_step_is_no_parting_beyond_noise(tmp_path):
    lost = falling(1)
    lost[300] = np.inf
    assert (
        divergence_of(run_of(tmp_path, "a", falling(0)), run_of(tmp_path, "b", lost)).loss is None
    )


def test_a_loss_logged_now_and_then_is_compared_where_both_tell_it(tmp_path):
    parting = divergence_of(
        run_of(tmp_path, "a", falling(0)), run_of(tmp_path, "b", falling(0), every=10)
    )
    assert (parting.common_steps, parting.loss_bits, parting.loss) == (60, None, None)


def test_scale_and_skips_part_where_one_alone_has_them(tmp_path):
    scale, skipped = np.full(STEPS, 65536.0), np.zeros(STEPS, bool)
    scale[251:], skipped[250] = 32768.0, True
    a = run_of(tmp_path, "a", falling(0))
    b = run_of(tmp_path, "b", falling(0), scale=scale, skipped=skipped)
    parting = divergence_of(a, b)
    assert (parting.scale.step, parting.scale.first, parting.scale.second) == (251, 65536, 32768)
    assert (parting.skips.step, parting.skips.second) == (250, 1.0)
