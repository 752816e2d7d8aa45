"""`/metrics`: the catalogue in the text format of Prometheus, or of OpenMetrics for who asks for it.

prometheus-client (extra `metrics`) writes the formats. Its registry and its instruments are not used: the values come
from one snapshot, so that a scrape shows one moment, and nothing is counted twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from mld.metrics.catalogue import CATALOGUE, Metric, MetricKind
from mld.metrics.instruments import SECONDS_BOUNDS, SpreadValue
from mld.metrics.snapshot import Snapshot

_COMMON = ("application", "stream")


def exposition(snapshot: Snapshot, accept: str, process: ProcessCollector | None = None) -> tuple[str, bytes]:
    """The content type and the text, in the format that the scraper's `Accept` header prefers."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_OneMoment(snapshot))
    if process is not None:
        registry.register(process)
    encoder, content_type = choose_encoder(accept)
    return content_type, encoder(registry)


def process_collector() -> ProcessCollector:
    """`process_cpu_seconds_total`, `process_resident_memory_bytes` and the like, of this process."""
    return ProcessCollector(registry=None)


class _OneMoment(Collector):
    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterable[Family]:
        yield self._info()
        for metric in CATALOGUE:
            yield self._family(metric)

    def _info(self) -> Family:
        me = self._snapshot.identity
        info = InfoMetricFamily("mld_build", "The version of mld, and the id of this worker.")
        labels = {"application": me.application, "stream": me.stream, "worker": me.worker, "version": me.version}
        info.add_metric((), labels)
        return info

    def _family(self, metric: Metric) -> Family:
        labels = (*_COMMON, *metric.labels)
        match metric.kind:
            case MetricKind.COUNTER:
                counter = CounterMetricFamily(metric.name, metric.help, labels=labels)
                for values, number in self._numbers(metric):
                    counter.add_metric(values, number)
                return counter
            case MetricKind.GAUGE:
                gauge = GaugeMetricFamily(metric.name, metric.help, labels=labels)
                for values, number in self._numbers(metric):
                    gauge.add_metric(values, number)
                return gauge
            case MetricKind.HISTOGRAM:
                return self._histogram(metric, labels)

    def _histogram(self, metric: Metric, labels: tuple[str, ...]) -> Family:
        histogram = HistogramMetricFamily(metric.name, metric.help, labels=labels)
        for values, spread in metric.read(self._snapshot):
            assert isinstance(spread, SpreadValue), metric.name
            histogram.add_metric((*self._me, *values), list(_cumulative(spread)), sum_value=spread.total)
        return histogram

    def _numbers(self, metric: Metric) -> Iterator[tuple[tuple[str, ...], float]]:
        for values, number in metric.read(self._snapshot):
            if number is not None:
                assert not isinstance(number, SpreadValue), metric.name
                yield (*self._me, *values), number

    @property
    def _me(self) -> tuple[str, str]:
        return self._snapshot.identity.application, self._snapshot.identity.stream


def _cumulative(spread: SpreadValue) -> Iterator[tuple[str, float]]:
    total = 0
    for bound, count in zip((*map(str, SECONDS_BOUNDS), "+Inf"), spread.buckets, strict=True):
        total += count
        yield bound, total
