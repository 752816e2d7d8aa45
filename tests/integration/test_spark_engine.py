"""The engine on a real session: hand-over, pipelines, sinks and dead letters, one session for all tests."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs the extra: pip install 'mld[spark]'")

from processors.spark.batch.engine import Engine
from processors.spark.batch.outcome import BatchOutcome
from processors.spark.batch.spool import Spool
from processors.spark.high_water_marks import StreamShard
from processors.spark.pipeline import Pipeline, load
from processors.spark.session import handover, local_files
from processors.spark.session.handover import Way
from processors.spark.session.spark_session import SessionHealth, jvm_pid, start
from processors.spark.settings import SparkSettings
from processors.spark.sink_port import SinkSpec
from processors.spark.sinks.factory import make_sink
from processors.spark.spark_errors import SessionError
from processors.spark.testing import batch, records, session
from tests.unit.spark.twins import run_data, settings_of

pytestmark = [pytest.mark.spark_slice, pytest.mark.spark, pytest.mark.timeout(900)]
JSON = ("mld.spark.format = json", "mld.spark.schema = n INT, kind STRING")
A = StreamShard("s", "a")


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    yield session()


class Bed:
    """An engine with sinks of files."""

    def __init__(self, spark: Any, directory: Path, pipeline: str, *keys: str, sinks: tuple[str, ...] = ("out",),
                 format: str = "json", dead: bool = True, files: bool = True) -> None:  # fmt: skip
        self.spark = spark
        self.directory = directory
        more = [f"mld.spark.deadLetter = {directory / 'dead'}"] if dead else []
        self.settings: SparkSettings = settings_of("mld.spark.attemptsMax = 2", *more, *keys, sinks=sinks)
        self.spool = Spool(directory / "spool")
        file = directory / ("pipeline.sql" if pipeline.lstrip().upper().startswith("SELECT") else "pipeline.py")
        file.write_text(pipeline)
        self.pipeline: Pipeline = load(str(file) if file.suffix == ".sql" else f"{file}:transform", sinks)
        frames = handover.Handover(
            spark, self.settings.format, self.settings.schema, divert=dead, way=Way.FILES if files else Way.CLIENT
        )
        self.engine = Engine(
            self.settings,
            frames,
            SessionHealth(spark),
            self.pipeline,
            [make_sink(SinkSpec(name, format, str(directory / name)), spark) for name in sinks],
            make_sink(SinkSpec("dead", "json", str(directory / "dead")), spark) if dead else None,
            self.spool,
        )
        self.engine.start()

    def run(self, data: Mapping[int, bytes], shard: str = "a") -> BatchOutcome:
        return run_data(self.engine, self.spool, data, shard)

    def rows(self, sink: str = "out") -> list[dict[str, Any]]:
        found = []
        for file in sorted((self.directory / sink).glob("mld_commit=*/part-*")):
            found += [json.loads(line) for line in file.read_text().splitlines()]
        return found


def event(n: int, kind: str = "human") -> bytes:
    return json.dumps({"n": n, "kind": kind}).encode()


PASS = "def transform(records, batch):\n    return records.select('sequenceNumber', 'payload.*')\n"


def test_json_is_decoded_and_what_is_not_json_is_a_dead_letter(spark: Any, tmp_path: Path) -> None:
    bed = Bed(spark, tmp_path, PASS, *JSON)
    outcome = bed.run({1: event(1), 2: b"{bad", 3: event(3), 4: b"", 5: b'{"n":"no number"}'})
    assert outcome.failed == {}
    assert [(row["sequenceNumber"], row["n"]) for row in bed.rows()] == [("1", 1), ("3", 3)]
    dead = {row["sequenceNumber"]: row["reason"] for row in bed.rows("dead")}
    assert dead == dict.fromkeys(["2", "4", "5"], "not JSON of mld.spark.schema")
    assert bed.run({n: event(n) for n in range(3, 8)}).failed == {}
    assert [row["n"] for row in bed.rows()] == [1, 3, 6, 7]


def test_a_batch_of_good_records_is_one_job(spark: Any, tmp_path: Path) -> None:
    bed = Bed(spark, tmp_path, PASS, *JSON)
    bed.run({1: event(1)})
    spark.sparkContext.setJobGroup(str(tmp_path), "one")
    bed.run({n: event(n) for n in range(2, 500)})
    assert len(spark.sparkContext.statusTracker().getJobIdsForGroup(str(tmp_path))) == 1
    spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)


def test_without_a_dead_letter_malformed_records_keep_a_null_payload(spark: Any, tmp_path: Path) -> None:
    pipeline = (
        "def transform(records, batch):\n    return records.selectExpr('sequenceNumber', 'payload IS NULL AS bad')\n"
    )
    bed = Bed(spark, tmp_path, pipeline, *JSON, dead=False)
    assert bed.run({1: event(1), 2: b"{bad"}).figures.malformed == 1
    assert [row["bad"] for row in bed.rows()] == [False, True]


def test_a_pipeline_in_sql(spark: Any, tmp_path: Path) -> None:
    bed = Bed(spark, tmp_path, "SELECT payload.kind, count(*) AS n FROM records GROUP BY payload.kind;\n", *JSON)
    bed.run({1: event(1), 2: event(2, "bot"), 3: event(3)})
    assert sorted((row["kind"], row["n"]) for row in bed.rows()) == [("bot", 1), ("human", 2)]


def test_several_sinks(spark: Any, tmp_path: Path) -> None:
    pipeline = """
