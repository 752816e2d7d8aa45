"""Joins in the streaming mode, with tables and of records with records; the session ends and starts anew in between."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs the extra: pip install 'mld-kinesis[spark]'")

from mld.processors.spark.high_water_marks import StreamShard
from mld.processors.spark.host.start_up import HostStartError
from tests.support.spark_bed import Bed, bed, rows

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
TABLES = """
from pathlib import Path

HERE = Path(__file__).parent
users = None


def setup(spark):
    global users
    users = spark.read.schema("user INT, name STRING").json(str(HERE / "users"))


def transform(records, batch):
    ads = records.sparkSession.read.schema("ad INT, title STRING").json(str(HERE / "ads"))
    events = records.select("payload.*").withWatermark("at", "1 hour").dropDuplicatesWithinWatermark(["id"])
    return events.join(users, "user").join(ads, "ad", "left").select("id", "name", "title")
"""
PURCHASES = """
from pyspark.sql import functions as F


def transform(records, batch):
    events = records.select("payload.*")
    clicks = events.where("kind = 'click'").selectExpr("id AS click", "user", "at AS clicked")
    purchases = events.where("kind = 'purchase'").selectExpr("id AS purchase", "user AS buyer", "at AS bought")
    return (
        clicks.withWatermark("clicked", "5 minutes")
        .join(
            purchases.withWatermark("bought", "5 minutes"),
            F.expr("user = buyer AND bought BETWEEN clicked AND clicked + INTERVAL 10 MINUTES"),
            "leftOuter",
        )
        .select("click", "purchase")
    )
"""
PAGE = Path(__file__).parents[2] / "docs" / "use" / "spark-pipeline.md"
WITH_STATE = "records.groupBy('shardId').applyInPandasWithState(print, 'n INT', 'n INT', 'append', 'NoTimeout')"
OVER_PANDAS = "records.mapInPandas(print, 'n INT')"


def keys(directory: Path) -> tuple[str, ...]:
    return (
        "mld.spark.mode = streaming",
        f"mld.spark.checkpoint = {directory / 'state'}",
        f"mld.spark.deadLetter = {directory / 'dead'}",
        "mld.spark.format = json",
        "mld.spark.schema = id INT, user INT, ad INT, kind STRING, at TIMESTAMP",
        "mld.spark.master = local[2]",
        "mld.spark.conf.spark.ui.enabled = false",
        "mld.spark.conf.spark.sql.codegen.wholeStage = false",
        "mld.spark.conf.spark.driver.extraJavaOptions = -XX:TieredStopAtLevel=1",
    )


def add(directory: Path, *rows: dict[str, Any]) -> None:
    """Add a file to a table."""
    directory.mkdir(exist_ok=True)
    (directory / f"{len(list(directory.iterdir()))}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))


def event(id: int, user: int, kind: str = "click", at: str = "10:00:00", ad: int = 0) -> bytes:
    return json.dumps({"id": id, "user": user, "ad": ad, "kind": kind, "at": f"2026-01-01T{at}Z"}).encode()


def cells(made: Bed, *columns: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.get(column) for column in columns) for row in rows(made.out))


def test_events_without_their_repetitions_with_tables_read_in_setup_and_in_the_function(tmp_path: Path) -> None:
    add(tmp_path / "users", {"user": 1, "name": "ann"}, {"user": 2, "name": "bob"})
    add(tmp_path / "ads", {"ad": 7, "title": "tea"})
    with bed(tmp_path, TABLES, *keys(tmp_path)) as made:
        assert made.run({1: event(1, 1, ad=7), 2: event(2, 2), 3: event(3, 3, ad=7), 4: b"{bad"}).failed == {}
        add(tmp_path / "users", {"user": 3, "name": "cid"})
        add(tmp_path / "ads", {"ad": 8, "title": "jam"})
        assert made.run({5: event(2, 2), 6: event(6, 1, ad=8), 7: event(5, 3, ad=8)}).failed == {}
        before = [(1, "ann", "tea"), (2, "bob", None), (6, "ann", None)]
        assert cells(made, "id", "name", "title") == before, "files of a table are listed when it is read"
    with bed(tmp_path, TABLES, *keys(tmp_path)) as made:
        assert made.run({7: event(5, 3, ad=8), 8: event(7, 3, ad=8), 9: event(1, 1), 10: event(6, 1)}).failed == {}
        assert cells(made, "id", "name", "title") == [*before, (7, "cid", "jam")]


def test_clicks_with_the_purchases_of_the_next_ten_minutes(tmp_path: Path) -> None:
    assert f"```python{PURCHASES}```" in PAGE.read_text("utf-8")
    with bed(tmp_path, PURCHASES, *keys(tmp_path)) as made:
        assert made.run({1: event(1, 1), 2: event(2, 2), 3: event(11, 3, "purchase"), 4: b"{bad"}).failed == {}
        assert made.run({5: event(12, 1, "purchase", "10:05:00")}).failed == {}
        assert cells(made, "click", "purchase") == [(1, 12)]
    with bed(tmp_path, PURCHASES, *keys(tmp_path)) as made:
        more = {
            6: event(13, 2, "purchase", "10:10:00"),
            7: event(14, 1, "purchase", "10:10:01"),
            8: event(3, 3, at="10:01:00"),
        }
        assert made.run({4: b"{bad", 5: event(12, 1, "purchase", "10:05:00"), **more}).failed == {}
        assert cells(made, "click", "purchase") == [(1, 12), (2, 13)], "ten minutes, and not a second more"
        assert made.run({9: event(4, 4, at="11:00:00")}).failed == {}
        assert cells(made, "click", "purchase") == [(1, 12), (2, 13)], "the side that lags holds the watermark"
        assert made.run({10: event(15, 4, "purchase", "11:20:00")}).failed == {}
        # Both sides are past 10:11 now, and click 4 may still be bought something after, up to 11:10.
        assert cells(made, "click", "purchase") == [(1, 12), (2, 13), (3, None)]
    assert len(list((tmp_path / "dead").glob("c[0-9]*-*"))) == 1


@pytest.mark.skipif(importlib.util.find_spec("pandas") is not None, reason="pandas is there")
@pytest.mark.parametrize(("mode", "call"), [("streaming", WITH_STATE), ("batch", OVER_PANDAS)])
def test_pandas_that_is_missing_gets_a_sentence_and_no_record_is_to_blame(tmp_path: Path, mode: str, call: str) -> None:
    pipeline = f"def transform(records, batch):\n    return {call}\n"
    said = (
        r"pipeline.py:2: .* must be installed; .*; mld.spark.pipeline needs pandas and pyarrow for that: pip install "
    )
    said += rf"'mld-kinesis\[spark-pandas\]' in the environment of {sys.executable}$"
    mine = (*keys(tmp_path), f"mld.spark.mode = {mode}")
    if mode == "streaming":
        with pytest.raises(HostStartError, match=said), bed(tmp_path, pipeline, *mine):
            pass
        return
    with bed(tmp_path, pipeline, *mine) as made:
        outcome = made.run({1: event(1, 1), 2: event(2, 1)})
        assert re.search(said, outcome.failed[StreamShard("s", "a")])
        assert made.engine.mark_of(StreamShard("s", "a")) is None
    assert not list((tmp_path / "dead").glob("c[0-9]*"))
