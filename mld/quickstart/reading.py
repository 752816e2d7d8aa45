"""Reads the sinks of the Spark tour as anyone would: `spark.read.parquet`. A separate program, as it needs a JVM.

    python -m mld.quickstart.reading DIRECTORY

It prints one JSON document: `minutes` (minute, section, clicks, load_ms; the sums of all micro-batches added up) and
`rows` (shard, sequence number, event id).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

CONFIGURATION = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.authenticate": "true",
}


def main(directory: Path) -> None:
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    builder = SparkSession.builder.master("local[*]").appName("quickstart-reading")
    for name, value in CONFIGURATION.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    per_minute = (
        spark.read.parquet(str(directory / "per_minute"))
        .groupBy(F.unix_timestamp("minute").alias("minute"), "section")
        .agg(F.sum("clicks").alias("clicks"), F.sum("load_ms").alias("load_ms"))
    )
    minutes = [[row.minute, row.section, row.clicks, row.load_ms] for row in per_minute.collect()]
    clicks = spark.read.parquet(str(directory / "clicks")).select("shardId", "sequenceNumber", "event_id")
    rows = [[row.shardId, int(row.sequenceNumber), row.event_id] for row in clicks.collect()]
    json.dump({"minutes": minutes, "rows": rows}, sys.stdout)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
