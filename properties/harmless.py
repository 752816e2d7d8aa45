"""Free-form keys whose values may be shown: settings of Spark and options of its sinks. All others are hidden.

Such keys belong to other programs, and any of them may carry a password. Listed here are those that an operator looks
for and whose meaning leaves no room for one; even their values pass through `redaction`. Pure.
"""

from __future__ import annotations

from properties.redaction import Shown

_CONF_EXACT = frozenset(
    {
        "spark.app.name",
        "spark.blockManager.port",
        "spark.checkpoint.dir",
        "spark.default.parallelism",
        "spark.driver.bindAddress",
        "spark.driver.blockManager.port",
        "spark.driver.host",
        "spark.driver.port",
        "spark.eventLog.dir",
        "spark.eventLog.enabled",
        "spark.executor.cores",
        "spark.executor.heartbeatInterval",
        "spark.executor.instances",
        "spark.executor.memory",
        "spark.executor.memoryOverhead",
        "spark.hadoop.fs.defaultFS",
        "spark.hadoop.fs.s3a.connection.maximum",
        "spark.hadoop.fs.s3a.endpoint",
        "spark.hadoop.fs.s3a.endpoint.region",
        "spark.hadoop.fs.s3a.path.style.access",
        "spark.hadoop.hive.metastore.uris",
        "spark.jars",
        "spark.jars.packages",
        "spark.local.dir",
        "spark.master",
        "spark.network.timeout",
        "spark.port.maxRetries",
        "spark.pyspark.driver.python",
        "spark.pyspark.python",
        "spark.serializer",
        "spark.speculation",
        "spark.sql.ansi.enabled",
        "spark.sql.autoBroadcastJoinThreshold",
        "spark.sql.catalogImplementation",
        "spark.sql.extensions",
        "spark.sql.session.timeZone",
        "spark.sql.shuffle.partitions",
        "spark.sql.sources.partitionOverwriteMode",
        "spark.sql.warehouse.dir",
        "spark.submit.deployMode",
    }
)
_CONF_PREFIXES = (
    "spark.broadcast.",
    "spark.cleaner.",
    "spark.cores.",
    "spark.driver.maxResultSize",
    "spark.driver.memory",
    "spark.dynamicAllocation.",
    "spark.locality.",
    "spark.memory.",
    "spark.scheduler.",
    "spark.shuffle.",
    "spark.speculation.",
    "spark.sql.adaptive.",
    "spark.sql.execution.",
    "spark.sql.files.",
    "spark.sql.orc.",
    "spark.sql.streaming.",
    "spark.task.",
    "spark.ui.enabled",
    "spark.ui.port",
    "spark.ui.retained",
)
_CONF_JVM_OPTIONS = frozenset(
    f"spark.{side}.{kind}JavaOptions" for side in ("driver", "executor") for kind in ("default", "extra")
)
_CATALOG = "spark.sql.catalog."  # `<name>` is a class, `<name>.<property>` its settings, credentials among them
_CATALOG_PROPERTIES = frozenset({"type", "warehouse", "uri", "catalog-impl", "io-impl", "s3.endpoint"})
_OPTIONS = frozenset(
    {
        "batchsize",
        "checkpointlocation",
        "compression",
        "database",
        "dateformat",
        "dbtable",
        "driver",
        "encoding",
        "fetchsize",
        "header",
        "isolationlevel",
        "kafka.bootstrap.servers",
        "maxrecordsperfile",
        "mergeschema",
        "numpartitions",
        "overwriteschema",
        "path",
        "querytimeout",
        "table",
        "timestampformat",
        "topic",
        "truncate",
        "url",
    }
)


def conf_shown(name: str) -> Shown:
    """How the value of `mld.spark.conf.<name>` is shown."""
    if name in _CONF_JVM_OPTIONS:
        return Shown.JVM_OPTIONS
    if name.startswith(_CATALOG):
        catalog, dot, rest = name.removeprefix(_CATALOG).partition(".")
        return Shown.PLACE if catalog and (not dot or rest in _CATALOG_PROPERTIES) else Shown.HIDDEN
    return Shown.PLACE if name in _CONF_EXACT or name.startswith(_CONF_PREFIXES) else Shown.HIDDEN


def option_shown(name: str) -> Shown:
    """How the value of `mld.spark.sink.<sink>.options.<name>` is shown; Spark takes these names in any case."""
    return Shown.PLACE if name.lower() in _OPTIONS else Shown.HIDDEN
