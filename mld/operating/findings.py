"""Makes findings of `mld doctor`, with words and remedies, from answers of AWS and figures of this machine. Pure.

A finding is `ok`, `warn` (the daemon works or may work, but somebody should look) or `fail` (the daemon cannot work).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from mld.aws.table_calls import MISSING_CODE, REFUSED_CODE, THROTTLING_CODES
from mld.core.clock import iso_time
from mld.core.disks import DiskPlace, DiskRoom, in_words
from mld.core.errors import AwsError, MldError
from mld.fleet.report.reports import WorkerReport, is_expired, newest_of_each
from mld.operating.durations import duration
from mld.operating.faults import FleetFault, Severity
from mld.operating.fleet_sight import FleetSight
from mld.operating.fleet_status import FleetStatus
from mld.operating.shard_view import ViewRules
from mld.operating.verdicts import general_faults
from mld.operating.worker_view import JAVA, UNREPORTED
from mld.properties.settings import FILES_PER_CHILD

CONSUMERS_MAX = 20
"""AWS allows this many consumers of enhanced fan-out for a stream."""
OF_FILES = ("config-refused", "restart-needed")
"""Kinds of faults that a daemon has with its configuration files."""
SKEW_WARN_S = 30.0
SKEW_FAIL_S = 300.0
"""AWS refuses signatures whose time is this far off."""
RETENTION_SHORT_HOURS = 24
FILES_BASE = 100
"""Open files that a daemon needs besides those of its children."""
SILENT, JAVA_3X = "workers that do not report (KCL 2.x, or gone)", "Java 3.x"
_KINDS = {JAVA: JAVA_3X, UNREPORTED: SILENT}
"""Texts for those kinds of workers whose own name does not explain them."""

_REFUSALS = (
    (
        {"AccessDeniedException", "AccessDenied", "UnauthorizedOperation", "AuthorizationError"},
        "{action} is not allowed: {error}",
        "`mld iam-policy` prints the policy that these credentials need",
    ),
    (
        {f"KMS{kind}" for kind in ("AccessDeniedException", "DisabledException", "InvalidStateException")}
        | {"KMSNotFoundException", "KMSOptInRequired"},
        "{action}: the stream's KMS key cannot be used: {error}",
        "allow kms:Decrypt on the key of the stream, in its key policy too, and see that the key is enabled",
    ),
    (
        {"UnrecognizedClientException", "InvalidClientTokenId", "InvalidSignatureException", "SignatureDoesNotMatch"}
        | {"IncompleteSignature", "MissingAuthenticationToken", "MissingAuthenticationTokenException"}
        | {"NotSignedException"},
        "AWS does not accept the credentials: {error}",
        "use other credentials; check that they belong to this partition and region, and that the secret is whole",
    ),
    (
        {"ExpiredToken", "ExpiredTokenException", "RequestExpired"},
        "the credentials have expired: {error}",
        "renew them, and check this machine's clock",
    ),
    (
        {"RequestTimeTooSkewed", "RequestInTheFuture"},
        "AWS refuses this machine's time: {error}",
        "set the clock, and keep it set (NTP)",
    ),
)
"""Words and remedy for a failed call of AWS, by the error codes."""


class Health(Enum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One finding: what was examined (`about`), whether it is well (`health`), a text about it, and what to do."""

    health: Health
    about: str
    words: str
    remedy: str = ""


def ok(about: str, words: str) -> Diagnosis:
    return Diagnosis(Health.OK, about, words)


def warn(about: str, words: str, remedy: str) -> Diagnosis:
    return Diagnosis(Health.WARN, about, words, remedy)


def fail(about: str, words: str, remedy: str) -> Diagnosis:
    return Diagnosis(Health.FAIL, about, words, remedy)


def is_well(findings: Iterable[Diagnosis]) -> bool:
    return all(finding.health is not Health.FAIL for finding in findings)


def finding_value(finding: Diagnosis) -> dict[str, str]:
    """Return a finding in plain values, for JSON."""
    state = finding.health.value
    return {"state": state, "about": finding.about, "words": finding.words, "remedy": finding.remedy}


# --- a call that failed -----------------------------------------------------------------------------------------------


