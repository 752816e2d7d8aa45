"""The kinds of faults that a worker finds by itself: in its own state, and in the answers of services. Pure.

Most are found in `FleetSight.own`. `mld.operating.verdicts` explains how kinds are declared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mld.metrics.words import DYNAMODB, KINESIS, refusal_words, restart_words
from mld.operating.faults import (
    DOCTOR,
    STUCK,
    TABLE,
    WORKER,
    Found,
    Probe,
    Severity,
    kind,
)
from mld.operating.fleet_sight import FleetSight

SLOW_REMEDIES = {
    DYNAMODB: "find out what is slow (network, host, table); until then a longer failoverTimeMillis helps",
    KINESIS: "find out what is slow: network, host, or the service",
}


@kind(
    "hung",
    Severity.PAGE,
    "A loop of a daemon makes no progress.",
    "Its supervisor restarts it; send the trace in its log.",
    WORKER,
    probe=Probe.LIVE,
    is_own=True,
)
def _hung(sight: FleetSight) -> Iterator[Found]:
    """Find loops of this worker that make no progress."""
    if sight.own is not None and sight.own.late:
        words = ", ".join(f"{one.name} (silent for {one.since_s:.0f} s)" for one in sight.own.late)
        yield Found(sight.own.worker, f"no progress: {words}", "restart it", owner=sight.own.worker)


@kind(
    "config-refused",
    Severity.TICKET,
    "A daemon could not use its properties file, or its list of streams, when it last read it: the next start fails.",
    "mld check shows what is wrong with it; repair the file, then reload.",
    WORKER,
    of_setup=False,
    is_own=True,
)
def _config_refused(sight: FleetSight) -> Iterator[Found]:
    """Find files that this worker has read again and could not use."""
    for file, why in {}.items() if sight.own is None else sight.own.refused.items():
        yield Found(file, refusal_words(why), sight.command("check"), owner=sight.own.worker if sight.own else None)


@kind(
    "restart-needed",
    Severity.NOTE,
    "Keys of the properties file have new values that need a restart.",
    "Restart the daemon when it suits.",
    WORKER,
    alert="MldConfigRefused",
    hold_s=None,
    of_setup=False,
    is_own=True,
)
def _restart_needed(sight: FleetSight) -> Iterator[Found]:
    """Find changed keys that wait for a restart of this worker."""
    if sight.own is not None and sight.own.waiting:
        yield Found(
            sight.own.worker, restart_words(sight.own.waiting), "restart it when it suits", owner=sight.own.worker
        )


@kind(
    "disk-unwritable",
    Severity.PAGE,
    "A daemon or its processor cannot write where it has to: the disk is full, read-only, or does not answer.",
    "mld status names the place and the reason; mld doctor tries it.",
    WORKER,
    of_setup=False,
    is_own=True,
)
def _disk_unwritable(sight: FleetSight) -> Iterator[Found]:
    """Find directories to which this worker or its processor cannot write."""
    return _disks(sight, is_lost=True)


@kind(
    "disk-low",
    Severity.TICKET,
    "Little room is left where a daemon or its processor writes.",
    "mld status names the place; free some room before it is full.",
    WORKER,
    of_setup=False,
    is_own=True,
)
def _disk_low(sight: FleetSight) -> Iterator[Found]:
    """Find directories of this worker or its processor that will soon be full."""
    return _disks(sight, is_lost=False)


def _disks(sight: FleetSight, *, is_lost: bool) -> Iterator[Found]:
    """Find directories of this worker that are full (`is_lost`), or soon will be (not `is_lost`)."""
    for disk in () if sight.own is None else sight.own.disks:
        if disk.is_lost is is_lost:
            yield Found(disk.place, disk.words, disk.remedy, owner=sight.own.worker if sight.own else None)


@kind(
    "table",
    Severity.PAGE,
    "The tables of the application cannot be read.",
    DOCTOR,
    TABLE,
    alert="MldTableUnreached",
    probe=Probe.READY,
    of_setup=False,
)
def _unreached(sight: FleetSight) -> Iterator[Found]:
    """Find that the tables cannot be read, or that this worker cannot reach the lease table."""
    why = sight.unread or (None if sight.own is None else sight.own.unreached)
    if why is not None:
        yield Found("lease table", why, sight.command("doctor"))


@kind(
    "throttled",
    Severity.TICKET,
    "DynamoDB refuses requests for want of capacity.",
    "Set billing to PAY_PER_REQUEST, add capacity, or raise failoverTimeMillis.",
    TABLE,
    alert="MldTableThrottled",
    hold_s=None,
)
def _throttled(sight: FleetSight) -> Iterator[Found]:
    """Find that the lease table is throttled, as this worker sees it."""
    if sight.own is not None and sight.own.is_throttled:
        remedy = "set billing to PAY_PER_REQUEST, add capacity, or raise failoverTimeMillis"
        yield Found("lease table", "it is throttled, so a silent worker may be alive", remedy)


@kind(
    "answers-late",
    Severity.TICKET,
    "DynamoDB answers so late that two workers may deliver the same records, or Kinesis so late that reading is slow.",
    "mld status says which and how late; find out what is slow: the network, the host, or the table.",
    TABLE,
    of_setup=False,
    is_own=True,
)
def _answers_late(sight: FleetSight) -> Iterator[Found]:
    """Find services that answer this worker too slowly."""
    if sight.own is not None:
        for service, words in sight.own.slow.items():
            yield Found(service, words, SLOW_REMEDIES[service], owner=sight.own.worker)


@kind(
    "subscription-contested",
    Severity.PAGE,
    "Somebody takes a subscription of enhanced fan-out again and again: a second application uses its consumer.",
    "Give each application a consumer of its own: fanoutConfig.consumerName or fanoutConfig.consumerArn.",
    "why-is-it-behind",
    of_setup=False,
    is_own=True,
)
def _subscription_contested(sight: FleetSight) -> Iterator[Found]:
    """Find shards of this worker whose subscription another reader takes over again and again."""
    if sight.own is not None:
        remedy = "give each application its own (fanoutConfig.consumerName or consumerArn)"
        yield from _of_shards(sight, sight.own.worker, sight.own.contested, remedy)


@kind(
    "budget-spent",
    Severity.TICKET,
    "Records of a shard ask for more than their budget: lookups of schemas, decoding, lines of the log, dead letters.",
    "The log names records (schema_failed); find their producer, and what it puts into them.",
    "records-ask-for-more-than-their-budget",
    of_setup=False,
    is_own=True,
)
def _budget_spent(sight: FleetSight) -> Iterator[Found]:
    """Find shards of this worker whose records have used up a budget."""
    if sight.own is not None:
        remedy = "find out which producer puts such records: the log and schemaError of the records name them"
        yield from _of_shards(sight, sight.own.worker, sight.own.spent, remedy)


@kind(
    "left-behind",
    Severity.TICKET,
    "The fleet has left the mode of 2.x, and a worker that is set to stay in it takes no leases.",
    "Start it again with another clientVersionConfig, or without.",
    WORKER,
    of_setup=False,
    is_own=True,
)
def _left_behind(sight: FleetSight) -> Iterator[Found]:
    """Find that this worker, set to stay in 2.x, takes no leases, because the fleet has gone on to 3.x."""
    if sight.own is not None and sight.own.left_behind is not None:
        words = f"it takes no leases: the fleet has gone on to {sight.own.left_behind}, and it is set to stay in 2.x"
        remedy = "start it again with another clientVersionConfig, or without"
        yield Found(sight.own.worker, words, remedy, owner=sight.own.worker)


@kind(
    "blind",
    Severity.PAGE,
    "A worker can read none of its shards.",
    DOCTOR,
    STUCK,
    alert="MldUnreadable",
    probe=Probe.READY,
    hold_s=None,
    is_own=True,
)
def _blind(sight: FleetSight) -> Iterator[Found]:
    """Find that this worker can read none of its shards, and why."""
    if sight.own is not None and sight.own.unread is not None:
        yield Found(sight.own.worker, sight.own.unread, sight.command("doctor"), owner=sight.own.worker)


@kind(
    "records-lost",
    Severity.TICKET,
    "Records left the stream before they were read, in the last day.",
    "mld events says between which records and times; get them from their source.",
    "records-lost-to-retention",
    alert="MldRecordsLost",
    is_own=True,
    ends=False,
)
def _lost(sight: FleetSight) -> Iterator[Found]:
    """Find the records that this worker's shards have lost."""
    if sight.own is not None:
        remedy = f"get it from its source ({sight.command('events')} has all losses), and keep records for longer"
        lost = {key: f"lost {words}" for key, words in sight.own.lost.items()}
        yield from _of_shards(sight, sight.own.worker, lost, remedy)


def _of_shards(sight: FleetSight, worker: str, faulty: Mapping[str, str], remedy: str) -> Iterator[Found]:
    """Yield a fault for each shard in `faulty`, which has words on what is wrong, by lease key."""
    for key, words in faulty.items():
        yield Found(key, words, remedy, shard=key, owner=worker, stream=sight.label_of(key))
