"""Courses of the loss scale, printed by several formats at several intervals, and what they are."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from importers.make_literal_samples import APEX, Scaler, era_one, hydra, loss_at, megatron_line

from ampwatch import diagnose, open_run
from ampwatch.importers import import_log
from ampwatch.report.settings import assumed_settings, settings_of
from ampwatch.rows import Table


def told(text: str, tmp_path):
    path = tmp_path / "train.log"
    path.write_text(text)
    return diagnose(open_run(import_log(path, tmp_path / "runs")))


def megatron(
    every: int, steps: int, overflows: Callable[[int, float], bool], *, start: float = 65536.0,
    most: float = math.inf,
) -> tuple[str, Scaler]:  # fmt: skip
    """A log of every n-th step; the loss averaged over accepted steps, the skips counted."""
    noise, scaler, lines, losses, skips = random.Random(0), Scaler(start, 1000), [], [], 0
    for step in range(1, steps + 1):
        overflow = overflows(step, scaler.scale)
        scaler.step(overflow)
        scaler.scale = min(scaler.scale, most)
        skips += overflow
        if not overflow:
            losses.append(loss_at(step, noise))
        if step % every == 0:
            norm = math.inf if overflow else 0.8 + 0.1 * noise.random()
            mean = sum(losses) / len(losses) if losses else None
            lines.append(megatron_line(step, scaler.scale, mean, norm, skips))
            losses, skips = [], 0
    return "".join(lines), scaler


EVERY = pytest.mark.parametrize("every", [1, 10, 100])


@EVERY
def test_a_search_from_the_highest_scale_and_a_sawtooth_are_healthy(every, tmp_path):
    text, scaler = megatron(every, 12_000, lambda _, scale: scale > 2.0**17, start=2.0**32)
    found = told(text, tmp_path)
    assert found.verdict.value == "healthy"
    assert found.run.skipped == scaler.skips
    assert found.run.final_scale == scaler.scale


@EVERY
def test_four_halvings_that_heal_are_a_recoverable_spike(every, tmp_path):
    text, scaler = megatron(every, 9000, lambda step, _: 6000 <= step < 6004, most=65536.0)
    found = told(text, tmp_path)
    assert found.verdict.value == "healthy"
    assert "AMP303" in {finding.code for finding in found.findings}
    assert found.run.skipped == scaler.skips == 4


@EVERY
def test_a_fall_that_does_not_end_is_a_collapse(every, tmp_path):
    text, scaler = megatron(every, 3000, lambda step, _: step > 2700)
    found = told(text, tmp_path)
    assert found.verdict.value == "failing"
    assert found.headline.code == "AMP103"
    assert found.run.skipped == scaler.skips


def fairseq(every: int, stats: Callable[..., str], note: str) -> tuple[str, Scaler]:
    noise, scaler, lines = random.Random(0), Scaler(128.0, 512), []
    updates = batch = 0
    while updates < 8000:
        batch += 1
        overflow = scaler.scale > 2.0**-8
        _, after = scaler.step(overflow)
        if overflow:
            lines.append(note.format(after))
            continue
        updates += 1
        if updates % every == 0:
            lines.append(stats(batch, updates, loss_at(updates, noise), scaler.scale))
    return "".join(lines), scaler


NEW = (
    "[2021-06-01 10:00:00,000][fairseq.trainer][INFO] - NOTE: gradient overflow detected, "
    "ignoring gradient, setting loss scale to: {}\n"
)
OLD = "| WARNING: overflow detected, setting loss scale to: {}\n"


@pytest.mark.parametrize("every", [10, 100])
@pytest.mark.parametrize(("stats", "note"), [(hydra, NEW), (era_one, OLD)])
def test_a_low_scale_that_saws_is_low_by_design(every, stats, note, tmp_path):
    """Growth is never printed, and the statistics round what the overflows say exactly."""
    text, scaler = fairseq(every, stats, note)
    found = told(text, tmp_path)
    assert found.verdict.value == "healthy"
    assert {"AMP101", "AMP102", "AMP109"} <= {finding.code for finding in found.findings}
    assert (found.run.skipped, found.run.final_scale) == (scaler.skips, scaler.scale)


@pytest.mark.parametrize("ranks", [1, 8])
def test_an_overflow_every_epoch_is_one_event_each_however_many_ranks_print(ranks, tmp_path):
    parts = [APEX.format(32768.0) * ranks]
    for epoch in range(20):
        parts += [f"Epoch [{epoch}/90] it {n} data 0.1 s\n" for n in range(50)]
        parts.append(APEX.format(32768.0) * ranks)
    found = told("".join(parts), tmp_path)
    assert found.run.overflows == found.run.skipped == 21
    assert found.verdict.value == "healthy"


def test_a_counter_that_counts_every_step_is_an_error(tmp_path):
    text = "".join(
        f"[2022-06-01 10:00:00,000] [INFO] [logging.py:68:log_dist] [Rank 0] step={n * 10}, "
        f"skipped={n * 10}, lr=[1e-07], mom=[[0.9, 0.999]]\n"
        for n in range(1, 30)
    )
    found = told(text, tmp_path)
    assert found.verdict.value == "failing"
    assert found.run.skipped == 290


def test_a_rate_stuck_at_its_warm_ups_start_is_an_error(tmp_path):
    text = "".join(
        f"{{'loss': 9.1{n % 7}, 'learning_rate': 1e-10, 'epoch': {n / 50:.2f}}}\n"
        for n in range(1, 40)
    )
    assert told(text, tmp_path).verdict.value == "failing"


def test_a_healthy_sawtooth_keeps_its_rate(tmp_path):
    """One overflow between any two lines: the rows touch, the steps do not."""
    text = "".join(
        OLD.format(1.0)
        + f"| epoch {n:03d} | loss {3.6 - n / 1000:.3f} | num_updates {n * 254} | lr "
        "0.00044 | gnorm 0.234 | loss_scale 1.000 | wall 30764\n"
        for n in range(70, 90)
    )
    found = told(text, tmp_path)
    assert found.verdict.value == "healthy"
    assert found.learning_rate.action.value == "keep"


def test_an_averaged_scale_is_no_scale(tmp_path):
    """fairseq averaged its loss_scale until August 2020: 1399 is no power of two."""
    text = NEW.format(1024.0) + era_one(3615, 3600, 0.439, 1399.0)
    found = told(text, tmp_path)
    assert found.run.final_scale == 1024.0
    assert found.run.skipped == 15  # the batch's number less the updates


def test_a_constant_scale_of_one_is_no_scaler(tmp_path):
    """bf16 with a nan norm and no loss, from the first line on: nothing was skipped, all is nan."""
    lines = [megatron_line(n, 1.0, None, math.nan) for n in range(5426, 5440)]
    found = told("".join(lines), tmp_path)
    assert found.verdict.value == "failing"
    assert found.headline.code == "AMP204"
    assert found.run.skipped == 0


@pytest.mark.parametrize("is_numbered", [True, False])
def test_a_table_of_scales_before_the_step_tells_one_skip_for_one_fall(is_numbered, tmp_path):
    scales = [2.0**16] * 50 + [2.0**15] * 50
    rows = [f"{2 * 0.99**number:.4f},{scale}" for number, scale in enumerate(scales)]
    if is_numbered:
        rows = [f"{number},{row}" for number, row in enumerate(rows)]
    log = tmp_path / "log.csv"
    log.write_text("\n".join(["step,loss,scale" if is_numbered else "loss,scale", *rows]))
    steps = open_run(import_log(log, tmp_path / "runs")).steps
    assert steps["scale"].to_pylist() == scales
    assert [n for n, skipped in enumerate(steps["skipped"].to_pylist()) if skipped] == [49]


def test_one_line_of_a_loss_is_no_course_and_so_incomplete(tmp_path):
    found = told("{'loss': 2.5, 'learning_rate': 0.001, 'epoch': 0.1}\n", tmp_path)
    assert found.verdict.value == "incomplete"
    assert found.learning_rate.action.value == "unknown"
    both = told("{'loss': 2.5, 'learning_rate': 0.001, 'epoch': 0.1}\n" * 2, tmp_path)
    assert both.verdict.value == "incomplete"
    four = told("{'loss': 2.5, 'learning_rate': 0.001, 'epoch': 0.1}\n" * 4, tmp_path)
    assert four.verdict.value == "incomplete"
    five = told("{'loss': 2.5, 'learning_rate': 0.001, 'epoch': 0.1}\n" * 5, tmp_path)
    assert five.verdict.value == "healthy"


def test_the_frameworks_defaults_are_no_settings_that_the_log_tells(tmp_path):
    path = tmp_path / "train.log"
    path.write_text("Selected optimization level O1:  Insert\n" + APEX.format(32768.0))
    run = open_run(import_log(path, tmp_path / "runs"))
    assert settings_of(run) == {"config.opt_level": "O1"}
    assert assumed_settings(run.info)["scaler.growth_interval"] == "2000"


def bar(step: int, more: str = "") -> str:
    return f"\r  1%|█▍      | {step}/1184 [00:21<1:09:10,  3.52s/it{more}]"


def zero(scale: float) -> str:
    to = f"Attempted loss scale: {scale}, reducing to {scale / 2}"
    return f"[2021-02-04 15:06:19,825] [INFO] [deepscale] OVERFLOW! Rank 0 Skipping step. {to}\n"


def test_a_search_that_a_bar_shows_from_its_first_step_on_is_no_fall(tmp_path):
    """The bar stands at 1 when the log begins: nothing says that a step was accepted before."""
    text = "".join(bar(n) + zero(2.0 ** (33 - n)) for n in range(1, 13))
    found = told(text + "".join(map(bar, range(13, 60))), tmp_path)
    assert found.verdict.value == "healthy"
    assert (found.run.skipped, found.run.final_scale) == (12, 2.0**20)


def test_a_bar_that_shows_a_loss_that_is_nan_is_believed(tmp_path):
    shown = [", loss=265.2, lr=2.5e-05", *[", loss=nan, lr=2.5e-05"] * 18]
    lines = (bar(n, more) + zero(2.0 ** (33 - n)) for n, more in enumerate(shown, 1))
    found = told("".join(lines), tmp_path)
    assert found.headline.code == "AMP204"
    assert found.learning_rate.action.value == "unknown"


def test_a_line_that_a_terminals_copy_has_padded_in_mid_word_is_read(tmp_path):
    lines = [zero(2.0 ** (16 - n)).replace("scale:", "sca" + 30 * " " + "le:") for n in range(3)]
    assert told("".join(lines), tmp_path).run.final_scale == 2.0**13


def test_a_run_that_its_framework_ended_at_the_lowest_scale_fails_however_few_lines_tell(tmp_path):
    text = "".join(
        f"| epoch {n:03d} | loss {4 - n / 10} | num_updates {n * 327} | lr 0.0003 | gnorm 0.6 | "
        "loss_scale 0.001 |\n"
        for n in range(1, 29)
    )
    text += "| WARNING: overflow detected, setting loss scale to: 0.000244140625\n"
    assert told(text, tmp_path).verdict.value == "healthy"
    text += "FloatingPointError: Minimum loss scale reached (0.0001). Your loss is exploding.\n"
    found = told(text, tmp_path)
    assert (found.verdict.value, found.headline.code) == ("failing", "AMP104")


def test_a_scale_beyond_any_search_is_a_failure_though_no_line_tells_of_a_skip(tmp_path):
    text = "2024-01-14 01:03:00,826 WARNING [train.py:1057] (2/4) Grad scale is small: {}\n"
    found = told("".join(text.format(1.3e-20 / 2**n) for n in range(3)), tmp_path)
    assert found.headline.code == "AMP104"
    assert told(text.format(0.0078125) * 3, tmp_path).verdict.value != "failing"


def test_norms_that_are_nan_at_every_update_are_a_failure_where_no_scale_is_told(tmp_path):
    line = "[user] 2021-04-23 19:{:02d}:{:02d},420 (trainer:581) WARNING: The grad norm is nan. "
    line += "Skipping updating the model.\n"
    lines = [line.format(n // 60, n % 60) for n in range(120)]
    found = told("".join(lines), tmp_path)
    assert found.run.skipped == 120
    assert found.verdict.value == "failing"
    text = "(trainer:636) INFO: 1epoch:train:{}-{}batch: loss={:.2f}, optim0_lr0=1e-03\n"
    often = (text.format(n * 50 + 1, n * 50 + 50, 8.1 - n / 20) for n in range(40))
    mixed = "".join(line + (lines[n] if n % 8 == 0 else "") for n, line in enumerate(often))
    assert told(mixed, tmp_path).verdict.value == "healthy"


@pytest.mark.parametrize(("lines", "events"), [(8, 1), (5, 5)])
def test_one_value_again_and_again_is_of_ranks_where_there_are_as_many(lines, events, tmp_path):
    assert told(APEX.format(1.0) * lines, tmp_path).run.overflows == events


def test_one_gradient_norm_is_no_band_that_speaks_for_the_rate(tmp_path):
    text = "| epoch 027 | loss 6.3 | num_updates 10198 | lr 0.0006 | gnorm 0.390 | loss_scale 1 |\n"
    skips = (f"| WARNING: overflow detected, setting loss scale to: {2.0**-n}\n" for n in range(14))
    found = told(text + "".join(skips), tmp_path)
    assert found.verdict.value == "failing"
    assert found.learning_rate.action.value == "unknown"


@pytest.mark.parametrize("apart", [2, 3, 10])
def test_a_scale_that_a_step_began_with_stays_what_the_table_says(apart, tmp_path):
    """It fell by two octaves on the way there: the step that began with it skipped nothing."""
    scales = [65536.0] * 3 + [16384.0] * 3
    text = "".join(f"{n * apart},{5 - n / 10},{scale}\n" for n, scale in enumerate(scales))
    path = tmp_path / "log.csv"
    path.write_text("step,loss,scale\n" + text)
    run = open_run(import_log(path, tmp_path / "runs"))
    told = run.read(Table.STEPS, columns=("step", "loss", "scale", "skipped")).to_pylist()
    kept = [row for row in told if row["loss"] is not None]
    assert [row["scale"] for row in kept] == scales
    assert not any(row["skipped"] for row in kept[3:])
    assert sum(bool(row["skipped"]) for row in told) == 2
