"""Windows: a query of Spark's own over the table that a pipeline writes, started in `setup`; one session for all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs the extra: pip install 'mld-kinesis[spark]'")

from mld.processors.spark.session_errors import SessionGone
from mld.processors.spark.testing import session
from tests.support.spark_bed import Bed, engine_bed, rows

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
JSON = ("mld.spark.format = json", "mld.spark.schema = n INT, at TIMESTAMP")
WINDOWS = """
from pyspark.sql import functions as F

def transform(records, batch):
    return records.select("payload.*")

def setup(spark):
    events = spark.readStream.schema("n INT, at TIMESTAMP").json("PLACE/out")
    minutes = (
        events.withWatermark("at", "1 minute")
        .groupBy(F.window("at", "1 minute"))
        .agg(F.sum("n").alias("n"), F.sum(F.expr("TERM")).alias("events"))
        .selectExpr("date_format(window.start, 'HH:mm') AS minute", "n", "events")
    )
    state = "PLACE/minutes-state"
    minutes.writeStream.queryName("minutes").option("checkpointLocation", state).format("json").start("PLACE/minutes")
"""


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    # It lives for a minute: compile little, and quickly.
    quick = {"spark.sql.codegen.wholeStage": "false", "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
    yield session(2, **quick)


def worker(spark: Any, directory: Path, term: str = "1") -> Bed:
    return engine_bed(
        spark, directory, WINDOWS.replace("PLACE", str(directory)).replace("TERM", term), *JSON, dead=False
    )


def event(n: int, at: str) -> bytes:
    return json.dumps({"n": n, "at": f"2026-01-01T{at}Z"}).encode()


def taken(spark: Any) -> None:
    """Have the query take all that is in the table."""
    for query in spark.streams.active:
        query.processAllAvailable()


def stop(spark: Any) -> None:
    for query in spark.streams.active:
        query.stop()


def minutes(directory: Path) -> list[dict[str, Any]]:
    texts = (file.read_text() for file in (directory / "minutes").glob("part-*"))
    return sorted(
        (json.loads(line) for text in texts for line in text.splitlines()), key=lambda row: str(row["minute"])
    )


def test_windows_close_behind_the_watermark_across_batches_and_restarts(spark: Any, tmp_path: Path) -> None:
    first = worker(spark, tmp_path)
    assert first.run({1: event(1, "10:00:00"), 2: event(2, "10:00:30")}).failed == {}
    taken(spark)
    stop(spark)  # as a host that ends, before the next batch is in the table
    first.engine.stop()

    second = worker(spark, tmp_path)
    assert second.run({2: event(2, "10:00:30"), 3: event(3, "10:00:59")}).failed == {}
    taken(spark)
    assert second.run({4: event(10, "10:02:30")}).failed == {}
    taken(spark)
    assert second.run({5: event(7, "10:00:10"), 6: event(5, "10:04:00")}).failed == {}  # one is late
    taken(spark)
    taken(spark)
    stop(spark)
    second.engine.stop()
    assert minutes(tmp_path) == [
        {"minute": "10:00", "n": 6, "events": 3},
        {"minute": "10:02", "n": 10, "events": 1},
    ]
    assert sorted(row["n"] for row in rows(tmp_path / "out")) == [1, 2, 3, 5, 7, 10], "the late one is in the table"


def test_a_query_that_fails_ends_the_session_and_goes_on_once_it_is_corrected(spark: Any, tmp_path: Path) -> None:
    bed = worker(spark, tmp_path, "10 / (n - 3)")
    assert bed.run({1: event(1, "10:00:00")}).failed == {}
    taken(spark)
    assert bed.run({2: event(3, "10:00:30")}).failed == {}
    with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
        taken(spark)
    with pytest.raises(SessionGone, match=r"the streaming query minutes has failed: .*DIVIDE_BY_ZERO"):
        bed.run({3: event(4, "10:00:40")})
    stop(spark)
    bed.engine.stop()

    corrected = worker(spark, tmp_path, "10 / nullif(n - 3, 0)")
    assert corrected.run({3: event(4, "10:00:40"), 4: event(0, "10:05:00")}, after=2).failed == {}
    taken(spark)
    taken(spark)
    stop(spark)
    corrected.engine.stop()
    assert [(row["minute"], row["n"]) for row in minutes(tmp_path)] == [("10:00", 8)]
