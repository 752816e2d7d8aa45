"""The kinds of faults that the rows of the lease table show without a comparison with the stream, for `verdicts`.
Pure.
"""

from __future__ import annotations

from collections.abc import Iterator

from mld.core.clock import iso_time
from mld.operating.durations import duration
from mld.operating.faults import (
    NAMED_MAX,
    ROWS,
    WORKER,
    Found,
    Probe,
    Severity,
    kind,
)
from mld.operating.fleet_sight import FleetSight
from mld.operating.short_ids import names_of

YOUNGER_S = 5.0
"""How much younger than its rows a table must be to count as made again. Workers wait for a lease duration, which is
longer, before they create a deleted table.
"""
AGE_TOLD_S = 2 * 86_400.0
"""How long after the creation of a table it is still reported that the table was made again."""
UNEVEN_HOLD_S = 600.0
"""How long workers may stay uneven before an alert: handoffs and most acts of operators are over by then."""


@kind(
    "corrupt",
    Severity.PAGE,
    "A row of the lease table cannot be read: nobody reads its shard.",
    "mld leases names it; save the rows (mld export), then repair or delete the row.",
    ROWS,
    probe=Probe.READY,
    hides=("empty", "nothing-open"),
)
def _corrupt(sight: FleetSight) -> Iterator[Found]:
    """Find rows that cannot be read."""
    for key, why in sight.corrupt.items():
        remedy = f"{sight.command('export')} saves all rows; then repair or delete this one"
        yield Found(key, f"the row cannot be read: {why}", remedy, shard=key, stream=sight.label_of(key))


@kind(
    "table-younger",
    Severity.TICKET,
    "The lease table was made again, or restored from a backup, under its fleet.",
    "mld events says when, mld lag whether all shards are read again; find out who deleted it.",
    ROWS,
    alert="MldTableLost",
    hold_s=None,
)
def _table_younger(sight: FleetSight) -> Iterator[Found]:
    """Find a table that was created after the oldest time that its rows mention. A table that is older than AGE_TOLD_S
    is no longer reported.
    """
    created_s, fleet = sight.table_created_s, sight.fleet
    if fleet is None or created_s is None or fleet.taken_s - created_s > AGE_TOLD_S:
        return
    first_s = min(fleet.times_mentioned, default=created_s)
    if first_s < created_s - YOUNGER_S:
        words = f"it is younger than its rows: made at {iso_time(created_s)}, and they tell of {iso_time(first_s)}"
        remedy = f"find out who deleted or restored it; {sight.command('events')} shows how it went on"
        yield Found("lease table", words, remedy)


@kind(
    "clocks-disagree",
    Severity.TICKET,
    "The clock of a worker is more than a minute off, so that what it writes of times means nothing.",
    "mld workers and mld events name it; set the clocks, and keep them set (NTP).",
    WORKER,
)
def _clocks_disagree(sight: FleetSight) -> Iterator[Found]:
    """Find workers whose clocks are wrong, as the leader sees them, or whose last sign of life is in the future."""
    off = dict({} if sight.own is None else sight.own.clocks_off)
    # `heard_s` is negative if the worker's clock is ahead of ours.
    off |= {one.worker: -(one.heard_s or 0.0) for one in (sight.fleet.workers if sight.fleet else ()) if one.is_ahead}
    for worker, ahead_s in sorted(off.items()):
        words = f"clocks disagree: its own is {duration(abs(ahead_s))} {'ahead' if ahead_s > 0 else 'behind'}"
        yield Found(worker, words, "set the clock of its machine, and keep it set (NTP)", owner=worker)


@kind(
    "hole",
    Severity.PAGE,
    "A part of the hash range has no lease: its records are read by nobody.",
    "mld leases shows the hole; the leader fills it unless rows were deleted by hand.",
    ROWS,
    alert="MldHoles",
    probe=Probe.READY,
)
def _holes(sight: FleetSight) -> Iterator[Found]:
    """Find hash keys that no open lease covers. If the tables were not read (`sight.fleet`), this worker's own count is
    used, which it keeps while it leads (`sight.own`).
    """
    remedy = sight.command("doctor")
    for label, holes in ({} if sight.fleet is None else sight.fleet.holes_of).items():
        where = "" if label is None else f" of stream {label}"
        for hole in holes:
            subject = f"{label or ''} hash keys from {hole.start}".strip()
            words = f"no open lease covers the hash keys from {hole.start} to {hole.end}{where}"
            yield Found(subject, words, remedy, stream=label)
    if sight.fleet is None and sight.own is not None:
        for label, count in sight.own.holes.items():
            if count:
                yield Found(
                    f"{label or ''} hash range".strip(), f"{count} parts of it have no lease", remedy, stream=label
                )


