"""The streaming mode on a real session: windows and watermarks, two sinks, restarts; one session for all tests."""

from __future__ import annotations

import fcntl
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs the extra: pip install 'mld-kinesis[spark]'")

from mld.processors.spark.pipeline import PipelineError
from mld.processors.spark.sink_port import SinkError, SinkRefused
from mld.processors.spark.streaming import queries
from mld.processors.spark.testing import session
from tests.integration import test_spark as whole
from tests.integration.world import MakeWorld
from tests.support.spark_bed import PLAIN, A, Bed, engine_bed, rows

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
JSON = ("mld.spark.format = json", "mld.spark.schema = n INT, at TIMESTAMP")
DIVIDE = """
from pyspark.sql import functions as F

def transform(records, batch):
    inverse = F.udf(lambda n: 10 // n, "int")
    return records.groupBy("shardId").agg(F.sum(inverse("payload.n")).alias("n"))
"""
WINDOWS = """
from pyspark.sql import functions as F

def transform(records, batch):
    events = records.select("sequenceNumber", "payload.*").withWatermark("at", "1 minute")
    minutes = events.groupBy(F.window("at", "1 minute")).agg(F.sum("n").alias("n"), F.count("*").alias("events"))
    return {"raw": events, "minutes": minutes.selectExpr("date_format(window.start, 'HH:mm') AS minute", "n", "events")}
"""


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    # It lives for a minute: compile little, and quickly.
    quick = {"spark.sql.codegen.wholeStage": "false", "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
    yield session(2, **quick)


def worker(spark: Any, directory: Path, pipeline: str, *keys: str, **more: Any) -> Bed:
    """A worker of the streaming mode; several may share the directory."""
    spark.conf.set("spark.sql.streaming.pollingDelay", "20ms")
    mine = (
        "mld.spark.mode = streaming",
        f"mld.spark.checkpoint = {directory / 'checkpoint'}",
        "mld.spark.conf.spark.sql.streaming.pollingDelay = 20ms",
    )
    return engine_bed(spark, directory, pipeline, *mine, *JSON, *keys, **more)


def event(n: int, at: str = "10:00:00") -> bytes:
    return json.dumps({"n": n, "at": f"2026-01-01T{at}Z"}).encode()


def test_windows_close_behind_the_watermark_across_batches_and_restarts(spark: Any, tmp_path: Path) -> None:
    sinks = ("raw", "minutes")
    first = worker(spark, tmp_path, WINDOWS, sinks=sinks)
    assert first.run({1: event(1), 2: event(2, "10:00:30")}).failed == {}
    assert first.engine.mark_of(A) == (2, 0)
    first.engine.stop()

    second = worker(spark, tmp_path, WINDOWS, sinks=sinks)
    assert second.run({2: event(2, "10:00:30"), 3: event(3, "10:00:59"), 4: b"{bad"}, "a").failed == {}
    assert second.run({1: event(10, "10:02:30")}, "b").failed == {}
    assert second.run({5: event(5, "10:04:00")}).failed == {}
    second.engine.stop()
    assert rows(tmp_path / "minutes") == [
        {"minute": "10:00", "n": 6, "events": 3},
        {"minute": "10:02", "n": 10, "events": 1},
    ]
    assert sorted(row["n"] for row in rows(tmp_path / "raw")) == [1, 2, 3, 5, 10]
    assert [(row["sequenceNumber"], row["reason"]) for row in rows(tmp_path / "dead")] == [
        ("4", "not JSON of mld.spark.schema")
    ]


def provider(directory: Path, sink: str = "minutes") -> str:
    """What keeps the state of a query, as the newest entry of Spark's own log of offsets has it."""
    offsets = directory / "checkpoint" / "queries" / sink / "offsets"
    newest = max((path for path in offsets.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
    conf = json.loads(newest.read_text().splitlines()[1])["conf"]
    return str(conf["spark.sql.streaming.stateStore.providerClass"]).rpartition(".")[2]


def test_late_rows_are_counted_and_said(spark: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bed = worker(spark, tmp_path, WINDOWS, sinks=("raw", "minutes"))
    assert bed.run({1: event(1), 2: event(2, "10:09:00")}).figures.late_rows == 0
    late = bed.run({3: event(3), 4: event(4, "10:00:30"), 5: event(5, "10:01:30"), 6: event(6, "10:09:30")})
    calm = bed.run({7: event(7, "10:09:40")})
    bed.engine.stop()
    # A window adds up the records of a task before its state is asked, so two of the three are one row.
    assert (late.failed, late.figures.late_rows, calm.figures.late_rows) == ({}, 2, 0)
    assert late.figures.watermarks["minutes"].startswith("2026-01-01T10:08:")
    assert "sink minutes: 2 rows came later than the watermark, which is 2026-01-01T10:08:" in caplog.text
    assert len(rows(tmp_path / "raw")) == 7
    assert provider(tmp_path) == "RocksDBStateStoreProvider"


def test_a_checkpoint_that_was_begun_with_state_in_the_heap_goes_on_with_it(spark: Any, tmp_path: Path) -> None:
    old = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
    key = "spark.sql.streaming.stateStore.providerClass"
    spark.conf.set(key, old)
    sinks = ("raw", "minutes")
    first = worker(spark, tmp_path, WINDOWS, f"mld.spark.conf.{key} = {old}", sinks=sinks)
    assert first.run({1: event(1), 2: event(2, "10:00:30")}).failed == {}
    first.engine.stop()
    assert provider(tmp_path) == "HDFSBackedStateStoreProvider"

    second = worker(spark, tmp_path, WINDOWS, sinks=sinks)
    assert second.run({3: event(3, "10:00:59")}).failed == {}
    assert spark.conf.get(key).endswith("RocksDBStateStoreProvider")
    assert second.run({4: event(4, "10:05:00")}).failed == {}
    second.engine.stop()
    assert provider(tmp_path) == "HDFSBackedStateStoreProvider"
    assert rows(tmp_path / "minutes") == [{"minute": "10:00", "n": 6, "events": 3}]


def test_a_record_that_fails_stops_all_shards_until_the_pipeline_is_corrected(spark: Any, tmp_path: Path) -> None:
    update = "mld.spark.sink.out.outputMode = update"
    bed = worker(spark, tmp_path, DIVIDE, update, dead=False)
    assert bed.run({1: event(2)}).failed == {}
    outcome = bed.run({2: event(0), 3: b"{bad"})
    bed.engine.stop()
    assert "ZeroDivisionError" in outcome.failed[A] and "cannot leave out a record" in outcome.failed[A]
    assert bed.engine.mark_of(A) == (1, 0)

    corrected = worker(spark, tmp_path, DIVIDE.replace("10 // n", "10 // n if n else 0"), update, dead=False)
    assert corrected.run({2: event(0), 3: b"{bad", 4: event(5)}).failed == {}
    corrected.engine.stop()
    # The batch that failed is repeated as it was, and its shard adds nothing; then comes what is new.
    assert [row["n"] for row in rows(tmp_path / "out")] == [5, 5, 7]


@pytest.mark.parametrize(
    ("pipeline", "keys", "error", "said"),
    [
        ("    return None", (), PipelineError, "returned no frame for sink out"),
        ("    return records.sparkSession.range(1)", (), PipelineError, "a frame that is not streaming"),
        ("    return records.select('none')", (), PipelineError, "correct the pipeline"),
        ("    return records", ("mld.spark.sink.out.outputMode = complete",), SinkRefused, "which replaces all rows"),
    ],
)
def test_what_cannot_be_streamed_is_told_at_start(
    spark: Any, tmp_path: Path, pipeline: str, keys: tuple[str, ...], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        worker(spark, tmp_path, f"def transform(records, batch):\n{pipeline}\n", *keys)


def test_a_checkpoint_is_one_workers(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker is another process: its JVM has the lock, here this process does."""
    monkeypatch.setattr(queries, "CLAIM_WAIT_S", 0.0)
    (tmp_path / "checkpoint").mkdir()
    with (tmp_path / "checkpoint" / queries.CLAIM).open("wb") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        with pytest.raises(SinkError, match="in use by another worker"):
            worker(spark, tmp_path, PLAIN)
    bed = worker(spark, tmp_path, PLAIN)
    assert bed.run({1: event(1)}).failed == {}
    bed.engine.stop()


def test_an_aggregate_without_a_watermark_cannot_be_appended(spark: Any, tmp_path: Path) -> None:
    bed = worker(spark, tmp_path, DIVIDE)
    outcome = bed.run({1: event(1)})
    bed.engine.stop()
    assert "watermark" in outcome.failed[A] and "correct the pipeline" in outcome.failed[A]


def test_the_whole_through_a_killed_host(make_world: MakeWorld) -> None:
    world = make_world(shards=2)
    world.put(100)
    whole.put_malformed(world)
    keys = {"mld.spark.mode": "streaming", "mld.spark.checkpoint": world.directory / "state"}
    daemon = whole.start(world, **keys)
    world.until(lambda: whole.texts(world) == whole.wanted(world), whole.SESSION_S, "the first records in the sink")

    (host,) = whole.processes(daemon, "mld.processors.spark.host")
    os.kill(host, signal.SIGKILL)
    world.put(100)
    world.until(lambda: whole.texts(world) == whole.wanted(world), whole.SESSION_S, "the records behind its death")
    assert len(list(rows(world.directory / "dead"))) == 1
    assert daemon.stop(timeout_s=200) == 0
    world.until_caught_up(1)
