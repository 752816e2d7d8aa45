"""File sinks on a real HDFS with a real Spark: nothing twice, whoever dies, and sentences for what HDFS refuses."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from processors.spark import sink_port
from processors.spark.commit.hadoop_store import HadoopStore
from processors.spark.commit.journal import LEDGER, STAGING, TRASH
from processors.spark.high_water_marks import HighWaterMarks, RecordPosition, ShardSpan, ShardSpans, StreamShard, spans
from processors.spark.sink_port import Fenced, JobFailed, Sink, SinkError, SinkFull, SinkRefused, SinkSpec
from processors.spark.sinks.factory import make_sink
from processors.spark.sinks.files import FileSink
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
    """As anybody reads it."""
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
    assert sorted(store.names("")) == ["_mld", "mld_commit=000000000001", "mld_commit=000000000002"]
    assert (store.names(STAGING), store.names(TRASH)) == ([], [])
    assert sorted(store.names(LEDGER)) == [f"00000000000{n}.{kind}" for n in (1, 2) for kind in ("done", "json")]


class Died(BaseException):
    """The process is gone in the middle of a call."""


def dying_at(sink: Sink, operation: str, times: int = 1) -> None:
    """From its nth call of the operation on, the sink's process does nothing more."""
    assert isinstance(sink, FileSink)
    store = sink._store
    left = [times]

    def dead(*_: Any, **__: Any) -> Any:
        raise Died

    def die(*arguments: Any) -> Any:
        left[0] -= 1
        if left[0]:
            return getattr(type(store), operation)(store, *arguments)
        for name in ("names", "read", "write", "mark", "make", "take", "move", "exists", "remove", "files", "sync"):
            setattr(store, name, dead)
        raise Died

    setattr(store, operation, die)


@pytest.mark.parametrize(
    ("operation", "times", "is_there", "partition_by"),
    [
        pytest.param("take", 1, False, (), id="flat, before the commit"),
        pytest.param("move", 1, True, (), id="flat, after the commit"),
        pytest.param("mark", 1, True, (), id="flat, moved"),
        pytest.param("take", 1, False, ("tag",), id="partitioned, before the commit"),
        pytest.param("move", 1, True, ("tag",), id="partitioned, after the commit"),
        pytest.param("move", 2, True, ("tag",), id="partitioned, one file moved"),
        pytest.param("mark", 1, True, ("tag",), id="partitioned, all moved"),
    ],
)
def test_a_commit_that_was_left_half_done_is_finished_by_the_next(
    make: Make, spark: Any, home: str, operation: str, times: int, is_there: bool, partition_by: tuple[str, ...]
) -> None:
    publish(make(partition_by=partition_by), spark, s0=2)
    sink = make(partition_by=partition_by)
    of = batch(sink.open(), s0=8)
    dying_at(sink, operation, times)
    with pytest.raises(Died):
        sink.publish(frame(spark, of), of, "b")
    next_one = make(partition_by=partition_by)
    assert next_one.open() == {A: RecordPosition(8 if is_there else 2)}
    assert found(spark, home) == numbers(s0=8 if is_there else 2)
    publish(next_one, spark, s0=9)
    assert found(spark, home) == numbers(s0=9)


def test_a_late_commit_of_a_zombie_is_refused(make: Make, spark: Any, home: str) -> None:
    """It stands before its commit while another worker writes the same shard, and one it has not."""
    zombie, other = make(), make()
    of = batch(zombie.open(), s0=5)
    assert isinstance(zombie, FileSink)
    take = zombie._store.take

    def late(source: str, target: str) -> bool:
        zombie._store.take = take  # type: ignore[method-assign]
        publish(other, spark, s0=3, s1=4)
        return take(source, target)

    zombie._store.take = late  # type: ignore[method-assign]
    with pytest.raises(Fenced) as fenced:
        zombie.publish(frame(spark, of), of, "b")
    assert fenced.value.moved == {A: RecordPosition(3)}
    publish(zombie, spark, s0=5)
    assert found(spark, home) == numbers(s0=5, s1=4)


def test_two_writers_that_race_for_one_number_follow_each_other(make: Make, spark: Any, home: str) -> None:
    """Both have read the same head; one wins, and the other follows with the data it has."""
    first, second = make(), make()
    of = {shard: batch(first.open(), **{f"s{shard.shard}": 6}) for shard in (A, B)}
    second.open()
    meet = threading.Barrier(2)
    numbers_taken: dict[StreamShard, int] = {}
    attempts: Counter[StreamShard] = Counter()

    def write(sink: Sink, shard: StreamShard) -> None:
        assert isinstance(sink, FileSink)
        take = sink._store.take

        def together(source: str, target: str) -> bool:
            attempts[shard] += 1
            if attempts[shard] == 1:
                meet.wait(60)
            return take(source, target)

        sink._store.take = together  # type: ignore[method-assign]
        numbers_taken[shard] = sink.publish(frame(spark, of[shard]), of[shard], "b").number

    threads = [threading.Thread(target=write, args=pair) for pair in ((first, A), (second, B))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(numbers_taken.values()) == [1, 2]
    assert sorted(attempts.values()) == [1, 2]
    assert found(spark, home) == numbers(s0=6, s1=6)


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


def test_a_name_node_that_is_gone_for_a_while(make: Make, spark: Any, home: str, cluster: Cluster) -> None:
    """Before a batch, and between its job and its commit: an error that is tried again, and then all is there once."""
    sink = make()
    publish(sink, spark, s0=3)
    of = {A: ShardSpan(RecordPosition(3), RecordPosition(7))}
    assert isinstance(sink, FileSink)
    take = sink._store.take

    def unheard(source: str, target: str) -> bool:
        cluster.stop_name_node()
        return take(source, target)

    sink._store.take = unheard  # type: ignore[method-assign]
    try:
        with pytest.raises(SinkError, match=r"sink out: committing a batch: .*; it is tried again") as caught:
            sink.publish(frame(spark, of), of, "b")
        assert type(caught.value) is SinkError
        sink._store.take = take  # type: ignore[method-assign]
        with pytest.raises(SinkError, match=r"opening its ledger: .*Connection refused.*; it is tried again"):
            sink.open()
    finally:
        cluster.start_name_node()
    assert sink.open() == {A: RecordPosition(3)}
    publish(sink, spark, s0=7)
    assert found(spark, home) == numbers(s0=7)


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
