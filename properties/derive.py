"""`derive`: makes the settings from the checked keys: requires keys, checks keys against each other, and fills in all
defaults. Pure.

Rules: configuration#required-keys, configuration#derived-names, configuration#stream-identity,
configuration#region-choice, configuration#initial-position, configuration#worker-id, configuration#choice-of-retrieval.
A `Derivation` collects values and remarks; `settings_of` makes the settings if no remark is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import PurePath
from typing import Any
from urllib.parse import urlsplit

from mld.properties.aws_domains import is_of_aws
from mld.properties.checked_lines import Given
from mld.properties.keys import KEYS, PATTERN_KEYS, key_of_stream
from mld.properties.keytypes import Section
from mld.properties.redaction import where
from mld.properties.remarks import Level, Remark
from mld.properties.settings import (
    CREDENTIALS_PREFIX,
    FORMER,
    STREAMS,
    STREAMS_FILE,
    Settings,
    StreamSetting,
)
from mld.properties.spark_names import PROGRAM as SPARK_PROGRAM
from mld.properties.stream_list import CONSUMER_ARN, NO_CONSUMER_ARN, NO_TIME, streams_of
from mld.properties.values import (
    SOCKET_OFF,
    ChildFailurePolicy,
    DeadLetter,
    InitialPositionKind,
    InitialPositionSetting,
    ListenAddress,
    MetricsLevel,
    MetricsOutput,
    RetrievalMode,
    StreamArn,
)

REGION_VARIABLES = ("AWS_REGION", "AWS_DEFAULT_REGION")  # Java reads only the first
ROW_KEYS = ("Leader", "Migration3.0", "TableMigration3.5")  # of rows in the lease table that are not leases
SHARD_ID_PREFIX = "shardId-"
WORKER_ID_BYTES_MAX = 1024  # limit of a CloudWatch dimension; the limit of a key of DynamoDB is 2,048
_SERVICES = (("kinesisClient", "kinesis"), ("dynamoDbClient", "dynamo_db"), ("cloudWatchClient", "cloud_watch"))
_FANOUT_KEYS = tuple(key.name for key in KEYS if key.section is Section.FANOUT)
_METRICS_KEY = "mld.metrics"
_METRICS_KEYS = ("metricsLevel", "metricsEnabledDimensions", "metricsBufferTimeMillis", "metricsMaxQueueSize")
CLOUDWATCH_VARIABLES = ("AWS_ENDPOINT_URL_CLOUDWATCH", "AWS_ENDPOINT_URL")  # used if no key sets the endpoint
# Any value of these two keys, even 0, selects polling. For the keys below, 0 means "not set" (zero rule).
_SELECTING_WHEN_PRESENT = ("retryGetRecordsInSeconds", "maxGetRecordsThreadPool")
_POLLING_KEYS = ("idleTimeBetweenReadsInMillis", "millisBehindLatestThresholdForReducedTps", "maxRecords")


@dataclass(slots=True)
class Derivation:
    """Collects the values of the settings, by field and in the unit of their key. `sources` names the origin of each
    value that no line of the file sets.

    `listed` maps the names in the file of mld.streamsFile to their places; None if there is no such file, or if it
    could not be read.
    """

    given: Mapping[str, Given]
    env: Mapping[str, str]
    file_name: str
    listed: Mapping[str, str] | None = None
    values: dict[str, object] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    remarks: list[Remark] = field(default_factory=list)

    def value_of(self, name: str) -> object:
        """Return the value to which a key is set; None if it is not set."""
        return self.given[name].value if name in self.given else None

    @property
    def list_key(self) -> str | None:
        """The key that lists several streams; None if the file is about one stream."""
        return next((key for key in (STREAMS, STREAMS_FILE) if key in self.given), None)

    @property
    def is_multi_stream(self) -> bool:
        return self.list_key is not None

    def derived(self, field_name: str, value: object, source: str) -> None:
        """Set a field to a value that follows from `source`: another key, or an environment variable."""
        self.values[field_name] = value
        self.sources[field_name] = source

    def say(self, level: Level, key: str, message: str, remedy: str = "") -> None:
        """Add a remark on a key, with the place where the key is set."""
        place = self.given[key].place if key in self.given else self.file_name
        self.remarks.append(Remark(level, key, place, message, remedy))


def derive(
    given: Mapping[str, Given], env: Mapping[str, str], file_name: str, listed: Mapping[str, str] | None = None
) -> Derivation:
    """Fill in all values that the file does not set, and check keys against each other. Keys are checked in Java's
    order.
    """
    derivation = Derivation(given, env, file_name, listed)
    for key in KEYS:
        derivation.values[key.field] = given[key.name].value if key.name in given else key.default
    _application(derivation)
    _stream(derivation)
    _credentials(derivation)
    _region(derivation)
    _initial_position(derivation)
    _leases(derivation)
    _streams(derivation)
    _retrieval(derivation)
    _dead_letter(derivation)
    _metrics(derivation)
    _http(derivation)
    _notify(derivation)
    _worker_id(derivation)
    _processes(derivation)
    _children_per_shard(derivation)
    return derivation


def settings_of(derivation: Derivation) -> Settings:
    """Make the settings. Call this only if neither the keys nor the derivation have errors."""
    values = dict(derivation.values)
    for key in KEYS:
        values[key.field] = key.in_core_units(values[key.field])
    members: dict[str, Any] = {
        one.name: values[one.name] if one.name in values else _group(one.type, values, f"{one.name}.")
        for one in fields(Settings)
    }
    return Settings(**members)


def _group(kind: Any, values: Mapping[str, object], prefix: str) -> object:
    """Return a group of the settings, of the dataclass `kind`, with the values of the fields that begin with
    `prefix`.
    """
    return kind(**{one.name: values[prefix + one.name] for one in fields(kind) if prefix + one.name in values})


def _application(derivation: Derivation) -> None:
    """Make the names of the tables and of the fan-out consumer from applicationName."""
    name = derivation.value_of("applicationName")
    if name is None:
        derivation.say(Level.ERROR, "applicationName", "is required", "give the application a name")
        return
    for field_name, suffix in (
        ("lease_table.name", ""),
        ("fanout.consumer_name", ""),
        ("worker_metrics_table.name", "-WorkerMetricStats"),
        ("coordinator_state_table.name", "-CoordinatorState"),
    ):
        if derivation.values[field_name] is None:
            derivation.derived(field_name, f"{name}{suffix}", "applicationName")


def _stream(derivation: Derivation) -> None:
    """Find the name and the ARN of the stream; they are empty if the file lists several streams."""
    if derivation.is_multi_stream:
        for key in ("streamName", "streamArn"):
            if key in derivation.given:
                message = f"cannot be used together with {derivation.list_key}"
                derivation.say(Level.ERROR, key, message, "add the stream to the list, or remove the list")
        derivation.values |= {"stream_name": "", "stream_arn": None}
        return
    arn, name = derivation.value_of("streamArn"), derivation.value_of("streamName")
    if isinstance(arn, StreamArn):
        derivation.values["stream_arn"] = arn.text
        derivation.derived("stream_name", arn.name, "streamArn")
        if name is not None and name != arn.name:
            message = f"is ignored: the stream of streamArn, {arn.name}, is read"
            derivation.say(Level.WARNING, "streamName", message, "remove streamName")
    elif name is None:
        derivation.say(
            Level.ERROR, "streamName", "is required", "give streamName or streamArn, or mld.streams for several"
        )


def _credentials(derivation: Derivation) -> None:
    """Require a credentials provider, and use it for all services that have none of their own."""
    if derivation.value_of(CREDENTIALS_PREFIX) is None:
        remedy = "for example DefaultCredentialsProvider"
        derivation.say(Level.ERROR, CREDENTIALS_PREFIX, "is required", remedy)
    main = derivation.values["kinesis.credentials"]
    for service in ("dynamo_db", "cloud_watch"):
        if derivation.values[f"{service}.credentials"] is None:
            derivation.derived(f"{service}.credentials", main, CREDENTIALS_PREFIX)


def _region(derivation: Derivation) -> None:
    """Choose the region: regionName, else that of the ARN, else that of the environment. If none is set,
    `client_factory` asks the profile and the instance metadata.
    """
    arn = derivation.value_of("streamArn")
    in_arn = arn.region if isinstance(arn, StreamArn) else None
    if isinstance(arn, StreamArn) and arn.regions_partition is not None:
        message = f"names the partition {arn.partition}, but its region {arn.region} is in {arn.regions_partition}"
        derivation.say(Level.ERROR, "streamArn", message, "copy the ARN from the service")
    variable = next((name for name in REGION_VARIABLES if derivation.env.get(name)), None)
    region = derivation.value_of("regionName")
    if region is None and in_arn is not None:
        region = in_arn
        derivation.derived("region_name", region, "streamArn")
        if variable is not None and derivation.env[variable] != in_arn:
            message = f"its region {in_arn} is used; Java uses {derivation.env[variable]} of {variable}"
            derivation.say(Level.WARNING, "streamArn", message, "set regionName")
    elif region is None and variable is not None:
        region = derivation.env[variable]
        derivation.derived("region_name", region, f"environment {variable}")
    for prefix, service in _SERVICES:
        own = derivation.value_of(f"{prefix}.region")
        if own is None:
            source = derivation.sources.get("region_name", "regionName" if region is not None else "default")
            derivation.derived(f"{service}.region", region, source)
        elif derivation.value_of("regionName") not in (None, own):
            message = f"{own} wins over regionName for this client; in Java either may win"
            derivation.say(Level.WARNING, f"{prefix}.region", message, "remove one of the two")
    used = derivation.values["kinesis.region"]
    if in_arn is not None and used != in_arn:
        message = f"its region {in_arn} is not the region used for Kinesis, {used}"
        derivation.say(Level.WARNING, "streamArn", message, "make regionName and the region of streamArn agree")


def _initial_position(derivation: Derivation) -> None:
    """Use initialPositionInStreamExtended as the initial position if it is set."""
    extended = derivation.value_of("initialPositionInStreamExtended")
    if extended is None:
        return
    derivation.derived("initial_position", extended, "initialPositionInStreamExtended")
    if "initialPositionInStream" in derivation.given:
        message = "is ignored because initialPositionInStreamExtended is set; in Java either may win"
        derivation.say(Level.WARNING, "initialPositionInStream", message, "remove one of the two")


def _streams(derivation: Derivation) -> None:
    """Make the settings of the streams in the list (configuration#several-streams). Without a list, refuse keys that
    need one; with a list, refuse keys that cannot be used with it.
    """
    given, values, say = derivation.given, derivation.values, derivation.say
    if not derivation.is_multi_stream:
        for name in given:
            if any(key.name_in(name) is not None for key in PATTERN_KEYS):
                say(Level.ERROR, name, f"is about one of several streams, and there is no {STREAMS}", f"set {STREAMS}")
        _unused(derivation, (FORMER,), f"{STREAMS} is not set")
        values["streams"] = ()
        return
    if STREAMS in given and STREAMS_FILE in given:
        say(Level.ERROR, STREAMS_FILE, f"cannot be used together with {STREAMS}", "remove one of the two")
    if "fanoutConfig.consumerArn" in given:
        why = "is the consumer of one stream, and there is a list of streams"
        say(Level.ERROR, "fanoutConfig.consumerArn", why, f"use {key_of_stream('<name>', 'consumerArn')}")
    initial = values["initial_position"]
    assert isinstance(initial, InitialPositionSetting)
    places = dict.fromkeys(given[STREAMS].value, given[STREAMS].place) if STREAMS in given else derivation.listed  # type: ignore[call-overload]
    if places is None:
        values["streams"] = ()  # the file cannot be read, about which there already is a remark
        return
    file = None if STREAMS in given else where(str(values["streams_file"]))
    streams, remarks = streams_of(places, given, initial, list_file=file)
    values["streams"] = streams
    derivation.remarks += remarks
    endpoint, region = values["kinesis.endpoint"], values["kinesis.region"]
    far = next((one for one in streams if one.region not in (None, region)), None)
    if endpoint is not None and is_of_aws(str(endpoint)) and far is not None:
        why = f"is an endpoint of AWS, which serves one region, and the stream {far.name} is in {far.region}"
        say(Level.ERROR, "kinesisEndpoint", why, f"remove the line, or streams that are not in {region}")


def _leases(derivation: Derivation) -> None:
    """Set the interval of the leader's assignment, if it is not given, to twice the lease duration."""
    if derivation.values["fleet.assignment_interval_s"] is None:
        failover = derivation.values["leases.duration_s"]
        assert isinstance(failover, int)
        derivation.derived("fleet.assignment_interval_s", 2 * failover, "failoverTimeMillis")


def _retrieval(derivation: Derivation) -> None:
    """Choose how records are fetched, by polling or by enhanced fan-out, and remark on keys that are not used then.

    The stream of a DynamoDB table can only be polled. For Kinesis the mode DEFAULT polls if the file sets a key that
    selects polling, else it uses fan-out.
    """
    mode = derivation.values["reader.mode"]
    arn = derivation.value_of("streamArn")
    if isinstance(arn, StreamArn) and arn.is_of_table:
        if mode is RetrievalMode.FANOUT:
            why = "is not possible: the stream of a DynamoDB table has no enhanced fan-out"
            derivation.say(Level.ERROR, "retrievalMode", why, "set retrievalMode=POLLING")
        initial = derivation.values["initial_position"]
        if isinstance(initial, InitialPositionSetting) and initial.kind is InitialPositionKind.AT_TIMESTAMP:
            key = "initialPositionInStreamExtended"
            key = key if key in derivation.given else "initialPositionInStream"
            derivation.say(Level.ERROR, key, NO_TIME, "use TRIM_HORIZON or LATEST")
        derivation.values["reader.by_fan_out"] = False
        _unused(derivation, _FANOUT_KEYS, "the stream of a DynamoDB table is polled")
        return
    selecting = [name for name in _SELECTING_WHEN_PRESENT if name in derivation.given]
    selecting += [name for name in _POLLING_KEYS if derivation.value_of(name)]
    by_fan_out = mode is RetrievalMode.FANOUT or (mode is RetrievalMode.DEFAULT and not selecting)
    if mode is RetrievalMode.DEFAULT and selecting:
        why = f"DEFAULT polls because {', '.join(selecting)} is set"
        derivation.say(Level.WARNING, "retrievalMode", why, "set retrievalMode=POLLING to say so")
    derivation.values["reader.by_fan_out"] = by_fan_out
    if by_fan_out:
        _fan_out(derivation)
        _unused(derivation, _POLLING_KEYS, "records are read by enhanced fan-out")
    else:
        _unused(derivation, _FANOUT_KEYS, "records are read by polling")


def _fan_out(derivation: Derivation) -> None:
    """Remark which fan-out consumer reads the records, or what is wrong with its ARN."""
    name, arn = derivation.values["fanout.consumer_name"], derivation.values["fanout.consumer_arn"]
    stream = derivation.values["stream_name"]
    if name is None or stream is None or (derivation.is_multi_stream and arn is not None):
        return  # a required key is missing or wrong, and there is a remark about it
    match = None if arn is None else CONSUMER_ARN.fullmatch(str(arn))
    problem = ""
    if arn is not None and match is None:
        problem = NO_CONSUMER_ARN
    elif match is not None and match["stream"] != stream:
        problem = f"is a consumer of the stream {match['stream']}, but {stream} is read"
    if problem:
        remedy = "name the right consumer, or set retrievalMode=POLLING"
        derivation.say(Level.ERROR, "fanoutConfig.consumerArn", problem, remedy)
        return
    each = " of each stream" if derivation.is_multi_stream else ""
    who = f"{name}{each}, which is registered if it is not there and which AWS bills" if arn is None else str(arn)
    derivation.say(Level.INFO, "retrievalMode", f"records are read by enhanced fan-out as the consumer {who}")
    if arn is not None and "fanoutConfig.consumerName" in derivation.given:
        derivation.say(Level.INFO, "fanoutConfig.consumerName", "is not used: fanoutConfig.consumerArn is set")


def _unused(derivation: Derivation, names: tuple[str, ...], why: str) -> None:
    """Remark of each of these keys that the file sets: it is not used, and `why`."""
    for name in names:
        if name in derivation.given:
            derivation.say(Level.INFO, name, f"is not used: {why}")


def _dead_letter(derivation: Derivation) -> None:
    """Check that the keys about failing children fit each other: mld.poisonAttempts needs mld.deadLetter, the policy
    `park`, and a processor that is not `mld-spark`; and no stream may be read that gets the dead letters.
    """
    values, say = derivation.values, derivation.say
    policy, attempts, letter = (
        values["child.failure_policy"],
        values["child.poison_attempts"],
        values["child.dead_letter"],
    )
    assert isinstance(policy, ChildFailurePolicy)
    assert letter is None or isinstance(letter, DeadLetter)
    if attempts is None:
        if letter is not None:
            why = "is not used: mld.poisonAttempts is not set, and without it no record is ever set aside"
            say(Level.WARNING, "mld.deadLetter", why, "set mld.poisonAttempts, for example to 3")
        return
    if letter is None:
        why = "says when a record is set aside, and mld.deadLetter does not say where"
        say(Level.ERROR, "mld.poisonAttempts", why, "set mld.deadLetter, or remove mld.poisonAttempts")
    if policy is not ChildFailurePolicy.PARK:
        why = f"needs a daemon that lives on, and mld.childFailurePolicy is {policy.value}"
        say(Level.ERROR, "mld.poisonAttempts", why, "set mld.childFailurePolicy=park")
    if _runs_spark(derivation):
        why = "does not fit mld-spark, which accepts records long before it commits them"
        say(Level.ERROR, "mld.poisonAttempts", why, "use mld.spark.deadLetter")
    arn = None if letter is None else StreamArn.parse(letter.name)
    if arn is not None and _is_read(derivation, arn):
        why = "is the stream that is read: a record would come back for ever"
        say(Level.ERROR, "mld.deadLetter", why, "name another stream")


def _is_read(derivation: Derivation, arn: StreamArn) -> bool:
    """Return whether a stream is one of those that are read, as far as the file shows."""
    values = derivation.values
    streams = values["streams"]
    assert isinstance(streams, tuple)
    here = (values["stream_name"], values["kinesis.region"])
    read = [
        (one.stream_name, one.region or values["kinesis.region"]) for one in streams if isinstance(one, StreamSetting)
    ]
    return (arn.name, arn.region) in (here, *read)


def _http(derivation: Derivation) -> None:
    """Remark who can read the status page, which asks for no password."""
    address = derivation.values["serving.http"]
    if not isinstance(address, ListenAddress):
        if "mld.httpHosts" in derivation.given:
            derivation.say(Level.WARNING, "mld.httpHosts", "is not used: mld.http is not set", "set mld.http")
    elif not address.is_loopback:
        why = "is not a loopback address: whoever reaches it reads names of shards and workers, lag and errors, unasked"
        remedy = "keep it to a network of your own, or use 127.0.0.1 behind a proxy that asks for a password"
        derivation.say(Level.WARNING, "mld.http", why, remedy)


def _notify(derivation: Derivation) -> None:
    """Refuse a user or password in the webhook's URL, which would not be sent. Remark on details without a webhook."""
    url = derivation.values["serving.notify"]
    if url is None and derivation.values["serving.notify_details"]:
        derivation.say(Level.WARNING, "mld.notifyDetails", "is not used: mld.notify is not set", "set mld.notify")
    if url is not None and "@" in urlsplit(str(url)).netloc:
        remedy = "put what it asks for into the path or the query, as its issuer has given it"
        derivation.say(Level.ERROR, "mld.notify", "has a user or a password before the host", remedy)


def _metrics(derivation: Derivation) -> None:
    """Choose where metrics go (metrics#outputs): to CloudWatch, as with Java, unless the endpoints belong to a stand-in
    for AWS.
    """
    values, say = derivation.values, derivation.say
    if _METRICS_KEY not in derivation.given:
        _default_metrics(derivation)
        return
    outputs = values["metrics.outputs"]
    assert isinstance(outputs, tuple)
    if MetricsOutput.PROMETHEUS in outputs and values["serving.http"] is None:
        why = "has prometheus, and mld.http, where /metrics would be served, is not set"
        say(Level.WARNING, _METRICS_KEY, why, "set mld.http, for example to 127.0.0.1:9404")
    sent = [output.value for output in outputs if output is not MetricsOutput.PROMETHEUS]
    if sent and values["metrics.level"] is MetricsLevel.NONE:
        why = f"has {', '.join(sent)}, and metricsLevel is NONE: nothing is sent"
        say(Level.WARNING, _METRICS_KEY, why, "set metricsLevel to SUMMARY or DETAILED")
    if not sent:
        _unused(derivation, _METRICS_KEYS, f"{_METRICS_KEY} sends metrics nowhere")


def _default_metrics(derivation: Derivation) -> None:
    """Choose the outputs of metrics if mld.metrics is not set: no CloudWatch if Kinesis is a stand-in and CloudWatch
    has no endpoint.
    """
    values, endpoint = derivation.values, derivation.values["kinesis.endpoint"]
    elsewhere = values["cloud_watch.endpoint"] or any(derivation.env.get(name) for name in CLOUDWATCH_VARIABLES)
    if endpoint is None or elsewhere or is_of_aws(str(endpoint)):
        values["metrics.outputs"] = (MetricsOutput.CLOUDWATCH, MetricsOutput.PROMETHEUS)
        return
    derivation.derived("metrics.outputs", (MetricsOutput.PROMETHEUS,), "kinesisEndpoint")
    if values["metrics.level"] is not MetricsLevel.NONE:
        why = "is prometheus only: kinesisEndpoint is no endpoint of AWS, and CloudWatch has none"
        remedy = "set cloudWatchEndpoint, or mld.metrics=cloudwatch to use the CloudWatch of AWS"
        derivation.say(Level.INFO, _METRICS_KEY, why, remedy)


def _processes(derivation: Derivation) -> None:
    """Refuse settings that several workers with the same file cannot share, such as one socket or one Spark session."""
    if derivation.values["processes"] == 1:
        return
    if derivation.values["serving.control_socket"] not in (None, SOCKET_OFF):
        remedy = "remove it: each worker makes one of its own, where the commands find it"
        derivation.say(Level.ERROR, "mld.controlSocket", "names one socket for several workers", remedy)
    if _runs_spark(derivation):
        why = f"asks for several workers, and each would start a Spark session of its own for {SPARK_PROGRAM}"
        derivation.say(Level.ERROR, "mld.processes", why, "remove it: one session uses all CPUs")


def _children_per_shard(derivation: Derivation) -> None:
    """Refuse several children of a shard if all of them would give their records to the one Spark session."""
    if derivation.values["child.children_per_shard"] != 1 and _runs_spark(derivation):
        why = f"asks for several children of a shard, and {SPARK_PROGRAM} gives all records to one Spark session anyway"
        derivation.say(Level.ERROR, "mld.childrenPerShard", why, "remove it: the session uses all CPUs")


def _runs_spark(derivation: Derivation) -> bool:
    """Return whether a command of the file contains the word `mld-spark`, so that it starts that program directly or by
    another.
    """
    streams = derivation.values["streams"]
    assert isinstance(streams, tuple)
    executables = (derivation.values["child.command"], *(one.executable_name for one in streams))
    words = " ".join(text for text in executables if isinstance(text, str)).split()
    return any(PurePath(word).name == SPARK_PROGRAM for word in words)


def _worker_id(derivation: Derivation) -> None:
    """Refuse a worker id that is too long, or that is the key of another row: the worker's report is a row of the lease
    table, and its key is the worker id (coordination#rows-and-tables).
    """
    worker = derivation.value_of("workerId")
    if not isinstance(worker, str):
        return
    if (size := len(worker.encode())) > WORKER_ID_BYTES_MAX:
        message = f"has {size} bytes; as a key of the lease table and a dimension it may have {WORKER_ID_BYTES_MAX}"
        derivation.say(Level.ERROR, "workerId", message, "choose a shorter name, or none: one with the host is made")
    streams = derivation.values["streams"]
    assert isinstance(streams, tuple)
    names = {name for one in streams for name in (one.name, one.stream_name)}
    taken = (*ROW_KEYS, derivation.values["stream_name"], *names)
    # With several streams, the key of a lease is `account:name:epoch:shardId-…`.
    if worker in taken or worker.startswith(SHARD_ID_PREFIX) or f":{SHARD_ID_PREFIX}" in worker:
        message = f"{worker} is the key of another row of the lease table"
        derivation.say(Level.ERROR, "workerId", message, "choose a name that is no shard, stream or row of the KCL")
