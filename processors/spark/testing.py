"""Helpers for tests of a pipeline: they turn example events into the frame `records` that a pipeline gets.

    from mld.processors.spark.testing import batch, records, session

    def test_bots_are_dropped():
        spark = session()
        given = records(spark, [{"user": "u1", "kind": "bot"}], format="json", schema="user STRING, kind STRING")
        assert transform(given, batch()).count() == 0

In production the frame is made by the same code, so it has the same columns and is decoded in the same way.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from mld.processors.spark.pipeline import Batch
from mld.processors.spark.positions import RecordPosition, ShardSpan, StreamShard
from mld.processors.spark.session import class_archive, handover
from mld.processors.spark.session.java import find_java
from mld.processors.spark.session.spark_session import DRIVER_OPTIONS, OF_SQL, python_functions
from mld.properties.spark_values import Format

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Event = Mapping[str, object] | str | bytes
ARRIVAL_MS = 1_767_225_600_000
"""Arrival time of the first record, the beginning of 2026; each further record arrives one second later."""


def session(cores: int = 1, **conf: str) -> SparkSession:
    """Return a small local session, shared by all tests of a process."""
    from pyspark.sql import SparkSession as Session

    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        os.environ.setdefault(name, sys.executable)  # PySpark's own default is whatever python3 is on PATH
    archive = ""
    if Session.getActiveSession() is None:
        java = find_java(os.environ)  # raises an error that names the remedy if Java is missing
        archive = class_archive.options(java, os.environ, conf.get(DRIVER_OPTIONS, ""))
    ours = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **OF_SQL,
        "spark.sql.shuffle.partitions": "1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.authenticate": "true",
        **python_functions(),
        **conf,
        DRIVER_OPTIONS: f"{archive} {conf.get(DRIVER_OPTIONS, '')}".strip(),
    }
    builder = Session.builder.master(f"local[{cores}]").appName("test")
    for name, value in ours.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def records(
    spark: SparkSession,
    events: Iterable[Event],
    *,
    format: str = "binary",
    schema: str | None = None,
    rescued_column: str | None = None,
    stream: str = "stream",
    shard: str = "shardId-000000000000",
) -> DataFrame:
    """Return events as records of one shard, numbered from 1. A mapping becomes JSON; a text becomes its UTF-8
    bytes."""
    raw = handover.of_rows(spark, _rows(events, stream, shard))
    return handover.handed(raw, Format(format), schema, divert=False, rescued=rescued_column).records


def batch(records: int = 1, *, stream: str = "stream", shard: str = "shardId-000000000000", attempt: int = 1) -> Batch:
    """Return the `Batch` that a pipeline gets with this many records."""
    span = ShardSpan(None, RecordPosition(max(records, 1)))
    return Batch("test", {StreamShard(stream, shard): span}, records, attempt, ARRIVAL_MS)


def _rows(events: Iterable[Event], stream: str, shard: str) -> Iterator[tuple[object, ...]]:
    """Yield a row with the columns `handover.RAW` for each event."""
    for number, event in enumerate(events, start=1):
        arrival_ms = ARRIVAL_MS + 1_000 * (number - 1)
        yield bytearray(_data(event)), f"key-{number}", str(number), arrival_ms, 0, stream, shard


def _data(event: Event) -> bytes:
    if isinstance(event, bytes):
        return event
    return event.encode() if isinstance(event, str) else json.dumps(event).encode()
