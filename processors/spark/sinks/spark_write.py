"""Has Spark write a frame, counting its rows on the way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from mld.processors.spark.spark_errors import failure

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

UNCOUNTED = frozenset(("kafka",))
"""Spark's writer of them runs a job that no listener hears of, so that one would wait for its count for ever."""


def write(
    frame: DataFrame,
    *,
    sink: str,
    format: str,
    options: Mapping[str, str],
    mode: str,
    path: str | None,
    partition_by: tuple[str, ...] = (),
) -> int:
    """Write the frame in one job; how many rows that were. Raises JobFailed, SinkFull or SinkRefused.

    Rows are counted on the way, and so cost no job of their own; -1 for a format whose writer does not say when it has
    counted them."""
    from pyspark.sql import Observation
    from pyspark.sql.functions import count, lit

    observation = Observation()
    counts = format.lower() not in UNCOUNTED
    try:
        counted = frame.observe(observation, count(lit(1)).alias("rows")) if counts else frame
        writer = counted.write.format(format).options(**options)
        if partition_by:
            writer = writer.partitionBy(*partition_by)
        writer.mode(mode).save(path)
        return int(observation.get["rows"]) if counts else -1
    except Exception as error:  # Spark's and the user's, of any kind: all of it is said to the host
        raise failure(error, f"sink {sink}: writing a batch as {format}") from error
