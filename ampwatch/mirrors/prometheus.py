"""Prometheus: the current values of each run, as gauges and counters to scrape.

`prometheus://:9464` opens an endpoint for this machine, `prometheus://HOST:9464` one at that
address. `prometheus` alone adds to the registry that this process already exposes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from ampwatch.errors import MirrorError, reason_of
from ampwatch.mirrors.mirroring import client
from ampwatch.mirrors.updates import CurrentValues, Reading, Sample, Update

_EXAMPLE = "prometheus://:9464, or prometheus://0.0.0.0:9464 for all interfaces"


def open_mirror(rest: str, *, is_inside: bool) -> PrometheusMirror:
    """A Prometheus mirror that serves at the address `rest`, or adds to this process's registry."""
    prometheus = client("prometheus_client", "prometheus-client")
    values = CurrentValues()
    if not rest:
        if not is_inside:
            raise MirrorError(f"Where to serve is missing: write {_EXAMPLE}.")
        return PrometheusMirror(values, prometheus.REGISTRY, _Collector(values))
    host, port = _address(rest)
    registry = prometheus.CollectorRegistry()
    mirror = PrometheusMirror(values, registry, _Collector(values))
    try:
        mirror.server, _ = prometheus.start_http_server(port, host or "127.0.0.1", registry)
    except OSError as error:
        raise MirrorError(
            f"Cannot serve at {rest.lstrip('/')} ({reason_of(error)}): use another port, "
            f"as in {_EXAMPLE}."
        ) from error
    return mirror


class PrometheusMirror:
    """The values for scrapers; closing the mirror closes the endpoint."""

    label = "Prometheus"
    shows_past = True

    def __init__(self, values: CurrentValues, registry: Any, collector: _Collector) -> None:
        self.server: Any = None
        self._values, self._registry, self._collector = values, registry, collector
        registry.register(collector)

    def take(self, update: Update) -> None:
        """Apply the update for the next scrape."""
        self._values.note(update)

    def close(self) -> None:
        """Stop serving."""
        self._registry.unregister(self._collector)
        if self.server is not None:
            self.server.shutdown()
            self.server.server_close()


class _Collector:
    """What prometheus_client asks at each scrape."""

    def __init__(self, values: CurrentValues) -> None:
        self._values = values

    def describe(self) -> list[Any]:
        """Empty: runs come and go."""
        return []

    def collect(self) -> Iterator[Any]:
        """Every metric with its samples."""
        for reading, samples in self._values.samples().items():
            yield _family(reading, samples)


def _family(reading: Reading, samples: list[Sample]) -> Any:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    kind = CounterMetricFamily if reading.is_count else GaugeMetricFamily
    unit = f"_{reading.unit}" if reading.unit else ""
    names = list(samples[0].labels)
    family = kind(f"ampwatch_{reading.metric}{unit}", reading.help, labels=names)
    for sample in samples:
        family.add_metric([sample.labels[name] for name in names], sample.value)
    return family


def _address(rest: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"prometheus:{rest}")
        host, port = parts.hostname or "", parts.port
    except ValueError:
        host, port = "", None
    if port is None:
        raise MirrorError(f"{rest!r} contains no port: write {_EXAMPLE}.")
    return host, port
