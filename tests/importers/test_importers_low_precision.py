"""What logs tell of casts below sixteen bits: NVIDIA's inspector, torchtitan's events, options."""

from __future__ import annotations

import math

import pytest

from ampwatch import diagnose, open_run
from ampwatch.errors import LogError
from ampwatch.importers import import_log
from ampwatch.importers.formats import frameworks_by_code, low_precision
from ampwatch.importers.statements import LayerStats, Setup

# As `FileLogger.log_scalar` of nvdlfw-inspect writes it.
LINE = "2026-03-01 10:00:00,{:03d} - INFO - {} \t\t\t\t iteration={:06d} \t\t\t\t value={:.4f}\n"


def inspected(folder, rows):
    log = folder / "nvdlfw_inspect_globalrank-0.log"
    log.write_text("".join(LINE.format(at % 1000, *row) for at, row in enumerate(rows)))
    return open_run(import_log(log, folder / "runs"))


def said(name, value=1.0):
    told = low_precision.read_inspector(LINE.format(0, name, 3, value))
    return [one for one in told if isinstance(one, LayerStats)]


def test_a_layers_name_may_hold_what_separates_its_parts():
    (told,) = said("model.layers.1.mlp_gate.experts.gemm_3_activation_underflows%", 25.0)
    assert (told.layer, told.step) == ("model.layers.1.mlp_gate.experts.gemm_3", 3)
    assert told.values == {"input_flushed_share": 0.25}


@pytest.mark.parametrize(
    "name",
    ["fc1_activation_mxfp8_underflows%", "fc1_weight_fp8_current_scaling_scale_inv_max",
     "fc1_activation_underflows%_columnwise", "fc1_gradient_mse", "a value of my own"],
)  # fmt: skip
def test_what_another_recipe_would_do_is_not_taken_for_what_is_done(name):
    assert [told for told in said(name) if told.values or told.formats] == []


@pytest.mark.parametrize(
    ("name", "form"),
    [("fc1_activation_underflows%", "float8_e4m3fn"),
     ("fc1_activation_overflows%", "float8_e4m3fn/tensorwise/delayed"),
     ("fc1_activation_nvfp4_underflows%", "nvfp4/block16")],
)  # fmt: skip
def test_the_format_is_as_much_as_the_statistic_tells(name, form):
    assert said(name)[0].formats == {"input_format": form}


def test_a_printed_zero_may_be_any_small_maximum():
    assert said("fc1_gradient_cur_amax", 1e-6) == [LayerStats("fc1", 3)]


def test_a_maximum_beyond_the_delayed_scales_room_is_stale(tmp_path):
    """The scale is 1 / 0.01: 448 / 100 fits, and 13.44 is three times that."""
    rows = []
    for step in range(6):
        rows += [("fc1_activation_cur_amax", step, 13.44), ("fc1_activation_overflows%", step, 0.0),
                 ("fc1_activation_scale_inv_max", step, 0.01)]  # fmt: skip
    run = inspected(tmp_path, rows)
    assert run.layers.column("amax_staleness").to_pylist() == pytest.approx([3.0] * 6)
    assert [one.code for one in diagnose(run).findings if one.severity != "info"] == ["AMP703"]


def test_the_same_maximum_under_current_scaling_is_no_finding(tmp_path):
    rows = []
    for step in range(6):
        rows += [("fc1_activation_cur_amax", step, 13.44),
                 ("fc1_activation_scale_inv_max", step, 0.01)]  # fmt: skip
    run = inspected(tmp_path, rows)
    assert run.layers.column("amax_staleness").to_pylist() == [None] * 6
    assert diagnose(run).verdict == "healthy"


def test_a_log_of_casts_alone_is_said_to_be_judged_by_them(tmp_path):
    run = inspected(tmp_path, [("fc1_activation_underflows%", step, 0.5) for step in range(6)])
    result = diagnose(run)
    assert result.verdict == "healthy"
    assert result.little_seen.endswith("; the layers' casts only.")


def test_a_maximum_that_is_nan_freezes_the_scale(tmp_path):
    rows = []
    for step in range(6):
        rows += [("fc1_activation_cur_amax", step, math.nan),
                 ("fc1_activation_fp8_delayed_scaling_scale_inv_max", step, 0.01)]  # fmt: skip
    run = inspected(tmp_path, rows)
    assert run.layers.column("input_finite").to_pylist() == [False] * 6
    assert "AMP706" in [one.code for one in diagnose(run).findings]


