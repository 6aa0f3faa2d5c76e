"""A real Ray cluster of two nodes judges as this machine does, whatever it loses on the way."""

from __future__ import annotations

import os
import re
import shutil
import time
from subprocess import PIPE

import children
import pytest

pytest.importorskip("ray", reason="no Ray here: pip install 'ampwatch[fleet-ray]'")

import fleet_docs
import ray_cluster
from stuck_run import StuckRun
from written_runs import write_run

from ampwatch.fleet import publish
from ampwatch.fleet.chosen_runs import choice_of
from ampwatch.fleet.judging import judge_place
from ampwatch.fleet.workers import LocalWorkers

RUNS = 8

pytestmark = pytest.mark.slow_clusters


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Runs that differ, each published alone."""
    folder = tmp_path_factory.mktemp("judged")
    for number in range(RUNS):
        steps = {"accepted": 300 - 5 * number, "skipped": 40 * (number % 3)}
        path = write_run(folder / "runs", f"run-{number}", age_s=9000.0 + number, **steps)
        publish(path, folder / "published")
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
def _ray_home(tmp_path_factory, s3):
    """Ray keeps its secret in the user's home, or here; the nodes reach the bucket as this does."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ray_cluster.environment(tmp_path_factory.mktemp("home")).items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def cluster(_ray_home):
    with ray_cluster.cluster() as made:
        yield made


def told(found):
    """All that is said of the runs, but for when."""
    return {
        one.name: (one.verdict, one.codes, one.findings_json, one.lost_steps, one.learning_rate)
        for one in found.runs
    }


def started(script, *arguments, **environment):
    """A process of its own, which a cluster's loss cannot harm."""
    told = {**os.environ, **environment}
    return children.start("-c", script, *arguments, env=told, stdout=PIPE, stderr=PIPE)


def judged_on(address, place, *options, before="", **environment):
    """What the command says, where each run is a share."""
    script = (
        f"import sys; {before}from ampwatch.fleet import judging as s; s._RUNS = "
        "s._LEAST_RUNS = 1; from ampwatch import cli; cli.main(sys.argv[1:])"
    )
    where = ["--address", address] if address else []
    arguments = ["fleet", place, "--engine", "ray", *where, *options]
    return started(script, *arguments, **environment)


def assert_done(child, place, expected):
    shown, trouble = child.communicate(timeout=150)
    assert child.returncode == 0, trouble
    assert f"{RUNS} runs, {RUNS} of them judged now" in shown
    found = judge_place(place, choice_of(), LocalWorkers(1))
    assert found.judged == 0
    assert told(found) == expected


def assert_refused(child):
    """It ends with a sentence."""
    _, trouble = child.communicate(timeout=150)
    assert child.returncode == 2
    assert "Traceback" not in trouble
    return " ".join(trouble.split())


def test_without_an_address_ray_works_on_this_machine(place, expected):
    assert_done(judged_on(None, place, "--workers", "1"), place, expected)


def test_nodes_by_other_rules_are_refused(cluster, place):
    """Two versions of ampwatch would judge differently."""
    other = "import ampwatch; ampwatch.__version__ = '99.0'; "
    said = assert_refused(judged_on(cluster.address, place, before=other))
    assert re.search(r"A worker judges by the rules \S+ and this machine by 99\.0\+", said)
    assert "install the same ampwatch on both" in said


def test_a_cluster_that_is_not_there_is_said(place):
    once = {
        "RAY_CLIENT_INITIAL_CONNECTION_TIMEOUT_S": "1",
        "RAY_CLIENT_MAX_CONNECTION_TIMEOUT_S": "1",
    }
    address = f"ray://127.0.0.1:{ray_cluster.free_port()}"
    said = assert_refused(judged_on(address, place, **once))
    assert "Ray's cluster at ray://127.0.0.1" in said
    assert "cannot be used" in said


def test_who_does_not_know_the_secret_is_told(cluster, place):
    wrong = {"RAY_AUTH_TOKEN": "0" * 64, "RAY_NUM_REDIS_GET_RETRIES": "1"}
    assert "cannot be used" in assert_refused(judged_on(cluster.address, place, **wrong))


def test_the_program_of_the_page_counts_what_a_run_skipped(cluster, tmp_path, s3_place):
    places = [str(tmp_path / "place"), s3_place]
    for number, place in enumerate(places):
        runs = tmp_path / f"runs-{number}"
        fleet_docs.written(runs)
        fleet_docs.published_again(runs, place)
    program = (fleet_docs.PROGRAMS / "skipped_steps_ray.py").read_text("utf-8")
    script = (
        f"import sys\nfor sys.argv[1:] in {[[place] for place in places]}:\n    exec({program!r})"
    )
    child = started(script, RAY_ADDRESS=cluster.address)
    said, trouble = child.communicate(timeout=150)
    assert child.returncode == 0, trouble
    assert sorted(said.splitlines()) == sorted(2 * ["train-1204 8", "train-1205 0", "resumed 5"])


def test_a_cluster_says_what_this_machine_says(cluster, place, expected):
    assert_done(judged_on(cluster.client, place), place, expected)


def test_a_worker_and_a_node_that_are_lost_are_done_without(cluster, place, expected):
    """The last of the cluster's tests: of its nodes the head is left."""
    stuck = [StuckRun(place, name) for name in ("run-2", "run-5")]
    child = judged_on(cluster.address, place)
    worker = wait_for_a_worker(cluster.head)
    wait_for_a_worker(cluster.second)
    for run in stuck:
        run.come_loose()
    cluster.second.kill()
    worker.kill()
    assert_done(child, place, expected)


def wait_for_a_worker(node):
    """The process of this node that is judging."""
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline:
        for worker in node.workers("judge_share"):
            return worker
        time.sleep(0.01)
    raise TimeoutError("nobody judged")
