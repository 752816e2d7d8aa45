"""Decides which settings of Spark and options of its sinks are shown. Their names are free, because they belong to
another program.

Any of them may contain a password. So they are hidden, except those listed here, which cannot contain one. Rules:
configuration#hidden-values. Pure.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

from mld.properties.redaction import Shown

_CONF_SHOWN = [
    "spark.app.name",
    "spark.blockManager.port",
    "spark.broadcast.*",
    "spark.checkpoint.dir",
    "spark.cleaner.*",
    "spark.cores.*",
    "spark.default.parallelism",
    "spark.driver.bindAddress",
    "spark.driver.blockManager.port",
    "spark.driver.host",
    "spark.driver.maxResultSize*",
    "spark.driver.memory*",
    "spark.driver.port",
    "spark.dynamicAllocation.*",
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
    "spark.locality.*",
    "spark.master",
    "spark.memory.*",
    "spark.network.timeout",
    "spark.port.maxRetries",
    "spark.pyspark.driver.python",
    "spark.pyspark.python",
    "spark.scheduler.*",
    "spark.serializer",
    "spark.shuffle.*",
    "spark.speculation",
    "spark.speculation.*",
    "spark.sql.adaptive.*",
    "spark.sql.ansi.enabled",
    "spark.sql.autoBroadcastJoinThreshold",
    "spark.sql.catalogImplementation",
    "spark.sql.execution.*",
    "spark.sql.extensions",
    "spark.sql.files.*",
    "spark.sql.orc.*",
    "spark.sql.session.timeZone",
    "spark.sql.shuffle.partitions",
    "spark.sql.sources.partitionOverwriteMode",
    "spark.sql.streaming.*",
    "spark.sql.warehouse.dir",
    "spark.submit.deployMode",
    "spark.task.*",
    "spark.ui.enabled*",
    "spark.ui.port*",
    "spark.ui.retained*",
]
"""Patterns of Spark's own settings that are shown. No pattern matches a setting that may be secret."""
_CONF_JVM_OPTIONS = frozenset(
    f"spark.{side}.{kind}JavaOptions" for side in ("driver", "executor") for kind in ("default", "extra")
)
_CATALOG = "spark.sql.catalog."  # `<name>` is a class; `<name>.<property>` are its settings, which include credentials
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
    """Return how the value of `mld.spark.conf.<name>` is shown."""
    if name in _CONF_JVM_OPTIONS:
        return Shown.JVM_OPTIONS
    if name.startswith(_CATALOG):
        catalog, dot, rest = name.removeprefix(_CATALOG).partition(".")
        return Shown.PLACE if catalog and (not dot or rest in _CATALOG_PROPERTIES) else Shown.HIDDEN
    return Shown.PLACE if any(fnmatchcase(name, one) for one in _CONF_SHOWN) else Shown.HIDDEN


def option_shown(name: str) -> Shown:
    """Return how the value of `mld.spark.sink.<sink>.options.<name>` is shown. Spark accepts these names in upper and
    lower case.
    """
    return Shown.PLACE if name.lower() in _OPTIONS else Shown.HIDDEN