def transform(records, batch):
    flat = records.select("payload.*")
    return {"bots": flat.where("kind = 'bot'"), "people": flat.where("kind <> 'bot'"), "nothing": None}
"""
    bed = Bed(spark, tmp_path, pipeline, *JSON, sinks=("bots", "people", "nothing"))
    bed.run({1: event(1), 2: event(2, "bot"), 3: event(3)})
    assert [row["n"] for row in bed.rows("bots")] == [2]
    assert sorted(row["n"] for row in bed.rows("people")) == [1, 3]
    assert bed.rows("nothing") == []


def test_a_record_that_fails_in_a_function_of_the_user_is_alone_in_the_dead_letter(spark: Any, tmp_path: Path) -> None:
    pipeline = """
from pyspark.sql import functions as F

def helper(n):
    return 10 // n

def transform(records, batch):
    inverse = F.udf(lambda n: helper(n), "int")
    return records.select("payload.n", inverse("payload.n").alias("inverse"))
"""
    bed = Bed(spark, tmp_path, pipeline, *JSON)
    assert bed.run({number: event(n) for number, n in enumerate([1, 2, 0, 5, 10], start=1)}).failed == {}
    assert [(row["n"], row["inverse"]) for row in bed.rows()] == [(1, 10), (2, 5), (5, 2), (10, 1)]
    (dead,) = bed.rows("dead")
    assert dead["sequenceNumber"] == "3" and "division" in dead["reason"]


@pytest.mark.parametrize(
    ("pipeline", "said"),
    [
        ("def transform(records, batch):\n    return records.select('payload.no_such_field')\n", "no_such_field"),
        (
            "import threading\nfrom pyspark.sql import functions as F\nlock = threading.Lock()\n"
            "def transform(records, batch):\n"
            "    f = F.udf(lambda n: lock.locked(), 'boolean')\n    return records.select(f('payload.n').alias('x'))\n",
            "correct the pipeline",
        ),
        ("def transform(records, batch):\n    return 7\n", "returned int"),
    ],
)
def test_a_pipeline_that_cannot_work_stops_with_a_sentence(
    spark: Any, tmp_path: Path, pipeline: str, said: str
) -> None:
    bed = Bed(spark, tmp_path, pipeline, *JSON)
    outcome = bed.run({1: event(1), 2: event(2)})
    assert said in outcome.failed[A]
    assert (bed.rows(), bed.rows("dead")) == ([], [])


def test_a_column_that_changes_its_type_stops_with_a_sentence(spark: Any, tmp_path: Path) -> None:
    Bed(spark, tmp_path, "def transform(records, batch):\n    return records.select('payload.n')\n", *JSON).run(
        {1: event(1)}
    )
    changed = "def transform(records, batch):\n    return records.selectExpr('payload.kind AS n')\n"
    outcome = Bed(spark, tmp_path, changed, *JSON).run({2: event(2)})
    assert "its column n is int, in this batch it is string" in outcome.failed[A]


def test_lines_that_travel_through_the_session(spark: Any, tmp_path: Path) -> None:
    bed = Bed(spark, tmp_path, PASS, *JSON, files=False)
    bed.run({1: event(1), 2: b"{bad", 3: event(3)})
    assert (sorted(row["n"] for row in bed.rows()), len(bed.rows("dead"))) == ([1, 3], 1)


@pytest.mark.parametrize(
    ("keys", "good", "bad"),
    [
        (("mld.spark.format = csv", "mld.spark.schema = n INT, kind STRING"), b"7,human", b"seven,human"),
        (("mld.spark.format = text",), "é".encode(), b"\xff"),
    ],
)
def test_other_formats(spark: Any, tmp_path: Path, keys: tuple[str, ...], good: bytes, bad: bytes) -> None:
    bed = Bed(spark, tmp_path, "def transform(records, batch):\n    return records.select('payload')\n", *keys)
    bed.run({1: good, 2: bad})
    assert [row["payload"] for row in bed.rows()] in ([{"n": 7, "kind": "human"}], ["é"])
    assert [row["sequenceNumber"] for row in bed.rows("dead")] == ["2"]


def test_a_schema_that_is_none_gets_a_sentence(spark: Any) -> None:
    with pytest.raises(SessionError, match=r"mld.spark.schema does not fit mld.spark.format = json: "):
        handover.check_schema(spark, handover.Format.JSON, "n STRIN")


def test_the_helper_for_users_makes_the_frame_of_production(spark: Any) -> None:
    frame = records(spark, [{"n": 1}, '{"n":2}', b"{bad"], format="json", schema="n INT")
    assert frame.columns == [*handover.COLUMNS, handover.PAYLOAD]
    found = [(row.sequenceNumber, row.payload.n if row.payload else None) for row in frame.collect()]
    assert found == [("1", 1), ("2", 2), ("3", None)]
    assert batch(3).shards == ("shardId-000000000000",)


def test_permissions_of_files_are_those_of_hadoop_and_cost_no_process(spark: Any, tmp_path: Path) -> None:
    def waited_for() -> int:
        """Page faults of the programs that the JVM has run."""
        return int(Path(f"/proc/{jvm_pid(spark)}/stat").read_text().rpartition(")")[2].split()[8])

    def written(name: str) -> tuple[bool, set[tuple[bool, int]]]:
        before = waited_for()
        spark.range(10).coalesce(1).write.parquet(str(tmp_path / name))
        made = [tmp_path / name, *(tmp_path / name).iterdir()]
        return waited_for() > before, {(path.is_dir(), path.stat().st_mode & 0o7777) for path in made}

    java = spark._jvm.org.apache.hadoop.fs
    configuration = spark.sparkContext._jsc.hadoopConfiguration()
    ran_a_program, theirs = written("theirs")
    assert ran_a_program, "Hadoop has its native library here: nothing to save"
    assert local_files.install(spark)
    assert written("ours") == (False, theirs)
    files = java.FileSystem.get(spark._jvm.java.net.URI("file:///"), configuration)
    files.setPermission(java.Path(str(tmp_path / "ours")), java.permission.FsPermission("1770"))
    assert (tmp_path / "ours").stat().st_mode & 0o7777 == 0o1770
    assert spark.read.parquet(str(tmp_path / "ours")).count() == 10


@pytest.mark.parametrize(
    "keys", [(), ("mld.spark.conf.spark.hadoop.fs.file.impl = org.apache.hadoop.fs.LocalFileSystem",)]
)
def test_a_local_session_has_it_unless_the_user_has_another(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: tuple[str, ...]
) -> None:
    installed: list[Any] = []
    monkeypatch.setattr(local_files, "install", installed.append)
    assert start(settings_of(*keys), tmp_path) is spark
    assert installed == ([] if keys else [spark])


def test_without_the_compiler_hadoop_sets_permissions(caplog: pytest.LogCaptureFixture) -> None:
    class NoJanino:
        def __getattr__(self, name: str) -> Any:
            raise TypeError("'JavaPackage' object is not callable\nand more")

    class Session:
        _jvm = NoJanino()

    caplog.set_level("INFO")
    assert not local_files.install(Session())  # type: ignore[arg-type]
    assert caplog.messages == ["permissions of files are set by chmod: 'JavaPackage' object is not callable"]
