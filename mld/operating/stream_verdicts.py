"""The kinds of faults that show if the rows of the lease table are compared with the shards of the stream, for
`verdicts`. Pure.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from mld.core.steps import finish
from mld.core.streams import STREAM_DISABLED
from mld.leases.lease import Lease, within_stream
from mld.operating.faults import (
    NAMED_MAX,
    ROWS,
    Found,
    Severity,
    kind,
)
from mld.operating.fleet_sight import FleetSight
from mld.operating.short_ids import names_of
from mld.shards.graph import ShardGraph
from mld.shards.identity import foreign_evidence, oddity


def _leases_of(sight: FleetSight, label: str | None) -> dict[str, Lease]:
    """Return the leases of a stream by shard id, as they would be in a table of only this stream."""
    shards = () if sight.fleet is None else sight.fleet.shards
    return {one.lease.shard_id: within_stream(one.lease) for one in shards if one.label == label}


@kind(
    "foreign",
    Severity.PAGE,
    "The lease table belongs to another stream.",
    "mld doctor says which row proves it.",
    ROWS,
    alert="MldAbsent",
    hides=("hole", "row-missing", "unlisted", "odd", "ended-open", "nothing-open"),
)
def _foreign(sight: FleetSight) -> Iterator[Found]:
    """Find streams with lease rows of another stream: a row proves it, or no row is of a shard of the stream."""
    for label, listed in sight.listed.items():
        leases = _leases_of(sight, label)
        why = finish(foreign_evidence(listed.shards, tuple(leases.values())))
        if why is not None:
            words, _, remedy = why.partition("; ")  # the remedy comes after the semicolon
            yield Found(label or "lease table", words, remedy, stream=label)
        elif leases and listed.shards and not leases.keys() & {shard.shard_id for shard in listed.shards}:
            remedy = (
                f"check streamName, regionName and applicationName; {sight.command('reset', '--to', 'trim-horizon')}"
            )
            words = f"none of its {len(leases)} rows is of a shard of this stream"
            yield Found(label or "lease table", words, f"{remedy} begins anew", stream=label)


@kind(
    "odd",
    Severity.PAGE,
    "A row cannot be of its shard, which is parked.",
    "mld doctor says what is odd, and which command puts it right.",
    ROWS,
    alert="MldShardParked",
)
def _odd(sight: FleetSight) -> Iterator[Found]:
    """Find rows that cannot belong to the shard whose id they have: another hash range, or a checkpoint with a sequence
    number that the shard cannot have.
    """
    for label, listed in sight.listed.items():
        leases = _leases_of(sight, label)
        for shard in listed.shards:
            lease = leases.get(shard.shard_id)
            if lease is not None and (why := oddity(shard, lease)) is not None:
                words, _, remedy = why.partition("; ")  # the remedy comes after the semicolon
                yield Found(shard.shard_id, words, remedy, stream=label)


@kind(
    "ended-open",
    Severity.PAGE,
    "A row is at SHARD_END, and its shard is open: its records are read by nobody.",
    "mld reset --shard lets it begin at another place.",
    ROWS,
    alert="MldHoles",
    hides=("hole", "nothing-open"),
)
def _ended_open(sight: FleetSight) -> Iterator[Found]:
    """Find open shards whose rows are at SHARD_END."""
    for label, listed in sight.listed.items():
        leases = _leases_of(sight, label)
        for shard in listed.shards:
            lease = leases.get(shard.shard_id)
            if shard.is_open and lease is not None and lease.is_complete:
                name = shard.shard_id if label is None else f"{label}:{shard.shard_id}"
                remedy = sight.command("reset", "--shard", shlex.quote(name), "--to", "trim-horizon")
                words = "its row is at SHARD_END, and the shard is open: nobody reads it"
                yield Found(shard.shard_id, words, remedy, stream=label)


@kind(
    "row-missing",
    Severity.PAGE,
    "An open shard has no row, and none of its ancestors is still read: its records are read by nobody.",
    "A running fleet makes the row within minutes; mld doctor names the shard.",
    ROWS,
    alert="MldHoles",
    hides=("hole", "empty"),
)
def _row_missing(sight: FleetSight) -> Iterator[Found]:
    """Find open shards without a row, none of whose ancestors is still read. Unreadable rows count as rows."""
    for label, listed in sight.listed.items():
        leases = _leases_of(sight, label)
        known = {*leases, *(key.rpartition(":")[2] for key in sight.corrupt if sight.label_of(key) == label)}
        graph, lacking = ShardGraph(listed.shards), []
        for shard in listed.shards if leases else ():  # a table without leases is a fault of its own, `empty`
            if shard.is_open and shard.shard_id not in known:
                above = finish(graph.above([shard.shard_id]))
                if not any(one in leases and not leases[one].is_complete for one in above):
                    lacking.append(shard.shard_id)
        if lacking:
            names = names_of(lacking, NAMED_MAX)
            words = f"{len(lacking)} open shard{'s have' if len(lacking) > 1 else ' has'} no row"
            remedy = f"a running fleet makes them within minutes: {sight.starts()}"
            yield Found(names, words, remedy, stream=label)


@kind(
    "unlisted",
    Severity.NOTE,
    "Open rows are of shards that Kinesis does not list any more.",
    "The daemon ends them once it is certain that they are past retention.",
    ROWS,
    alert="MldShardParked",
    hold_s=None,
)
def _unlisted(sight: FleetSight) -> Iterator[Found]:
    """Find unfinished rows of shards that the service does not list any more."""
    for label, listed in sight.listed.items():
        names = {shard.shard_id for shard in listed.shards}
        gone = sorted(
            one for one, lease in _leases_of(sight, label).items() if one not in names and not lease.is_complete
        )
        if gone and listed.shards:
            words = (
                f"{len(gone)} open row{'s are of shards' if len(gone) > 1 else ' is of a shard'} not listed any more"
            )
            remedy = "the daemon ends them once it is certain that they are past retention"
            yield Found(names_of(gone, NAMED_MAX), words, remedy, stream=label)


@kind(
    "stream-off",
    Severity.PAGE,
    "The stream of the DynamoDB table is switched off: no change is recorded under this ARN.",
    "Set streamArn to the table's LatestStreamArn.",
    ROWS,
    alert="MldNothingOpen",
    hides=("nothing-open", "unlisted"),
)
def _stream_off(sight: FleetSight) -> Iterator[Found]:
    """Find streams of DynamoDB tables that are switched off."""
    for label, listed in sight.listed.items():
        if listed.status == STREAM_DISABLED:
            words = "it is switched off: changes since are not recorded, or under the ARN of a stream switched on since"
            remedy = "set streamArn to the table's LatestStreamArn; what this one has lasts 24 hours"
            yield Found(label or "stream", words, remedy, stream=label)
