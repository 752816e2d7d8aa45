"""`problems`: checks Iceberg's catalogs and their tables, `mld.spark.catalog.*` and `mld.spark.table.*`, against each
other.

A catalog has one of four kinds, each with required properties. All other properties are passed to Iceberg as they are.
Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from mld.properties.redaction import Shown
from mld.properties.shown_of_spark import conf_shown
from mld.properties.spark_names import CATALOG_PREFIX, TABLE_PREFIX

TABLE = re.compile(r"[^\s./`]+(?:\.[^\s./`]+){2,}")
"""Matches catalog.schema.table; a schema may have several parts."""
NEEDS = {"glue": ("warehouse",), "rest": ("uri",), "jdbc": ("uri", "warehouse"), "hadoop": ("warehouse",)}
"""The kinds of catalogs, with the properties that each of them requires."""
NO_ATOMIC_RENAME = re.compile(r"\s*(?:s3[an]?|gs|wasbs?|abfss?|oss|cos)://", re.IGNORECASE)
Problem = tuple[str, str, str]
"""The key, what is wrong with it, and the remedy."""


def catalog_shown(property_: str) -> Shown:
    """Show a property of a catalog in the same way as `spark.sql.catalog.<catalog>.<property>` among the settings of
    Spark.
    """
    return conf_shown(f"spark.sql.catalog.c.{property_}")


def problems(
    tables: Mapping[str, str],
    catalogs: Mapping[str, Mapping[str, str]],
    sinks: Mapping[str, Mapping[str, str]],
    conf: Mapping[str, str],
) -> Iterator[Problem]:
    """Yield the problems of tables and catalogs. `sinks` has the properties of the sinks as they are in the file."""
    for name, table in tables.items():
        key = f"{TABLE_PREFIX}{name}"
        if not TABLE.fullmatch(table):
            yield key, "is no name of a table", "write catalog.schema.table"
            continue
        given = sinks.get(name, {})
        for other, value in (("path", table), ("format", "iceberg")):
            if given.get(other, value).lower() != value.lower():
                yield key, f"and mld.spark.sink.{name}.{other} do not agree", f"remove mld.spark.sink.{name}.{other}"
        catalog = table.partition(".")[0]
        if catalog not in catalogs and f"spark.sql.catalog.{catalog}" not in conf:
            yield (
                key,
                f"is in the catalog {catalog}, which no key describes",
                f"write {CATALOG_PREFIX}{catalog}.type = {', '.join(list(NEEDS)[:-1])} or {list(NEEDS)[-1]}",
            )
    for catalog, given in catalogs.items():
        yield from _of_catalog(f"{CATALOG_PREFIX}{catalog}", catalog, given, conf)


def _of_catalog(prefix: str, catalog: str, given: Mapping[str, str], conf: Mapping[str, str]) -> Iterator[Problem]:
    """Yield the problems of one catalog. `given` has its properties, and `prefix` is the part of their keys that names
    the catalog; `conf` has the other settings of Spark.
    """
    if f"spark.sql.catalog.{catalog}" in conf:
        yield prefix, f"and mld.spark.conf.spark.sql.catalog.{catalog} are the same catalog", "keep one of them"
    kind = given.get("type", "")
    if kind not in NEEDS:
        message = "is no kind of a catalog" if kind else "is missing"
        yield f"{prefix}.type", message, f"write {', '.join(list(NEEDS)[:-1])} or {list(NEEDS)[-1]}"
        return
    for needed in NEEDS[kind]:
        if not given.get(needed):
            yield f"{prefix}.{needed}", f"is required by {prefix}.type = {kind}", "set it"
    if kind == "hadoop" and NO_ATOMIC_RENAME.match(given.get("warehouse", "")):
        yield (
            f"{prefix}.type",
            "is hadoop, whose commits are renames, and an object store has no atomic rename: commits would be lost",
            "use glue, rest or jdbc; hadoop is for HDFS and local paths",
        )
