"""The processor's settings: the `mld.spark.*` lines of the daemon's file, checked, with all defaults. Immutable.

`mld.properties.spark` has the table of keys and the rules. This module reads the file and gives the values their types.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mld.processors.spark.fatal import EXIT_CONFIGURATION, FatalError
from mld.processors.spark.sanitizing import Sanitizer, sanitizer_of
from mld.processors.spark.sink_spec import S3Access, SinkSpec, is_s3
from mld.processors.spark.writer_identity import WriterIdentity, identity_of
from mld.properties.credentials import CredentialsChain, Provider, ProviderKind
from mld.properties.loader import entries_of, load_some, secret_of
from mld.properties.printable import printable
from mld.properties.redaction import where
from mld.properties.references import Sources
from mld.properties.remarks import ConfigurationError, Level
from mld.properties.spark import BETWEEN_COLUMNS, read
from mld.properties.spark_lines import SinkLines, SparkLines
from mld.properties.spark_names import PREFIX
from mld.properties.spark_places import JDBC, taken_places
from mld.properties.spark_values import Format, OnGap, OnPoison

CREDENTIALS = "AwsCredentialsProvider"
"""Key of the daemon's credentials."""
SDK_CREDENTIALS = CredentialsChain((Provider(ProviderKind.DEFAULT),))
ONE_FILE = {"one": True, "many": False}
"""`SinkSpec.one_file` for the values of a sink's key `files`."""
SHORT_FOR = {"spark.driver.memory": "driverMemory", "spark.jars.packages": "packages"}
"""Settings of Spark that have a short key of ours. If both keys are set, Spark's own wins."""
GATHER_S, GATHER_QUIET_S = 30.0, 120.0
"""Default interval between micro-batches, and the interval while few records wait."""


class SettingsError(FatalError):
    """The file has problems. The message has a line for each, with key, place and remedy."""

    def __init__(self, problems: str) -> None:
        super().__init__(problems, EXIT_CONFIGURATION)


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSettings:
    """The settings, named like their keys; times in seconds, sizes in bytes."""

    pipeline: str
    format: Format
    schema: str | None
    rescued_column: str | None
    """The field of the payload that gets all fields which the schema does not name; None if there is none."""
    trigger_interval_s: float
    trigger_quiet_s: float
    """The interval while few records wait. Equal to `trigger_interval_s` if the user has set an interval."""
    batch_bytes_max: int
    dead_letter: str | None
    malformed_share_max: float
    on_poison: OnPoison
    on_gap: OnGap
    drain_timeout_s: float
    start_timeout_s: float
    task_timeout_s: float
    master: str = field(repr=False)
    spool: str | None
    conf: Mapping[str, str] = field(repr=False)
    sinks: tuple[SinkSpec, ...]
    s3: S3Access = field(repr=False)
    catalogs: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
    """Properties of the catalogs of Iceberg tables, by the name of the catalog."""
    application: str
    stream: str
    region: str | None
    writer: WriterIdentity | None = None
    """The identity of this writer in the ledgers of the sinks; None if nothing identifies the stream."""
    fit: Sanitizer = field(default=printable, repr=False, compare=False)
    """Removes secrets and control characters from texts about these settings."""

    @property
    def is_local(self) -> bool:
        """Whether Spark runs in one JVM of ours on this machine."""
        return self.master.split("[")[0] == "local"

    @property
    def in_order(self) -> bool:
        """Whether a sink needs the records of each shard sorted, because the last row of a key wins."""
        return any(spec.format == JDBC and spec.mode.lower() == "merge" for spec in self.sinks)

    @property
    def where(self) -> str:
        """The master for the log: without user names and tokens."""
        return where(self.master)


def load(file: str, overrides: Sequence[str], env: Mapping[str, str]) -> SparkSettings:
    """Read and check the properties file, together with the overrides, for a child or a session host. Raises
    SettingsError, which names all problems at once.
    """
    try:
        entries, _ = entries_of(file)
    except ConfigurationError as error:
        raise SettingsError(str(error)) from error
    pairs = [(name.strip(), value) for name, equals, value in (text.partition("=") for text in overrides) if equals]
    lines = read(file, entries, pairs, Sources(env, secret_of))
    remarks = (*lines.remarks, *taken_places(lines, os.path.exists))
    problems = [str(remark) for remark in remarks if remark.level is Level.ERROR]
    if lines.values["pipeline"] is None and not any("pipeline" in problem for problem in problems):
        problems.append(f"{file}: {PREFIX}pipeline: is required; write {PREFIX}pipeline = pipeline.py:transform")
    # All keys of the file, as texts: the daemon's own are needed, too, and `lines` has only those of Spark.
    plain = {entry.key: entry.value.strip() for entry in entries} | {name: value.strip() for name, value in pairs}
    if problems:
        raise SettingsError("\n".join(problems))
    return make(
        lines,
        credentials=_credentials(lines, file, overrides, env),
        region=plain.get("regionName"),
        application=env.get("MLD_APPLICATION_NAME") or plain.get("applicationName", "mld"),
        stream=_stream(plain, env),
        env=env,
    )


