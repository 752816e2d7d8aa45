"""Files on S3 with a real Spark and a server that was written by others: what a reader of the bucket gets."""

from __future__ import annotations

import shutil
from pathlib import Path
from uuid import uuid4

import pytest

pytest.importorskip("pyspark")

from mld.processors.spark.positions import RecordPosition, ShardSpan, StreamShard
from mld.processors.spark.settings import SDK_CREDENTIALS
from mld.processors.spark.sink_port import Fenced, SinkRefused
from mld.processors.spark.sink_spec import S3Access, SinkSpec
from mld.processors.spark.sinks.factory import make_sink
from tests.support.servers import ACCOUNT

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("java") is None, reason="needs a JDK 17"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
SHARD = StreamShard("clicks", "shardId-000000000000")


@pytest.fixture(scope="module")
def spark():
    from tests.prove_spark.jvm import Jvm

    jvm = Jvm()
    yield jvm.session
    jvm.kill()


@pytest.fixture
def place(ministack, tmp_path, monkeypatch):
    """A bucket, and a function that makes a sink in it."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCOUNT)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "local")
    s3 = ministack.client("s3")
    bucket = f"b-{uuid4().hex}"
    s3.create_bucket(Bucket=bucket)
    access = S3Access(SDK_CREDENTIALS, "us-east-1", ministack.endpoint, path_style=True)
    return Place(s3, bucket, access, tmp_path)


class Place:
    def __init__(self, s3, bucket: str, access: S3Access, directory: Path) -> None:
        self._s3, self.bucket, self._access, self._directory = s3, bucket, access, directory
        self._sinks = 0

    def sink(self, spark, format="parquet", scheme="s3", **more):
        self._sinks += 1
        spec = SinkSpec("out", format, f"{scheme}://{self.bucket}/lake/clicks", s3=self._access, **more)
        return make_sink(spec, spark, self._directory / f"host-{self._sinks}")

    def names(self) -> list[str]:
        found = self._s3.list_objects_v2(Bucket=self.bucket).get("Contents", ())
        return [one["Key"] for one in found if "/_mld/" not in one["Key"]]

    def staged(self) -> list[str]:
        return [one["Key"] for one in self._s3.list_objects_v2(Bucket=self.bucket, Prefix="lake/clicks/_mld/staging")
                .get("Contents", ())]  # fmt: skip

    def read(self, spark, format="parquet"):
        """The table as a reader with an S3 client of its own sees it."""
        copy = self._directory / f"copy-{uuid4().hex}"
        for name in self.names():
            target = copy / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(self._s3.get_object(Bucket=self.bucket, Key=name)["Body"].read())
        return spark.read.schema("id BIGINT, p INT").format(format).load(str(copy / "lake/clicks"))


def step(number: int) -> dict[StreamShard, ShardSpan]:
    return {SHARD: ShardSpan(RecordPosition(number - 1) if number > 1 else None, RecordPosition(number))}


@pytest.mark.parametrize("format", ["parquet", "orc", "json", "csv"])
def test_a_commit_is_one_file_and_a_plain_read_gives_the_rows(format, place, spark):
    sink = place.sink(spark, format, scheme="s3a")
    assert sink.open() == {}
    for number in (1, 2):
        published = sink.publish(spark.range(number, number + 300, 1, 4).selectExpr("id", "1 AS p"), step(number), "b")
        assert (published.rows, published.number) == (300, number)
    assert len(place.names()) == 2
    rows = [row.id for row in place.read(spark, format).collect()]
    assert sorted(rows) == sorted([*range(1, 301), *range(2, 302)])
    assert place.staged() == []


def test_partitions_and_many_files(place, spark):
    sink = place.sink(spark, partition_by=("p",))
    frame = spark.range(0, 100, 1, 2).selectExpr("id", "CAST(id % 3 AS INT) AS p")
    sink.publish(frame, {SHARD: ShardSpan(sink.open().get(SHARD), RecordPosition(1))}, "b")
    assert {name.split("/")[2] for name in place.names()} == {"p=0", "p=1", "p=2"}
    found = sorted((row.id, row.p) for row in place.read(spark).collect())
    assert found == [(number, number % 3) for number in range(100)]


def test_many_files_a_commit_if_that_is_wanted(place, spark):
    sink = place.sink(spark, one_file=False)
    sink.open()
    sink.publish(spark.range(0, 100, 1, 4).selectExpr("id", "1 AS p"), step(1), "b")
    assert len(place.names()) == 4


def test_a_zombie_is_fenced_and_its_rows_are_not_there(place, spark):
    zombie, other = place.sink(spark), place.sink(spark)
    zombie.open()
    other.open()
    other.publish(spark.range(1, 2).selectExpr("id", "1 AS p"), step(1), "b")
    with pytest.raises(Fenced):
        zombie.publish(spark.range(1, 2).selectExpr("id", "1 AS p"), step(1), "b")
    assert [row.id for row in place.read(spark).collect()] == [1]
    assert place.staged() == []


def test_a_column_that_changes_its_type_is_refused(place, spark, tmp_path):
    sink = place.sink(spark)
    sink.open()
    sink.publish(spark.range(1, 2).selectExpr("id", "1 AS p"), step(1), "b")
    with pytest.raises(SinkRefused, match="its column id is bigint, in this batch it is string"):
        sink.publish(spark.range(1, 2).selectExpr("CAST(id AS STRING) AS id"), step(2), "b")
