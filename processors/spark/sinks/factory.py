"""Makes a sink from its settings, and refuses before the first record what cannot work."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from mld.aws.client_factory import bucket_client
from mld.aws.objects import S3Bucket
from mld.core.errors import StartupError
from mld.processors.spark.commit.s3_journal import AT_ONCE
from mld.processors.spark.commit.store import Store, store_at
from mld.processors.spark.sink_port import S3Access, Sink, SinkError, SinkRefused, SinkSpec, is_s3
from mld.processors.spark.sinks.files import FlatSink
from mld.processors.spark.sinks.generic import GenericSink
from mld.processors.spark.sinks.partitioned_files import PartitionedSink
from mld.processors.spark.sinks.s3_files import ClusterS3FileSink, S3FileSink, ScratchStore, place_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("mld.spark")

FILE_FORMATS = frozenset(("parquet", "orc", "json", "csv", "text", "avro"))
LAKE_FORMATS = frozenset(("delta", "iceberg"))


def make_sink(spec: SinkSpec, spark: SparkSession, scratch: Path | None = None) -> Sink:
    """Return the sink of a spec. Nothing is touched before its `open`. Raises SinkRefused that names the key.

    `scratch`: a directory of this machine that Spark writes to as well, with room for a batch; None if there is none,
    as its executors are elsewhere."""
    format = spec.format.lower()
    if format in FILE_FORMATS:
        return _s3_files(spec, spark, scratch) if is_s3(spec.path) else _files(spec)
    if format in LAKE_FORMATS:
        _need_path(spec)
        return _lake_table(spec, spark)
    if format == "jdbc" and (sink := _table(spec, spark)) is not None:
        return sink
    if spec.keys or spec.mode.lower() == "merge":
        raise SinkRefused(f"mld.spark.sink.{spec.name}.mode = merge is not for {spec.format}; remove it, and the keys")
    log.warning(
        "sink %s: %s is written at least once: a batch may be there again after a crash",
        spec.name,
        spec.format,
    )
    if not spec.ledger:
        return GenericSink(spec, None)
    return GenericSink(spec, _ledger_store(spec))


def _ledger_store(spec: SinkSpec) -> Store:
    """Return where a sink that keeps no ledger of its own has one."""
    assert spec.ledger is not None
    return store_at(f"{spec.ledger.rstrip('/')}/{quote(spec.name, safe='')}", "mld.spark.ledger")


def _table(spec: SinkSpec, spark: SparkSession) -> Sink | None:
    """Return the sink of a table by JDBC; None for a database whose statements it does not know."""
    from mld.processors.spark.commit.journal import Journal
    from mld.processors.spark.sinks.jdbc import JdbcSink
    from mld.processors.spark.sinks.jdbc_dialects import DIALECTS, dialect_of
    from mld.processors.spark.sinks.jdbc_options import checked_options

    url = next((value for name, value in spec.options.items() if name.lower() == "url"), "")
    if url.strip().lower().startswith("jdbc:sqlserver:"):
        raise SinkRefused(
            f"mld.spark.sink.{spec.name}.options.url: mld 0.2 wrote to SQL Server, which is no longer there; write to "
            "PostgreSQL, MariaDB or MySQL, or a table of format iceberg or delta"
        )
    dialect = dialect_of(url)
    if dialect is None and (spec.keys or spec.mode.lower() == "merge"):
        known = ", ".join(dialect.name for dialect in DIALECTS)
        raise SinkRefused(
            f"mld.spark.sink.{spec.name}.mode = merge is for {known}; the database of options.url is none of them"
        )
    if dialect is None:
        return None
    checked_options(spec)
    inherited = Journal(_ledger_store(spec), spec.name) if spec.ledger else None
    return JdbcSink(spec, spark, dialect, inherited)


def _lake_table(spec: SinkSpec, spark: SparkSession) -> Sink:
    from mld.processors.spark.sinks.delta import DeltaSink
    from mld.processors.spark.sinks.iceberg import IcebergSink

    if spec.format.lower() == "delta":
        return DeltaSink(spec, spark)
    if spec.mode.lower() != "merge":
        _append_only(spec)
    return IcebergSink(spec, spark)


def _files(spec: SinkSpec) -> Sink:
    _append_only(spec)
    store = store_at(_need_path(spec), f"mld.spark.sink.{spec.name}.path", private=spec.private)
    return PartitionedSink(spec, store) if spec.partition_by else FlatSink(spec, store)


def _s3_files(spec: SinkSpec, spark: SparkSession, scratch: Path | None) -> Sink:
    _append_only(spec)
    key = "mld.spark.deadLetter" if spec.private else f"mld.spark.sink.{spec.name}.path"
    place = place_of(_need_path(spec), key)
    if spec.s3 is None:
        raise SinkRefused(f"{key} = {place}: nobody says how S3 is reached")
    objects = S3Bucket(_LateClient(spec.s3), place.bucket, owner=spec.s3.bucket_owner, kms_key=spec.s3.kms_key)
    if scratch is not None:
        return S3FileSink(spec, objects, place, ScratchStore(scratch / f"s3-{quote(spec.name, safe='')}", private=True))
    return ClusterS3FileSink(spec, objects, place, spark)


def _need_path(spec: SinkSpec) -> str:
    if not spec.path:
        raise SinkRefused(f"mld.spark.sink.{spec.name}.path is missing; say where its {spec.format} goes")
    return spec.path


def _append_only(spec: SinkSpec) -> None:
    if spec.keys or spec.delete_when:
        given = "keys" if spec.keys else "deleteWhen"
        raise SinkRefused(f"mld.spark.sink.{spec.name}.{given} is for mode = merge; set the mode, or remove it")
    if spec.mode.lower() != "append":
        raise SinkRefused(
            f"mld.spark.sink.{spec.name}.mode is {spec.mode}; {spec.format} is written exactly once, which appends only"
        )


class _LateClient:
    """Makes the client when it is first used: a sink that is only made touches nothing."""

    def __init__(self, access: S3Access) -> None:
        self._access = access
        self._client: object | None = None

    def __getattr__(self, name: str) -> object:
        if self._client is None:
            access = self._access
            try:
                self._client = bucket_client(
                    access.credentials,
                    region=access.region,
                    endpoint_url=access.endpoint,
                    path_style=access.path_style,
                    timeout_s=access.timeout_s,
                    connections_max=AT_ONCE,
                )
            except StartupError as error:
                raise SinkError(str(error)) from error
        return getattr(self._client, name)
