"""The data source `mld` on a real Spark, over the embedded AWS: `make test-spark-pandas`."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.kpl import User, aggregate
from tests.support.patience import PATIENCE_S
from tests.support.servers import EmbeddedAws

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif("MLD_SPARK_PANDAS" not in os.environ, reason="make test-spark-pandas"),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]
REGION = "us-east-1"
MIDDLE = str(2**127)


@pytest.fixture(scope="module")
def aws() -> Iterator[EmbeddedAws]:
    given = {"AWS_ACCESS_KEY_ID": "123456789012", "AWS_SECRET_ACCESS_KEY": "local", "AWS_REGION": REGION}
    before = dict(os.environ)
    os.environ.update(given)
    try:
        with EmbeddedAws() as server:
            yield server
    finally:
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture(scope="module")
def spark(aws: EmbeddedAws) -> Iterator[Any]:
    from tests.support.datasource_driver import session

    made = session()
    yield made
    made.stop()


class Producer:
    """Puts numbered records, alone and in aggregates, and reshards between them."""

    def __init__(self, aws: EmbeddedAws, name: str, shards: int = 2) -> None:
        self.name, self.number = name, 0
        self.kinesis = aws.client("kinesis")
        self.kinesis.create_stream(StreamName=name, ShardCount=shards)
        self._until_active()

    def put(self, count: int) -> None:
        """So many user records, every third of them in an aggregate of three."""
        for _ in range(count // 6):
            for _ in range(3):
                self.kinesis.put_record(StreamName=self.name, Data=self._next(), PartitionKey=f"k{self.number % 7}")
            key = f"k{self.number % 5}"
            data = aggregate([User(key, self._next()) for _ in range(3)])
            self.kinesis.put_record(StreamName=self.name, Data=data, PartitionKey=key)

    def _next(self) -> bytes:
        self.number += 1
        return str(self.number).encode()

    def open_shards(self) -> list[dict[str, Any]]:
        shards = self.kinesis.list_shards(StreamName=self.name)["Shards"]
        return [shard for shard in shards if "EndingSequenceNumber" not in shard["SequenceNumberRange"]]

    def split(self) -> None:
        shard = self.open_shards()[0]
        keys = shard["HashKeyRange"]
        middle = (int(keys["StartingHashKey"]) + int(keys["EndingHashKey"])) // 2
        self.kinesis.split_shard(StreamName=self.name, ShardToSplit=shard["ShardId"], NewStartingHashKey=str(middle))
        self._until_active()

    def merge(self) -> None:
        one, other = sorted(self.open_shards(), key=lambda shard: int(shard["HashKeyRange"]["StartingHashKey"]))[:2]
        self.kinesis.merge_shards(
            StreamName=self.name, ShardToMerge=one["ShardId"], AdjacentShardToMerge=other["ShardId"]
        )
        self._until_active()

    def _until_active(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            summary = self.kinesis.describe_stream_summary(StreamName=self.name)["StreamDescriptionSummary"]
            if summary["StreamStatus"] == "ACTIVE":
                return
        raise AssertionError("the stream is not active")

    @property
    def expected(self) -> Counter[str]:
        return Counter(str(number) for number in range(1, self.number + 1))


def options(aws: EmbeddedAws, name: str, **more: str) -> dict[str, str]:
    return {"stream": name, "endpoint": aws.endpoint, "region": REGION, "from": "trim-horizon", **more}


def test_a_batch_read_returns_every_record_once_through_reshards_and_aggregates(aws, spark):
    producer = Producer(aws, "batch")
    producer.put(30)
    producer.split()
    producer.put(30)
    producer.merge()
    producer.put(30)
    read = spark.read.format("mld").options(**options(aws, "batch")).load()
    rows = read.collect()
    assert Counter(bytes(row.data).decode() for row in rows) == producer.expected
    assert max(row.subSequenceNumber for row in rows) == 2
    assert len({row.shardId for row in rows}) > 2
    assert read.schema.simpleString().startswith("struct<streamName:string,shardId:string,sequenceNumber:string")


def test_a_range_of_checkpoints_begins_after_the_first_and_includes_the_last(aws, spark):
    producer = Producer(aws, "range", shards=1)
    producer.put(12)
    rows = spark.read.format("mld").options(**options(aws, "range")).load().collect()
    rows.sort(key=lambda row: (int(row.sequenceNumber), row.subSequenceNumber))
    place = [f"{row.sequenceNumber}/{row.subSequenceNumber}" for row in rows]
    shard = rows[0].shardId
    given = options(aws, "range")
    del given["from"]
    given |= {"fromCheckpoints": f'{{"{shard}": "{place[3]}"}}', "toCheckpoints": f'{{"{shard}": "{place[9]}"}}'}
    part = spark.read.format("mld").options(**given).load().collect()
    assert Counter(bytes(row.data) for row in part) == Counter(bytes(row.data) for row in rows[4:10])


def test_a_query_that_goes_on_is_told_what_to_run_instead(aws, spark, tmp_path):
    stream = spark.readStream.format("mld").options(**options(aws, "batch")).load()
    writer = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    with pytest.raises(Exception, match="run mld-spark"):
        writer.trigger(availableNow=True).start().awaitTermination()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"fromm": "1h"}, "fromm: no such option"),
        ({"from": "yesterday"}, "names no place in a stream"),
        ({"toCheckpoints": "[]"}, "is no JSON of positions"),
    ],
)
def test_options_that_cannot_be_used_are_named(aws, spark, given, sentence):
    with pytest.raises(Exception, match=sentence):
        spark.read.format("mld").options(**{**options(aws, "batch"), **given}).load().collect()
