"""`collect`: finds the line or override that counts for each known key, and remarks on the others.

Rules: configuration#last-assignment-wins, configuration#key-matching, configuration#obsolete-keys. The last line of a
key counts, whatever spelling it uses; an override counts more than any line. Unknown keys are usually ignored, with a
warning that names them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from mld import pip_install
from mld.properties import keys
from mld.properties.java_properties import remedy_for
from mld.properties.keys import PROPERTIES
from mld.properties.keytypes import OWN_PREFIX, Key
from mld.properties.lines import FileEntry
from mld.properties.redaction import shown_name
from mld.properties.remarks import OVERRIDE_PLACE, Level, Remark, nearest
from mld.properties.settings import STREAM_PREFIX, STREAMS

NEAREST_CUTOFF = 0.75  # if the similarity is lower, a suggestion misleads more often than it helps
SPARK_PREFIX = "mld.spark."  # keys that begin with this are read by `spark`
_JAVA_REFUSES_PREFIXES = ("kinesisClient.", "dynamoDbClient.", "cloudWatchClient.")
OBSOLETE: dict[str, str] = {
    "userAgent": "remove it",
    "kinesisClientConfig": "remove it, or use kinesisClient.…",
    "commonClientConfig": "remove it",
    "dynamoDBClientConfig": "remove it, or use dynamoDbClient.…",
    "cloudWatchClientConfig": "remove it, or use cloudWatchClient.…",
    "timestampAtInitialPositionInStream": "use initialPositionInStreamExtended with epoch seconds",
    "skipShardSyncAtStartupIfLeasesExist": "use skipShardSyncAtWorkerInitializationIfLeasesExist",
    "shardPrioritizationStrategy": "remove it; shards have no priorities",
    "shardSyncStrategyType": "remove it; the leader syncs shards",
    "maxPendingProcessRecordsInput": "remove it; read-ahead is fixed",
    "maxCacheByteSize": "remove it; read-ahead is fixed",
    "dataFetchingStrategy": "remove it; records are always read ahead",
    "maxRecordsCount": "use maxRecords",
    "idleMillisBetweenCalls": "use idleTimeBetweenReadsInMillis",
    "billingMode": "use mld.leaseTableBillingMode",
    "maxInitializationAttempts": "remove it; it is fixed to 20",
    "leaseCleanupIntervalMillis": "remove it; leases are cleaned up every minute",
    "completedLeaseCleanupThresholdMillis": "remove it; it is fixed to 5 minutes",
    "garbageLeaseCleanupThresholdMillis": "remove it; it is fixed to 30 minutes",
    "leasesRecoveryAuditorExecutionFrequencyMillis": "remove it; leases are audited every 2 minutes",
    "leasesRecoveryAuditorInconsistencyConfidenceThreshold": "remove it; it is fixed to 3",
    "namespace": "remove it; metrics are published under applicationName",
    "consistentReads": "remove it",
    "streamTracker": "use mld.streams",
    "leaseAssignmentStrategy": "remove it",
    "streamInfoMode": "remove it",
    "readTimeoutsToIgnoreBeforeWarning": "remove it",
    "gracefulLeaseHandoffEnabled": "use isGracefulLeaseHandoffEnabled",
    "kinesisCredentialsProvider.class": "use AwsCredentialsProvider",
    "dynamoDBCredentialsProvider.class": "use AwsCredentialsProviderDynamoDB",
    "cloudWatchCredentialsProvider.class": "use AwsCredentialsProviderCloudWatch",
}
"""Keys of KCL 1.x, and names that look like keys but never were, each with what to do instead. Java 3.x ignores
them."""
REMOVED: dict[str, str] = {
    "mld.deadLetterEndpoint": "remove it, and set AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL_KINESIS for another endpoint",
    "mld.deregisterConsumer": "remove it; `aws kinesis deregister-stream-consumer` ends what AWS bills",
    "mld.childRestartBackoffMaxMillis": "remove it; no pause exceeds 5 minutes",
    "mld.childRestartsMax": "remove it; with mld.childFailurePolicy=restart the daemon gives up after 5 restarts",
    "mld.childLog": "remove it; JSON objects that children log become fields of the daemon's own lines",
    "mld.recordStreamName": "remove it; a child reads one stream, named by MLD_STREAM_NAME and in `initialize`",
    "mld.formerStreamsWait": "remove it; with mld.formerStreams=delete rows are deleted after an hour",
    "mld.catchUpIntervalMillis": "remove it; a shard that is behind is read every 200 ms",
    "mld.heartbeat": (
        "remove it; each lease is renewed. For a smaller bill raise failoverTimeMillis: 30000 in place of 10000 is a "
        "third of the writes, and planned moves do not wait for it"
    ),
    "mld.eventLoop": f"remove it; uvloop is used where it is installed ({pip_install('fast')})",
    "mld.wireClient": "remove it; what the daemon's own client cannot do is left to botocore",
    "mld.schemaRegistry.region": (
        "remove it; the registry is asked in the region of Kinesis. For one elsewhere set mld.schemaRegistry=strip, "
        "and decode in the child"
    ),
    "mld.schemaRegistry.endpoint": "remove it, and set AWS_ENDPOINT_URL_GLUE for another endpoint",
    "mld.schemaRegistry.cacheSize": "remove it; 200 schema versions are kept",
    "mld.schemaRegistry.timeToLiveMillis": "remove it; schema versions are kept for a day",
    "mld.schemaRegistry.directory": "remove it; definitions are written below TMPDIR",
    "mld.schemaRegistry.inline": "remove it; children read the definition from schemaFile",
    "mld.schemaRegistry.validate": "remove it, and validate in the child",
}
"""Keys of earlier versions of mld, each with what to do instead."""


@dataclass(frozen=True, slots=True)
class KeyLine:
    """The line that sets a key. `place` is the file and line, or `-D` for an override. `raw` is its value as written:
    it is not trimmed, and `${NAME}` is not replaced.
    """

    key: Key
    spelling: str
    raw: str
    place: str

    def remark(self, level: Level, message: str, remedy: str = "") -> Remark:
        return Remark(level, self.spelling, self.place, message, remedy)


def collect(
    file_name: str, entries: Iterable[FileEntry], overrides: Iterable[tuple[str, str]]
) -> tuple[dict[str, KeyLine], list[Remark]]:
    """Return the lines that count, by the key's name and in the order of the file; and remarks on lines with unknown
    keys, and on lines that a later one replaces. Keys of the Spark processor are left to `spark`.
    """
    counting: dict[str, KeyLine] = {}
    remarks: list[Remark] = []
    for place, name, raw in all_lines(file_name, entries, overrides):
        key = keys.find(name)
        if key is None:
            if name.startswith((STREAM_PREFIX, f"{STREAMS}.")):
                remarks.append(_unknown_of_stream(name, place))
            elif name and not name.startswith(SPARK_PREFIX):
                remarks.append(_unknown(name, place))
            continue
        line = KeyLine(key, keys.canonical_spelling(name), raw, place)
        earlier = counting.pop(key.name, None)  # removed, so that the key moves to the place of its last line
        if earlier is not None:
            remarks += _repeated(earlier, line)
        counting[key.name] = line
    return counting, remarks


def all_lines(
    file_name: str, entries: Iterable[FileEntry], overrides: Iterable[tuple[str, str]]
) -> Iterator[tuple[str, str, str]]:
    """Yield the place, the key and the raw value of every line, and then of every override."""
    for entry in entries:
        yield f"{file_name}:{entry.line}", entry.key, entry.value
    for name, raw in overrides:
        yield OVERRIDE_PLACE, name, raw


def _repeated(earlier: KeyLine, later: KeyLine) -> list[Remark]:
    """Warn if two lines set the same key, which is probably a mistake. An override may replace a line without a
    warning.
    """
    if later.place == OVERRIDE_PLACE and earlier.place != OVERRIDE_PLACE:
        return []
    if earlier.spelling == later.spelling:
        message = f"already given at {earlier.place}; the last one counts"
    else:
        message = f"is the same setting as {earlier.spelling} at {earlier.place}; the last one counts"
    return [later.remark(Level.WARNING, message, "remove one of the two")]


def _unknown_of_stream(name: str, place: str) -> Remark:
    """Return an error about a misspelled key of a stream; if it were ignored, the stream would be read without that
    setting.
    """
    meant = name.replace(f"{STREAMS}.", STREAM_PREFIX, 1)
    if meant != name and keys.find(meant) is not None:
        return Remark(Level.ERROR, shown_name(name), place, "is no key", f"write {shown_name(meant)}")
    listed = f"{', '.join(PROPERTIES[:-1])} and {PROPERTIES[-1]}"
    remedy = f"a stream has {listed}: write {STREAM_PREFIX}<name>.<one of these>"
    return Remark(Level.ERROR, shown_name(name), place, "is no key of a stream", remedy)


def _unknown(name: str, place: str) -> Remark:
    """Return the remark on an unknown key, with what to write or do instead, if that is known."""
    remark = Remark(Level.WARNING, shown_name(name), place, "is no known key and is ignored")
    stem = name.rstrip("*")
    if stem in OBSOLETE:
        return replace(remark, message="is a key of KCL 1.x or of none, and is ignored", remedy=OBSOLETE[stem])
    if name in REMOVED:
        return replace(remark, message="is a key of mld 0.2 and is ignored", remedy=REMOVED[name])
    if (instead := remedy_for(name)) is not None:
        if place == OVERRIDE_PLACE:  # it had an effect under Java; without it the daemon would go past a proxy
            message = "is a system property of Java, and mld has no JVM"
            return replace(remark, level=Level.ERROR, message=message, remedy=instead)
        return replace(remark, message="is a system property of Java, no key, and is ignored", remedy=instead)
    if name.startswith("userAgent"):
        return replace(remark, message="is a key of KCL 1.x and is ignored", remedy=OBSOLETE["userAgent"])
    if name.startswith(_JAVA_REFUSES_PREFIXES):
        remark = replace(remark, message="is no supported client setting and is ignored; Java refuses to start with it"
                         " unless its SDK knows it")  # fmt: skip
    same = next((known for known in keys.BY_NAME if known.lower() == name.lower()), None)
    if same is not None:
        return replace(remark, message="is ignored because of upper and lower case", remedy=f"write {same}")
    own = OWN_PREFIX + name
    meant = own if own in keys.BY_NAME else nearest(name, keys.BY_NAME, NEAREST_CUTOFF)
    return replace(remark, remedy=f"did you mean {meant}?") if meant else remark
