"""How long records of others wait for a producer who chooses the values of `partitionBy`: ``python -m
tests.benchmarks.partitions parquet``, or, in the environment of `make test-lakehouse`, ``delta`` or ``iceberg``.

A batch has the records of good shards, of known partitions, and as many of one more producer: of known partitions, too,
or each of a partition of its own. Commits of both kinds by turns, each in a sink of its own.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from mld.processors.spark.high_water_marks import RecordPosition, ShardSpan, StreamShard
from mld.processors.spark.session import jvm_classes
from mld.processors.spark.sink_port import Sink, SinkSpec
from mld.processors.spark.sinks.factory import make_sink

SHARD = StreamShard("clicks", "shardId-000000000000")
KNOWN, ROWS = 24, 20_000
PACKAGES = {
    "parquet": "",
    "delta": "io.delta:delta-spark_4.1_2.13:4.4.0",
    "iceberg": "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
}


def session(format: str, place: Path) -> Any:
    from pyspark.sql import SparkSession

    conf = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.showConsoleProgress": "false",
    }
    if PACKAGES[format]:
        conf["spark.jars.packages"] = PACKAGES[format]
    if format == "delta":
        conf["spark.databricks.delta.snapshotPartitions"] = "1"
        conf["spark.sql.extensions"] = "io.delta.sql.DeltaSparkSessionExtension"
        conf["spark.sql.catalog.spark_catalog"] = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
    if format == "iceberg":
        conf["spark.sql.extensions"] = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
        conf["spark.sql.catalog.lake"] = "org.apache.iceberg.spark.SparkCatalog"
        conf["spark.sql.catalog.lake.type"] = "hadoop"
        conf["spark.sql.catalog.lake.warehouse"] = str(place / "lake")
    builder = SparkSession.builder.master("local[2]")
    for key, value in conf.items():
        builder = builder.config(key, value)
    made = builder.getOrCreate()
    made.sparkContext.setLogLevel("ERROR")
    jvm_classes.install_files(made)  # as every session of one machine has it
    return made


def commit_s(spark: Any, sink: Sink, number: int, values: str) -> float:
    """Return the seconds of one commit; `values` names the partition of a record of the producer."""
    good = spark.range(ROWS, numPartitions=2).selectExpr(f"concat('good', id % {KNOWN}) AS customer", "id AS n")
    his = spark.range(ROWS, numPartitions=2).selectExpr(f"{values} AS customer", "id AS n")
    span = ShardSpan(RecordPosition(number - 1) if number > 1 else None, RecordPosition(number))
    began = time.perf_counter()
    sink.publish(good.union(his), {SHARD: span}, "b")
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("format", choices=PACKAGES)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--at-most", type=int, default=1000, help="newPartitionsPerHour")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        spark = session(given.format, place)
        took: dict[str, list[float]] = {"quiet": [], "attack": []}
        sinks = {}
        for kind in took:
            path = f"lake.db.{kind}" if given.format == "iceberg" else str(place / kind)
            spec = SinkSpec(kind, given.format, path, partition_by=("customer",), new_partitions_max=given.at_most)
            sinks[kind] = make_sink(spec, spark)
            sinks[kind].open()
        for number in range(1, given.turns + 3):
            for kind, sink in sinks.items():
                is_attack = kind == "attack" and number > 2  # after two commits that warm the JVM up
                values = f"concat('{number}-', id)" if is_attack else f"concat('good', id % {KNOWN})"
                seconds = commit_s(spark, sink, number, values)
                if number > 2:
                    took[kind].append(seconds)
                print(f"{number} {kind} {seconds:.2f} s", flush=True)
        quiet, attack = statistics.median(took["quiet"]), statistics.median(took["attack"])
        print(f"{given.format}: a commit takes {quiet:.2f} s, with the attack {attack:.2f} s: {attack / quiet:.2f}")
        print(f"the first one {took['attack'][0] / quiet:.2f}")


if __name__ == "__main__":
    main()