def refusal(about: str, action: str, error: MldError, missing: str = "") -> Diagnosis:
    """Return the finding for a call that failed. `missing` is the remedy if the stream or table does not exist."""
    if not isinstance(error, AwsError):
        return fail(about, f"{action}: {error}", "check network, proxy, region and endpoint of this service")
    for codes, words, remedy in _REFUSALS:
        if error.code in codes:
            return fail(about, words.format(action=action, error=error), remedy)
    if error.code in THROTTLING_CODES:
        remedy = "find out which other program calls so often; the daemon waits and goes on"
        return warn(about, f"{action} is throttled: {error}", remedy)
    if error.code == MISSING_CODE and missing:
        return fail(about, f"{action}: {error}", missing)
    return fail(about, f"{action}: {error}", "look up this error in the documentation of the service")


def is_harmless_refusal(error: MldError) -> bool:
    """Return whether a write was refused only because its condition is not met. That shows that the write is
    permitted.
    """
    return isinstance(error, AwsError) and error.code == REFUSED_CODE


def is_missing(error: MldError) -> bool:
    """Return whether a call failed because its stream, consumer or table does not exist."""
    return isinstance(error, AwsError) and error.code == MISSING_CODE


# --- credentials and clock --------------------------------------------------------------------------------------------


def clock_finding(offset_s: float | None) -> Diagnosis:
    """Judge this machine's clock. `offset_s` is the clock of AWS minus ours; None if no answer had a date."""
    if offset_s is None:
        return warn("clock", "not checked: no answer had a Date header", "compare this machine's clock by other means")
    words = f"this machine's clock is {abs(offset_s):.0f} s {'behind' if offset_s > 0 else 'ahead of'} that of AWS"
    remedy = "set the clock, and keep it set (NTP)"
    if abs(offset_s) >= SKEW_FAIL_S:
        return fail("clock", f"{words}: AWS refuses requests of other programs on this machine", remedy)
    if abs(offset_s) >= SKEW_WARN_S:
        return warn("clock", words, remedy)
    return ok("clock", f"within {max(1.0, abs(offset_s)):.0f} s of the clock of AWS")


def key_hint(access_key: str | None) -> str:
    """Return the last four characters of an access key id, by which its owner can recognize it."""
    return f"…{access_key[-4:]}" if access_key and len(access_key) > 8 else "…"


# --- the stream -------------------------------------------------------------------------------------------------------


def stream_findings(summary: Mapping[str, Any], *, by_fan_out: bool) -> Iterator[Diagnosis]:
    """Yield findings from `summary`, the answer of DescribeStreamSummary. `by_fan_out`: the settings ask for enhanced
    fan-out.
    """
    name, status = summary.get("StreamName", "?"), summary.get("StreamStatus", "?")
    hours = summary.get("RetentionPeriodHours")
    words = f"{name} is {status}, {summary.get('OpenShardCount', '?')} open shards, records are kept {hours} h"
    is_usable = status in ("ACTIVE", "UPDATING")
    yield ok("stream", words) if is_usable else fail("stream", words, "wait until it is ACTIVE")
    if isinstance(hours, int) and hours <= RETENTION_SHORT_HOURS:
        words = f"a shard that stands still for {hours} h loses records"
        yield warn("retention", words, "IncreaseStreamRetentionPeriod, or an alarm on the lag (`mld alerts`)")
    if summary.get("EncryptionType") == "KMS":
        yield ok("encryption", f"by KMS key {summary.get('KeyId', '?')}: reading also needs kms:Decrypt")
    consumers = summary.get("ConsumerCount")
    if isinstance(consumers, int) and (consumers or by_fan_out):
        yield ok("consumers", f"{consumers} of {CONSUMERS_MAX} consumers of enhanced fan-out are registered")


def consumer_finding(name: str, consumers: int | None, error: MldError | None) -> Diagnosis:
    """Judge whether the daemon's consumer of enhanced fan-out is registered, or can be.

    `consumers` is how many consumers the stream has. `error` is the error of DescribeStreamConsumer; None if the call
    found the consumer.
    """
    about = "fan-out consumer"
    if error is None:
        return ok(about, f"{name} is registered")
    if not is_missing(error):
        return refusal(about, "kinesis:DescribeStreamConsumer", error)
    if consumers is not None and consumers >= CONSUMERS_MAX:
        return fail(
            about,
            f"{name} is not registered, and the stream has {consumers} consumers already",
            "deregister one that is not used (DeregisterStreamConsumer), or set retrievalMode=POLLING",
        )
    return ok(
        about, f"{name} is not registered yet; the first start does it (kinesis:RegisterStreamConsumer, not tried)"
    )


