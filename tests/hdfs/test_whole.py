"""The whole over HDFS: daemon, children, host and JVM into sinks there; and the streaming mode with its sinks there."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from mld.processors.spark.batch.spool import Spool
from mld.processors.spark.pipeline import load
from mld.processors.spark.sink_port import SinkSpec
from mld.processors.spark.sinks.factory import make_sink
from mld.processors.spark.streaming.factory import make_engine
from tests.hdfs.cluster import Cluster
from tests.integration.test_spark import SESSION_S, processes, put_malformed, start, wanted
from tests.integration.world import MakeWorld
from tests.unit.spark.twins import run_data, settings_of

CORE_SITE = "<configuration><property><name>fs.defaultFS</name><value>{}</value></property></configuration>"
COUNTS = """
def transform(records, batch):
    named = records.select("shardId", "sequenceNumber", "payload.n")
    return {"out": named, "sums": named.groupBy("shardId").sum("n").toDF("shardId", "n")}
"""


def texts(spark: Any, path: str, column: str = "text") -> Counter[str]:
    try:
        return Counter(row[0] for row in spark.read.json(path).select(column).collect())
    except Exception as error:
        if "PATH_NOT_FOUND" in str(error) or "UNABLE_TO_INFER_SCHEMA" in str(error):
            return Counter()
        raise


@pytest.mark.timeout(600)
def test_every_record_once_though_the_name_node_goes_away_and_the_host_is_killed(
    make_world: MakeWorld, spark: Any, home: str, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name node is the one that Hadoop's own configuration names."""
    (tmp_path / "core-site.xml").write_text(CORE_SITE.format(cluster.uri))
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    out, dead = f"{home}/out", f"{home}/dead"
    world = make_world(shards=2)
    world.put(200)
    put_malformed(world)
    path = home.removeprefix(cluster.uri)
    daemon = start(world, **{"mld.spark.sink.out.path": f"hdfs://{path}/out", "mld.spark.deadLetter": dead})

    def is_written() -> bool:
        return texts(spark, out) == wanted(world)

    world.until(is_written, SESSION_S, "the first records in the sink")
    world.until(lambda: texts(spark, dead, "reason") == Counter(["not UTF-8"]), SESSION_S, "the dead letter")

    cluster.stop_name_node()
    world.put(100)
    world.until(lambda: "it is tried again; trying again" in daemon.log(), SESSION_S, "an attempt without a name node")
    cluster.start_name_node()
    world.until(is_written, SESSION_S, "the records of that time")

    (host,) = processes(daemon, "mld.processors.spark.host")
    os.kill(host, signal.SIGKILL)
    world.put(100)
    world.until(is_written, SESSION_S, "the records behind the death of the host")
    assert daemon.stop(timeout_s=200) == 0
    world.until_caught_up(1)
    assert is_written()
    assert texts(spark, dead, "reason") == Counter(["not UTF-8"])


@pytest.mark.timeout(300)
def test_the_streaming_mode_has_its_sinks_there_and_its_state_here(spark: Any, home: str, tmp_path: Path) -> None:
    sinks = ("out", "sums")
    settings = settings_of(
        "mld.spark.mode = streaming",
        f"mld.spark.checkpoint = {tmp_path / 'checkpoint'}",
        "mld.spark.format = json",
        "mld.spark.schema = n INT",
        f"mld.spark.deadLetter = {home}/dead",
        "mld.spark.sink.sums.outputMode = update",
        "mld.spark.conf.spark.sql.streaming.pollingDelay = 20ms",
        sinks=sinks,
    )
    (tmp_path / "pipeline.py").write_text(COUNTS)
    spark.conf.set("spark.sql.streaming.pollingDelay", "20ms")

    def run(name: str, data: dict[int, bytes]) -> None:
        """Run a worker for one batch."""
        spool = Spool(tmp_path / name)
        made = [make_sink(SinkSpec(sink, "json", f"{home}/{sink}"), spark) for sink in sinks]
        dead = make_sink(SinkSpec("deadLetter", "json", f"{home}/dead"), spark)
        engine = make_engine(spark, settings, load(f"{tmp_path / 'pipeline.py'}:transform", sinks), made, dead, spool)
        engine.start()
        assert run_data(engine, spool, data, "a").failed == {}
        engine.stop()

    run("one", {n: json.dumps({"n": n}).encode() for n in (1, 2, 3)} | {4: b"{bad"})
    run("two", {n: json.dumps({"n": n}).encode() for n in range(2, 8)})
    assert texts(spark, f"{home}/out", "n") == Counter([1, 2, 3, 5, 6, 7])
    assert max(texts(spark, f"{home}/sums", "n")) == 1 + 2 + 3 + 5 + 6 + 7
    assert texts(spark, f"{home}/dead", "sequenceNumber") == Counter(["4"])
