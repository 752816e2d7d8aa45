"""`/metrics`: the catalogue in the text format of Prometheus, or of OpenMetrics for who asks for it.

prometheus-client (extra `metrics`) writes the formats. Its registry and its instruments are not used: the values come
from one snapshot, so that a scrape shows one moment, and nothing is counted twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.process_collector import ProcessCollector

from mld.metrics.catalogue import CATALOGUE, Metric, MetricKind
from mld.metrics.instruments import SECONDS_BOUNDS, SpreadValue
from mld.metrics.snapshot import Snapshot
from mld.steps import Steps, finish

_COMMON = ("application", "stream")
_HEADER = re.compile(rb"^# [^\n]*\n", re.MULTILINE)
END = b"# EOF\n"
"""How OpenMetrics ends."""
SHARDS_AT_A_TIME = 8
"""Between two turns of the loop: a histogram of one has twenty lines."""


def exposition(snapshot: Snapshot, accept: str, process: ProcessCollector | None = None) -> tuple[str, bytes]:
    """The content type and the text, in the format that the scraper's `Accept` header prefers."""
    content_type, pieces = finish(exposition_steps(snapshot, accept, process))
    return content_type, b"".join(pieces)


def exposition_steps(
    snapshot: Snapshot, accept: str, process: ProcessCollector | None = None
) -> Steps[tuple[str, tuple[bytes, ...]]]:
    """`exposition` for many shards, in pieces: a family is written for a few shards at a time, and begun once."""
    encoder, content_type = choose_encoder(accept)
    moment = _OneMoment(snapshot)

    def written(*families: Family) -> bytes:
        text: bytes = encoder(_Families(families))
        return text.removesuffix(END)

    pieces = [written(moment.info(), *([] if process is None else process.collect()))]
    for metric in CATALOGUE:
        for number, some in enumerate(_few_at_a_time(snapshot) if "shard" in metric.labels else [snapshot]):
            text = written(_OneMoment(some).family(metric))
            pieces.append(text if number == 0 else _HEADER.sub(b"", text))
            yield
    is_open = encoder(_Families(())) == END
    return content_type, (*pieces, END) if is_open else tuple(pieces)


def _few_at_a_time(snapshot: Snapshot) -> Iterator[Snapshot]:
    """The same moment with a few of the shards of one stream; once without any if there are none."""
    if not snapshot.shards:
        yield snapshot
    for label, found in groupby(snapshot.shards, key=lambda shard: shard.stream_label):
        shards, me = tuple(found), snapshot.identity
        identity = me if label is None else replace(me, stream=label)
        for start in range(0, len(shards), SHARDS_AT_A_TIME):
            yield replace(snapshot, identity=identity, shards=shards[start : start + SHARDS_AT_A_TIME])


def process_collector() -> ProcessCollector:
    """`process_cpu_seconds_total`, `process_resident_memory_bytes` and the like, of this process."""
    return ProcessCollector(registry=None)


class _Families(CollectorRegistry):
    """A registry of what is there already."""

    def __init__(self, families: Iterable[Family]) -> None:
        super().__init__(auto_describe=False)
        self._families = families

    def collect(self) -> Iterable[Family]:
        return iter(self._families)


class _OneMoment:
    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def info(self) -> Family:
        me = self._snapshot.identity
        info = InfoMetricFamily("mld_build", "The version of mld, and the id of this worker.")
        labels = {"application": me.application, "stream": me.stream, "worker": me.worker, "version": me.version}
        info.add_metric((), labels)
        return info

    def family(self, metric: Metric) -> Family:
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
