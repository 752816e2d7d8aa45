"""How keys of the Spark processor are named: their prefixes, and the key that a name after `mld.spark.` declares."""

from __future__ import annotations

from mld.properties.keytypes import Key, Section
from mld.properties.value_kinds import ValueKind

TABLE_PREFIX = "mld.spark.table."
CATALOG_PREFIX = "mld.spark.catalog."
PROGRAM = "mld-spark"
PREFIX = "mld.spark."
SINK_PREFIX = f"{PREFIX}sink."
CONF_PREFIX = f"{PREFIX}conf."


def key_named(name: str, kind: ValueKind, meaning: str, default: object = None, **more: object) -> Key:
    return Key(PREFIX + name, kind, Section.SPARK, meaning, default, **more)  # type: ignore[arg-type]
