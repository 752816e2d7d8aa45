"""The data source's plans and reads over the Kinesis model, without Spark: reshards, bounds, replays, retention."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from dataclasses import replace

import pytest

from mld.core.clock import Clock
from mld.core.streams import HashRange
from mld.local.kinesis import Kinesis, PutEntry
from mld.processors.spark.datasource.fetching import DataLossError, Fetcher
from mld.processors.spark.datasource.offsets import StreamOffset, from_json, span_of, to_json, to_read
from mld.processors.spark.datasource.read_options import OnDataLoss, OptionsError, ReadOptions, options_of
from mld.processors.spark.datasource.source import Bounds, Scout, first_offset, plan
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
        self.keys: dict[int, str] = {}
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
                self.keys[number] = key
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

    def driver(self, on_data_loss: OnDataLoss = OnDataLoss.FAIL) -> Scout:
        return Scout(self.fetcher, on_data_loss)

    def start(self, **given: str) -> StreamOffset:
        options = self.options({"from": "trim-horizon", **given}, is_stream=True)
        return first_offset(self.fetcher, options, self.settings, self.clock.now)

    def options(self, given: dict[str, str], *, is_stream: bool = False) -> ReadOptions:
        return options_of(given, self.clock.now, is_stream=is_stream)

    def read(self, start: StreamOffset, end: StreamOffset, *, goes_on: bool = False) -> list[list[int]]:
        """The numbers that each task of a batch reads."""
        return [
            numbers(fields for page in self.fetcher.records(span_of(*one), goes_on=goes_on) for fields in page)
            for one in to_read(start, end)
        ]

    def planned(self, **given: str) -> list[int]:
        spans = plan(self.fetcher, self.options(given), self.clock.now)
        return sorted(numbers(f for span in spans for page in self.fetcher.records(span, goes_on=False) for f in page))


def numbers(records: Iterator[dict[str, str]]) -> list[int]:
    return [int(base64.b64decode(record["data"])) for record in records]


FEW = Bounds(3, None)


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.fetcher.close()


@pytest.mark.parametrize("restarts", [False, True])
def test_a_query_reads_every_record_once_and_in_order_of_its_key_through_reshards(bench, restarts):
    acts = [bench.split, bench.merge, bench.split, bench.merge, bench.merge]
    scout, at = bench.driver(), bench.start()
    seen: list[int] = []
    quiet = 0
    while quiet < 2:
        if acts and len(seen) % 2 == 0:
            bench.put(11)
            acts.pop(0)()
            bench.put(5)
        if restarts:
            scout = bench.driver()
        end = scout.advance(from_json(to_json(at)), FEW)
        batch = bench.read(at, end)
        assert batch == bench.read(at, end), "the same range, read again"
        assert all(len(task) <= 2 * 3 for task in batch)
        seen += [number for task in batch for number in task]
        quiet = quiet + 1 if end == at else 0
        at = end
        if quiet == 1 and acts:
            quiet = 0
            bench.put(1)
    assert sorted(seen) == list(range(1, bench.number + 1))
    for key in set(bench.keys.values()):
        of_key = [number for number in seen if bench.keys[number] == key]
        assert of_key == sorted(of_key)
    assert len(at.shards) == len(bench.open_shards()), "finished shards are forgotten"


def test_bounds_in_bytes_are_passed_by_one_record_at_most(bench):
    bench.put(40)
    start = bench.start()
    end = bench.driver().advance(start, Bounds(None, 1))
    assert [one.count for one in end.shards.values()] == [1, 1]


def test_a_query_of_latest_reads_nothing_older_whatever_was_resharded(bench):
    bench.put(20)
    bench.split()
    bench.put(20)
    bench.clock.now += 10
    at, seen = bench.start(**{"from": "latest"}), []
    bench.clock.now += 10
    bench.put(6)
    scout = bench.driver()
    for _ in range(10):
        end = scout.advance(at, FEW)
        seen += [number for task in bench.read(at, end) for number in task]
        at = end
    assert sorted(seen) == list(range(41, 47))


def test_what_is_available_now_ends_although_more_arrives(bench):
    bench.put(20)
    scout, at = bench.driver(), bench.start()
    scout.stop_at_the_tip()
    for _ in range(20):
        end = scout.advance(at, Bounds(None, None))
        if end == at:
            break
        at = end
        bench.put(4)
    else:
        pytest.fail("the query never ends")


def test_a_range_that_has_left_the_retention_is_an_error_unless_told_otherwise(bench):
    bench.put(20)
    start = bench.start()
    end = bench.driver().advance(start, FEW)
    bench.clock.now += 2 * DAY_S
    bench.put(3)
    with pytest.raises(DataLossError, match="onDataLoss"):
        bench.read(start, end)
    assert all(task == [] for task in bench.read(start, end, goes_on=True))
    with pytest.raises(DataLossError, match="onDataLoss"):
        bench.driver().advance(end, FEW)
    on = bench.driver(OnDataLoss.CONTINUE).advance(end, FEW)
    assert sorted(number for task in bench.read(end, on) for number in task) == [21, 22, 23]


def test_a_range_of_a_shard_that_is_gone_is_an_error_unless_told_otherwise(bench):
    bench.put(10)
    start = bench.start()
    end = bench.driver().advance(start, FEW)
    bench.split()
    bench.merge()
    bench.clock.now += 3 * DAY_S
    bench.put(1)
    with pytest.raises(DataLossError, match="onDataLoss"):
        bench.read(start, end)
    assert all(task == [] for task in bench.read(start, end, goes_on=True))


def test_a_shard_whose_children_nobody_names_yet_is_looked_at_again(bench):
    bench.put(10)
    bench.split()
    streams = bench.fetcher.streams
    at = bench.start()
    streams.bend_page = lambda page: replace(page, child_shards=())
    streams.bend_listing = lambda shard: replace(shard, parent_id=None, hash_range=HashRange(0, 0))
    for _ in range(5):
        at = bench.driver().advance(at, FEW)
    assert not any(one.is_ended for one in at.shards.values())
    streams.bend_page, streams.bend_listing = (lambda page: page), (lambda shard: shard)
    at = bench.driver().advance(at, FEW)
    assert len(at.shards) == 4


def test_a_shard_that_is_gone_is_followed_by_the_next_with_its_keys(bench):
    bench.put(10)
    at = bench.driver().advance(bench.start(), FEW)
    bench.split()
    bench.clock.now += 3 * DAY_S
    bench.put(12)
    with pytest.raises(DataLossError):
        bench.driver().advance(at, FEW)
    scout, seen = bench.driver(OnDataLoss.CONTINUE), []
    for _ in range(10):
        end = scout.advance(at, FEW)
        seen += [number for task in bench.read(at, end, goes_on=True) for number in task]
        at = end
    assert sorted(seen)[-12:] == list(range(11, 23))


@pytest.mark.parametrize("split_minutes", ["1", "60"])
def test_a_range_of_time_is_read_once_however_it_is_split(bench, split_minutes):
    bench.put(300)
    bench.split()
    bench.put(300)
    bench.clock.now += 1
    whole = bench.planned(splitMinutes=split_minutes)
    bounds = {"from": str(int(START_S + 100)), "to": str(int(START_S + 200))}
    inner = bench.planned(splitMinutes=split_minutes, **bounds)
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
        settings_of(options_of(given, START_S, is_stream=False))
