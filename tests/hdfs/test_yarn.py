"""A YARN of one node, started with the HDFS: the driver here, an executor there, the sink on HDFS."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyspark
import pytest

from tests.hdfs.cluster import Cluster
from tests.hdfs.test_whole import texts
from tests.integration.test_spark import SESSION_S, start, wanted
from tests.integration.world import MakeWorld

CONF = {
    "spark.yarn.jars": f"local:{Path(pyspark.__file__).parent}/jars/*",
    "spark.yarn.am.memory": "512m",
    "spark.executor.instances": "1",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


@pytest.mark.timeout(600)
def test_every_record_once_with_executors_of_yarn(
    make_world: MakeWorld, spark: Any, home: str, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.start_yarn(tmp_path / "yarn")
    cluster.write_configuration(tmp_path / "conf")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path / "conf"))
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    cluster.make("/user/worker", owner="worker")
    world = make_world(shards=2)
    world.put(200)
    out = f"{home}/out"
    keys = {
        **{f"mld.spark.conf.{name}": value for name, value in CONF.items()},
        "mld.spark.master": "yarn",
        "mld.spark.sink.out.path": out,
        "mld.spark.deadLetter": f"{home}/dead",
    }
    daemon = start(world, **keys)
    world.until(lambda: texts(spark, out) == wanted(world), SESSION_S, "the records in the sink")
    assert cluster.applications() == ["RUNNING"]
    world.put(100)
    world.until(lambda: texts(spark, out) == wanted(world), SESSION_S, "more records in the sink")
    assert daemon.stop(timeout_s=200) == 0
    world.until_caught_up(1)
    world.until(lambda: cluster.applications() == ["FINISHED"], 60, "the end of the application")
