"""A run's numbers in memory: grown by what is new, the same as read at once."""

from __future__ import annotations

import dataclasses
import re
import time
from urllib.parse import unquote

import numpy as np
import pytest
from run_chart import odd_lines, thinned_base
from step_curves import NumberAge, StepCurvesReader
from test_report_step_notes import resumed
from written_runs import event_columns, step_columns, write_run

import ampwatch
from ampwatch import codec, store
from ampwatch.diagnosis.value_text import scale_text
from ampwatch.report.overview_chart import SCALE
from ampwatch.rows import DTYPES, Table


def append(path, columns):
    writer = store.RankWriter(path, 0)
    writer.append(codec.encode(Table.STEPS, columns))
    writer.close()


def test_rows_taken_as_they_come_are_the_rows_taken_at_once(tmp_path):
    path = write_run(tmp_path, ended=False, accepted=50)
    run, growing = store.open_run(path), StepCurvesReader()
    growing.read(run)
    for first in (50, 80, 1400):
        append(path, step_columns(20, 10, time.time_ns(), first=first))
        run.refresh()
        growing.read(run)
    grown, whole = growing.curves, StepCurvesReader().read(store.open_run(path))
    assert grown.epoch == whole.epoch
    assert np.array_equal(grown.step, whole.step)
    assert np.array_equal(grown.skips, whole.skips)
    assert len(grown.skips) == 30
    for name, values in whole.columns.items():
        assert np.array_equal(grown.columns[name], values, equal_nan=True)


def test_a_run_resumed_further_back_is_taken_as_it_comes_too(tmp_path):
    path = write_run(tmp_path, ended=False, accepted=50)
    run, growing = store.open_run(path), StepCurvesReader()
    growing.read(run)
    for first in (30, 50):  # the second part of the log is behind the first
        append(path, step_columns(20, 0, time.time_ns(), first=first))
        run.refresh()
        growing.read(run)
    whole = StepCurvesReader().read(store.open_run(path))
    assert np.array_equal(growing.curves.step, whole.step)
    assert sorted(whole.step) == sorted([*range(50), *range(30, 70)])
    assert np.array_equal(growing.curves.columns["loss"], whole.columns["loss"], equal_nan=True)


def test_the_type_that_autocast_computes_in_has_its_name(tmp_path):
    path = store.create_run(tmp_path, store.RunInfo(id="ab" * 16, name="half"))
    append(path, {"step": [0, 1], "autocast_dtype": [DTYPES.index("float16")] * 2})
    assert StepCurvesReader().read(store.open_run(path)).autocast_dtype == "float16"


def test_what_was_shown_does_not_change_when_rows_are_added(tmp_path):
    path = write_run(tmp_path, ended=False, accepted=50)
    run, growing = store.open_run(path), StepCurvesReader()
    before = growing.read(run)
    append(path, step_columns(5000, 0, time.time_ns(), first=50))
    run.refresh()
    growing.read(run)
    assert len(before) == 50
    assert before.ends == (0, 49)


def test_with_two_optimizers_one_is_drawn_and_the_skips_of_both_count_once_a_step(tmp_path):
    path = store.create_run(tmp_path, store.RunInfo(id="ab" * 16, name="gan"))
    append(path, {
        "step": [0, 0, 1, 1, 2, 2], "optimizer": [0, 1, 0, 1, 0, 1],
        "loss": [1.0, 90.0, 2.0, 80.0, 3.0, 70.0],
        "skipped": [False, False, False, True, True, True],
    })  # fmt: skip
    curves = StepCurvesReader().read(store.open_run(path))
    assert list(curves.columns["loss"]) == [1.0, 2.0, 3.0]
    assert list(curves.skips) == [1, 2]


def test_a_scale_that_fell_to_zero_is_absent_and_not_minus_infinity(tmp_path):
    path = store.create_run(tmp_path, store.RunInfo(id="ab" * 16, name="fell"))
    append(path, {"step": [0, 1, 2], "scale": [4.0, 1.0, 0.0]})
    scale = StepCurvesReader().read(store.open_run(path)).columns[SCALE]
    assert list(scale[:2]) == [2.0, 0.0]
    assert np.isnan(scale[2])


