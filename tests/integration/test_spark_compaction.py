"""Small files of real sinks become large ones, with every row, column and type as it was."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from mld.processors.spark.commit.journal import Journal
from mld.processors.spark.commit.store import PosixStore
from mld.processors.spark.high_water_marks import RecordPosition, ShardSpan, StreamShard
from mld.processors.spark.sink_port import JobFailed, SinkRefused, SinkSpec
from mld.processors.spark.sinks.factory import make_sink
from tests.integration.world import ENVIRONMENT, World
from tests.support.servers import EmbeddedAws

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("java") is None, reason="needs a JDK 17"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
SHARD = StreamShard("clicks", "shardId-000000000000")
ODD = "a [b]%41 é#{x}"


@pytest.fixture(scope="module")
def spark():
    from tests.prove_spark.jvm import Jvm

    jvm = Jvm()
    yield jvm.session
    jvm.kill()


def step(number: int) -> dict[StreamShard, ShardSpan]:
    """The nth batch of one record."""
    return {SHARD: ShardSpan(RecordPosition(number - 1) if number > 1 else None, RecordPosition(number))}


def every(files):
    return tuple(sorted(one.name for one in files))


def data_files(directory: Path) -> list[str]:
    """Without a look into staging areas, which come and go."""
    places = [directory, *directory.glob("*=*")]
    return sorted(str(file.relative_to(directory)) for place in places for file in place.glob("c0*"))


@pytest.mark.parametrize("format", ["parquet", "orc"])
def test_rows_types_and_columns_that_came_later(format, spark, tmp_path):
    sink = make_sink(SinkSpec("out", format, str(tmp_path / "out")), spark)
    sink.open()
    early = "id", "cast(id as decimal(20,3)) AS d", "timestamp_micros(id * 1000001) AS t", "struct(id, 'é') AS s"
    sink.publish(spark.range(3).selectExpr(*early), step(1), "b")
    sink.publish(spark.range(3, 6).selectExpr(*early, "array(id, null) AS later"), step(2), "b")
    sink.publish(spark.range(6, 9).selectExpr(*early[:2]), step(3), "b")

    def look():
        frame = spark.read.format(format).option("mergeSchema", "true").load(str(tmp_path / "out"))
        frame = frame.select("id", "d", "t", "s", "later").orderBy("id")
        return frame.schema, frame.collect()

    before, count = look(), len(data_files(tmp_path / "out"))
    done = sink.compact(spark, "", every)
    assert (done.number, done.removed, done.added, done.rows) == (4, count, 1, 9)
    assert look() == before
    assert len(data_files(tmp_path / "out")) == 1
    assert sink.publish(spark.range(9, 10).selectExpr(*early), step(4), "b").number == 5
    assert make_sink(SinkSpec("out", format, str(tmp_path / "out")), spark).open() == {SHARD: RecordPosition(4)}
    assert look()[1][:9] == before[1]


@pytest.mark.parametrize("format", ["parquet", "orc"])
def test_one_directory_of_a_partitioned_sink(format, spark, tmp_path):
    """Its path and its partitions look like patterns."""
    top = tmp_path / "o [u]{t}"
    sink = make_sink(SinkSpec("out", format, str(top), partition_by=("tag",)), spark)
    sink.open()
    for number in (1, 2, 3):
        sink.publish(
            spark.range(4).selectExpr(f"id + {4 * number} AS id", f"if(id < 2, '{ODD}', 'b') AS tag"), step(number), "b"
        )
    places = {Path(name).parent.name for name in data_files(top)}
    (odd,) = places - {"tag=b"}

    def rows():
        reader = spark.read.format(format).option("__globPaths__", "false")
        places = [str(place) for place in top.glob("tag=*")]
        return sorted(row.id for place in places for row in one_by_one(reader, place))

    def one_by_one(reader, place):
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        shutil.copytree(place, tmp_path / "copy")
        return reader.load(str(tmp_path / "copy")).collect()

    before = rows()
    assert sink.compact(spark, odd, every).rows == 6
    assert rows() == before
    assert len(data_files(top / odd)) == 1
    assert len(data_files(top / "tag=b")) > 2
    shutil.copy(top / odd / data_files(top / odd)[0], tmp_path / "alone")
    assert spark.read.format(format).load(str(tmp_path / "alone")).columns == ["id"]


def test_what_cannot_be_read_or_is_not_the_sinks_stays(spark, tmp_path):
    """Also if the session is told to leave out files that are damaged: that would lose their rows."""
    sink = make_sink(SinkSpec("out", "parquet", str(tmp_path / "out")), spark)
    sink.open()
    for number in (1, 2):
        sink.publish(spark.range(3), step(number), "b")
    names = data_files(tmp_path / "out")
    damaged = tmp_path / "out" / names[0]
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:-10])
    spark.conf.set("spark.sql.files.ignoreCorruptFiles", "true")
    try:
        with pytest.raises(JobFailed):
            sink.compact(spark, "", every)
    finally:
        spark.conf.unset("spark.sql.files.ignoreCorruptFiles")
    assert data_files(tmp_path / "out") == names
    damaged.write_bytes(whole)
    spark.range(1).selectExpr("id", "1 AS strange").write.parquet(str(tmp_path / "other"))
    shutil.copy(next((tmp_path / "other").glob("part*")), tmp_path / "out" / "c000000000001-00009.parquet")
    with pytest.raises(SinkRefused, match="column strange int"):
        sink.compact(spark, "", every)
    assert not list((tmp_path / "out/_mld/staging").iterdir())


PIPELINE = """
def transform(records, batch):
    return records.select("shardId", "sequenceNumber", "payload")