# --- the table --------------------------------------------------------------------------------------------------------


def missing_table(name: str, reports: Iterable[WorkerReport], now_s: float, rules: ViewRules) -> Diagnosis:
    """Judge a lease table that does not exist. Either the application is new, or somebody has deleted its table.

    `reports` come from another table of the fleet. A recent report shows that the fleet is running.
    """
    about = "lease table"
    living = [one for one in newest_of_each(reports) if one.updated_at_s and not is_expired(one, now_s, rules.reports)]
    if not living:
        return ok(about, f"{name} does not exist; the first start makes it (dynamodb:CreateTable, not tried)")
    last = max(living, key=lambda one: one.updated_at_s or 0)
    ago = duration(max(0.0, now_s - (last.updated_at_s or 0)))
    return fail(
        about,
        f"{name} does not exist, but its fleet lives: worker {last.worker} reported {ago} ago",
        "its checkpoints are gone: stop it, then `mld restore` a backup, or start anew at initialPositionInStream",
    )


def table_findings(
    table: Mapping[str, Any], *, key: str, index: str | None, open_shards: int | None, lease_duration_s: float
) -> Iterator[Diagnosis]:
    """Yield findings from `table`, the answer of DescribeTable. `key` is the attribute that must be its only key.
    `index` is the name of the index that this fleet needs; None if it needs none. The write capacity must suffice for
    the renewals of `open_shards` leases.
    """
    about, name, status = "lease table", table.get("TableName", "?"), table.get("TableStatus", "?")
    types = {one.get("AttributeName"): one.get("AttributeType") for one in table.get("AttributeDefinitions", ())}
    schema = [(part.get("AttributeName"), part.get("KeyType")) for part in table.get("KeySchema", ())]
    if schema != [(key, "HASH")] or types.get(key, "S") != "S":
        shown = ", ".join(
            f"{one} ({kind}{'' if types.get(one, 'S') == 'S' else ', no string'})" for one, kind in schema
        )
        words = f"{name} is no lease table: its key is {shown or 'unknown'}"
        yield fail(about, words, "set another applicationName, or tableName")
        return
    words = f"{name} is {status}, about {table.get('ItemCount', '?')} rows"
    is_usable = status in ("ACTIVE", "UPDATING")
    yield ok(about, words) if is_usable else warn(about, words, "wait until it is ACTIVE")
    yield _billing(table, open_shards, lease_duration_s)
    if index is not None:
        statuses = {one.get("IndexName"): one.get("IndexStatus") for one in table.get("GlobalSecondaryIndexes", ())}
        missing = "missing; the next start makes it (dynamodb:UpdateTable, not tried)"
        yield ok("owner index", f"{index} is {statuses.get(index, missing)}")


def _billing(table: Mapping[str, Any], open_shards: int | None, lease_duration_s: float) -> Diagnosis:
    """Judge the billing mode. Provisioned capacity must suffice for the renewals of all leases, three in a lease
    duration for each, and for one more write a second.
    """
    mode = table.get("BillingModeSummary", {}).get("BillingMode", "PROVISIONED")
    if mode == "PAY_PER_REQUEST":
        return ok("billing", "pay per request")
    units = table.get("ProvisionedThroughput", {})
    writes = int(units.get("WriteCapacityUnits", 0))
    words = f"provisioned: {units.get('ReadCapacityUnits', '?')} read and {writes} write units"
    needed = 0 if open_shards is None else round(3 * open_shards / lease_duration_s) + 1
    if writes >= needed:
        return ok("billing", words)
    remedy = "set billing to PAY_PER_REQUEST, add capacity, or raise failoverTimeMillis"
    return warn("billing", f"{words}; renewing {open_shards} leases takes about {needed} a second", remedy)


def rows_findings(sight: FleetSight, *, is_3x: bool = True) -> Iterator[Diagnosis]:
    """Yield findings about the lease rows, compared with the listed shards, and about the workers that share the table.
    `is_3x`: the fleet works by the rules of KCL 3.x.
    """
    assert sight.fleet is not None
    if not sight.fleet.shards and not sight.corrupt:
        yield ok("lease rows", "none yet; the first start makes them")
        return
    faults = [fault for fault in general_faults(sight) if fault.declared.of_setup]
    yield from map(diagnosis, faults)
    if not faults:
        # With the shards of the only stream (None) listed, a row of another stream would be a fault.
        listed = ", all of this stream" if None in sight.listed else ""
        yield ok("lease rows", f"{len(sight.fleet.shards)} rows{listed}")
    yield from _versions(sight.fleet, is_3x=is_3x)


