"""A real OTLP receiver: what arrives over HTTP, decoded by OpenTelemetry's own protocol."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from alert_parts import wait_for
from mirror_parts import train, weights, write
from web_server import answering
from written_runs import more, write_run

from ampwatch import cli, open_run
from ampwatch.errors import MirrorError
from ampwatch.mirrors import MirrorWorker, open_mirror
from ampwatch.rows import Table

pytest.importorskip("opentelemetry.sdk", reason="no opentelemetry-sdk here")
pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="no OTLP exporter here")
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)


@dataclass
class Collector:
    """What came in, and how it is answered."""

    port: int = 0
    status: int = 200
    asked: int = 0
    taken: list[ExportMetricsServiceRequest] = field(default_factory=list)

    def metrics(self):
        """The metrics that came last, by name."""
        if not self.taken:
            return {}
        return {
            metric.name: metric
            for resource in self.taken[-1].resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    def values(self, name):
        """A metric's last numbers, with their attributes."""
        metric = self.metrics().get(f"ampwatch.{name}")
        if metric is None:
            return []
        return [
            ({one.key: one.value.string_value for one in point.attributes}, point.as_double)
            for point in getattr(metric, metric.WhichOneof("data")).data_points
        ]


@pytest.fixture
def collector():
    made = Collector()

    def take(path, body):
        made.asked += 1
        if made.status == 200 and path == "/v1/metrics":
            made.taken.append(ExportMetricsServiceRequest.FromString(body))
        return made.status

    with answering(take) as made.port:
        yield made


@contextlib.contextmanager
def mirrored(collector, notes=None):
    mirror = open_mirror(f"otlp://127.0.0.1:{collector.port}", is_inside=False)
    worker = MirrorWorker(mirror, (notes if notes is not None else []).append, every_s=0.02)
    try:
        yield worker
    finally:
        worker.close()


def test_what_arrives_is_how_the_run_stands(tmp_path, collector):
    path = write_run(tmp_path, accepted=50, skipped=20, ended=False)
    more(path, accepted=1, first=70, step_time_ms=[2.5])
    newest = open_run(path).steps["time_ns"][-1].as_py()
    write(path, Table.DEVICES, {"time_ns": [newest], "device": ["cuda:0"], "peak_bytes": [1 << 30]})
    with mirrored(collector) as worker:
        worker.follow(path)
        wait_for(lambda: collector.values("step"))
    labels = {"run": "one", "rank": "0", "optimizer": "0"}
    for name, value, unit in (
        ("step", 70.0, ""),
        ("loss_scale", 65536.0, ""),
        ("skipped_steps", 20.0, ""),
        ("loss", 2.0, ""),
        ("step_time", 0.0025, "s"),
        ("memory_peak", float(1 << 30), "By"),
    ):
        assert collector.values(name) == [(labels, pytest.approx(value))], name
        assert collector.metrics()[f"ampwatch.{name}"].unit == unit
    assert collector.metrics()["ampwatch.skipped_steps"].sum.is_monotonic
    [resource] = collector.taken[-1].resource_metrics
    names = {one.key: one.value.string_value for one in resource.resource.attributes}
    assert names["service.name"] == "ampwatch"


