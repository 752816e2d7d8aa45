"""Another database than PostgreSQL (H2): Spark's own writer, at least once."""

from __future__ import annotations

import logging
import os
from collections import Counter

import pytest

from mld.processors.spark.high_water_marks import spans
from mld.processors.spark.positions import RecordPosition, StreamShard
from mld.processors.spark.sink_port import SinkError, SinkRefused
from mld.processors.spark.sink_spec import SinkSpec
from mld.processors.spark.sinks.factory import make_sink

pytestmark = [pytest.mark.spark, pytest.mark.skipif("MLD_JDBC" not in os.environ, reason="make test-jdbc")]

A = StreamShard("s", "0")


@pytest.fixture
def options():
    return {"url": "jdbc:h2:mem:lake;DB_CLOSE_DELAY=-1", "driver": "org.h2.Driver", "dbtable": "clicks"}


def publish(spark, sink, end, marks):
    batch = spans({A: RecordPosition(end)}, marks)
    first = batch[A].after.sequence + 1 if batch[A].after else 1
    return sink.publish(spark.range(first, end + 1).selectExpr("id AS sequence"), batch, "b").marks


@pytest.mark.parametrize("name", ["jdbc", "org.apache.spark.sql.jdbc"])
def test_what_was_written_is_there_again_once_somebody_else_may_have_had_the_shard(spark, options, caplog, name):
    options["dbtable"] = f"clicks_{name.count('.')}"
    spec = SinkSpec("out", name, options=options)
    with caplog.at_level(logging.WARNING, "mld.spark"):
        sink = make_sink(spec, spark)
    assert f"{name} is written at least once" in caplog.text
    marks = publish(spark, sink, 3, sink.open())
    publish(spark, sink, 5, marks)
    publish(spark, sink, 6, sink.open())
    rows = spark.read.format("jdbc").options(**options).load().collect()
    assert Counter(row[0] for row in rows) == Counter({**dict.fromkeys(range(1, 6), 2), 6: 1})


def test_a_database_that_does_not_answer_stops_no_shard(spark):
    options = {"url": "jdbc:h2:tcp://127.0.0.1:1/lake", "driver": "org.h2.Driver", "dbtable": "clicks"}
    sink = make_sink(SinkSpec("out", "jdbc", options=options), spark)
    with pytest.raises(SinkError) as failed:
        publish(spark, sink, 3, sink.open())
    assert not isinstance(failed.value, SinkRefused)