"""
KEYS = {
    "shutdownGraceMillis": 60_000,
    "mld.spark.format": "text",
    "mld.spark.master": "local[2]",
    "mld.spark.driverMemory": "600m",
    "mld.spark.triggerIntervalMillis": 500,
    "mld.spark.startTimeoutMillis": 240_000,
    "mld.spark.compactFiles": 3,
    "mld.spark.conf.spark.ui.enabled": "false",
}


def test_a_daemon_compacts_beside_its_micro_batches_and_the_command_does_the_rest(spark, tmp_path):
    """Daemon to JVM, with a commit every half second; then `mld-spark --compact` while nothing runs."""
    sink = tmp_path / "out"
    pipeline = tmp_path / "pipeline.py"
    pipeline.write_text(PIPELINE)
    program = str(Path(sys.executable).with_name("mld-spark"))
    keys = {**KEYS, "mld.spark.pipeline": f"{pipeline}:transform", "mld.spark.sink.out.path": sink}

    def found() -> Counter[tuple[str, int]]:
        names = [str(sink / name) for name in data_files(sink)]
        rows = spark.read.parquet(*names).select("shardId", "sequenceNumber").collect()
        return Counter((row[0], int(row[1])) for row in rows)

    def is_written() -> bool:
        """All that was put is in the sink, as its newest entry says."""
        head = Journal(PosixStore(sink), "out").head()
        every = [mark for own in head.writers.values() for mark in own.items()] if head else []
        marks = {shard.shard: mark.sequence for shard, mark in every}
        return all(put.sequence <= marks.get(put.shard, -1) for put in world.puts)

    with EmbeddedAws() as aws:
        world = World(aws, tmp_path, shards=1)
        try:
            daemon = world.daemon(
                "w1",
                program,
                process={"environment": ENVIRONMENT},
                **{name.replace(".", "__"): value for name, value in keys.items()},
            )
            while " became 1" not in daemon.log():
                world.put(5)
                world.until(is_written, 240, "a commit")
                assert len(world.puts) < 500, "no compaction"
            world.put(5)
            world.until(is_written, 240, "a commit after it")
            assert daemon.stop(timeout_s=120) == 0
            wanted = Counter((put.shard, put.sequence) for put in world.puts)
            assert found() == wanted
            properties = next(tmp_path.rglob("*.properties"))
            ran = subprocess.run(
                [program, "--compact", str(properties)], cwd=tmp_path, capture_output=True, text=True, check=False
            )
            assert ran.returncode == 0, ran.stderr[-3000:]
            assert "files, now 1;" in ran.stdout
            assert len(data_files(sink)) == 1
            assert found() == wanted
        finally:
            world.close()


@pytest.mark.parametrize(("one_file", "files"), [(True, 1), (None, 4)])
def test_a_commit_is_one_file_if_that_is_wanted(one_file, files, spark, tmp_path):
    sink = make_sink(SinkSpec("out", "parquet", str(tmp_path / "out"), one_file=one_file), spark)
    sink.open()
    sink.publish(spark.range(0, 80, 1, 4), step(1), "b")
    assert len(data_files(tmp_path / "out")) == files
