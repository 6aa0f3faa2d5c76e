"""Two real processes that train together, in a real browser: both are drawn, the bad one named."""

from __future__ import annotations

import os
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import children
import numpy as np
import pytest
import torch
from page_driver import PAGES, PATIENCE_MS, needs_browser, tab

import ampwatch
from ampwatch import store
from ampwatch.cli.demo import SCENARIOS, train

pytestmark = [
    pytest.mark.slow_browser,
    needs_browser,
    pytest.mark.skipif(not torch.distributed.is_available(), reason="needs torch.distributed"),
]
BAD = 1  # the rank whose text is bad
STEPS = 150  # enough for the run to fail


@pytest.fixture(scope="module")
def place(folder):
    """A folder for the run of the demo's two processes."""
    return folder


@pytest.fixture(scope="module")
def training(place):
    """The two processes: they train from here on, and end by themselves."""
    [pair] = [replace(one, steps=STEPS) for one in SCENARIOS if one.ranks == 2]
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(1) as worker:
        for name, value in children.forking({}).items():
            patch.setenv(name, value)
            patch.setattr(sys, "executable", value)  # which the demo starts torch's launcher by
        yield worker.submit(train, pair, place / "pair", 0)


@pytest.fixture(scope="module")
def run(training):
    """Their run, at its end."""
    return store.open_run(training.result())


def of_rank(run, rank, column):
    """What the log holds: {step: value}."""
    rows = run.read("steps", columns=("step", column), rank=rank).to_pylist()
    return {row["step"]: np.float32(row[column]) for row in rows}


def is_drawn(page, values):
    """Whether any line shows exactly these numbers."""
    for line in page.lines():
        pairs = zip(line["x"], line["y"], strict=True)
        points = {x: y for x, y in pairs if y is not None and x is not None}
        if points.keys() == values.keys() and np.allclose(
            [points[step] for step in values], list(values.values()), rtol=1e-6
        ):
            return True
    return False


def wait_until(holds):
    """Until it is so: the page draws in its own time."""
    end = time.monotonic() + PATIENCE_MS / 1000
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.1)


def choose(page, words):
    """Another rank, in the sidebar."""
    page.page.get_by_test_id("stSidebar").get_by_test_id("stSelectbox").click()
    page.page.get_by_role("option", name=words, exact=True).click()


def test_both_ranks_are_drawn_as_they_train(page, place, server, training):
    """The first of the tests, so that it sees the training that all of them look at."""
    while not (place / "pair" / "run.json").exists():
        assert not training.done() or training.result()
        time.sleep(0.1)
    page.open(f"{server.url}/?run=pair")
    page.drawn(20)
    page.says("live, ")
    page.refreshes(3)
    run = store.open_run(training.result())
    page.drawn(STEPS)
    for rank in (0, BAD):
        wait_until(lambda rank=rank: is_drawn(page, of_rank(run, rank, "loss")))


def test_the_page_names_the_rank_and_the_layer_and_draws_both_ranks(page, server, run):
    page.open(server.url)
    page.drawn(STEPS)
    page.says("FAILING")
    assert ampwatch.diagnose(run).headline.code == "AMP602"
    band = page.page.locator(".aw-band").inner_text()
    assert f"Rank {BAD} alone overflows" in band
    assert f"layer head of rank {BAD}" in band
    assert is_drawn(page, of_rank(run, 0, "loss"))
    assert is_drawn(page, of_rank(run, BAD, "loss"))
    page.says(", the same on all ranks")
    numbers = page.numbers()
    assert numbers["loss, rank 0"] == f"{of_rank(run, 0, 'loss')[STEPS - 1]:.4g}"
    skipped = sum(of_rank(run, 0, "skipped").values())
    assert numbers["skipped"].startswith(f"{skipped:.0f} of {STEPS}")


def test_a_rank_is_chosen_in_the_sidebar_or_hidden_by_its_label_and_told_by_the_address(
    page, server, run
):
    page.open(server.url)
    page.drawn(STEPS)
    for rank in (BAD, 0):
        choose(page, f"rank {rank}")
        page.page.wait_for_url(re.compile(f"rank={rank}"))
        theirs, others = (of_rank(run, one, "loss") for one in (rank, 1 - rank))
        wait_until(lambda: is_drawn(page, theirs) and not is_drawn(page, others))  # noqa: B023
    choose(page, "all 2 ranks")
    page.page.wait_for_function("() => !location.search.includes('rank=')")
    wait_until(lambda: all(is_drawn(page, of_rank(run, rank, "loss")) for rank in (0, BAD)))
    labels = page.page.locator(".aw-series-name")
    assert labels.all_inner_texts() == ["rank 0", "rank 1"]
    page.page.get_by_role("button", name=f"rank {BAD}", exact=True).click()
    page.page.get_by_text(f"1 hidden: rank {BAD}").wait_for()
    drawn = page.page.evaluate(
        "() => document.querySelector('.aw-plot').drawn.panels.flatMap(({lines}) => lines)"
        ".map(({label}) => label)"
    )
    assert not any(f"rank {BAD}" in label for label in drawn)
    assert sum("rank 0" in label for label in drawn) > 1
    page.page.wait_for_url(re.compile("view="))


def test_every_page_tells_the_ranks_apart_and_is_kept_as_a_picture(one, server, run, tmp_path):
    shots = Path(os.environ.get("AMPWATCH_SCREENSHOTS", tmp_path))
    shots.mkdir(exist_ok=True)
    with tab(one) as page:
        page.open(server.url)
        page.drawn(STEPS)
        for name in PAGES:
            page.go(name)
            page.settled()
            assert page.page.locator("[data-testid=stException], .aw-problem").count() == 0
            page.page.screenshot(path=shots / f"ranks-{name.split()[0].lower()}.png")
        page.go("Findings")
        words = page.page.locator(".aw-finding").first.inner_text()
        assert "rank 1" in words
        assert "head" in words
        page.go("Memory and device")
        titles = page.page.locator(".stMain section p > b").all_inner_texts()
        assert [title.split(" ·")[0] for title in titles] == ["rank 0", "rank 1"]
        assert page.troubles == []
