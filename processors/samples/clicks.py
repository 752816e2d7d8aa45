"""An example pipeline for `mld-spark`: click events of a web shop. Copy it and adapt it.

    executableName = mld-spark
    mld.spark.pipeline = clicks.py:transform        # properties/samples/spark.properties is the whole file

The host has already parsed the JSON, as `mld.spark.format` and `mld.spark.schema` define: the column `payload` has the
result, and records that could not be parsed are in the dead letter. The pipeline has to filter, enrich and aggregate.
Its functions are pure, so a test can call them; docs/use/spark-pipeline.md shows how.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from mld.processors.spark.pipeline import Batch


def transform(records: DataFrame, batch: Batch) -> dict[str, DataFrame]:
    """Return a frame for each sink: `mld.spark.sink.clicks.*` and `mld.spark.sink.per_minute.*`."""
    clicks = enriched(records)
    return {"clicks": clicks, "per_minute": per_minute(clicks)}


def enriched(records: DataFrame) -> DataFrame:
    """Return the clicks that are not a crawler's. Shard and sequence number trace each row back to its record."""
    return (
        records.where("payload.agent IS DISTINCT FROM 'Crawler'")
        .select("shardId", "sequenceNumber", "payload.*")
        .withColumn("at", F.timestamp_seconds("at"))
        .withColumn("minute", F.date_trunc("minute", "at"))
        .withColumn(
            "section", F.coalesce(F.nullif(F.regexp_extract("page", "^/([a-z]*)", 1), F.lit("")), F.lit("home"))
        )
        .withColumn("product", F.regexp_extract("page", "^/product/([0-9]+)$", 1).try_cast("int"))
        .withColumn("device", F.when(F.startswith("agent", F.lit("App/")), "app").otherwise("browser"))
    )


def per_minute(clicks: DataFrame) -> DataFrame:
    """Return the clicks and load times per minute and section, as sums, not averages.

    A minute may be in several micro-batches, each of which adds a row; a reader adds these rows up.
    """
    return (
        clicks.groupBy("minute", "section")
        .agg(F.count("*").alias("clicks"), F.sum("load_ms").alias("load_ms"))
        .coalesce(1)
    )
