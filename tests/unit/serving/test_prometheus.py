"""The text that a scraper gets, read back by the parsers of prometheus-client."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text
from prometheus_client.process_collector import ProcessCollector

from mld.core.steps import finish
from mld.metrics.declaring import Instant
from mld.metrics.identity import Identity
from mld.metrics.registry import Metrics
from mld.serving.prometheus import exposition_steps, process_collector
from tests.support.metrics_page import CATALOGUE
from tests.unit.metrics.test_catalogue import NOW, SHARD, busy_worker

ME = Identity("clicks", "clicks-stream", "worker-1", "0.2.0")
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def exposition(
    metrics: Metrics, me: Identity, at: Instant, accept: str, *process: ProcessCollector
) -> tuple[str, bytes]:
    content_type, pieces = finish(exposition_steps(metrics, me, at, accept, *process))
    return content_type, b"".join(pieces)


@pytest.mark.parametrize(
    ("accept", "read", "content_type"),
    [
        pytest.param("", read_text, "text/plain", id="text"),
        pytest.param(OPENMETRICS, read_openmetrics, "application/openmetrics-text", id="OpenMetrics"),
    ],
)
def test_every_metric_can_be_read_back(accept: str, read: object, content_type: str) -> None:
    assert callable(read)
    told, text = exposition(busy_worker(), ME, NOW, accept)
    assert told.startswith(content_type)
    families = {family.name: family for family in read(text.decode())}
    assert {metric.name.removesuffix("_total") for metric in CATALOGUE} <= families.keys()
    (behind,) = families["mld_shard_behind_seconds"].samples
    assert behind.labels == {"application": ME.application, "stream": ME.stream, "shard": SHARD}
    assert behind.value == 5.5


def test_buckets_of_a_histogram_are_cumulative() -> None:
    _, text = exposition(busy_worker(), ME, NOW, "")
    (family,) = (one for one in read_text(text.decode()) if one.name == "mld_process_records_seconds")
    by_bound = {sample.labels["le"]: sample.value for sample in family.samples if sample.name.endswith("_bucket")}
    assert (by_bound["0.1"], by_bound["0.25"], by_bound["+Inf"]) == (0, 1, 1)


def test_what_is_not_known_is_not_published() -> None:
    metrics = Metrics()
    metrics.begin(SHARD, 0.0)
    _, text = exposition(metrics, ME, Instant(1.0, 1.0), "")
    assert b"mld_shard_behind_seconds{" not in text
    assert b"mld_workers{" not in text
    assert b"mld_leases{" in text


def test_the_process_is_described_too() -> None:
    _, text = exposition(busy_worker(), ME, NOW, "", process_collector())
    assert b"process_resident_memory_bytes " in text


def test_a_name_with_quotes_is_escaped() -> None:
    metrics = Metrics()
    metrics.begin('shard "one"\n', 0.0)
    _, text = exposition(metrics, ME, Instant(1.0, 1.0), "")
    names = {sample.labels.get("shard") for family in read_text(text.decode()) for sample in family.samples}
    assert 'shard "one"\n' in names


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
def test_of_many_shards_each_family_is_begun_once_and_every_shard_is_in_it(accept: str) -> None:
    metrics = Metrics()
    for number in range(30):
        part = metrics.begin(f"shardId-{number:012}", 0.0)
        part.process_records.note(0.1)
        part.restarts.add("exit", number)
    text = exposition(metrics, ME, Instant(1.0, 1.0), accept)[1].decode()
    begun = [line for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(begun) == len(set(begun))
    assert text.count("mld_process_records_seconds_count{") == 30
    assert text.count("mld_child_restarts_total{") == 30
    assert text.count("# EOF") == (1 if accept else 0)
    families = (read_openmetrics if accept else read_text)(text)
    (restarts,) = [one for one in families if one.name == "mld_child_restarts"]
    assert sum(sample.value for sample in restarts.samples) == sum(range(30))


def test_series_of_several_streams_are_told_apart_by_the_label_of_the_stream() -> None:
    metrics = Metrics()
    metrics.stream_labels = {"111111111111:orders:17": "my orders"}
    for stream in ("111111111111:orders:17", "111111111111:clicks:18"):
        for number in range(12):  # more than are written at a time
            metrics.begin(f"{stream}:shardId-{number:012}", 0.0).batches.note(number)
    _, text = exposition(metrics, replace(ME, stream=""), Instant(10.0, 1_000.0), "")
    (family,) = (one for one in read_text(text.decode()) if one.name == "mld_records")
    series = {(one.labels["stream"], one.labels["shard"]): one.value for one in family.samples}
    assert len(series) == 24
    assert series["my orders", "shardId-000000000011"] == 11
    assert series["111111111111:clicks:18", "shardId-000000000011"] == 11
    assert text.count(b"# TYPE mld_records_total counter") == 1
    (lost,) = (one for one in read_text(text.decode()) if one.name == "mld_leases_lost")
    assert lost.samples[0].labels["stream"] == ""
