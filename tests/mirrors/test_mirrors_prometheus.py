"""The endpoint, scraped over HTTP and parsed by Prometheus' own parser."""

from __future__ import annotations

import math
import urllib.error
import urllib.request

import pytest
from alert_parts import wait_for
from mirror_parts import skips, train, write
from written_runs import more, write_run

from ampwatch import cli, open_run
from ampwatch.errors import MirrorError
from ampwatch.mirrors import MirrorWorker, open_mirror
from ampwatch.rows import Table

pytest.importorskip("prometheus_client", reason="no prometheus-client here")
from prometheus_client.parser import text_string_to_metric_families


def scrape(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return [sample for family in families for sample in family.samples]


def values(port, name, **labels):
    """The samples of a metric that have these labels, by all of theirs."""
    return [
        (sample.labels, sample.value)
        for sample in scrape(port)
        if sample.name == f"ampwatch_{name}" and labels.items() <= sample.labels.items()
    ]


@pytest.fixture
def endpoint():
    """A worker for an endpoint on a free port, and that port."""
    mirror = open_mirror("prometheus://127.0.0.1:0", is_inside=False)
    worker = MirrorWorker(mirror, print, every_s=0.02)
    yield worker, mirror.server.server_port
    worker.close()


def test_what_is_scraped_is_how_the_run_stands(tmp_path, endpoint):
    worker, port = endpoint
    path = write_run(tmp_path, accepted=50, skipped=20, ended=False)
    more(path, accepted=1, first=70, step_time_ms=[2.5])
    newest = open_run(path).steps["time_ns"][-1].as_py()
    write(path, Table.DEVICES, {"time_ns": [newest], "device": ["cuda:0"], "peak_bytes": [1 << 30]})
    worker.follow(path)
    wait_for(lambda: values(port, "step"))
    labels = {"run": "one", "rank": "0", "optimizer": "0"}
    for name, value in {
        "step": 70.0,
        "loss_scale": 65536.0,
        "skipped_steps_total": 20.0,
        "loss": 2.0,
        "learning_rate": 0.1,
        "gradient_norm": 1.0,
        "step_time_seconds": 0.0025,
        "memory_peak_bytes": float(1 << 30),
    }.items():
        assert values(port, name) == [(labels, pytest.approx(value))], name
    assert values(port, "run_ended") == [({"run": "one"}, 0.0)]


def test_the_findings_that_stand_are_gauges(tmp_path, endpoint):
    worker, port = endpoint
    path = write_run(tmp_path, ended=False)
    worker.thread.wake(path)
    wait_for(lambda: values(port, "step"))
    assert not values(port, "finding", code="AMP103")
    more(path, skipped=40, ended=True)
    worker.thread.wake(path)
    wait_for(lambda: values(port, "run_ended", run="one")[0][1])
    [(labels, value)] = values(port, "finding", code="AMP103")
    assert (labels["name"], labels["severity"], value) == ("scale-collapse", "error", 1.0)
    assert math.isnan(values(port, "loss")[0][1])
    assert values(port, "skipped_steps_total")[0][1] == skips(path)[-1][1]


def test_runs_and_ranks_are_told_apart_and_names_are_data(tmp_path, endpoint):
    worker, port = endpoint
    path = write_run(tmp_path, 'a "b"\nc', ended=False)
    more(path, accepted=5, first=0, rank=1)
    worker.thread.wake(path)
    worker.thread.wake(write_run(tmp_path, "other"))
    wait_for(lambda: len(values(port, "step")) == 3)
    assert sorted((one["run"], one["rank"]) for one, _ in values(port, "step")) == [
        (path.name, "0"),
        (path.name, "1"),
        ("other", "0"),
    ]


def test_of_runs_that_ended_only_the_last_are_shown(tmp_path, endpoint, monkeypatch):
    monkeypatch.setattr("ampwatch.mirrors.updates.MOST_ENDED_RUNS", 2)
    worker, port = endpoint
    for name in ("a", "b", "c"):
        worker.thread.wake(write_run(tmp_path, name))
        wait_for(lambda name=name: values(port, "run_ended", run=name) == [({"run": name}, 1.0)])
    assert [labels["run"] for labels, _ in values(port, "run_ended")] == ["b", "c"]


def test_the_endpoint_ends_with_its_worker(tmp_path):
    mirror = open_mirror("prometheus://127.0.0.1:0", is_inside=False)
    worker, port = MirrorWorker(mirror, print, every_s=0.02), mirror.server.server_port
    scrape(port)
    worker.close()
    with pytest.raises(urllib.error.URLError):
        scrape(port)


@pytest.mark.parametrize(("host", "bound"), [("", "127.0.0.1"), ("0.0.0.0", "0.0.0.0")])
def test_it_is_for_this_machine_alone_unless_an_address_is_given(host, bound):
    mirror = open_mirror(f"prometheus://{host}:0", is_inside=False)
    assert mirror.server.socket.getsockname()[0] == bound
    mirror.close()


def test_a_port_that_is_taken_or_none_is_said_in_a_sentence(endpoint, capsys, tmp_path):
    _, port = endpoint
    with pytest.raises(MirrorError, match="use another port"):
        open_mirror(f"prometheus://127.0.0.1:{port}", is_inside=True)
    path = write_run(tmp_path)
    for place in ("prometheus", "prometheus://host", "prometheus://:x"):
        assert cli.run(["watch", str(path), "--to", place]) == 2
        assert "prometheus://:9464" in capsys.readouterr().err


SCRAPED = """
import time, prometheus_client
def skipped():
    return prometheus_client.REGISTRY.get_sample_value(
        "ampwatch_skipped_steps_total", {"run": "r", "rank": "0", "optimizer": "0"}
    )
ampwatch.mirror(watch, to="prometheus", every_s=0.02)
"""
WAIT = """
until = time.monotonic() + 60
while skipped() != 2.0:
    assert time.monotonic() < until
    time.sleep(0.02)
watch.close()
assert skipped() is None
"""


def test_a_training_shows_itself_in_the_registry_that_it_has(tmp_path):
    child = train(tmp_path, after=SCRAPED, end=WAIT)
    assert child.stderr == ""