def test_where_a_foreign_log_tells_only_what_the_scale_became_that_is_drawn(tmp_path):
    info = store.RunInfo(id="ab" * 16, name="told", source="apex")
    path = store.create_run(tmp_path, info)
    append(path, {"step": [0, 1, 2], "scale": [None, 8.0, None], "scale_after": [16.0, 4.0, 4.0]})
    curves = StepCurvesReader().read(store.open_run(path))
    assert list(curves.columns[SCALE]) == [4.0, 3.0, 2.0]
    assert SCALE in curves.present
    quick = StepCurvesReader(quick=True).read(store.open_run(path))
    assert list(quick.columns[SCALE]) == [4.0, 3.0, 2.0]
    assert quick.present == {SCALE}


@pytest.mark.parametrize("every", [1, 100])
def test_what_is_usual_between_two_lines_of_a_log_breaks_no_line_that_grows(tmp_path, every):
    path = store.create_run(tmp_path, store.RunInfo(id="ab" * 16, name="sparse"))
    append(path, {"step": list(range(0, 5 * every, every)), "loss": [1.0] * 5})
    base = thinned_base("sparse", StepCurvesReader().read(store.open_run(path)), None)
    assert every <= base.hole < 4 * every


def test_a_span_of_a_run_that_was_resumed_further_back_holds_both_passes(tmp_path):
    path = write_run(tmp_path, accepted=100)
    writer = store.RankWriter(path, 0)
    writer.append(codec.encode(Table.EVENTS, event_columns([(50, "started", {})], time.time_ns())))
    writer.append(codec.encode(Table.STEPS, step_columns(70, 0, time.time_ns(), first=50)))
    writer.close()
    curves = StepCurvesReader().read(store.open_run(path))
    assert curves.starts == (100,)
    assert curves.ends == (0, 119)
    assert (curves.step[curves.rows_within(60, 70)] == 65).sum() == 2


def test_the_latest_number_says_for_how_long_there_has_been_none(tmp_path):
    path = write_run(tmp_path, accepted=10, skipped=4)
    curves = StepCurvesReader().read(store.open_run(path))
    value, since = curves.latest("grad_norm")
    assert (value, since) == (1.0, 4)


def ages(tmp_path, **columns):
    """How old the last loss and rate are said to be."""
    path = store.create_run(tmp_path, store.RunInfo(id="ab" * 16, name="aging"))
    count = len(columns["loss"])
    append(path, {"step": list(range(count)), "scale": [1.0] * count, **columns})
    curves = StepCurvesReader().read(store.open_run(path))
    return curves.age("loss"), curves.age("lr")


def test_a_number_that_is_old_says_of_when_and_whether_it_was_lost(tmp_path):
    loss, rate = ages(tmp_path, loss=[2.0, 1.5, 1.054] + [np.nan] * 300, lr=[0.1] * 303)
    assert loss == NumberAge(2, is_broken=True)
    assert rate == NumberAge(None, is_broken=False)


def test_a_number_that_is_logged_now_and_then_is_old_and_not_lost(tmp_path):
    every_tenth = [float(at) if at % 10 == 0 else None for at in range(305)]
    loss, rate = ages(tmp_path, loss=every_tenth, lr=[None] * 305)
    assert loss == NumberAge(300, is_broken=False)
    assert rate == NumberAge(None, is_broken=False)  # there is none


def test_a_number_lost_long_ago_is_remembered_when_its_row_is_no_longer_held(tmp_path, monkeypatch):
    monkeypatch.setattr("bounded_history.HELD_ROWS", 1 << 10)
    loss, _ = ages(tmp_path, loss=[2.0, 1.054] + [np.inf] * 9000, lr=[0.1] * 9002)
    assert loss == NumberAge(1, is_broken=True)


def test_the_strip_says_of_when_a_number_is(tmp_path):
    from open_runs import OpenRuns
    from overview_page import numbers_html

    path = write_run(tmp_path, accepted=3, skipped=250)
    shown = numbers_html(OpenRuns().snapshot_of(str(path)))
    assert "<b>1.961</b><small> at step 2, then not finite</small>" in shown
    assert "<b>0.1</b>" in shown


def figures_of(path):
    from open_runs import OpenRuns
    from overview_page import numbers_html

    shown = numbers_html(OpenRuns().snapshot_of(str(path)))
    return dict(re.findall(r"<span>([^<]+)</span><b>([^<]+)</b>", shown)), shown


