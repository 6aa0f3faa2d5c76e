"""A real Ray cluster of two nodes judges as this machine does, whatever it loses on the way."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time

import pytest

pytest.importorskip("ray", reason="no Ray here: pip install 'ampwatch[fleet-ray]'")

import ray_cluster
from written_runs import write_run

from ampwatch.fleet import publish
from ampwatch.fleet.chosen_runs import choice_of
from ampwatch.fleet.judging import judge_place
from ampwatch.fleet.workers import LocalWorkers

RUNS = 48

pytestmark = pytest.mark.slow_clusters


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Runs that differ, of a length that keeps a worker busy for a while."""
    folder = tmp_path_factory.mktemp("judged")
    for number in range(RUNS):
        steps = {"accepted": 3000 - 50 * number, "skipped": 40 * (number % 3)}
        write_run(folder / "runs", f"run-{number:02}", age_s=9000.0 + number, **steps)
    publish(folder / "runs", folder / "published")
    return folder


@pytest.fixture
def place(folder, tmp_path):
    shutil.copytree(folder / "published", tmp_path / "place")
    return str(tmp_path / "place")


@pytest.fixture(scope="module")
def expected(folder):
    """What this machine says of them."""
    shutil.copytree(folder / "published", folder / "place")
    return told(judge_place(str(folder / "place"), choice_of(), LocalWorkers(1)))


@pytest.fixture(scope="module", autouse=True)
def _home(tmp_path_factory):
    """Ray keeps its secret in the user's home, or here."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ray_cluster.environment(tmp_path_factory.mktemp("home")).items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def cluster(_home):
    with ray_cluster.cluster() as made:
        yield made


def told(found):
    """All that is said of the runs, but for when."""
    return {
        one.name: (one.verdict, one.codes, one.findings_json, one.lost_steps, one.learning_rate)
        for one in found.runs
    }


def judged_on(address, place, runs_a_share=4):
    """What the command says, in a process of its own, which a cluster's loss cannot harm."""
    script = (
        "import sys; from ampwatch.fleet import judging_worker as s; s._RUNS = s._LEAST_RUNS = "
        f"{runs_a_share}; from ampwatch import cli; cli.main(sys.argv[1:])"
    )
    arguments = ["fleet", place, "--engine", "ray"] + (["--address", address] if address else [])
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def assert_done(child, place, expected):
    shown, trouble = child.communicate(timeout=150)
    assert child.returncode == 0, trouble
    assert f"{RUNS} runs, {RUNS} of them judged now" in shown
    found = judge_place(place, choice_of(), LocalWorkers(1))
    assert found.judged == 0
    assert told(found) == expected


@pytest.mark.parametrize("how", ["address", "client"])
def test_a_cluster_says_what_this_machine_says(cluster, place, expected, how):
    assert_done(judged_on(getattr(cluster, how), place), place, expected)


def test_without_an_address_ray_works_on_this_machine(place, expected):
    assert_done(judged_on(None, place), place, expected)


def test_a_worker_that_is_killed_is_replaced(cluster, place, expected):
    child = judged_on(cluster.address, place)
    wait_for_a_worker(cluster.nodes).kill()
    assert_done(child, place, expected)


def test_a_node_that_is_lost_is_done_without(cluster, place, expected):
    third = cluster.add_node()
    child = judged_on(cluster.address, place)
    wait_for_a_worker([third])
    third.kill()
    assert_done(child, place, expected)


def test_nodes_by_other_rules_are_refused(cluster, place, tmp_path):
    """Two versions of ampwatch would judge differently."""
    script = (
        "import sys, ampwatch; ampwatch.__version__ = '99.0'; from ampwatch import cli; "
        "cli.main(sys.argv[1:])"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, "fleet", place, "--engine", "ray",
         "--address", cluster.address],
        capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    said = " ".join(done.stderr.split())
    assert re.search(r"A worker judges by the rules \S+ and this machine by 99\.0\+", said)
    assert "install the same ampwatch on both" in said
    assert "Traceback" not in said


def test_a_cluster_that_is_not_there_is_said(place):
    child = judged_on(f"ray://127.0.0.1:{ray_cluster.free_port()}", place)
    _, trouble = child.communicate(timeout=150)
    assert child.returncode == 2
    assert "Ray's cluster at ray://127.0.0.1" in " ".join(trouble.split())
    assert "cannot be used" in " ".join(trouble.split())
    assert "Traceback" not in trouble


def wait_for_a_worker(nodes):
    """The first process of these that is judging."""
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline:
        for node in nodes:
            for worker in node.workers("judge_share"):
                return worker
        time.sleep(0.01)
    raise TimeoutError("nobody judged")


def test_who_does_not_know_the_secret_is_told(cluster, place, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 64)
    child = judged_on(cluster.address, place)
    _, trouble = child.communicate(timeout=150)
    assert child.returncode == 2
    assert "cannot be used" in " ".join(trouble.split())
    assert "Traceback" not in trouble
