"""Dead letters: records that could not be decoded or processed, as they came, with their position and the reason.

They are a sink of their own (Parquet, one directory per commit, `processors.spark.sinks.files`) with a ledger of its
own, so a record that is delivered again is there once. A batch without dead letters need not be published here: the
marks then stay behind those of the other sinks, and a re-delivered record that fails again is still after them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from processors.spark.positions import Position, Shard
from processors.spark.sinks import Sink, SinkSpec
from processors.spark.sinks.making import make_sink

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

NAME = "deadLetter"
SCHEMA = (
    "streamName STRING, shardId STRING, sequenceNumber STRING, subSequenceNumber BIGINT, partitionKey STRING, "
    "approximateArrivalTimestamp TIMESTAMP, data BINARY, reason STRING, failedAt TIMESTAMP"
)
REASON_CHARS_MAX = 2000
"""Enough of an error to find its cause; the whole trace is in the log."""


@dataclass(frozen=True, slots=True)
class Letter:
    """One record that failed alone."""

    shard: Shard
    position: Position
    partition_key: str
    arrival_ms: int | None
    data: bytes
    reason: str


def dead_letter_sink(path: str, spark: SparkSession) -> Sink:
    """The sink below the directory of `mld.spark.deadLetter`. Raises SinkRefused."""
    return make_sink(SinkSpec(NAME, "parquet", path), spark)


def letters_frame(spark: SparkSession, letters: Sequence[Letter], failed_at: datetime) -> DataFrame:
    """The frame of a few records that failed in the pipeline."""
    rows = [
        (
            letter.shard.stream,
            letter.shard.shard,
            str(letter.position.sequence),
            letter.position.sub,
            letter.partition_key,
            None if letter.arrival_ms is None else datetime.fromtimestamp(letter.arrival_ms / 1000, UTC),
            letter.data,
            letter.reason[:REASON_CHARS_MAX],
            failed_at,
        )
        for letter in letters
    ]
    return spark.createDataFrame(rows, SCHEMA)


def malformed_frame(records: DataFrame, reason: Column, failed_at: datetime) -> DataFrame:
    """The frame of the records of a batch that could not be decoded: `records` are these, `reason` says why."""
    from pyspark.sql.functions import col, lit, substring

    kept = [column.split()[0] for column in SCHEMA.split(", ")[:-2]]
    return records.select(
        *(col(name).cast(kind).alias(name) for name, kind in zip(kept, _kinds(), strict=True)),
        substring(reason.cast("string"), 1, REASON_CHARS_MAX).alias("reason"),
        lit(failed_at).cast("timestamp").alias("failedAt"),
    )


def _kinds() -> list[str]:
    return [column.split()[1] for column in SCHEMA.split(", ")[:-2]]
