"""Sinks of files with a real Spark: what frames of all kinds become."""

from __future__ import annotations

import json
import shutil

import pytest

pytest.importorskip("pyspark")


from mld.processors.spark.commit.ledger_files import ENTRIES_SWEPT_FROM, path_of
from mld.processors.spark.positions import RecordPosition, ShardSpan, StreamShard
from mld.processors.spark.sink_port import Fenced, JobFailed, SinkRefused
from mld.processors.spark.sink_spec import SinkSpec
from mld.processors.spark.sinks.factory import make_sink

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
def make(spark, tmp_path):
    """A function that makes a sink of the test's directory."""
    return lambda format="parquet", path="out", **more: make_sink(
        SinkSpec("out", format, str(tmp_path / path), **more), spark
    )


def step(number: int) -> dict[StreamShard, ShardSpan]:
    """The nth batch of one record."""
    return {SHARD: ShardSpan(RecordPosition(number - 1) if number > 1 else None, RecordPosition(number))}


@pytest.mark.parametrize("format", ["parquet", "orc", "json", "csv"])
def test_a_plain_read_of_the_directory_gives_the_rows_and_nothing_else(format, make, spark, tmp_path):
    sink = make(format, "a b%41 é#")
    assert sink.open() == {}
    for number in (1, 2):
        published = sink.publish(spark.range(number, number + 3), step(number), "b")
        assert (published.rows, published.number) == (3, number)
    rows = spark.read.schema("id BIGINT").format(format).load(str(tmp_path / "a b%41 é#"))
    assert sorted(tuple(row) for row in rows.collect()) == [(1,), (2,), (2,), (3,), (3,), (4,)]
    numbers = rows.selectExpr("id", "regexp_extract(_metadata.file_name, '^c([0-9]+)-', 1)").collect()
    assert {(number, row_id) for row_id, number in numbers} == {
        *(("000000000001", n) for n in (1, 2, 3)),
        *(("000000000002", n) for n in (2, 3, 4)),
    }


def test_frames_without_rows_advance_the_marks_and_add_no_files(make, spark, tmp_path):
    sink = make()
    sink.open()
    rows = spark.range(5)
    frames = (rows.filter("id < 0"), rows.limit(0), spark.createDataFrame([], "id BIGINT"), None)
    for number, frame in enumerate(frames, 1):
        assert sink.publish(frame, step(number), "b").rows == 0
    assert sink.open() == {SHARD: RecordPosition(len(frames))}
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["_mld"]


VALUES = ["a/b", "a=b", "é", "日本", "x y", "%41", "..", ".", None, 'q"', "a:b", "new\nline", "_h", " ", "*"]


def test_partition_values_of_all_kinds_come_back(make, spark, tmp_path):
    sink = make(partition_by=("tag", "n"))
    sink.open()
    rows = list(enumerate(VALUES))
    sink.publish(spark.createDataFrame(rows, "n INT, tag STRING").selectExpr("*", "n AS v"), step(1), "b")
    back = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted((row.n, row.tag) for row in back) == rows
    assert all(file.name.startswith("c000000000001-") for file in (tmp_path / "out").rglob("*.parquet"))


def test_columns_may_come_and_go_but_keep_their_types(make, spark, tmp_path):
    sink = make()
    sink.open()
    sink.publish(spark.range(1), step(1), "b")
    sink.publish(spark.range(1).selectExpr("id", "'x' AS note"), step(2), "b")
    sink.publish(spark.range(1), step(3), "b")
    with pytest.raises(SinkRefused, match="id is bigint, in this batch it is string"):
        sink.publish(spark.range(1).selectExpr("cast(id AS string) AS id"), step(4), "b")
    assert sink.open() == {SHARD: RecordPosition(3)}
    merged = spark.read.option("mergeSchema", "true").parquet(str(tmp_path / "out"))
    assert set(merged.columns) == {"id", "note"}


