"""`spark.read.format("mld")`: a Kinesis stream as a source of Spark, no jar.

    from mld.processors.spark.datasource import register
    register(spark)

It is a data source in Python (`pyspark.sql.datasource`): the driver plans ranges of sequence numbers, one task reads
one range. Nothing is shared between tasks, no lease is taken and no checkpoint of an application is written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make the format `mld` known to this session. Needs PySpark 4 and pyarrow (the extra `spark-pandas`)."""
    from mld.processors.spark.datasource.source import MldDataSource

    spark.dataSource.register(MldDataSource)
