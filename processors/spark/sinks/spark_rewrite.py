"""Has Spark write the rows of several files into one, and checks that they are all there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mld.processors.spark.commit.ledger import Columns
from mld.processors.spark.sink_port import JobFailed, SinkError, SinkRefused
from mld.processors.spark.sinks.spark_write import write
from mld.processors.spark.spark_errors import failure

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

REWRITTEN = frozenset(("parquet", "orc"))
"""Formats whose files say their columns, types and rows themselves, so that they can be read and written again as they
were."""
READING = {
    "mergeSchema": "true",
    "ignoreCorruptFiles": "false",
    "ignoreMissingFiles": "false",
    "__globPaths__": "false",
    "recursiveFileLookup": "true",
}
"""Columns that later files have are null in the rows before. A file that cannot be read must never be left out. Paths
are taken as they are, and each file once: without the last option Spark reads all files for each path that looks like a
pattern."""


def rewrite(
    spark: SparkSession,
    paths: Sequence[str],
    target: str,
    *,
    sink: str,
    format: str,
    options: Mapping[str, str],
    columns: Columns,
) -> int:
    """Write the rows of `paths` into the directory `target`, as one file; how many they are.

    Rows are counted in the old files, on the way, and in the new file. `columns` are those of the sink. Raises
    JobFailed if Spark cannot do it, SinkRefused if a file has other columns, SinkError if the counts differ."""
    try:
        frame = spark.read.format(format).options(**{**options, **READING}).load(list(paths))
        found = tuple((field.name, field.dataType.simpleString()) for field in frame.schema.fields)
        read = len(frame.inputFiles())
        before = _rows_in(frame) if format == "parquet" else frame.count()
    except Exception as error:
        raise failure(error, f"sink {sink}: reading {len(paths)} small files") from error
    if read != len(paths) or before is None:
        raise SinkError(f"sink {sink}: {len(paths)} small files were not each read once; nothing was changed")
    _check_columns(sink, found, columns)
    written = write(frame.coalesce(1), sink=sink, format=format, options=options, mode="error", path=target)
    after = _count(spark.read.format(format).options(**READING).load(target), sink) if written else 0
    if not before == written == after:
        raise SinkError(
            f"sink {sink}: {len(paths)} small files have {before} rows, {written} were read and {after} written; "
            "nothing was changed"
        )
    return after


def _rows_in(frame: DataFrame) -> int | None:
    """Return the rows, if those of each file have the numbers from 0 on, each once; else None."""
    from pyspark.sql.functions import col, count, lit, max

    counted = frame.select(col("_metadata.file_path").alias("file"), col("_metadata.row_index").alias("row"))
    files = counted.groupBy("file").agg(count(lit(1)).alias("rows"), max("row").alias("last")).collect()
    return sum(one["rows"] for one in files) if all(one["rows"] == one["last"] + 1 for one in files) else None


def _count(frame: DataFrame, sink: str) -> int:
    try:
        return frame.count()
    except Exception as error:
        raise JobFailed(f"sink {sink}: the new file cannot be read; nothing was changed") from error


def _check_columns(sink: str, found: Columns, columns: Columns) -> None:
    """Check that every column of the files is one of the sink's, with its type."""
    known = {name.lower(): kind for name, kind in columns}
    for name, kind in found:
        if known.get(name.lower()) != kind:
            raise SinkRefused(
                f"sink {sink}: small files have the column {name} {kind}, the ledger has it as "
                f"{known.get(name.lower(), 'nothing')}; they stay as they are"
            )
