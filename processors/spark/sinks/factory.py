"""Makes a sink from its settings, and refuses settings that cannot work, before the first record.

A sink reads or writes nothing before its `open`.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from mld.processors.spark.commit.s3_store import S3Store, Uploads
from mld.processors.spark.commit.store import PosixStore, local_directory
from mld.processors.spark.sink_port import Sink, SinkRefused
from mld.processors.spark.sink_spec import SinkSpec, is_s3
from mld.processors.spark.sinks.files import ExecutorFileSink, FileSink
from mld.processors.spark.sinks.generic import GenericSink
from mld.properties.spark_places import FILES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("mld.spark")
OURS = {
    "delta": ("replacewhere", "partitionoverwritemode", "overwriteschema", "datachange", "txn", "usermetadata"),
    "iceberg": ("branch", "tag", "snapshot-property.", "overwrite-mode", "isolation-level", "validate-", "rewritten-"),
}
"""By format, beginnings of options that are refused, because an append ignores them, or our commits set them."""
FORMERLY_EXACTLY_ONCE = ("jdbc:mysql:", "jdbc:mariadb:", "jdbc:sqlserver:")
"""URLs of databases to which earlier versions of mld wrote exactly once. They are refused now, because otherwise users
would learn of the change only from doubled rows.
"""


def make_sink(spec: SinkSpec, spark: SparkSession, scratch: Path | None = None) -> Sink:
    """Return the sink of a spec. The session is not used before the sink's `open`. Raises SinkRefused that names the
    key.

    `scratch` is a directory of this machine with room for a batch, to which Spark can write; None if executors run on
    other machines.
    """
    format = spec.format.lower()
    if format in FILES:
        return _files(spec, spark, scratch)
    if format in ("delta", "iceberg"):
        return _lake_table(spec, spark)
    if format == "jdbc" and (sink := _table(spec, spark)) is not None:
        return sink
    if spec.keys or spec.mode.lower() == "merge":
        raise SinkRefused(f"mld.spark.sink.{spec.name}.mode = merge is not for {spec.format}; remove it, and the keys")
    log.warning(
        "sink %s: %s is written at least once: a batch may be there again after a crash", spec.name, spec.format
    )
    return GenericSink(spec)


def _table(spec: SinkSpec, spark: SparkSession) -> Sink | None:
    """Return the sink of a table in a database (format `jdbc`). None means that Spark's own writer shall append to the
    table, at least once.

    Only PostgreSQL has a sink of mld. For another database, raises SinkRefused if rows are to be merged, or if earlier
    versions of mld wrote to it exactly once: its users would otherwise find doubled rows.
    """
    from mld.processors.spark.sinks.jdbc import JdbcSink
    from mld.processors.spark.sinks.jdbc_connection import check_options

    url = next((value for name, value in spec.options.items() if name.lower() == "url"), "").strip().lower()
    if not url.startswith("jdbc:postgresql:"):
        if url.startswith(FORMERLY_EXACTLY_ONCE) or spec.keys or spec.mode.lower() == "merge":
            raise SinkRefused(
                f"mld.spark.sink.{spec.name}.options.url: of databases only PostgreSQL is written exactly once, or "
                "merged; write there, or to a table of format iceberg or delta; or append at least once by Spark's own "
                f"writer: mld.spark.sink.{spec.name}.format = org.apache.spark.sql.jdbc (MariaDB by a url of "
                "jdbc:mysql: and MySQL's driver)"
            )
        return None
    _check_mode(spec, "append", "merge")
    check_options(spec)
    return JdbcSink(spec, spark)


def _lake_table(spec: SinkSpec, spark: SparkSession) -> Sink:
    """Return the sink of a Delta or Iceberg table. Raises SinkRefused."""
    from mld.processors.spark.sinks.delta import DeltaSink
    from mld.processors.spark.sinks.iceberg import IcebergSink

    _need_path(spec)
    _check_mode(spec, "append", "merge")
    format, is_merge = spec.format.lower(), spec.mode.lower() == "merge"
    for option in spec.options:  # a MERGE into Iceberg uses none of them
        if option.lower().startswith(OURS[format]) or (is_merge and format == "iceberg"):
            raise SinkRefused(
                f"mld.spark.sink.{spec.name}.options.{option} has no effect, or would take rows elsewhere than the "
                f"marks: a batch is one {'MERGE' if is_merge else 'append'} to the table; remove it"
            )
    return DeltaSink(spec, spark) if spec.format.lower() == "delta" else IcebergSink(spec, spark)


def _files(spec: SinkSpec, spark: SparkSession, scratch: Path | None) -> Sink:
    """Return the sink of a directory on a disk or in a bucket. Raises SinkRefused."""
    _check_mode(spec, "append")
    path = _need_path(spec)
    key = spec.path_key or f"mld.spark.sink.{spec.name}.path"
    if not is_s3(path):
        return FileSink(spec, PosixStore(local_directory(path, key), private=spec.private))
    assert spec.s3 is not None, "the settings say it of every sink"
    store = S3Store.at(path, key, spec.s3)
    spec = replace(spec, one_file=spec.one_file is not False)  # by default each commit in a bucket has one file
    if scratch is None:
        return ExecutorFileSink(spec, store, spark)
    return FileSink(spec, store, Uploads(scratch / f"s3-{quote(spec.name, safe='')}", store))


def _need_path(spec: SinkSpec) -> str:
    if not spec.path:
        raise SinkRefused(f"mld.spark.sink.{spec.name}.path is missing; say where its {spec.format} goes")
    return spec.path


def _check_mode(spec: SinkSpec, *modes: str) -> None:
    """Check the mode of a sink that is written exactly once, and the keys that only a merge uses. Raises
    SinkRefused."""
    key, mode = f"mld.spark.sink.{spec.name}", spec.mode.lower()
    if mode not in modes:
        raise SinkRefused(f"{key}.mode is {spec.mode}; {spec.format} is written exactly once, by {' or '.join(modes)}")
    if mode == "merge" and not spec.keys:
        raise SinkRefused(f"{key}.keys is missing; mode = merge needs the columns that name a row")
    of_merge = {"keys": spec.keys, "deleteWhen": spec.delete_when, "orderBy": spec.order_by}
    if mode != "merge" and (given := next((name for name, value in of_merge.items() if value), None)):
        raise SinkRefused(f"{key}.{given} has no effect without {key}.mode = merge; set it, or remove {given}")