def test_each_figure_has_its_number_in_four_digits_and_its_curve(tmp_path):
    path = store.create_run(tmp_path, store.RunInfo(id="ab" * 16, name="figures"))
    scale = 2.0 ** -np.arange(9.0)
    append(path, {
        "step": range(9), "scale": scale, "scale_after": scale, "skipped": [False] * 9,
        "loss": np.linspace(9, 28421.7, 9), "lr": [4.098e-8] * 9,
    })  # fmt: skip
    figures, shown = figures_of(path)
    assert figures["loss"] == "28,420"
    assert figures["learning rate"] == "4.1e-8"
    assert figures["loss scale"] == "2⁻⁸"
    assert "<small>= 0.003906</small>" in shown
    assert shown.count('class="aw-spark"') == 3


def test_a_scale_drawn_small_has_equal_steps_for_equal_powers(tmp_path):
    import runs_table
    from test_dashboard_runs_table import ENTRY, row

    path = write_run(tmp_path, accepted=2, skipped=60)
    _, shown = figures_of(path)
    entry = dataclasses.replace(ENTRY, course=" ".join(str(16 - 4 * n) for n in range(12)))
    small = [unquote(shown).split("loss scale")[1], runs_table._scale(row(entry=entry))]
    for svg in small:
        path = re.search(r""" d=["']([^"']+)""", svg)[1]
        heights = np.array([float(y) for y in re.findall(r"V([\d.]+)", path)])
        steps = np.diff(np.unique(heights))
        assert len(steps) > 8
        assert steps.max() <= steps.min() + 0.21  # written with one decimal


def test_a_step_taken_again_by_a_later_attempt_counts_once(tmp_path):
    run = resumed(tmp_path)  # killed at step 99, resumed at step 80
    figures, _ = figures_of(run.path)
    assert figures["skipped"] == "0 of 180"
    curves = StepCurvesReader().read(run)
    assert (len(curves), curves.step_count) == (200, 180)


def test_the_steps_of_every_optimizer_count(tmp_path):
    """Three steps of one, one of the other, and one of both; read in portions of any size."""
    columns = {
        "step": [0, 1, 2, 3, 4, 4], "optimizer": [0, 0, 0, 1, 0, 1], "scale": [1.0] * 6,
        "loss": [1.0] * 6, "skipped": [False] * 6,
    }  # fmt: skip
    path = store.create_run(tmp_path, store.RunInfo(id="ab" * 16, name="several"))
    reader = StepCurvesReader()
    for at in ([0, 1, 2, 3, 4], [5]):  # the last step comes in two parts
        append(path, {name: [values[n] for n in at] for name, values in columns.items()})
        curves = reader.read(store.open_run(path))
    assert (len(curves), curves.step_count) == (4, 5)


def test_a_column_that_was_never_finite_is_drawn_as_that(tmp_path):
    path = store.create_run(tmp_path, store.RunInfo(id="ab" * 16, name="never"))
    append(path, {"step": [0, 1, 2], "scale": [1.0] * 3, "loss": [np.nan] * 3, "lr": [None] * 3})
    curves = StepCurvesReader().read(store.open_run(path))
    assert "loss" in curves.present
    assert "lr" not in curves.present
    arrays = odd_lines(curves)
    assert [arrays["odd.loss.first"].tolist(), arrays["odd.loss.last"].tolist()] == [[0], [2]]


@pytest.mark.parametrize(
    ("scale", "shown"), [([8.0, 8.0, 4.0], "2²"), ([2.0**-148, 2.0**-149, 0.0], "0")]
)
def test_the_figure_of_the_loss_scale_is_where_its_chart_ends(tmp_path, scale, shown):
    """A scale that is halved to 0 has no power of two at its end."""
    path = store.create_run(tmp_path, store.RunInfo(id="ab" * 16, name="ends"))
    after = [*scale[1:], scale[-1] / 2]
    append(path, {
        "step": range(3), "scale": scale, "scale_after": after, "skipped": [True] * 3,
        "loss": [1.0] * 3,
    })  # fmt: skip
    figures, whole = figures_of(path)
    assert figures["loss scale"] == shown
    findings_name = ampwatch.diagnose(path).run.final_scale
    assert findings_name == after[-1]
    is_other = after[-1] != scale[-1]
    assert (f"; next {scale_text(findings_name)}" in whole) == is_other
