"""`/metrics`: all metrics of a worker in the text format of Prometheus, or of OpenMetrics if the scraper asks for it.

The package prometheus-client (extra `metrics`) writes both formats. Its registry and its instruments are not used. The
values are read from our own instruments at the beginning of a scrape, so that the scrape shows one moment, and nothing
has to be counted twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.process_collector import ProcessCollector

from mld.core.steps import Steps
from mld.metrics.declaring import Instant, Metric, MetricKind, Value
from mld.metrics.identity import Identity
from mld.metrics.instruments import SECONDS_BOUNDS, SpreadValue
from mld.metrics.published import OF_SHARD, OF_WORKER
from mld.metrics.registry import Metrics

_COMMON = ("application", "stream")
"""Labels that every metric has."""
WORKER = "worker"
"""The label that tells the workers of a group apart."""
_HEADER = re.compile(rb"^# [^\n]*\n", re.MULTILINE)
END = b"# EOF\n"
"""Last line of a text in the OpenMetrics format."""
SHARDS_AT_A_TIME = 8
"""How many shards are written before other tasks get their turn; one histogram of one shard has twenty lines."""
SHARDS_READ = 25
"""How many shards are read, 30 µs each, before other tasks get their turn."""
_FAMILIES: Mapping[MetricKind, Any] = {
    MetricKind.COUNTER: CounterMetricFamily,
    MetricKind.GAUGE: GaugeMetricFamily,
    MetricKind.HISTOGRAM: HistogramMetricFamily,
}


def exposition_steps(
    metrics: Metrics, me: Identity, at: Instant, accept: str, process: ProcessCollector | None = None
) -> Steps[tuple[str, tuple[bytes, ...]]]:
    """Return the content type and the text in pieces, in the format that the scraper's `Accept` header prefers.

    Each metric (a family in Prometheus's terms) is written for a few shards at a time, with its head only once.
    """
    encoder, content_type = choose_encoder(accept)

    def written(*families: Family) -> bytes:
        """Return the text of some metrics, without the line that ends a whole text."""
        text: bytes = encoder(Families(families))
        return text.removesuffix(END)

    pieces = [written(_info(me), *([] if process is None else process.collect()))]
    worker_values = [metric.read(metrics, at) for metric in OF_WORKER]
    shard_values = []
    for count, (_, part) in enumerate(sorted(metrics.shards.items())):
        if count % SHARDS_READ == 0:
            yield
        stream = me.stream if part.stream_label is None else part.stream_label
        shard_values.append(((me.application, stream, part.shard_id), [metric.read(part, at) for metric in OF_SHARD]))
    for number, metric in enumerate(OF_SHARD):
        for start in range(0, max(1, len(shard_values)), SHARDS_AT_A_TIME):  # once without shards, for the head
            some = [(labels, values[number]) for labels, values in shard_values[start : start + SHARDS_AT_A_TIME]]
            text = written(_family(metric, some))
            pieces.append(text if start == 0 else _HEADER.sub(b"", text))
            yield
    for metric, value in zip(OF_WORKER, worker_values, strict=True):
        pieces.append(written(_family(metric, [((me.application, me.stream), value)])))
        yield
    is_open_metrics = encoder(Families(())) == END
    return content_type, (*pieces, END) if is_open_metrics else tuple(pieces)


def process_collector() -> ProcessCollector:
    """Return a collector of `process_cpu_seconds_total`, `process_resident_memory_bytes` and others of this process."""
    return ProcessCollector(registry=None)


class Families(CollectorRegistry):
    """A registry that returns the families that it was given. prometheus-client's encoders take only a registry."""

    def __init__(self, families: Iterable[Family]) -> None:
        super().__init__(auto_describe=False)
        self._families = families

    def collect(self) -> Iterable[Family]:
        return iter(self._families)


def _info(me: Identity) -> Family:
    """Return the metric that names this worker and its version."""
    info = InfoMetricFamily("mld_build", "The version of mld, and the id of this worker.")
    labels = {"application": me.application, "stream": me.stream, "worker": me.worker, "version": me.version}
    info.add_metric((), labels)
    return info


def _family(metric: Metric, values: Iterable[tuple[tuple[str, ...], Value]]) -> Any:
    """Return a family with these values. Each comes with its first label values: application, stream and shard."""
    family = _FAMILIES[metric.kind](metric.name, metric.help, labels=(*_COMMON, *metric.labels))
    for first, value in values:
        for labels, number in metric.series(value, *first):
            if isinstance(number, SpreadValue):
                family.add_metric(labels, list(_cumulative(number)), sum_value=number.total)
            else:
                family.add_metric(labels, number)
    return family


def _cumulative(spread: SpreadValue) -> Iterator[tuple[str, float]]:
    """Yield each bucket's upper bound with the number of all values up to it, as Prometheus wants them."""
    total = 0
    for bound, count in zip((*map(str, SECONDS_BOUNDS), "+Inf"), spread.buckets, strict=True):
        total += count
        yield bound, total