@kind(
    "applications",
    Severity.PAGE,
    "Workers that read another stream use the lease table of this application.",
    "mld workers shows who they are and where; set another applicationName (or tableName) for one, or stop it.",
    ROWS,
    alert="MldTwoApplications",
    probe=Probe.READY,
)
def _applications(sight: FleetSight) -> Iterator[Found]:
    """Yield a fault for each stream that workers of this table read, if they read several. Then several applications
    share the table, and take each other's leases.

    A command that has read the tables (`sight.fleet`) knows the workers of each stream; with one stream its
    `applications` is empty. A worker that has not read them uses its own count of workers that read another stream
    (`sight.own.strangers`), which it keeps while it leads.
    """
    remedy = "set another applicationName (or tableName) for one of them, or stop it"
    streams = {} if sight.fleet is None else sight.fleet.applications
    for stream, workers in streams.items():
        yield Found(stream, f"{names_of(workers, NAMED_MAX)} read it, and others another one, by one table", remedy)
    if sight.fleet is None and sight.own is not None and sight.own.strangers:
        words = f"{sight.own.strangers} of its workers read another stream than this one"
        yield Found("lease table", words, f"{sight.command('workers')} shows which; {remedy}")


@kind(
    "uneven",
    Severity.TICKET,
    "Workers of one machine, which measure the same CPU, have very different numbers of leases.",
    "A leader of mld evens them out within seconds; one of Java cannot tell them apart.",
    "a-worker-is-not-well",
    hold_s=UNEVEN_HOLD_S,
)
def _uneven(sight: FleetSight) -> Iterator[Found]:
    """Find machines whose workers hold uneven numbers of leases."""
    for workers in () if sight.fleet is None else sight.fleet.uneven:
        counts = ", ".join(f"{one.worker} {one.leases}" for one in workers[:NAMED_MAX])
        remedy = f"a leader of mld evens it out within seconds; under another one: {sight.command('move')}"
        yield Found(workers[0].place.host or workers[0].worker, f"its workers share unevenly: {counts}", remedy)


@kind(
    "empty",
    Severity.PAGE,
    "The lease table has no lease: nothing is read.",
    "Is a worker running? mld doctor looks at what it needs.",
    ROWS,
    of_setup=False,
)
def _empty(sight: FleetSight) -> Iterator[Found]:
    """Find a table without a lease."""
    if _rows_of(sight) == (0, 0):
        yield Found("lease table", "it has no lease: nothing is read", sight.starts())


@kind(
    "nothing-open",
    Severity.PAGE,
    "All rows of the lease table are at SHARD_END: nothing is read any more.",
    "mld doctor compares them with the stream; a stream of DynamoDB that was switched off and on has a new ARN.",
    ROWS,
    probe=Probe.READY,
)
def _nothing_open(sight: FleetSight) -> Iterator[Found]:
    """Find a table, or a stream of a table with several, whose rows are all at SHARD_END."""
    remedy = f"{sight.command('doctor')} compares them with the stream"
    leases, open_leases = _rows_of(sight) or (0, 0)
    if leases > 0 and open_leases == 0:
        yield Found("lease table", f"its {leases} rows are all at SHARD_END: no shard is read any more", remedy)
        return
    if sight.fleet is not None and sight.fleet.labels:
        live = {shard.label for shard in sight.fleet.open_shards}
        for label in sorted({shard.label for shard in sight.fleet.shards if shard.label is not None} - live):
            yield Found(label, "its rows are all at SHARD_END: no shard is read any more", remedy, stream=label)


def _rows_of(sight: FleetSight) -> tuple[int, int] | None:
    """Return the number of leases in the table, and the number of leases of open shards; None if neither is known."""
    if sight.fleet is not None:
        return len(sight.fleet.shards), len(sight.fleet.open_shards)
    return None if sight.own is None else sight.own.rows
