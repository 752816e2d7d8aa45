"""Gives a sink of files its table in Glue, if the settings name one."""

from __future__ import annotations

from functools import partial

from mld.processors.spark.catalog.glue import GlueTable
from mld.processors.spark.catalog.registrar import Registrar
from mld.processors.spark.catalog.table import SERDES, CatalogTableError, Table, directories, named, same_place
from mld.processors.spark.sink_port import Sink, SinkRefused, SinkSpec
from mld.processors.spark.sinks.files import FileSink, FlatSink
from mld.properties.credentials import CredentialsChain

BUCKETS = ("s3://", "s3a://", "s3n://")
"""What a sink in a bucket writes to is not where it stages."""


def attach(sink: Sink, spec: SinkSpec, credentials: CredentialsChain, region: str | None, endpoint: str | None) -> None:
    """Have the sink tell Glue of its columns and partitions. Touches nothing yet. Raises SinkRefused."""
    if not spec.glue_table:
        return
    key = f"mld.spark.sink.{spec.name}.glueTable"
    if spec.format.lower() not in SERDES:
        raise SinkRefused(f"{key}: tables are made over {', '.join(SERDES)}, and the format is {spec.format}")
    assert isinstance(sink, FileSink)
    if isinstance(sink, FlatSink):
        sink.in_one_directory_for = key
    try:
        database, name = named(spec.glue_table)
    except CatalogTableError as error:
        raise SinkRefused(f"{key} = {error}") from error
    location = str(spec.path) if str(spec.path).lower().startswith(BUCKETS) else sink.place
    table = Table(database, name, same_place(location), spec.format.lower(), spec.partition_by)

    def client() -> object:
        from mld.processors.spark.catalog.glue_client import GlueAccess, glue_client  # imports botocore

        return glue_client(GlueAccess(credentials, region, endpoint))

    registrar = Registrar(GlueTable(table, client))
    sink.before_commit = partial(_tell, registrar)


def _tell(registrar: Registrar, columns: tuple[tuple[str, str], ...], files: list[str]) -> None:
    registrar.tell(columns, directories(files))
