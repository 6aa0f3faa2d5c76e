"""OpenTelemetry: the current values of each run, as gauges and counters.

`otlp://HOST:4318` sends to a collector whenever there is something new. `otlp` alone adds to the
meter provider of this process, which sends at its own times. Cards have the names of the semantic
conventions for hardware, too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from operator import itemgetter
from typing import Any
from urllib.parse import urlsplit

from ampwatch.errors import MirrorError
from ampwatch.mirrors.mirroring import client
from ampwatch.mirrors.updates import (
    ENDED,
    FINDING,
    READINGS,
    STEP_READING,
    CurrentValues,
    Reading,
    Update,
)

_SDK = "opentelemetry-sdk"
_HTTP, _HTTP_PORT = "opentelemetry-exporter-otlp-proto-http", 4318
_GRPC, _GRPC_PORT = "opentelemetry-exporter-otlp-proto-grpc", 4317
_UNITS = {"": "", "seconds": "s", "bytes": "By"}
_FLUSH_MS = 5000

# Of a row of `devices`: the conventions' name and unit, and the value from the row.
_HARDWARE: tuple[tuple[str, str, Callable[[Mapping[str, Any]], float | None]], ...] = (
    ("hw.gpu.utilization", "1", itemgetter("utilisation")),
    ("hw.gpu.memory.usage", "By", itemgetter("used_bytes")),
    ("hw.gpu.memory.limit", "By", itemgetter("total_bytes")),
    ("hw.gpu.memory.utilization", "1", lambda row: _share(row["used_bytes"], row["total_bytes"])),
    ("hw.power", "W", itemgetter("power_w")),
    ("hw.temperature", "Cel", itemgetter("temperature_c")),
)


def open_mirror(
    rest: str, *, is_inside: bool, scheme: str = "http"
) -> OtlpMirror | OtlpActiveMirror:
    """A mirror to the OpenTelemetry collector at `rest`, or by the provider of this process."""
    client("opentelemetry.sdk.metrics", _SDK)
    if not rest and is_inside and (provider := _active_provider()) is not None:
        return OtlpActiveMirror(provider)
    return OtlpMirror(_exporter(rest, scheme))


class OtlpMirror:
    """Sends the current values after each update."""

    label = "OpenTelemetry"
    shows_past = True

    def __init__(self, exporter: Any) -> None:
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader

        self._values = CurrentValues()
        self._exporter = exporter
        self._reader = InMemoryMetricReader()
        provider = MeterProvider([self._reader], _resource(), shutdown_on_exit=False)
        _observe(provider, lambda: self._values)

    def take(self, update: Update) -> None:
        """Apply the update and send; raises if the collector does not accept it."""
        from opentelemetry.sdk.metrics.export import MetricExportResult

        self._values.note(update)
        metrics = self._reader.get_metrics_data()
        if metrics and self._exporter.export(metrics) is not MetricExportResult.SUCCESS:
            raise MirrorError("the collector did not accept it")

    def close(self) -> None:
        """Close the connection."""
        self._exporter.shutdown()


class OtlpActiveMirror:
    """Shows the current values through the provider of this process."""

    label = "OpenTelemetry"
    shows_past = True

    def __init__(self, provider: Any) -> None:
        self._provider = provider
        self._values = CurrentValues()
        _observe(provider, lambda: self._values)

    def take(self, update: Update) -> None:
        """Apply the update; the provider's readers ask for the values."""
        self._values.note(update)

    def close(self) -> None:
        """Have the last values sent; afterwards there are none."""
        self._provider.force_flush(_FLUSH_MS)
        self._values = CurrentValues()  # an instrument cannot be removed


def _observe(provider: Any, values: Callable[[], CurrentValues]) -> None:
    """One OpenTelemetry instrument for each reading, which asks for its current value."""
    meter = provider.get_meter("ampwatch")
    for reading in (STEP_READING, *READINGS, ENDED, FINDING):
        make = (
            meter.create_observable_counter if reading.is_count else meter.create_observable_gauge
        )
        make(
            f"ampwatch.{reading.metric}",
            [partial(_observations, values, reading)],
            unit=_UNITS[reading.unit],
            description=reading.help,
        )
    for name, unit, value in _HARDWARE:
        is_sum = name in ("hw.gpu.memory.usage", "hw.gpu.memory.limit")  # the conventions' choice
        make = meter.create_observable_up_down_counter if is_sum else meter.create_observable_gauge
        make(name, [partial(_of_devices, values, value)], unit=unit)


def _observations(
    values: Callable[[], CurrentValues], wanted: Reading, _options: Any
) -> Iterator[Any]:
    from opentelemetry.metrics import Observation

    for sample in values().samples().get(wanted, ()):
        yield Observation(sample.value, sample.labels)


def _of_devices(
    values: Callable[[], CurrentValues],
    value: Callable[[Mapping[str, Any]], float | None],
    _options: Any,
) -> Iterator[Any]:
    from opentelemetry.metrics import Observation

    for run, rank, row in values().devices():
        number = value(row)
        if number is not None:
            attributes = {
                "hw.id": f"{run}/rank-{rank}/{row['device']}",
                "hw.type": "gpu",
                "hw.name": row["device"],
            }
            attributes |= {"hw.model": row["name"]} if row["name"] else {}
            yield Observation(number, attributes)


def _share(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _active_provider() -> Any:
    from opentelemetry import metrics
    from opentelemetry.sdk.metrics import MeterProvider

    provider = metrics.get_meter_provider()
    return provider if isinstance(provider, MeterProvider) else None


def _exporter(rest: str, scheme: str) -> Any:
    """An OpenTelemetry exporter by HTTP, or by gRPC for its port; the environment may say where."""
    if not rest:
        return client(_module("http"), _HTTP).OTLPMetricExporter()
    try:
        parts = urlsplit(f"otlp:{rest}")
        host, port = parts.hostname, parts.port or _HTTP_PORT
    except ValueError:
        host, port = None, _HTTP_PORT
    if not host:
        raise MirrorError(
            f"{rest!r} is not the address of a collector: write otlp://HOST:{_HTTP_PORT}."
        )
    if port == _GRPC_PORT:
        grpc = client(_module("grpc"), _GRPC)
        return grpc.OTLPMetricExporter(f"{host}:{port}", insecure=scheme == "http")
    path = parts.path if parts.path not in ("", "/") else "/v1/metrics"
    return client(_module("http"), _HTTP).OTLPMetricExporter(f"{scheme}://{host}:{port}{path}")


def _module(protocol: str) -> str:
    return f"opentelemetry.exporter.otlp.proto.{protocol}.metric_exporter"


def _resource() -> Any:
    """The resource of OpenTelemetry's metrics: the environment's service name, else ours."""
    from opentelemetry.sdk.resources import Resource

    named = "OTEL_SERVICE_NAME" in os.environ or "service.name" in os.environ.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    return Resource.create({} if named else {"service.name": "ampwatch"})
