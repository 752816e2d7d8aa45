"""Settings that Spark needs for its own S3 client (S3A): packages, credentials, and the address of the store.

Spark needs S3A if executors of a cluster stage files on S3, for a spool on S3, and for Delta tables there. Everything
else works without it. Hadoop requires an SDK of 700 MB, of which S3A needs only the modules listed here. Executors get
no keys from us: they use the same credential providers as the daemon, on their own machines. Settings of the user are
kept. Pure: values in, values out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from mld.processors.spark.session.packages import JARS, PACKAGES, joined
from mld.processors.spark.session_errors import SessionError
from mld.processors.spark.sink_spec import S3Access, SinkSpec, is_s3
from mld.properties.credentials import Provider, ProviderKind

SDK_OF: Mapping[str, str] = {"3.4.2": "2.29.52", "3.5.0": "2.35.4"}
"""For each version of Hadoop, the version of Amazon's SDK with which it was released."""
MODULES = ("s3", "s3-transfer-manager", "sts", "apache-client", "netty-nio-client")
CLIENT, SDK = "org.apache.hadoop:hadoop-aws", "software.amazon.awssdk"
EXCLUDED = (f"{SDK}:bundle", "org.wildfly.openssl:wildfly-openssl", "io.netty:*", "org.slf4j:*")
"""The whole SDK, a TLS accelerator that is off by default, and packages that Spark has itself."""
EXCLUDES = "spark.jars.excludes"
HADOOP = "spark.hadoop."
FILE_SYSTEM = "org.apache.hadoop.fs.s3a.S3AFileSystem"
PAGE_READ = "16M"
"""How far a request reads on in the bucket of the spool: to the end of a page (`session_host.PAGE_BYTES`). With less,
each row group of a page is a request of its own, and executors spend a third of their CPU on requests. Readers of other
Parquet files there ask for exact ranges, whatever this is.
"""
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
"""For each credential provider of the daemon, the class of S3A or of the SDK that does the same."""


def is_needed(sinks: Iterable[SinkSpec], dead_letter: str | None, spool: str | None, *, elsewhere: bool) -> bool:
    """Return whether Spark needs S3A. `elsewhere` means that executors run on other machines, so that they stage files
    on S3 themselves."""
    specs = tuple(sinks)
    files = (*(spec.path for spec in specs if spec.format not in ("delta", "iceberg")), dead_letter)
    tables = (spec.path for spec in specs if spec.format == "delta")
    return any(map(is_s3, (*tables, spool))) or (elsewhere and any(map(is_s3, files)))


def s3a_settings(
    access: S3Access, hadoop: str | None, theirs: Mapping[str, str], spool: str | None = None
) -> dict[str, str]:
    """Return the settings of Spark for S3A. Settings of the user in `theirs` win. `hadoop` is the version of PySpark's
    Hadoop; `spool` is where the pages are, if executors read them from a bucket.

    Raises SessionError."""
    store = _store(access)
    if spool is not None and is_s3(spool):
        store[f"fs.s3a.bucket.{urlsplit(spool).netloc}.readahead.range"] = PAGE_READ
    ours = {**_packages(hadoop, theirs), **{f"{HADOOP}{key}": value for key, value in store.items()}}
    if f"{HADOOP}{PROVIDERS}" not in theirs:
        ours |= {f"{HADOOP}{key}": value for key, value in _credentials(access.credentials.providers).items()}
    return {key: value for key, value in ours.items() if key in (PACKAGES, EXCLUDES) or key not in theirs}


def _packages(hadoop: str | None, theirs: Mapping[str, str]) -> dict[str, str]:
    """Return settings that add the packages of S3A for this version of `hadoop`; none if the user's settings (`theirs`)
    name such packages. Raises SessionError if the version is not known here.
    """
    if any("hadoop-aws" in theirs.get(key, "") for key in (PACKAGES, *JARS)):
        return {}
    sdk = SDK_OF.get(hadoop or "")
    if sdk is None:
        raise SessionError(
            f"which Amazon SDK goes with Hadoop {hadoop or 'of this PySpark'} is not known here; name {CLIENT} of its "
            "version in mld.spark.packages, or use PySpark 4.1 or 4.3"
        )
    coordinates = (f"{CLIENT}:{hadoop}", *(f"{SDK}:{module}:{sdk}" for module in MODULES))
    return {PACKAGES: joined(theirs.get(PACKAGES), coordinates), EXCLUDES: joined(theirs.get(EXCLUDES), EXCLUDED)}


def _store(access: S3Access) -> dict[str, str]:
    """Return the settings by which S3A reaches the store, and encrypts files there."""
    found = {
        "fs.s3.impl": FILE_SYSTEM,
        "fs.s3n.impl": FILE_SYSTEM,
        "fs.s3a.endpoint.region": access.region,
        "fs.s3a.endpoint": access.endpoint,
        "fs.s3a.path.style.access": "true" if access.path_style else None,
        "fs.s3a.encryption.algorithm": "SSE-KMS" if access.kms_key else None,
        "fs.s3a.encryption.key": access.kms_key,
        "fs.s3a.input.stream.type": "classic",  # Hadoop 3.5's default reads ahead: a page costs six times as much
    }
    return {key: value for key, value in found.items() if value}


def _credentials(providers: tuple[Provider, ...]) -> dict[str, str]:
    """Return settings that make executors use the same credential providers as the daemon. Raises SessionError."""
    kinds = [provider.kind for provider in providers]
    settings: dict[str, str | None] = {}
    for provider in providers:
        remedy = f"name what executors are to use as mld.spark.conf.{HADOOP}{PROVIDERS}"
        if provider.kind not in CLASSES:
            raise SessionError(f"executors cannot use {provider}, which runs in the daemon only; {remedy}")
        if provider.kind in (ProviderKind.PROFILE, ProviderKind.ASSUME_ROLE) and kinds.count(provider.kind) > 1:
            why = f"S3A takes one {provider.kind.value}, and AwsCredentialsProvider has {kinds.count(provider.kind)}"
            raise SessionError(f"{why}; {remedy}")
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