def _credentials(lines: SparkLines, file: str, overrides: Sequence[str], env: Mapping[str, str]) -> CredentialsChain:
    """Return the daemon's credentials if a sink's files, the dead letter or the spool are on S3 and the daemon names
    some; otherwise those of the SDK. Raises SettingsError."""
    places = (*(sink.values.get("path") for sink in lines.sinks), lines.values["deadLetter"], lines.values["spool"])
    if not any(map(is_s3, places)):
        return SDK_CREDENTIALS
    try:
        found = load_some(file, (CREDENTIALS,), overrides, env).get(CREDENTIALS)
    except ConfigurationError as error:
        raise SettingsError(str(error)) from error
    return found if isinstance(found, CredentialsChain) else SDK_CREDENTIALS


def _stream(plain: Mapping[str, str], env: Mapping[str, str]) -> str:
    """Return the stream's name from the environment, where our daemon sets it; under another daemon, from the file."""
    name = env.get("MLD_STREAM_NAME")
    return name or plain.get("streamArn", "").rpartition("/")[2] or plain.get("streamName", "")


def make(
    lines: SparkLines,
    *,
    application: str,
    stream: str,
    env: Mapping[str, str],
    credentials: CredentialsChain = SDK_CREDENTIALS,
    region: str | None = None,
) -> SparkSettings:
    """Make settings from the lines of a file without errors. The stream is identified by variables in `env`;
    `credentials` and `region` are for buckets and catalogs."""
    value = lines.values.__getitem__
    interval_s, quiet_s = GATHER_S, GATHER_QUIET_S
    if value("triggerIntervalMillis") is not None:
        interval_s = quiet_s = value("triggerIntervalMillis") / 1000
    short = {key: text for key, name in SHORT_FOR.items() if (text := value(name)) is not None}
    writer = identity_of(
        env, application=application, pipeline=value("pipelineId"), stream=stream, stream_id=value("streamId")
    )
    s3 = S3Access(
        credentials,
        value("s3.region") or region,
        value("s3.endpoint"),
        value("s3.pathStyle"),
        value("s3.kmsKey"),
        value("s3.bucketOwner"),
    )
    return SparkSettings(
        pipeline=value("pipeline"),
        format=value("format"),
        schema=value("schema"),
        rescued_column=value("rescuedColumn"),
        trigger_interval_s=interval_s,
        trigger_quiet_s=quiet_s,
        batch_bytes_max=value("maxBatchBytes"),
        dead_letter=value("deadLetter"),
        malformed_share_max=value("malformedShareMax"),
        on_poison=value("onPoison"),
        on_gap=value("onGap"),
        drain_timeout_s=value("drainTimeoutMillis") / 1000,
        start_timeout_s=value("startTimeoutMillis") / 1000,
        task_timeout_s=value("taskTimeoutMillis") / 1000,
        master=value("master"),
        spool=value("spool"),
        conf={**short, **lines.conf},
        sinks=tuple(_sink(sink, writer or WriterIdentity(), s3) for sink in lines.sinks),
        s3=s3,
        catalogs=lines.catalogs,
        application=application,
        stream=stream,
        region=region,
        writer=writer,
        fit=sanitizer_of(lines.secrets, env),
    )


def _sink(lines: SinkLines, writer: WriterIdentity, s3: S3Access) -> SinkSpec:
    """Return the spec of one sink from its lines."""

    def names(name: str) -> tuple[str, ...]:
        """Return the columns that the sink's key `name` lists."""
        parts = BETWEEN_COLUMNS.split(lines.values.get(name, ""))
        return tuple(column for part in parts if (column := part.strip()))

    return SinkSpec(
        name=lines.name,
        format=lines.values.get("format", "parquet").lower(),
        path=lines.values.get("path"),
        options=lines.options,
        partition_by=names("partitionBy"),
        mode=lines.values.get("mode", "append"),
        keys=names("keys"),
        delete_when=lines.values.get("deleteWhen") or None,
        order_by=names("orderBy"),
        writer=writer,
        shared=lines.values.get("writers") == "shared",
        one_file=ONE_FILE.get(lines.values.get("files", "")),
        s3=s3,
    )
