"""The demo: each scenario, trained once, shows what it says, and its letter is true."""

from __future__ import annotations

import functools
import os
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import children
import letter_truth
import pyarrow as pa
import pytest
from letter_truth import printed
from same_diagnosis import found, same

import ampwatch
from ampwatch.cli.demo import SCENARIOS, Scenario, scripts_folder
from ampwatch.diagnosis import Engine
from ampwatch.report.letter import letter_of
from ampwatch.rows import Table

Demo = Callable[[str], ampwatch.Run]

SHOWN = {
    "lr-too-high": ("failing", {"AMP103"}),
    "healthy": ("healthy", set()),
    "forward-overflow": ("failing", {"AMP203", "AMP103"}),
    "underflow": ("warning", {"AMP408", "AMP201"}),
    "one-bad-rank": ("failing", {"AMP602", "AMP103"}),
}
MARKS = {"one-bad-rank": [pytest.mark.slow_ranks], "forward-overflow": []}
every_scenario = pytest.mark.parametrize(
    "name",
    [
        pytest.param(one.name, marks=MARKS.get(one.name, [pytest.mark.slow_trainings]))
        for one in SCENARIOS
    ],
)
pytestmark = pytest.mark.timeout(300)


def scenario_of(name: str) -> Scenario:
    scenario = next(one for one in SCENARIOS if one.name == name)
    return replace(scenario, steps=150) if scenario.ranks > 1 else scenario  # it has failed by then


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """The run of a scenario, trained by its script on each of its ranks, as a launcher does."""
    folder = tmp_path_factory.mktemp("demo")

    @functools.cache
    def trained(name: str) -> ampwatch.Run:
        scenario = scenario_of(name)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        environment = {
            **os.environ, "AMPWATCH_DIR": str(folder), "AMPWATCH_ENDPOINT": "off",
            "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(ampwatch.__file__).parents[1]),
            "WORLD_SIZE": str(scenario.ranks), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }  # fmt: skip
        ranks = [
            children.start(
                scripts_folder() / scenario.script, "--steps", scenario.steps, "--run", name,
                "--seed", scenario.ranks - 1,
                env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            for rank in range(scenario.ranks)
        ]  # fmt: skip
        assert [rank.wait(200) for rank in ranks] == [0] * scenario.ranks
        return ampwatch.open_run(folder / name)

    return trained


@every_scenario
def test_each_scenario_shows_what_it_says(demo: Demo, name: str) -> None:
    run = demo(name)
    diagnosis = ampwatch.diagnose(run)
    verdict, codes = SHOWN[name]
    assert diagnosis.verdict.value == verdict
    assert codes <= {finding.code for finding in diagnosis.findings}
    assert diagnosis.run.steps == scenario_of(name).steps
    assert diagnosis.run.clean_end
    if name == "lr-too-high":  # its page, the interval and the rate of its run do not contradict
        advice, rate = diagnosis.learning_rate, run.steps.column("lr").to_numpy()
        began = diagnosis.headline.first_step
        assert advice.low < advice.high < rate[began]
        assert advice.recommended < rate[began] < 0.5 * advice.current


@every_scenario
def test_every_number_in_the_letter_is_true(demo: Demo, name: str) -> None:
    assert letter_truth.problems_of(demo(name)) == []
    assert list(letter_truth.untrue_evidence(demo(name))) == []


@pytest.mark.slow_trainings
def test_the_letter_is_one_screen_with_what_to_do_at_its_top(demo: Demo) -> None:
    run = demo("lr-too-high")
    text = printed(letter_of(run.info.name, run, ampwatch.diagnose(run)))
    assert list(letter_truth.beyond_limits(text, lines=30, words=220)) == []
    action = next(at for at, line in enumerate(text.split("\n"), 1) if "peak learning rate" in line)
    assert action <= 8


@every_scenario
def test_it_is_judged_live_as_it_is_judged_replayed(demo: Demo, name: str) -> None:
    run, small = demo(name), {"block_rows": 16, "settled_rows": 4}
    engine = Engine(**small)
    for end in (7, 50, 60):
        part = Prefix(run, end)
        assert same(engine.feed(part).diagnosis(), Engine(**small).feed(part).diagnosis())
    assert found(engine.diagnosis()) == found(Engine().feed(part).diagnosis())


class Prefix:
    """A run as its first rows of steps had left it; other tables up to that step."""

    clean_end = False

    def __init__(self, run: ampwatch.Run, rows: int) -> None:
        self._run = run
        self._last = run.read(Table.STEPS, columns=("step",)).column("step")[rows - 1].as_py()
        self.info, self.ranks, self.notes = run.info, run.ranks, run.notes
        self.last_time_ns = run.last_time_ns

    def read(self, table: Table, columns: Any = None, rank: int | None = None) -> pa.Table:
        rows = self._run.read(table, columns=columns, rank=rank)
        if table is Table.DEVICES:
            return rows
        steps = rows.column("step").fill_null(0).to_numpy()
        return rows.filter(pa.array(steps <= self._last))
