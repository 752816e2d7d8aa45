"""Writes a frame by Spark's writer in one job, and returns how many rows that were.

An exception of Spark leaves here as an error of a sink (`session.sink_errors`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mld.processors.spark.session.sink_errors import failure
from mld.processors.spark.sink_spec import SinkSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

UNCOUNTED = frozenset(("kafka",))
"""Spark's writer of them runs a job that no listener hears of, so that one would wait for its count for ever."""


def write(frame: DataFrame, spec: SinkSpec) -> int:
    """Write the frame by Spark's writer in one job; how many rows that were. Raises SinkError and its kinds.

    Rows are counted on the way, and so cost no job of their own; -1 for a format whose writer does not say when it has
    counted them."""
    from pyspark.sql import Observation
    from pyspark.sql.functions import count, lit

    observation = Observation()
    counts = spec.format.lower() not in UNCOUNTED
    try:
        counted = frame.observe(observation, count(lit(1)).alias("rows")) if counts else frame
        writer = counted.write.format(spec.format).options(**spec.options)
        writer.save(spec.path, mode=spec.mode, partitionBy=list(spec.partition_by) or None)
        return int(observation.get["rows"]) if counts else -1
    except Exception as error:  # Spark's and the user's, of any kind: all of it is said to the host
        raise failure(error, f"sink {spec.name}: writing a batch as {spec.format}") from error
