"""From what the settings say of a sink to the sink, with what can be told wrong before the first record."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from processors.spark import hadoop_store
from processors.spark.sinks import Sink, SinkRefused, SinkSpec
from processors.spark.sinks.files import FlatSink, PartitionedSink
from processors.spark.sinks.generic import GenericSink
from processors.spark.store import PosixStore, Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILE_FORMATS = frozenset(("parquet", "orc", "json", "csv", "text", "avro"))
LAKE_FORMATS = frozenset(("delta", "iceberg"))
ELSEWHERE = ", hdfs, or format delta or iceberg"


def make_sink(spec: SinkSpec, spark: SparkSession) -> Sink:
    """The sink of a spec. Nothing is touched before its `open`. Raises SinkRefused that names the key."""
    format = spec.format.lower()
    if format in FILE_FORMATS:
        return _files(spec, spark)
    if format in LAKE_FORMATS:
        from processors.spark.sinks.lakehouse import DeltaSink, IcebergSink

        _need_path(spec)
        _append_only(spec)
        return DeltaSink(spec, spark) if format == "delta" else IcebergSink(spec, spark)
    return GenericSink(spec, _ledger_store(spec, spark))


def _files(spec: SinkSpec, spark: SparkSession) -> Sink:
    _append_only(spec)
    store = _store(_need_path(spec), f"mld.spark.sink.{spec.name}.path", spark, private=spec.private)
    return PartitionedSink(spec, store) if spec.partition_by else FlatSink(spec, store)


def _store(path: str, key: str, spark: SparkSession, *, private: bool = False) -> Store:
    if hadoop_store.named(path):
        return hadoop_store.HadoopStore(spark, path, key)
    return PosixStore(local_directory(path, key, elsewhere=ELSEWHERE), private=private)


def _need_path(spec: SinkSpec) -> str:
    if not spec.path:
        raise SinkRefused(f"mld.spark.sink.{spec.name}.path is missing; say where its {spec.format} goes")
    return spec.path


def _append_only(spec: SinkSpec) -> None:
    if spec.mode.lower() != "append":
        raise SinkRefused(
            f"mld.spark.sink.{spec.name}.mode is {spec.mode}; {spec.format} is written exactly once, which appends only"
        )


def _ledger_store(spec: SinkSpec, spark: SparkSession) -> Store | None:
    if not spec.ledger:
        return None
    return _store(f"{spec.ledger.rstrip('/')}/{quote(spec.name, safe='')}", "mld.spark.ledger", spark)


def local_directory(path: str, key: str, *, elsewhere: str = "") -> Path:
    """The directory that a path or `file:` URI names. Raises SinkRefused for other file systems.

    `elsewhere`: what there is for them instead."""
    scheme, colon, rest = path.partition(":")
    if colon and "/" not in scheme and scheme != "file" and rest.startswith("/"):
        remedy = f"use a directory of this host's file system (NFS is one){elsewhere}"
        if hadoop_store.named(path):
            raise SinkRefused(
                f"{key} = {path}: only sinks, mld.spark.deadLetter and mld.spark.ledger go to hdfs; {remedy}"
            )
        raise SinkRefused(
            f"{key} = {path}: {scheme} has no rename that is known to be one step and to fail if the target exists, "
            f"which exactly-once files need; {remedy}"
        )
    if colon and scheme == "file":
        path = f"/{rest.lstrip('/')}"
    return Path(os.path.abspath(path))  # noqa: PTH100 - a symbolic link stays one