def test_cards_have_the_names_of_the_semantic_conventions(tmp_path, collector):
    """Names, units and instruments are those of OpenTelemetry's own package."""
    conventions = pytest.importorskip("opentelemetry.semconv._incubating.metrics.hw_metrics")
    path = write_run(tmp_path, accepted=50, ended=False)
    newest = open_run(path).steps["time_ns"][-1].as_py()
    card = {"device": "cuda:1", "name": "NVIDIA H200", "used_bytes": 3 << 30, "power_w": 412.5,
            "total_bytes": 12 << 30, "utilisation": 0.75, "temperature_c": 61.0}  # fmt: skip
    rows = [{"time_ns": newest - 1, **card, "power_w": 9.0}, {"time_ns": newest, **card}]
    write(path, Table.DEVICES, {name: [row[name] for row in rows] for name in rows[0]})
    with mirrored(collector) as worker:
        worker.follow(path)
        wait_for(lambda: "hw.power" in collector.metrics())
    kinds = {"gauge": "gauge", "updowncounter": "sum"}
    source = Path(conventions.__file__).read_text()
    for name, value in {
        "hw.gpu.utilization": 0.75,
        "hw.gpu.memory.usage": 3 << 30,
        "hw.gpu.memory.limit": 12 << 30,
        "hw.gpu.memory.utilization": 0.25,
        "hw.power": 412.5,
        "hw.temperature": 61.0,
    }.items():
        constant = name.upper().replace(".", "_")
        assert getattr(conventions, constant) == name
        stated = source.split(f"{constant}: Final")[1].split('"""')[1]
        metric = collector.metrics()[name]
        assert f"Unit: {metric.unit}\n" in stated
        kind = metric.WhichOneof("data")
        assert kinds[stated.split("Instrument: ")[1].split("\n")[0]] == kind
        assert kind != "sum" or not metric.sum.is_monotonic
        [point] = getattr(metric, kind).data_points
        assert getattr(point, point.WhichOneof("value")) == value
        attributes = {one.key: one.value.string_value for one in point.attributes}
        assert attributes == {
            "hw.id": "one/rank-0/cuda:1",
            "hw.type": "gpu",
            "hw.name": "cuda:1",
            "hw.model": "NVIDIA H200",
        }


def test_the_findings_that_stand_are_gauges(tmp_path, collector):
    path = write_run(tmp_path, skipped=40)
    assert cli.run(["watch", str(path), "--to", f"otlp://127.0.0.1:{collector.port}"]) == 0
    found = {labels["code"]: labels for labels, _ in collector.values("finding")}
    assert (found["AMP103"]["severity"], found["AMP103"]["run"]) == ("error", "one")
    assert collector.values("run_ended") == [({"run": "one"}, 1.0)]


def test_a_collector_that_refuses_is_said_once_and_gets_it_later(tmp_path, collector):
    collector.status, notes = 400, []
    path = write_run(tmp_path, skipped=3)
    with mirrored(collector, notes) as worker:
        worker.follow(path)
        wait_for(lambda: collector.asked >= 3)
        collector.status = 200
        wait_for(lambda: collector.values("run_ended") == [({"run": "one"}, 1.0)])
    assert collector.values("skipped_steps")[0][1] == 3.0  # counted once, sent again
    assert worker.failures >= 2
    assert len(notes) == 1
    assert "the collector did not accept it" in notes[0]


ACTIVE = """
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
reader = PeriodicExportingMetricReader(OTLPMetricExporter("http://127.0.0.1:{port}/v1/metrics"))
metrics.set_meter_provider(MeterProvider([reader]))
metrics.get_meter("theirs").create_counter("theirs").add(1)
"""


def test_a_training_shows_itself_in_the_provider_that_it_has(tmp_path, collector, bare_weights):
    child = train(
        tmp_path,
        before=ACTIVE.replace("{port}", str(collector.port)),
        after="ampwatch.mirror(watch, to='otlp', every_s=0.02)",
        end="watch.close()",
    )
    assert weights(child) == bare_weights
    shown = [
        {metric.name: metric for scope in resource.scope_metrics for metric in scope.metrics}
        for request in collector.taken
        for resource in request.resource_metrics
    ]
    closing = next(one for one in shown if "ampwatch.skipped_steps" in one)
    assert [point.as_double for point in closing["ampwatch.skipped_steps"].sum.data_points] == [2.0]
    assert "theirs" in closing


@pytest.mark.parametrize("place", ["otlp://", "otlp://:x", "otlps://:4318"])
def test_an_address_without_a_collector_is_refused_with_an_example(place):
    with pytest.raises(MirrorError, match="otlp://HOST:4318"):
        open_mirror(place, is_inside=False)
