"""What a live run's page says of usable loss scales is of one step: title, scale, line and bars."""

from __future__ import annotations

import math
import re
import time

import pytest
from page_driver import needs_browser, training

import ampwatch

pytestmark = [pytest.mark.slow_browser, needs_browser]

MOMENTS, PAUSE_S = 4, 1.2
POWERS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
# What stands together on the screen beside the charts, and on the page of layers.
PANEL = """() => { const at = document.querySelector('.aw-views');
  const bars = [...at.querySelectorAll('.aw-window')];
  return { title: at.querySelector('.aw-chart-title b').innerText,
    at: at.querySelector('.aw-chart-title span').innerText,
    scale: at.querySelector('.aw-window-line').innerText,
    bars: bars.map((one) => one.title),
    red: bars.filter((one) => one.classList.contains('fault-bar')).length }; }"""
TREE = """() => { const at = document.querySelector('.aw-heatmap');
  const title = at.querySelector('.aw-map-view-title');
  const bars = [...at.querySelectorAll('.aw-map-body .aw-map-track[title]')];
  return { title: title.querySelector('b').innerText, at: title.querySelector('span').innerText,
    scale: title.querySelector('span').innerText.split(',')[1], bars: bars.map((one) => one.title),
    red: bars.filter((one) => one.classList.contains('fault-bar')).length }; }"""


@pytest.fixture(scope="module")
def place(folder):
    """Live runs: a scale that grows and is halved; one that falls from step 60; lost gradients."""
    with (
        training(folder, "grows", 4000, 0.05),
        training(folder, "falls", 4000, 0.15, 60),
        training(folder, "loses", 4000, 0.15, 0, 1e-8),
    ):
        yield folder


def powers_in(text):
    return [int(one.translate(POWERS)) for one in re.findall(r"2([⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+)", text)]


def once_there(page, part, read):
    """What is read of a part of the page as soon as it is there."""
    ready = f"() => document.querySelector('{part}') && ({read})()"
    return page.page.wait_for_function(ready).json_value()


CAPS, NEEDS = "Layer {} caps the loss scale at ", "Layer {} needs a loss scale of "


def checked(shown, path, words=CAPS):
    """The step that all is of, once it says the same as that step's rows in the log."""
    step = int(re.search(r"step ([\d,]+)", shown["at"])[1].replace(",", ""))
    run = ampwatch.open_run(path)
    scales = {row["step"]: row["scale"] for row in run.steps.to_pylist()}
    rows = [row for row in run.layers.to_pylist() if row["step"] == step]
    tops = {row["layer"]: row["scale_high"] for row in rows if row["scale_high"]}
    assert powers_in(shown["scale"]) == [round(math.log2(scales[step]))]
    drawn = {title.split(":")[0]: powers_in(title)[-1] for title in shown["bars"]}
    assert len(drawn) == 3
    assert drawn == {layer: math.floor(math.log2(tops[layer])) for layer in drawn}
    if words == CAPS:
        limit = min(drawn, key=lambda layer: tops[layer])
        power = drawn[limit]
    else:
        lows = {
            row["layer"]: row["scale_low"]
            or (2 * scales[step] if row["underflow_share"] > 0.67 else 0)
            for row in rows
        }
        limit = max(drawn, key=lambda layer: lows[layer])
        power = math.ceil(math.log2(lows[limit]))
    assert shown["title"].startswith(words.format(limit))
    assert powers_in(shown["title"]) == [power]
    return step


def test_beside_the_charts_all_is_of_one_step_at_each_moment(page, server, place):
    page.open(f"{server.url}/?run=loses")
    page.page.locator(".aw-window").first.wait_for()
    for _ in range(MOMENTS):
        shown = once_there(page, ".aw-views .aw-window", PANEL)
        checked(shown, place / "loses", NEEDS)
        assert shown["red"] == 1
        time.sleep(PAUSE_S)


def test_loss_scales_that_suited_every_layer_do_not_stand_beside_a_scale_that_falls(
    page, server, place
):
    """The loss was made 1e30 times as large: the last sample before shows nothing of it."""
    page.open(f"{server.url}/?run=falls")
    page.page.locator(".aw-verdict.failing").first.wait_for()
    page.page.locator(".aw-plot").wait_for()
    for _ in range(MOMENTS):
        assert page.page.locator(".aw-window").count() == 0
        time.sleep(PAUSE_S)


def test_on_the_page_of_layers_all_is_of_the_last_sample_at_each_moment(page, server, place):
    page.open(f"{server.url}/layers?run=grows")
    page.page.locator(".aw-map-track[title]").first.wait_for()
    steps = []
    for _ in range(2 * MOMENTS):
        shown = once_there(page, ".aw-map-track[title]", TREE)
        steps.append(checked(shown, place / "grows"))
        assert shown["red"] == 0
        time.sleep(PAUSE_S)
    assert steps == sorted(steps)
    assert len(set(steps)) > 1
