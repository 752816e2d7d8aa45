"""A table over the files of a sink, as Glue and Hive describe one: columns, partitions, where they are, who reads them.

Hive knows lower-case names only, and its types are those of Spark but for a few. A table that exists keeps what it has:
columns are added at the end, never taken away or changed, because others may read it.

Pure: values in, values out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

Columns = Sequence[tuple[str, str]]
"""Names and types, as Spark's `simpleString` has them."""
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
EXTERNAL = "EXTERNAL_TABLE"
NAME = re.compile(r"[A-Za-z0-9_-]{1,255}", re.ASCII)
_UNKNOWN_TYPES = re.compile(r"\b(variant|interval|void|object|geometry|geography|time)\b", re.ASCII)
_FIELD_QUOTES = re.compile(r"`([^`]*)`")


class CatalogTableError(Exception):
    """The table cannot be what the sink needs; one sentence with the remedy."""


@dataclass(frozen=True, slots=True)
class Serde:
    """The classes by which Hive and Athena read a format."""

    input: str
    output: str
    library: str
    hive: str
    """As DDL has it."""


SERDES: Mapping[str, Serde] = {
    "parquet": Serde(
        "org.apache.hadoop.hive.ql.io.parquet.MapredParquetInputFormat",
        "org.apache.hadoop.hive.ql.io.parquet.MapredParquetOutputFormat",
        "org.apache.hadoop.hive.ql.io.parquet.serde.ParquetHiveSerDe",
        "STORED AS PARQUET",
    ),
    "orc": Serde(
        "org.apache.hadoop.hive.ql.io.orc.OrcInputFormat",
        "org.apache.hadoop.hive.ql.io.orc.OrcOutputFormat",
        "org.apache.hadoop.hive.ql.io.orc.OrcSerde",
        "STORED AS ORC",
    ),
    "json": Serde(
        "org.apache.hadoop.mapred.TextInputFormat",
        "org.apache.hadoop.hive.ql.io.HiveIgnoreKeyTextOutputFormat",
        "org.openx.data.jsonserde.JsonSerDe",
        "ROW FORMAT SERDE 'org.openx.data.jsonserde.JsonSerDe'",
    ),
}


@dataclass(frozen=True, slots=True)
class Table:
    """A table over a sink's directory; `partition_keys` are the names of the columns that its directories hold."""

    database: str
    name: str
    location: str
    format: str
    partition_keys: tuple[str, ...] = ()


def named(text: str) -> tuple[str, str]:
    """Return database and table of `db.table`. Raises CatalogTableError."""
    database, dot, name = text.strip().partition(".")
    if not dot or not NAME.fullmatch(database) or not NAME.fullmatch(name):
        raise CatalogTableError(f"{text!r} names no table; write database.table")
    return database.lower(), name.lower()


def hive_type(spark: str) -> str | None:
    """Return the type in Hive; None if it has none."""
    if _UNKNOWN_TYPES.search(spark):
        return None
    text = _FIELD_QUOTES.sub(lambda found: found[1].lower(), spark)
    return re.sub(r"\btimestamp_(?:ntz|ltz)\b", "timestamp", text)


