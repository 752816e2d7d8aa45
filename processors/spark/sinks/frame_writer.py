"""Writes a frame by Spark's writer in one job, and counts its rows.

Exceptions of Spark become errors of a sink (`session.sink_errors`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mld.processors.spark.session.sink_errors import failure
from mld.processors.spark.sink_spec import SinkSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

UNCOUNTED = frozenset(("kafka",))
"""Formats whose writer runs a job that reports no events, so that a wait for its counts would never end."""


def write(frame: DataFrame, spec: SinkSpec) -> int:
    """Write the frame by Spark's writer in one job, and return the number of rows. Raises SinkError and its subclasses.

    The same job counts the rows. Return -1 for the formats in UNCOUNTED, whose rows cannot be counted."""
    from pyspark.sql import Observation
    from pyspark.sql.functions import count, lit

    observation = Observation()
    counts = spec.format.lower() not in UNCOUNTED
    try:
        counted = frame.observe(observation, count(lit(1)).alias("rows")) if counts else frame
        writer = counted.write.format(spec.format).options(**spec.options)
        writer.save(spec.path, mode=spec.mode, partitionBy=list(spec.partition_by) or None)
        return int(observation.get["rows"]) if counts else -1
    except Exception as error:  # it may be any exception of Spark or of the user's code
        raise failure(error, f"sink {spec.name}: writing a batch as {spec.format}") from error
