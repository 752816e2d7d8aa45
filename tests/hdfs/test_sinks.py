"""File sinks on a real HDFS with a real Spark: nothing twice, whoever dies, and sentences for what HDFS refuses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from mld.processors.spark import sink_port
from mld.processors.spark.commit.hadoop_store import HadoopStore
from mld.processors.spark.commit.journal import LEDGER, STAGING, TRASH
from mld.processors.spark.high_water_marks import (
    HighWaterMarks,
    RecordPosition,
    ShardSpan,
    ShardSpans,
    StreamShard,
    spans,
)
from mld.processors.spark.sink_port import JobFailed, Sink, SinkFull, SinkRefused, SinkSpec
from mld.processors.spark.sinks.factory import make_sink
from tests.hdfs.cluster import Cluster

A, B = StreamShard("s", "0"), StreamShard("s", "1")
StoreAt = Callable[[str], HadoopStore]
Make = Callable[..., Sink]


@pytest.fixture
def make(spark: Any, home: str) -> Make:
    return lambda format="parquet", **more: make_sink(SinkSpec("out", format, f"{home}/out", **more), spark)


def batch(marks: HighWaterMarks, **ends: int) -> ShardSpans:
    return spans({StreamShard("s", shard.removeprefix("s")): RecordPosition(end) for shard, end in ends.items()}, marks)


def frame(spark: Any, of: ShardSpans) -> Any:
    """The records of a batch, each with its shard and number."""
    rows = [
        (shard.shard, number)
        for shard, span in of.items()
        for number in range(span.after.sequence + 1 if span.after else 1, span.upto.sequence + 1)
    ]
    return spark.createDataFrame(rows, "shard STRING, n INT").selectExpr("*", "concat('a/b:%é ', n % 2) AS tag")


def publish(sink: Sink, spark: Any, **ends: int) -> sink_port.Published:
    of = batch(sink.open(), **ends)
    return sink.publish(frame(spark, of), of, "b")


def found(spark: Any, home: str, format: str = "parquet") -> Counter[tuple[str, int]]:
    """What any reader of the sink finds."""
    rows = spark.read.format(format).schema("shard STRING, n INT").load(f"{home}/out").select("shard", "n").collect()
    return Counter((row.shard, row.n) for row in rows)


def numbers(**ends: int) -> Counter[tuple[str, int]]:
    return Counter((shard.removeprefix("s"), n) for shard, end in ends.items() for n in range(1, end + 1))


LAYOUTS = pytest.mark.parametrize("partition_by", [(), ("tag",)], ids=["flat", "partitioned"])


@LAYOUTS
@pytest.mark.parametrize("format", ["parquet", "orc", "json", "csv"])
def test_what_is_delivered_again_is_there_once(
    make: Make, spark: Any, home: str, format: str, partition_by: tuple[str, ...]
) -> None:
    assert publish(make(format, partition_by=partition_by), spark, s0=5).rows == 5
    again = publish(make(format, partition_by=partition_by), spark, s0=8, s1=2)
    assert (again.number, again.rows) == (2, 5)
    assert found(spark, home, format) == numbers(s0=8, s1=2)
    assert make(format, partition_by=partition_by).open() == {A: RecordPosition(8), B: RecordPosition(2)}


def test_partition_values_of_all_kinds_come_back(make: Make, spark: Any, home: str) -> None:
    values = ["a/b", "a=b", "é", "日本", "x y", "%41", "..", ".", None, 'q"', "a:b", "new\nline", "_h", " ", "*"]
    sink = make(partition_by=("tag", "n"))
    rows = list(enumerate(values))
    of = batch(sink.open(), s0=1)
    sink.publish(spark.createDataFrame(rows, "n INT, tag STRING").selectExpr("*", "n AS v"), of, "b")
    assert sorted((row.n, row.tag) for row in spark.read.parquet(f"{home}/out").collect()) == rows


def test_nothing_is_left_behind(make: Make, spark: Any, home: str, store_at: StoreAt) -> None:
    sink = make()
    for number in (3, 6):
        publish(sink, spark, s0=number)
    with pytest.raises(JobFailed, match="poison"):
        sink.publish(spark.range(9).selectExpr("raise_error('poison') AS id"), batch(sink.open(), s0=9), "b")
    store = store_at(f"{home}/out")
    shown = sorted({name.partition("-")[0] for name in store.names("")})
    assert shown == ["_mld", "_mld_copies", "c000000000001", "c000000000002"]
    assert (store.names(STAGING), store.names(TRASH)) == ([], [])
    assert sorted(store.names(LEDGER)) == [f"00000000000{n}.{kind}" for n in (1, 2) for kind in ("done", "json")]


@LAYOUTS
@pytest.mark.parametrize("quota", [{"names": 12}, {"size": 1000}], ids=["names", "space"])
def test_a_quota_is_no_room_and_nothing_is_acknowledged(
    make: Make, spark: Any, home: str, cluster: Cluster, quota: dict[str, int], partition_by: tuple[str, ...]
) -> None:
    path = home.removeprefix(cluster.uri)
    sink = make(partition_by=partition_by)
    publish(sink, spark, s0=3)
    cluster.quota(path, **quota)
    of = {A: ShardSpan(RecordPosition(3), RecordPosition(7))}
    with pytest.raises(SinkFull, match=r"sink out: .*[qQ]uota.* is exceeded.*; make room, nothing was acknowledged"):
        sink.publish(frame(spark, of), of, "b")
    cluster.no_quota(path)
    assert sink.open() == {A: RecordPosition(3)}
    publish(sink, spark, s0=7)
    assert found(spark, home) == numbers(s0=7)


def test_without_permission_there_is_a_sentence(spark: Any, cluster: Cluster, make: Make, home: str) -> None:
    cluster.make("/not ours")
    said = r"sink out: opening its ledger: Permission denied: user=worker, access=WRITE, .*; give this user a directory"
    with pytest.raises(SinkRefused, match=said):
        make_sink(SinkSpec("out", "parquet", f"{cluster.uri}/not ours/out"), spark).open()
    sink = make()
    sink.open()
    path = f"{home.removeprefix(cluster.uri)}/out"
    cluster.make(f"{path}/_mld/staging", owner="somebody")
    with pytest.raises(SinkRefused, match="staging a batch: Permission denied: user=worker, access=WRITE"):
        publish(sink, spark, s0=1)


def test_a_ledger_that_was_removed_is_found_in_the_newest_commit(
    make: Make, spark: Any, home: str, store_at: StoreAt
) -> None:
    for number in (1, 2):
        publish(make(), spark, s0=number)
    store_at(f"{home}/out").remove("_mld")
    assert make().open() == {A: RecordPosition(2)}
    assert publish(make(), spark, s0=3).number == 3
    assert found(spark, home) == numbers(s0=3)


def test_the_ledger_of_another_format(spark: Any, home: str, store_at: StoreAt) -> None:
    spec = SinkSpec("o/ut", "noop", ledger=f"{home}/ledgers/")
    sink = make_sink(spec, spark)
    publish(sink, spark, s0=3)
    assert make_sink(spec, spark).open() == {A: RecordPosition(3)}
    assert store_at(f"{home}/ledgers").names("") == ["o%2Fut"]
