"""Wordings: what a line states, by patterns in which a name stands for a number."""

from __future__ import annotations

import math

import pytest

from ampwatch.importers.statements import Amend, Fatal, Scale, Setup, Skip, Stats
from ampwatch.importers.wordings import reader, worded


def told(line, *wordings):
    return list(reader(wordings)(line))


def test_names_in_a_wording_are_columns_and_the_place():
    wording = worded("stats", "iter <step>: loss <loss>, <>ms", {"lr": "lr=<>"})
    said = told("iter 1,200: loss -1.5e-3, 17.2ms lr=.5", wording)
    assert said == [Stats(1200, {"loss": -0.0015, "lr": 0.5})]
    assert told("iter x: loss 1, 2ms", wording) == []


def test_a_batch_is_counted_through_all_epochs_where_both_are_printed():
    line = "Epoch [3][7/100] loss nan"
    text = r"Epoch \[<epoch>\]\[<step>/<batches>\] loss <loss>"
    (from_zero,) = told(line, worded("stats", text, first_epoch=0))
    (from_one,) = told(line, worded("stats", text, first_epoch=1))
    assert (from_zero.step, from_one.step) == (307, 207)
    assert math.isnan(from_zero.values["loss"])
    (by_epoch,) = told("epoch 3 batch 7", worded("stats", "epoch <epoch> batch <step>"))
    assert (by_epoch.epoch, by_epoch.step) == (3, 7)


def test_each_rank_that_prints_into_one_line_is_a_skip_of_its_own():
    wording = worded("skip", "overflow, scale <scale> to <scale_after>;")
    line = "overflow, scale 8 to 4;overflow, scale 4 to 2;"
    assert told(line, wording) == [Skip(8.0, 4.0), Skip(4.0, 2.0)]


def test_a_setting_of_the_scaler_is_told_before_what_it_is_told_with():
    wording = worded("scale", "window <growth_interval>, scale <scale_after>")
    assert told("window 2,000, scale 16", wording) == [
        Setup(scaler={"growth_interval": 2000.0}),
        Scale(16.0),
    ]


@pytest.mark.parametrize(("value", "meant"), [("True", True), ("None", None), ("128.0", "128.0")])
def test_a_setting_keeps_its_text_but_for_pythons_own_words(value, meant):
    wording = worded("setup", r"(?P<key>\w+) = (?P<value>\S+)", begins=True)
    assert told(f"mode = {value}", wording) == [Setup({"mode": meant}, begins=True)]


def test_the_first_wording_reads_a_line_and_the_end_of_a_run_is_told_besides():
    wordings = [
        worded("amend", "scale was <scale>"),
        worded("stats", "step <step>"),
        worded("fatal", "giving up", exception="RuntimeError"),
    ]
    assert told("step 3 scale was 4, giving up now", *wordings) == [
        Amend(scale=4.0),
        Fatal("RuntimeError", "giving up now"),
    ]


def test_a_line_has_what_its_wording_needs_and_nothing_that_it_excludes():
    wording = worded(
        "stats", "step <step>", {"loss": "loss <>"}, needs=("train",), unless=("valid",),
        wants=("loss",),
    )  # fmt: skip
    assert told("train step 3 loss 1", wording) == [Stats(3, {"loss": 1.0})]
    for line in ("step 3 loss 1", "train step 3", "train valid step 3 loss 1"):
        assert told(line, wording) == []
