"""The Grafana dashboard: what it asks for is what the real mirror serves, and Prometheus answers.

Grafana itself is not run here: its panels' queries are, by a real Prometheus where one is
installed.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
from alert_parts import wait_for
from mirror_parts import write
from written_runs import more, write_run

from ampwatch import open_run
from ampwatch.mirrors import MirrorWorker, open_mirror
from ampwatch.rows import Table

pytest.importorskip("prometheus_client", reason="no prometheus-client here")
from prometheus_client.parser import text_string_to_metric_families

BOARD = json.loads(
    (Path(__file__).parents[2] / "examples" / "grafana" / "ampwatch.json").read_text("utf-8")
)
PANELS = BOARD["panels"]
QUERIES = [target["expr"] for panel in PANELS for target in panel["targets"]]
PROMETHEUS = shutil.which("prometheus")


@pytest.fixture
def port(tmp_path):
    """The real endpoint of a run that has every reading and a finding, and goes on."""
    mirror = open_mirror("prometheus://127.0.0.1:0", is_inside=False)
    worker = MirrorWorker(mirror, print, every_s=0.02)
    path = write_run(tmp_path, accepted=50, skipped=30, ended=False, age_s=5.0)
    more(path, accepted=1, first=80, step_time_ms=[2.5], grad_norm_applied=[0.5])
    newest = open_run(path).steps["time_ns"][-1].as_py()
    write(path, Table.DEVICES, {"time_ns": [newest], "device": ["cuda:0"], "peak_bytes": [1 << 30]})
    worker.follow(path)
    wait_for(
        lambda: any(name == "ampwatch_finding" for name, _ in served(mirror.server.server_port))
    )
    yield mirror.server.server_port
    worker.close()


def served(port):
    """Each sample as its name and labels."""
    address = f"http://127.0.0.1:{port}/metrics"
    with urllib.request.urlopen(address, timeout=30) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return [(sample.name, sample.labels) for family in families for sample in family.samples]


def test_every_metric_and_label_that_is_asked_for_is_served_and_every_metric_is_shown(port):
    labels = {}
    for name, its in served(port):
        labels.setdefault(name, set()).update(its)
    asked = set()
    for query in QUERIES:
        for name, filters in re.findall(r"(ampwatch_\w+)\{([^}]*)\}", query):
            asked.add(name)
            assert set(re.findall(r"(\w+)=", filters)) <= labels[name], query
    for panel in PANELS:
        for target in panel["targets"]:
            names = set(re.findall(r"ampwatch_\w+", target["expr"]))
            used = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) - {"__name__"}
            assert used <= set.intersection(*(labels[name] for name in names)), panel["title"]
    [runs] = [v["query"]["query"] for v in BOARD["templating"]["list"] if v["type"] == "query"]
    assert re.fullmatch(r"label_values\(ampwatch_step, run\)", runs)
    assert asked == {name for name in labels if not name.endswith("_created")}


def test_panels_have_their_own_numbers_and_places():
    numbers = [panel["id"] for panel in PANELS]
    assert len(set(numbers)) == len(numbers)
    cells = [
        (x, y)
        for grid in (panel["gridPos"] for panel in PANELS)
        for x in range(grid["x"], grid["x"] + grid["w"])
        for y in range(grid["y"], grid["y"] + grid["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) == 23


@contextlib.contextmanager
def prometheus(folder, port):
    """A real one, which scrapes our endpoint; the address of its API."""
    scrape = {"job_name": "ampwatch", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
    config = folder / "prometheus.yml"
    config.write_text(json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": [scrape]}))
    with contextlib.ExitStack() as stack:
        import socket

        with socket.create_server(("127.0.0.1", 0)) as free:
            own = free.getsockname()[1]
        child = subprocess.Popen(
            [PROMETHEUS, f"--config.file={config}", f"--storage.tsdb.path={folder}/data",
             f"--web.listen-address=127.0.0.1:{own}"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        stack.callback(child.wait)
        stack.callback(child.terminate)
        yield f"http://127.0.0.1:{own}/api/v1/query"


def answer(api, query):
    """What Prometheus answers; None while it has nothing, or is not up yet."""
    try:
        address = f"{api}?{urllib.parse.urlencode({'query': query.replace('$run', '.*')})}"
        with urllib.request.urlopen(address, timeout=30) as reply:
            return json.load(reply)["data"]["result"] or None
    except urllib.error.HTTPError as error:
        if error.code == 400:
            pytest.fail(f"{query}: {error.read().decode()}")
        return None
    except urllib.error.URLError:
        return None


@pytest.mark.slow_frameworks
@pytest.mark.skipif(PROMETHEUS is None, reason="no prometheus here: apt install prometheus")
def test_a_real_prometheus_answers_every_query_of_every_panel(port, tmp_path):
    with prometheus(tmp_path, port) as api:
        for query in QUERIES:
            wait_for(lambda query=query: answer(api, query) is not None)
        [errors] = answer(api, QUERIES[0])
        assert float(errors["value"][1]) >= 1
        [run] = answer(api, 'ampwatch_finding{code="AMP103",run=~"$run"}')
        assert run["metric"]["name"] == "scale-collapse"
