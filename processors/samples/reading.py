"""Reads the sinks of the Spark tour by `spark.read.parquet`, as any Spark program can. It needs a JVM of its own.

    python -m mld.processors.samples.reading DIRECTORY

It starts its Spark session, which takes seconds, and waits for a line on its standard input. Then it reads the sinks
and prints one JSON object: `minutes` (minute, section, clicks, load_ms, added up over all micro-batches) and `rows`
(shard, sequence number, event id).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mld.processors.spark.testing import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CORES = 2
JVM_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""These options make a quick start. The program ends within seconds, before optimized code would pay off."""


def main(directory: Path) -> None:
    """Start a session, wait for a line on stdin, and print what the sinks in the directory have, as JSON."""
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    spark = session(CORES, **{"spark.driver.extraJavaOptions": JVM_OPTIONS})
    if sys.stdin.readline():
        json.dump(clicks_and_sums(spark, directory), sys.stdout)
    spark.stop()


def clicks_and_sums(spark: SparkSession, directory: Path) -> dict[str, Any]:
    """Return the rows of both sinks, as `main` prints them."""
    from pyspark.sql import functions as F

    per_minute = (
        spark.read.parquet(str(directory / "per_minute"))
        .groupBy(F.unix_timestamp("minute").alias("minute"), "section")
        .agg(F.sum("clicks").alias("clicks"), F.sum("load_ms").alias("load_ms"))
    )
    minutes = [[row.minute, row.section, row.clicks, row.load_ms] for row in per_minute.collect()]
    clicks = spark.read.parquet(str(directory / "clicks")).select("shardId", "sequenceNumber", "event_id")
    rows = [[row.shardId, int(row.sequenceNumber), row.event_id] for row in clicks.collect()]
    return {"minutes": minutes, "rows": rows}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