def diagnosis(fault: FleetFault) -> Diagnosis:
    """Return a fault as a finding."""
    health = Health.FAIL if fault.severity is Severity.PAGE else Health.WARN
    about = "lease rows" if fault.stream is None else f"{fault.stream}: lease rows"
    return Diagnosis(health, about, f"{fault.subject}: {fault.words}", fault.remedy)


def with_one_remedy(found: Sequence[Diagnosis]) -> list[Diagnosis]:
    """Return the findings with each remedy only once, at the first finding that has it."""
    given: set[str] = set()
    kept = []
    for one in found:
        kept.append(replace(one, remedy="") if one.remedy in given else one)
        given.add(one.remedy)
    return kept


def _versions(status: FleetStatus, *, is_3x: bool) -> list[Diagnosis]:
    """Judge the kinds of workers that share the table.

    Workers of Java 3.x have reports. Workers of Java 2.x have none and are known only as owners of leases, like workers
    that are gone. If the fleet works by the rules of KCL 3.x (`is_3x`), workers of 2.x cannot read its table.
    """
    present = [worker for worker in status.workers if worker.is_alive or (worker.is_alive is None and worker.leases)]
    kinds = sorted({_KINDS.get(worker.kind, worker.kind) for worker in present})
    if not kinds:
        return []
    words = (
        f"all {'are' if kinds[0] == SILENT else 'run'} {kinds[0]}"
        if len(kinds) == 1
        else f"{len(kinds)} kinds share the table: {', '.join(kinds)}"
    )
    if SILENT in kinds and is_3x:
        remedy = "KCL 2.x cannot read the table of this fleet; before one starts: `mld leave-3x` (docs/use/fleets.md)"
        return [warn("workers", f"{words}; the fleet works by the rules of KCL 3.x", remedy)]
    if sum(kind not in (SILENT, JAVA_3X) for kind in kinds) > 1:
        return [warn("workers", words, "finish the deployment")]
    return [ok("workers", words)]


# --- daemons that run here --------------------------------------------------------------------------------------------


def daemon_findings(status: Mapping[str, Any]) -> Iterator[Diagnosis]:
    """Yield the faults that a daemon on this machine has with its files and the disk of its log, from its `mld status`.

    The other disks are left out, because `mld doctor` tries them itself.
    """
    about, loaded_at = f"daemon {status.get('pid', '?')}", status.get("configuration", {}).get("loadedAt")
    faults = [one for one in status.get("faults", ()) if one["kind"] in OF_FILES or one["subject"] == "log"]
    for one in faults:
        yield warn(about, f"{one['subject']}: {one['words']}", one["remedy"])
    if not faults and loaded_at is not None:
        yield ok(about, f"runs with its files as they were at {iso_time(loaded_at)}")


# --- this machine -----------------------------------------------------------------------------------------------------


def disk_finding(place: DiskPlace, room: DiskRoom) -> Diagnosis:
    """Return whether a trial write in a directory succeeded, and how much room its file system has."""
    about, words = f"room for {place.name}", in_words(place, room)
    if words is None:
        return ok(about, f"{place.path} can be written to, {room.free_share:.0%} of its file system is free")
    remedy = room.remedy or "free some room there before it is full"
    return (warn if room.why is None else fail)(about, words.partition(": ")[2], remedy)


def files_finding(shards: int, children_per_shard: int, files_max: int | None) -> Diagnosis:
    """Return whether this machine may open enough files for all shards at once. `files_max` is None if there is no
    limit.
    """
    files = FILES_BASE + FILES_PER_CHILD * children_per_shard * shards
    if files_max is not None and files_max < files:
        each = "" if children_per_shard == 1 else f" with {children_per_shard} children each"
        words = f"{files_max} are allowed; {shards} shards{each} take about {files}"
        return warn("open files", words, f"ulimit -n {2 * files}")
    return ok("open files", f"{'any number' if files_max is None else files_max} allowed")
