"""How long records of others wait for a producer who chooses the values of `partitionBy`: ``python -m
tests.benchmarks.partitions parquet``, or, in the environment of `make test-lakehouse`, ``delta`` or ``iceberg``.

A batch has the records of good shards, of known partitions, and as many of one more producer: of known partitions, too,
or each of a partition of its own. Commits of both kinds by turns, each in a sink of its own.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from mld.processors.spark.high_water_marks import RecordPosition, ShardSpan, StreamShard
from mld.processors.spark.session import jvm_classes
from mld.processors.spark.session.spark_session import jvm_pid
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


class Cost(NamedTuple):
    """What one commit took."""

    wall_s: float
    cpu_s: float
    """Of this process and the JVM, which other work on the machine changes less."""
    files: int


def cpu_s(spark: Any) -> float:
    fields = Path(f"/proc/{jvm_pid(spark)}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK") + time.process_time()


def files_of(spark: Any, sink: SinkSpec) -> int:
    assert sink.path is not None
    if sink.format == "iceberg":
        return int(spark.table(f"{sink.path}.data_files").count())
    return sum(1 for _ in Path(sink.path).glob("**/*.parquet") if "_delta_log" not in _.parts)


def commit(spark: Any, spec: SinkSpec, sink: Sink, number: int, values: str) -> Cost:
    """Make one commit; `values` names the partition of a record of the producer."""
    good = spark.range(ROWS, numPartitions=2).selectExpr(f"concat('good', id % {KNOWN}) AS customer", "id AS n")
    his = spark.range(ROWS, numPartitions=2).selectExpr(f"{values} AS customer", "id AS n")
    span = ShardSpan(RecordPosition(number - 1) if number > 1 else None, RecordPosition(number))
    files, began, cpu = files_of(spark, spec) if number > 1 else 0, time.perf_counter(), cpu_s(spark)
    sink.publish(good.union(his), {SHARD: span}, "b")
    took = time.perf_counter() - began, cpu_s(spark) - cpu
    return Cost(*took, files_of(spark, spec) - files)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("format", choices=PACKAGES)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--new", action="store_true", help="other values in each batch, instead of those that he has")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        spark = session(given.format, place)
        took: dict[str, list[Cost]] = {"quiet": [], "attack": []}
        sinks = {}
        for kind in took:
            path = f"lake.db.{kind}" if given.format == "iceberg" else str(place / kind)
            spec = SinkSpec(kind, given.format, path, partition_by=("customer",), new_partitions_max=256)
            sinks[kind] = spec, make_sink(spec, spark)
            sinks[kind][1].open()
        for number in range(1, given.turns + 3):
            for kind, (spec, sink) in sinks.items():
                is_attack = kind == "attack" and number > 2  # after two commits that warm the JVM up
                values = (
                    f"concat('{number if given.new else ''}-', id)" if is_attack else f"concat('good', id % {KNOWN})"
                )
                cost = commit(spark, spec, sink, number, values)
                if number > 2:
                    took[kind].append(cost)
                print(f"{number} {kind} {cost.wall_s:.2f} s, CPU {cost.cpu_s:.2f} s, {cost.files} files", flush=True)
        for what, costs in (("the first", took["attack"][:1]), ("any later", took["attack"][1:])):
            ratios = [
                statistics.median(cost[field] for cost in costs)
                / statistics.median(cost[field] for cost in took["quiet"])
                for field in (0, 1)
            ]
            print(f"{given.format}, {what} commit with the attack: {ratios[0]:.2f} of one without, CPU {ratios[1]:.2f}")


if __name__ == "__main__":
    main()
