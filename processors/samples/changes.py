"""An example pipeline for `mld-spark`: one row for each change in a DynamoDB table of orders. Copy it and adapt it.

    executableName = mld-spark
    mld.spark.pipeline = changes.py:transform       # properties/samples/dynamodb-streams.properties is the whole file

A record's data is JSON such as `{"eventName": "MODIFY", "dynamodb": {"Keys": …, "NewImage": …, "OldImage": …}}`. Its
values carry their DynamoDB types: `{"S": "PAID"}`. `mld.spark.schema` names the attributes to read, and the column
`payload` has them. A row shows an order as it was after the change, or before the change if the order was removed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from mld.processors.spark.pipeline import Batch


def transform(records: DataFrame, batch: Batch) -> dict[str, DataFrame]:
    """Return a frame for the sink `mld.spark.sink.changes.*`."""
    return {"changes": changes(records)}


def changes(records: DataFrame) -> DataFrame:
    """Return one row for each change: `status_before` is null for a new order, `status` for a removed one."""
    return records.select(
        "shardId",
        "sequenceNumber",
        F.col("payload.eventName").alias("event"),
        F.col("payload.dynamodb.Keys.order_id.S").alias("order_id"),
        _either("customer.S").alias("customer"),
        _either("amount.N").cast("decimal(12,2)").alias("amount"),
        F.col("payload.dynamodb.OldImage.status.S").alias("status_before"),
        F.col("payload.dynamodb.NewImage.status.S").alias("status"),
        F.timestamp_millis("payload.dynamodb.ApproximateCreationDateTime").alias("changed_at"),
    )


def _either(attribute: str) -> Column:
    """Return the attribute of the new image, or of the old one if the item was removed."""
    return F.coalesce(F.col(f"payload.dynamodb.NewImage.{attribute}"), F.col(f"payload.dynamodb.OldImage.{attribute}"))
