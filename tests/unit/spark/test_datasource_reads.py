"""The data source's plans and reads over the Kinesis model, without Spark: reshards, bounds, replays, retention."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable, Iterator

import pytest

from mld.core.clock import Clock
from mld.local.kinesis import Kinesis, PutEntry
from mld.processors.spark.datasource import source
from mld.processors.spark.datasource.fetching import DataLossError, Fetcher, ReadSpan
from mld.processors.spark.datasource.read_options import OptionsError, options_of
from mld.processors.spark.datasource.source import plan
from mld.properties.loader import load
from tests.support.kpl import User, aggregate
from tests.twins.kinesis_model import ModelStreams

START_S = 1_800_000_000.0
DAY_S = 86_400.0
LINES = ("executableName=x", "applicationName=x", "streamName=s", "AwsCredentialsProvider=DefaultCredentialsProvider")


class HandClock:
    """The stream's time, moved by hand; a sleep takes none."""

    def __init__(self) -> None:
        self.now = START_S

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        pass


class Bench:
    """A stream in memory, and drivers over it."""

    def __init__(self, shards: int = 2) -> None:
        self.clock = HandClock()
        self.model = Kinesis()
        self.model.create_stream("s", now=self.clock.now, shard_count=shards)
        self.number = 0
        self.arrived_s: dict[int, float] = {}
        """When each user record arrived, counted from the start."""
        settings = load(os.devnull, LINES, {}).settings
        self.fetcher = Fetcher(settings, read_interval_s=0)
        clock: Clock = self.clock
        self.fetcher.streams = ModelStreams(self.model, "s", clock, latency_s=0)
        self.settings = settings

    def put(self, count: int) -> None:
        """So many user records, a second apart; every third Kinesis record is an aggregate of two."""
        last = self.number + count
        while self.number < last:
            self.clock.now += 1
            key = f"k{self.number % 7}"
            self.number += 1
            data = str(self.number).encode()
            if self.number % 4 == 0 and self.number < last:
                self.number += 1
                data = aggregate([User(key, data), User(key, str(self.number).encode())])
            for number in range(len(self.arrived_s) + 1, self.number + 1):
                self.arrived_s[number] = self.clock.now - START_S
            self.model.put_record("s", PutEntry.of(data, key), now=self.clock.now)

    def open_shards(self) -> list[str]:
        shards = self.model.list_shards("s", now=self.clock.now).shards
        views = sorted((state.view() for state in shards), key=lambda view: view.hash_range.start)
        return [view.shard_id for view in views if view.is_open]

    def split(self) -> None:
        shards = self.model.list_shards("s", now=self.clock.now).shards
        view = next(state.view() for state in shards if state.view().shard_id == self.open_shards()[0])
        middle = (view.hash_range.start + view.hash_range.end) // 2
        self.model.split_shard("s", view.shard_id, middle, now=self.clock.now)

    def merge(self) -> None:
        one, other = self.open_shards()[:2]
        self.model.merge_shards("s", one, other, now=self.clock.now)

    def spans(self, **given: str) -> list[ReadSpan]:
        return plan(self.fetcher, options_of(given, self.clock.now), self.clock.now)

    def read(self, spans: Iterable[ReadSpan], *, goes_on: bool = False) -> list[int]:
        """The numbers that the tasks of these spans read."""
        pages = (page for span in spans for page in self.fetcher.records(span, goes_on=goes_on))
        return sorted(int(base64.b64decode(record["data"])) for page in pages for record in page)


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.fetcher.close()


@pytest.mark.parametrize("reshards", [(), ("split", "merge")], ids=["the shard is there", "the shard is gone"])
def test_a_span_that_has_left_the_retention_is_an_error_unless_told_otherwise(bench, reshards):
    bench.put(20)
    bench.clock.now += 1
    spans = bench.spans()
    for reshard in reshards:
        getattr(bench, reshard)()
    bench.clock.now += 3 * DAY_S
    bench.put(3)
    with pytest.raises(DataLossError, match="onDataLoss"):
        bench.read(spans)
    assert bench.read(spans, goes_on=True) == []


def test_a_checkpoint_of_a_shard_that_is_gone_is_an_error_unless_told_otherwise(bench):
    bench.put(20)
    given = {"fromCheckpoints": '{"shardId-000000000000": "TRIM_HORIZON", "shardId-000000000009": "TRIM_HORIZON"}'}
    with pytest.raises(DataLossError, match="no shard shardId-000000000009"):
        bench.spans(**given)
    assert {span.shard_id for span in bench.spans(**given, onDataLoss="continue")} == {"shardId-000000000000"}


@pytest.mark.parametrize("split_s", [60.0, source.SPLIT_S])
def test_a_range_of_time_is_read_once_however_it_is_split(bench, split_s, monkeypatch):
    monkeypatch.setattr(source, "SPLIT_S", split_s)
    bench.put(300)
    bench.split()
    bench.put(300)
    bench.clock.now += 1
    whole = bench.read(bench.spans())
    bounds = {"from": str(int(START_S + 100)), "to": str(int(START_S + 200))}
    inner = bench.read(bench.spans(**bounds))
    assert whole == list(range(1, bench.number + 1))
    assert inner == [number for number, arrived_s in bench.arrived_s.items() if 100 <= arrived_s < 200]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, "mld: options: streamName"),
        ({"stream": "arn:aws:dynamodb:us-east-1:123456789012:table/t/stream/2026-01-01T00:00:00.000"}, "DynamoDB"),
        ({"properties": "/no/such/file"}, "/no/such/file: cannot be read"),
        ({"stream": "s", "credentials": "Nobody"}, "AwsCredentialsProvider"),
    ],
)
def test_settings_that_cannot_be_used_are_named(given, sentence):
    pytest.importorskip("pyspark.sql.datasource")
    from mld.processors.spark.datasource.source import settings_of

    with pytest.raises(OptionsError, match=sentence):
        settings_of(options_of(given, START_S))