def split_columns(columns: Columns, keys: Iterable[str]) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return columns of the files, and those of the partitions in the order of the keys, with Hive's names and types.
    Columns of a type that Hive does not know are left out. Raises CatalogTableError if a key has no such type.
    """
    found = {name.lower(): type for name, text in columns if (type := hive_type(text)) is not None}
    wanted = [key.lower() for key in keys]
    if missing := [key for key in wanted if key not in found]:
        raise CatalogTableError(f"the column {missing[0]} has no type that Hive knows; partition by another one")
    data = [(name, type) for name, type in found.items() if name not in wanted]
    return data, [(key, found[key]) for key in wanted]


def left_out(columns: Columns) -> list[str]:
    """Return names of columns that Hive has no type for."""
    return [name for name, text in columns if hive_type(text) is None]


def table_input(table: Table, columns: Columns) -> dict[str, Any]:
    """Return what CreateTable is given. Raises CatalogTableError."""
    data, keys = split_columns(columns, table.partition_keys)
    return {
        "Name": table.name,
        "TableType": EXTERNAL,
        "Parameters": {"EXTERNAL": "TRUE", "classification": table.format},
        "StorageDescriptor": storage(table, _described(data), table.location),
        "PartitionKeys": _described(keys),
    }


def storage(table: Table, described: list[dict[str, str]], location: str) -> dict[str, Any]:
    """Return a StorageDescriptor, of the table or of one partition."""
    serde = SERDES[table.format]
    return {
        "Columns": described,
        "Location": location,
        "InputFormat": serde.input,
        "OutputFormat": serde.output,
        "SerdeInfo": {"SerializationLibrary": serde.library, "Parameters": {"serialization.format": "1"}},
    }


def check_existing(table: Table, existing: Mapping[str, Any]) -> None:
    """Check whether a table that is there may be ours. Raises CatalogTableError."""
    place = f"{table.database}.{table.name}"
    there = str(existing.get("StorageDescriptor", {}).get("Location", ""))
    if same_place(there) != same_place(table.location):
        raise CatalogTableError(
            f"the table {place} is over {there}, and the sink writes {table.location}; name another table"
        )
    keys = [key["Name"].lower() for key in existing.get("PartitionKeys") or ()]
    if keys != [key.lower() for key in table.partition_keys]:
        raise CatalogTableError(
            f"the table {place} is partitioned by {', '.join(keys) or 'nothing'}, and the sink by "
            f"{', '.join(table.partition_keys) or 'nothing'}; name another table"
        )


def widened(existing: Mapping[str, Any], table: Table, columns: Columns) -> dict[str, Any] | None:
    """Return what UpdateTable is given, if the frame has columns that the table has not; None otherwise."""
    data, _ = split_columns(columns, table.partition_keys)
    have = existing["StorageDescriptor"].get("Columns") or []
    known = {column["Name"].lower() for column in have}
    fresh = [(name, type) for name, type in data if name not in known]
    if not fresh:
        return None
    kept = {name: existing[name] for name in KEPT if name in existing}
    return {**kept, "StorageDescriptor": {**existing["StorageDescriptor"], "Columns": [*have, *_described(fresh)]}}


KEPT = (
    "Name",
    "Description",
    "Owner",
    "Retention",
    "PartitionKeys",
    "ViewOriginalText",
    "ViewExpandedText",
    "TableType",
    "Parameters",
)
"""Of a table that is there, what an update has to repeat, because what it does not name is removed."""


def partition_input(table: Table, described: list[dict[str, str]], directory: str) -> dict[str, Any]:
    """Return what CreatePartition is given for a directory of the sink, such as `day=2026-01-01/hour=5`."""
    location = f"{table.location.rstrip('/')}/{directory}/"
    return {"Values": values_of(directory), "StorageDescriptor": storage(table, described, location)}


def values_of(directory: str) -> list[str]:
    """Return the values in the name of a partition's directory, as they were before they became a path."""
    return [unquote(part.partition("=")[2]) for part in directory.split("/")]


def directories(files: Iterable[str]) -> tuple[str, ...]:
    """Return the partitions that files are in; none for files of a table without partitions."""
    found = {file.rpartition("/")[0] for file in files}
    return tuple(sorted(name for name in found if name and all("=" in part for part in name.split("/"))))


def same_place(location: str) -> str:
    """Return locations that differ only in their spelling are equal by this."""
    return re.sub(r"^s3[an]://", "s3://", location).rstrip("/")


def ddl(table: Table, columns: Columns) -> str:
    """Return statements of Hive, Spark SQL (with Hive's catalog) and Athena that make the table. Raises
    CatalogTableError.
    """
    data, keys = split_columns(columns, table.partition_keys)
    name = f"{_quoted(table.database)}.{_quoted(table.name)}"
    partitioned = f"PARTITIONED BY (\n{_listed(keys)}\n)\n" if keys else ""
    text = (
        f"CREATE EXTERNAL TABLE IF NOT EXISTS {name} (\n{_listed(data)}\n)\n{partitioned}"
        f"{SERDES[table.format].hive}\nLOCATION '{_escaped(table.location)}';\n"
    )
    return text + (f"MSCK REPAIR TABLE {name};\n" if keys else "")


def _described(columns: Columns) -> list[dict[str, str]]:
    return [{"Name": name, "Type": type} for name, type in columns]


def _listed(columns: Columns) -> str:
    return ",\n".join(f"  {_quoted(name)} {type}" for name, type in columns)


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")
