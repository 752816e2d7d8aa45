"""What Spark needs for tables of a lake house: packages, extensions and catalogs, from the keys of the file.

Delta and Iceberg are released for one minor version of Spark each, and later than it. Which is for which stands here;
what the user gives himself is left as it is. Pure: values in, values out.

What Spark needs to speak to S3 itself (S3A): packages, and how the store is reached, from the keys of the file.

It speaks to S3 where executors of a cluster stage files, and for Delta tables; everything else is done without. Hadoop
names an SDK of 700 MB, of which S3A needs the few modules that stand here. Executors get no keys from us: they look
for credentials where they are, with the providers that the daemon has. What the user gives himself is left as it is.
Pure: values in, values out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from mld import pip_install
from mld.processors.spark.sink_port import S3Access, SessionError, SinkSpec, is_s3
from mld.properties.credentials import Provider, ProviderKind

DELTA, ICEBERG = "delta", "iceberg"
EXTRA = pip_install("lakehouse")
RUNTIMES: Mapping[str, Mapping[str, str]] = {
    ICEBERG: {"4.1": "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"},
    DELTA: {minor: f"io.delta:delta-spark_{minor}_2.13:4.4.0" for minor in ("4.1", "4.2")},
}
"""Packages of a format by the minor version of PySpark. They are what this program was tested with."""
MARKS = {ICEBERG: "iceberg-spark-runtime", DELTA: "delta-spark"}
"""What the name of a format's package or jar has, whoever gives it."""
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
REGION = "client.region"
"""Iceberg's property for Glue and S3."""
JARS = ("spark.jars", "spark.driver.extraClassPath")
PACKAGES, SQL_EXTENSIONS, CATALOG = "spark.jars.packages", "spark.sql.extensions", "spark.sql.catalog."
DEFAULTS = {
    "glue": {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO"},
    "jdbc": {"jdbc.schema-version": "V1"},
}
"""Properties of a kind of catalog that the user need not give. The older schema of a JDBC catalog knows no views, and
Spark asks for one whenever a table is not there yet."""


def formats_of(formats: Collection[str], catalogs: Mapping[str, Mapping[str, str]]) -> tuple[str, ...]:
    """Return the formats of a lake house among those of the sinks, and that of the catalogs."""
    wanted = {format_.lower() for format_ in formats} | ({ICEBERG} if catalogs else set())
    return tuple(format_ for format_ in RUNTIMES if format_ in wanted)


def release(format_: str, pyspark: str) -> str:
    """Return the package of a format for this version of PySpark. Raises SessionError."""
    found = RUNTIMES[format_].get(".".join(pyspark.split(".")[:2]))
    if found is None:
        raise SessionError(f"{needs(format_)}, and this is {pyspark}: {EXTRA} in an environment of its own")
    return found


def needs(format_: str) -> str:
    """Return which PySpark the format needs, for people."""
    return f"{format_} needs PySpark {' or '.join(RUNTIMES[format_])}"


def is_given(format_: str, conf: Mapping[str, str]) -> bool:
    """Return whether the user brings the format's package himself, of whatever version."""
    return any(MARKS[format_] in conf.get(key, "") for key in (PACKAGES, *JARS))


def lake_settings(
    formats: Collection[str],
    catalogs: Mapping[str, Mapping[str, str]],
    conf: Mapping[str, str],
    pyspark: str,
    region: str | None = None,
) -> dict[str, str]:
    """Return settings of Spark; empty if no sink is in a lake house. `region` is for catalogs on AWS that name none:
    their clients would ask the environment, which need not know. Raises SessionError.
    """
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
    settings[SQL_EXTENSIONS] = _joined(conf.get(SQL_EXTENSIONS), [EXTENSIONS[format_] for format_ in wanted])
    if packages := _joined(conf.get(PACKAGES), coordinates):
        settings[PACKAGES] = packages
    return settings


def _of_catalog(properties: Mapping[str, str]) -> list[str]:
    """Return packages that one catalog needs: those of AWS for S3, and the driver of its database."""
    found = [AWS_BUNDLE] if _is_on_aws(properties) else []
    if properties["type"] == "jdbc":
        uri = properties.get("uri", "").strip().lower()
        found += [driver for scheme, driver in DRIVERS.items() if uri.startswith(scheme)]
    return found


def _is_on_aws(properties: Mapping[str, str]) -> bool:
    on_s3 = properties.get("warehouse", "").lower().startswith("s3") or "S3FileIO" in properties.get("io-impl", "")
    return on_s3 or properties["type"] == "glue"


SDK_OF: Mapping[str, str] = {"3.4.2": "2.29.52", "3.5.0": "2.35.4"}
"""The SDK that each Hadoop was released with."""
MODULES = ("s3", "s3-transfer-manager", "sts", "apache-client", "netty-nio-client")
CLIENT, SDK = "org.apache.hadoop:hadoop-aws", "software.amazon.awssdk"
EXCLUDED = (f"{SDK}:bundle", "org.wildfly.openssl:wildfly-openssl", "io.netty:*", "org.slf4j:*")
"""The SDK as a whole, an accelerator of TLS that is off by default, and what Spark has itself."""
EXCLUDES = "spark.jars.excludes"
HADOOP = "spark.hadoop."
FILE_SYSTEM = "org.apache.hadoop.fs.s3a.S3AFileSystem"
PROVIDERS = "fs.s3a.aws.credentials.provider"
_AUTH, _OF_SDK = "org.apache.hadoop.fs.s3a.auth", "software.amazon.awssdk.auth.credentials"
CLASSES = {
    ProviderKind.DEFAULT: f"{_OF_SDK}.DefaultCredentialsProvider",
    ProviderKind.ENVIRONMENT: f"{_OF_SDK}.EnvironmentVariableCredentialsProvider",
    ProviderKind.SYSTEM_PROPERTY: f"{_OF_SDK}.SystemPropertyCredentialsProvider",
    ProviderKind.PROFILE: f"{_AUTH}.ProfileAWSCredentialsProvider",
    ProviderKind.INSTANCE_METADATA: f"{_AUTH}.IAMInstanceCredentialsProvider",
    ProviderKind.CONTAINER: f"{_AUTH}.IAMInstanceCredentialsProvider",
    ProviderKind.WEB_IDENTITY: f"{_OF_SDK}.WebIdentityTokenFileCredentialsProvider",
    ProviderKind.ANONYMOUS: "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider",
    ProviderKind.ASSUME_ROLE: f"{_AUTH}.AssumedRoleCredentialProvider",
}
"""Providers of the daemon -> those of S3A and its SDK."""


def is_needed(sinks: Iterable[SinkSpec], dead_letter: str | None, spool: str | None, *, elsewhere: bool) -> bool:
    """Return whether S3A is needed; `elsewhere`: executors are not on this machine, so that they stage files on S3
    themselves.
    """
    specs = tuple(sinks)
    files = (*(spec.path for spec in specs if spec.format not in ("delta", "iceberg")), dead_letter)
    tables = (spec.path for spec in specs if spec.format == "delta")
    return any(map(is_s3, (*tables, spool))) or (elsewhere and any(map(is_s3, files)))


def s3a_settings(access: S3Access, hadoop: str | None, theirs: Mapping[str, str]) -> dict[str, str]:
    """Return settings of Spark, given those that are set already, which win; `hadoop` is the version that PySpark has.

    Raises SessionError."""
    ours = {**_packages(hadoop, theirs), **{f"{HADOOP}{key}": value for key, value in _store(access).items()}}
    if f"{HADOOP}{PROVIDERS}" not in theirs:
        ours |= {f"{HADOOP}{key}": value for key, value in _credentials(access.credentials.providers).items()}
    return {key: value for key, value in ours.items() if key in (PACKAGES, EXCLUDES) or key not in theirs}


def _packages(hadoop: str | None, theirs: Mapping[str, str]) -> dict[str, str]:
    if any("hadoop-aws" in theirs.get(key, "") for key in (PACKAGES, *JARS)):
        return {}
    sdk = SDK_OF.get(hadoop or "")
    if sdk is None:
        raise SessionError(
            f"which Amazon SDK goes with Hadoop {hadoop or 'of this PySpark'} is not known here; name {CLIENT} of its "
            "version in mld.spark.packages, or use PySpark 4.1 or 4.3"
        )
    coordinates = (f"{CLIENT}:{hadoop}", *(f"{SDK}:{module}:{sdk}" for module in MODULES))
    return {PACKAGES: _joined(theirs.get(PACKAGES), coordinates), EXCLUDES: _joined(theirs.get(EXCLUDES), EXCLUDED)}


def _store(access: S3Access) -> dict[str, str]:
    found = {
        "fs.s3.impl": FILE_SYSTEM,
        "fs.s3n.impl": FILE_SYSTEM,
        "fs.s3a.endpoint.region": access.region,
        "fs.s3a.endpoint": access.endpoint,
        "fs.s3a.path.style.access": "true" if access.path_style else None,
        "fs.s3a.encryption.algorithm": "SSE-KMS" if access.kms_key else None,
        "fs.s3a.encryption.key": access.kms_key,
        "fs.s3a.input.stream.type": "classic",  # Hadoop 3.5's own, which guesses ahead, costs a page six times as much
    }
    return {key: value for key, value in found.items() if value}


def _credentials(providers: tuple[Provider, ...]) -> dict[str, str]:
    """Return how executors look for credentials: with the providers of the daemon. Raises SessionError."""
    kinds = [provider.kind for provider in providers]
    settings: dict[str, str | None] = {}
    for provider in providers:
        remedy = f"name what executors are to use as mld.spark.conf.{HADOOP}{PROVIDERS}"
        if provider.kind not in CLASSES:
            raise SessionError(f"executors cannot use {provider}, which runs in the daemon only; {remedy}")
        if provider.kind in (ProviderKind.PROFILE, ProviderKind.ASSUME_ROLE) and kinds.count(provider.kind) > 1:
            said = f"S3A takes one {provider.kind.value}, and AwsCredentialsProvider has {kinds.count(provider.kind)}"
            raise SessionError(f"{said}; {remedy}")
        if provider.kind is ProviderKind.PROFILE and provider.arguments:
            settings["fs.s3a.auth.profile.name"] = provider.arguments[0]
        if role := provider.role:
            settings |= {
                "fs.s3a.assumed.role.arn": role.role_arn,
                "fs.s3a.assumed.role.session.name": role.session_name,
                "fs.s3a.assumed.role.credentials.provider": CLASSES[ProviderKind.DEFAULT],
                "fs.s3a.assumed.role.external.id": role.external_id,
                "fs.s3a.assumed.role.sts.endpoint": role.endpoint_url,
                "fs.s3a.assumed.role.sts.endpoint.region": role.sts_region,
            }
    settings[PROVIDERS] = ",".join(dict.fromkeys(CLASSES[kind] for kind in kinds))
    return {key: value for key, value in settings.items() if value}


def _joined(given: str | None, more: Iterable[str]) -> str:
    """Return what is given, and more, in one list; of an artifact that is given no other release is added."""
    theirs = [part for item in (given or "").split(",") if (part := item.strip())]
    ours = (one for one in more if not any(_artifact(one) == _artifact(other) for other in theirs))
    return ",".join(dict.fromkeys((*theirs, *ours)))


def _artifact(coordinate: str) -> list[str]:
    return coordinate.split(":")[:2]
