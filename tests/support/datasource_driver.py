"""A driver of a streaming query over the data source, as a process that tests can kill: stream, endpoint, directory."""

from __future__ import annotations

import os
import sys
from typing import Any


def session() -> Any:
    from pyspark.sql import SparkSession

    from mld.processors.spark.datasource import register

    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.memory", "700m")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    return spark


def run_to_the_tip(spark: Any, directory: str, records_max: int, **options: str) -> None:
    """What is available now goes into `directory`/out, exactly once; the query's checkpoint lies beside it."""
    source = spark.readStream.format("mld").options(**options).option("maxRecordsPerTrigger", records_max)
    writer = source.load().writeStream.format("json").option("checkpointLocation", f"{directory}/checkpoint")
    query = writer.option("path", f"{directory}/out").trigger(availableNow=True).start()
    query.awaitTermination()


if __name__ == "__main__":
    stream, endpoint, directory, records_max = sys.argv[1:]
    options = {"stream": stream, "endpoint": endpoint, "region": "us-east-1", "from": "trim-horizon"}
    run_to_the_tip(session(), directory, int(records_max), **options)
