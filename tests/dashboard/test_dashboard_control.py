"""A training is steered from a real page over the real feed, where it allows it, and else not."""

from __future__ import annotations

import os
import signal
import socket
from contextlib import contextmanager
from pathlib import Path

import children
import pytest
import torch
from page_driver import needs_browser, tab

import ampwatch
from ampwatch.cli.dashboard import Server

pytestmark = [pytest.mark.slow_browser, needs_browser]
PROGRAM = Path(__file__).with_name("steered_training.py")


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Where runs are, with keys, state and a port of their own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("AMPWATCH_ENDPOINT", f"tcp://127.0.0.1:{port}")
    (tmp_path / "runs").mkdir()
    return tmp_path


@contextmanager
def steered(folder, control):
    told = {**os.environ, "AMPWATCH_DIR": str(folder / "runs")}
    with children.start(PROGRAM, "steered", control, cwd=folder, env=told) as child:
        try:
            yield child
        finally:
            child.kill()


# Of a text and what is behind it, as WCAG computes it.
CONTRAST = r"""text => {
    const numbers = (color) => (color.match(/[\d.]+/g) ?? []).map(Number);
    const light = (color) => numbers(color).slice(0, 3).map((part) => part / 255)
        .map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
        .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
    let behind = text;
    const isClear = (one) => numbers(getComputedStyle(one).backgroundColor)[3] === 0;
    while (isClear(behind)) behind = behind.parentElement;
    const colors = [getComputedStyle(text).color, getComputedStyle(behind).backgroundColor];
    const pair = colors.map(light);
    return (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
}"""


def test_the_rate_is_set_a_checkpoint_saved_and_the_training_stopped(one, folders):
    with Server([folders / "runs"]) as server, tab(one) as page:
        with steered(folders, "allowed") as child:
            page.open(server.url)
            page.page.get_by_role("button", name="Set the learning rate").click()
            for scheme in ("dark", "light"):  # it cannot be pressed yet, and is read all the same
                page.wear(scheme)
                button = page.page.get_by_role("button", name="Set it").locator("p")
                assert button.evaluate(CONTRAST) >= 4.5, scheme
            field = page.page.get_by_role("spinbutton")
            field.fill("0.025")
            field.press("Enter")
            page.says("multiplied by 0.25")
            page.page.get_by_role("button", name="Set it").click()
            page.says("The learning rate was changed from 0.1 to 0.025")

            page.page.get_by_role("button", name="Save a checkpoint now").click()
            page.says("Save a checkpoint after the step in progress?")
            page.page.get_by_role("button", name="Save it").click()
            page.says("A checkpoint was written")
            assert "weight" in torch.load(folders / "steered.pt")

            page.page.get_by_role("button", name="Stop after this step").click()
            page.says("It ends as after Ctrl-C.")
            page.page.get_by_role("button", name="Cancel").click()
            assert child.poll() is None
            page.page.get_by_role("button", name="Stop after this step").click()
            page.says("It ends as after Ctrl-C.")
            page.page.get_by_role("button", name="Stop it").click()
            assert child.wait() == -signal.SIGINT
            page.page.get_by_role("button", name="Stop after this step").wait_for(state="detached")
        assert page.troubles == []
    rates = ampwatch.open_run(folders / "runs" / "steered").steps.column("lr").to_pylist()
    assert (rates[0], rates[-1]) == (0.1, pytest.approx(0.025, rel=0.01))


def test_a_training_that_does_not_allow_it_is_only_watched(one, folders):
    with Server([folders / "runs"]) as server, tab(one) as page, steered(folders, "not"):
        page.open(server.url)
        page.drawn(5)
        page.says("This page only watches the run.")
        assert page.page.get_by_role("button", name="Stop after this step").count() == 0


def test_an_instruction_is_refused_where_the_feed_is_not_encrypted(one, folders, monkeypatch):
    monkeypatch.setenv("AMPWATCH_INSECURE", "1")
    with Server([folders / "runs"]) as server, tab(one) as page, steered(folders, "allowed"):
        page.open(server.url)
        page.page.get_by_role("button", name="Stop after this step").click()
        page.says("It ends as after Ctrl-C.")
        page.page.get_by_role("button", name="Stop it").click()
        page.says("Stopping was refused: the feed is not encrypted")