def test_a_head_in_the_log_is_quantised_and_the_last_layer_in_it_need_not_be_the_head(tmp_path):
    """The inspector leaves out layers in high precision, and tells no order."""
    of = lambda layer: [(f"{layer}_weight_underflows%", step, 0.1) for step in range(4)]  # noqa: E731
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with_head = diagnose(inspected(tmp_path / "a", [*of("layers.0.fc1"), *of("lm_head")]))
    without = diagnose(inspected(tmp_path / "b", [*of("layers.0.fc1"), *of("encoder.proj")]))
    assert next((one.code, one.layer) for one in with_head.findings) == ("AMP704", "lm_head")
    assert "AMP704" not in [one.code for one in without.findings]


def test_an_iteration_that_falls_begins_a_new_attempt(tmp_path):
    rows = [("fc1_weight_underflows%", step, 0.1) for step in (*range(8), *range(4, 9))]
    run = inspected(tmp_path, rows)
    assert run.events.column("kind").to_pylist().count("started") == 2
    assert run.layers.column("step").to_pylist() == [*range(8), *range(4, 9)]


def test_a_trouble_that_a_new_attempt_does_not_have_is_over(tmp_path):
    old = [("fc1_weight_underflows%", step, 45.0) for step in range(8)]
    new = [("fc1_weight_underflows%", step, 0.1) for step in range(8)]
    for name, rows, codes in (("ill", old, ["AMP702"]), ("mended", [*old, *new], [])):
        (tmp_path / name).mkdir()
        told = diagnose(inspected(tmp_path / name, rows)).findings
        assert [one.code for one in told if one.code.startswith("AMP7")] == codes


def test_an_event_of_torchtitan_is_never_read_by_its_words():
    line = (
        '{"rank": 0, "step": 3, "log_type_name": "note", "seq_id": 4, '
        '"message": "Gradient overflow.  Skipping step, loss scale is nan"}'
    )
    assert list(frameworks_by_code.read_torchtitan(line)) == [Setup()]


@pytest.mark.parametrize(
    ("line", "config"),
    [("  fp8 ............................................. hybrid", {"fp8": "hybrid"}),
     ("  first_last_layers_bf16 .......................... False",
      {"first_last_layers_bf16": "False"}),
     ("    fp8_amax_history_len: 1024 # Number of steps", {"fp8_amax_history_len": "1024"}),
     ("an fp8: story of two formats", None),
     ("  keep_fp8_transpose_cache_when_using_custom_fsdp . False", None)],
)  # fmt: skip
def test_options_are_read_as_megatron_and_nemo_print_them(line, config):
    told = list(low_precision.read_options(line))
    assert told == ([] if config is None else [Setup(config=config)])


def test_a_folder_with_a_log_of_each_rank_is_one_run(tmp_path):
    place = tmp_path / "nvdlfw_inspect_statistics_logs"
    place.mkdir()
    for rank, share in ((0, 0.1), (3, 40.0)):
        rows = [("fc1_weight_underflows%", step, share) for step in range(6)]
        text = "".join(LINE.format(at, *row) for at, row in enumerate(rows))
        (place / f"nvdlfw_inspect_globalrank-{rank}.log").write_text(text)
    (place / "nvdlfw_inspect_globalrank-7.log").write_text("")  # a rank that logged nothing
    run = open_run(import_log(place, tmp_path / "runs"))
    assert tuple(run.ranks) == (0, 3)
    shares = run.layers.select(["rank", "weight_flushed_share"]).to_pylist()
    assert {(row["rank"], round(row["weight_flushed_share"], 4)) for row in shares} == {
        (0, 0.001), (3, 0.4)}  # fmt: skip


def test_a_later_file_of_a_rank_is_its_next_attempt(tmp_path):
    event = '{{"rank": 1, "step": {}, "log_type_name": "step_end", "value": 5.0, "seq_id": 1}}\n'
    for name, steps in (("20260101-100000-A", range(1, 9)), ("20260101-110000-B", range(5, 12))):
        log = tmp_path / f"training.global_rank_1.{name}.jsonl"
        log.write_text("".join(event.format(step) for step in steps))
    run = open_run(import_log(tmp_path, tmp_path / "runs"))
    assert run.events.column("kind").to_pylist().count("started") == 2
    assert tuple(run.ranks) == (1,)


def test_a_folder_of_other_files_is_refused_with_a_sentence(tmp_path):
    (tmp_path / "globalrank-0.log").write_text("nothing of a training\n")
    with pytest.raises(LogError, match=r"The logs of 1 rank in .* hold no training"):
        import_log(tmp_path, tmp_path / "runs")
