"""Settings that Spark needs for lakehouse tables (Delta, Iceberg): packages, extensions and catalogs.

Each package of Delta and Iceberg is for one minor version of Spark, and is released later than that version. The table
here has the package for each Spark. Settings of the user are kept. Pure: values in, values out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from mld import pip_install
from mld.processors.spark.session.packages import JARS, PACKAGES, joined
from mld.processors.spark.session_errors import SessionError

DELTA, ICEBERG = "delta", "iceberg"
EXTRA = pip_install("lakehouse")
RUNTIMES: Mapping[str, Mapping[str, str]] = {
    ICEBERG: {"4.1": "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"},
    DELTA: {minor: f"io.delta:delta-spark_{minor}_2.13:4.4.0" for minor in ("4.1", "4.2")},
}
"""The package of each format, by PySpark's minor version. This program was tested with these packages."""
MARKS = {ICEBERG: "iceberg-spark-runtime", DELTA: "delta-spark"}
"""Text in the name of each format's package or jar, in whatever version."""
EXTENSIONS = {
    ICEBERG: "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    DELTA: "io.delta.sql.DeltaSparkSessionExtension",
}
CATALOG_CLASS = "org.apache.iceberg.spark.SparkCatalog"
DELTA_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
AWS_BUNDLE = "org.apache.iceberg:iceberg-aws-bundle:1.12.0"
DRIVERS = {
    "jdbc:postgresql:": "org.postgresql:postgresql:42.7.7",
    "jdbc:sqlite:": "org.xerial:sqlite-jdbc:3.50.3.0",
}
"""The package with the driver of a JDBC catalog's database, by the beginning of its URI."""
REGION = "client.region"
"""Iceberg's property for the AWS region of Glue and S3."""
SQL_EXTENSIONS, CATALOG = "spark.sql.extensions", "spark.sql.catalog."
DEFAULTS = {
    "glue": {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO"},
    "jdbc": {"jdbc.schema-version": "V1"},
}
"""Default properties of catalogs, by their type. With the older schema V0 a JDBC catalog has no views, but Spark looks
for a view whenever a table does not exist yet.
"""


def formats_of(formats: Collection[str], catalogs: Mapping[str, Mapping[str, str]]) -> tuple[str, ...]:
    """Return the lakehouse formats among the formats of the sinks; also Iceberg if the settings have catalogs."""
    wanted = {format_.lower() for format_ in formats} | ({ICEBERG} if catalogs else set())
    return tuple(format_ for format_ in RUNTIMES if format_ in wanted)


def release(format_: str, pyspark: str) -> str:
    """Return the package of a format for this version of PySpark. Raises SessionError."""
    found = RUNTIMES[format_].get(".".join(pyspark.split(".")[:2]))
    if found is None:
        raise SessionError(f"{needs(format_)}, and this is {pyspark}: {EXTRA} in an environment of its own")
    return found


def needs(format_: str) -> str:
    """Return which PySpark the format needs, as a sentence."""
    return f"{format_} needs PySpark {' or '.join(RUNTIMES[format_])}"


def is_given(format_: str, conf: Mapping[str, str]) -> bool:
    """Return whether the user's settings name the format's package, in any version."""
    return any(MARKS[format_] in conf.get(key, "") for key in (PACKAGES, *JARS))


def lake_settings(
    formats: Collection[str],
    catalogs: Mapping[str, Mapping[str, str]],
    conf: Mapping[str, str],
    pyspark: str,
    region: str | None = None,
) -> dict[str, str]:
    """Return the settings of Spark that lakehouse tables need; none if there are no such tables.

    `region` is for catalogs on AWS whose properties name no region: otherwise their clients would look for one in the
    environment. Raises SessionError."""
    wanted = formats_of(formats, catalogs)
    if not wanted:
        return {}
    coordinates = [release(format_, pyspark) for format_ in wanted if not is_given(format_, conf)]
    settings = {}
    for name, given in catalogs.items():
        settings[f"{CATALOG}{name}"] = CATALOG_CLASS
        properties = {**DEFAULTS.get(given["type"], {}), **given}
        if region and _is_on_aws(properties):
            properties = {REGION: region, **properties}
        settings |= {f"{CATALOG}{name}.{key}": value for key, value in properties.items()}
        coordinates += _of_catalog(properties)
    if DELTA in wanted and f"{CATALOG}spark_catalog" not in conf:
        settings[f"{CATALOG}spark_catalog"] = DELTA_CATALOG
    settings[SQL_EXTENSIONS] = joined(conf.get(SQL_EXTENSIONS), [EXTENSIONS[format_] for format_ in wanted])
    if packages := joined(conf.get(PACKAGES), coordinates):
        settings[PACKAGES] = packages
    return settings


def _of_catalog(properties: Mapping[str, str]) -> list[str]:
    """Return the packages that one catalog needs: AWS's bundle if it is on AWS, and the driver of its database."""
    found = [AWS_BUNDLE] if _is_on_aws(properties) else []
    if properties["type"] == "jdbc":
        uri = properties.get("uri", "").strip().lower()
        found += [driver for scheme, driver in DRIVERS.items() if uri.startswith(scheme)]
    return found


def _is_on_aws(properties: Mapping[str, str]) -> bool:
    """Return whether a catalog needs clients of AWS: it is Glue, or its files are on S3."""
    on_s3 = properties.get("warehouse", "").lower().startswith("s3") or "S3FileIO" in properties.get("io-impl", "")
    return on_s3 or properties["type"] == "glue"