def test_another_layout_in_the_same_directory_is_refused(make, spark):
    make().open()
    make().publish(spark.range(1), step(1), "b")
    with pytest.raises(SinkRefused, match=r"holds parquet, .* asks for parquet by id"):
        make(partition_by=("id",)).open()
    with pytest.raises(SinkRefused, match="asks for json"):
        make("json").open()


def test_what_cannot_work_is_refused_in_a_sentence(make, spark, tmp_path):
    partitioned = make(path="p", partition_by=("day",))
    partitioned.open()
    with pytest.raises(SinkRefused, match="partitionBy names day"):
        partitioned.publish(spark.range(1), step(1), "b")
    with pytest.raises(SinkRefused, match=r"sink\.out\.path is missing"):
        make_sink(SinkSpec("out", "parquet"), spark)
    with pytest.raises(SinkRefused, match="written exactly once, by append"):
        make(mode="overwrite")
    (tmp_path / "file").touch()
    with pytest.raises(SinkRefused, match="Not a directory"):
        make(path="file").open()


def test_a_failing_job_publishes_nothing_and_leaves_nothing(make, spark, tmp_path):
    sink = make()
    sink.open()
    with pytest.raises(JobFailed, match="poison"):
        sink.publish(spark.range(9).selectExpr("if(id = 7, raise_error('poison'), id) AS id"), step(1), "b")
    assert sink.open() == {}
    assert not list((tmp_path / "out/_mld/staging").iterdir())


def test_a_shard_that_somebody_else_has_written_is_fenced_before_the_job(make, spark):
    one, other = make(), make()
    one.open()
    other.publish(spark.range(1), step(1), "b")
    with pytest.raises(Fenced) as fenced:
        one.publish(spark.range(1).selectExpr("raise_error('never run') AS id"), step(1), "b")
    assert fenced.value.moved == {SHARD: RecordPosition(1)}


@pytest.mark.parametrize("kind", ["array<", "array<" * 5_000, "\x1b[31m", "", "`", "void>, x STRUCT<y"])
def test_a_type_that_somebody_has_written_into_the_ledger_is_refused(kind, make, spark, tmp_path):
    sink = make()
    sink.open()
    sink.publish(spark.range(1), step(1), "b")
    entry = tmp_path / "out" / path_of(1)
    value = json.loads(entry.read_text())
    entry.write_text(json.dumps({**value, "columns": [["id", kind]]}))
    with pytest.raises(SinkRefused, match=r"sink out: (a type of a column in its ledger is none|its column id is)"):
        make().publish(spark.range(1), step(2), "b")


def test_files_whose_ledger_was_removed_are_refused(make, spark, tmp_path):
    sink = make()
    sink.open()
    sink.publish(spark.range(1), step(1), "b")
    shutil.rmtree(tmp_path / "out/_mld")
    with pytest.raises(SinkRefused, match=r"holds files of commits, c0+1-part.*, but no ledger; restore _mld"):
        make().open()


def test_old_commits_may_be_deleted_and_old_entries_go(make, spark, tmp_path):
    sink = make()
    sink.open()
    sink.publish(spark.range(1), step(1), "b")
    for file in (tmp_path / "out").glob("c000000000001-*"):
        file.unlink()
    for number in range(2, ENTRIES_SWEPT_FROM + 66):
        sink.publish(None, step(number), "b")
    assert len(list((tmp_path / "out/_mld/ledger").iterdir())) <= 2 * ENTRIES_SWEPT_FROM
    assert make().open() == {SHARD: RecordPosition(ENTRIES_SWEPT_FROM + 65)}


def test_any_other_format_is_written_at_least_once(make, spark):
    sink = make("noop")
    assert not sink.exactly_once
    assert sink.open() == {}
    published = sink.publish(spark.range(3), step(1), "b")
    assert (published.rows, published.marks) == (3, {SHARD: RecordPosition(1)})
    assert make("noop").open() == {}
