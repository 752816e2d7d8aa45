"""The prefixes of the Spark processor's keys, and a function that declares such a key."""

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
    """Declare the key `mld.spark.<name>`."""
    return Key(PREFIX + name, kind, Section.SPARK, meaning, default, **more)  # type: ignore[arg-type]
