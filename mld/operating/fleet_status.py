"""`FleetStatus`: a whole fleet as its tables show it: shards with owner, lag and verdict, workers with their shares.

Pure. One scan of the lease table is enough, because each renewal also writes lag and activity into the row
(`leases.lease.ShardStatus`). A status that is older than two renewals counts as unknown, never as zero. So does the
status of shards whose workers write none, such as Java's. A worker counts as alive if anything that it writes is
recent, its report or a row. If the table refuses writes for lack of capacity, silence does not make a worker dead.
The page of a daemon and the commands of operators show the same values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from mld.core.errors import MldError
from mld.core.steps import SLICE, Steps, at_once, in_order
from mld.core.stream_ids import stream_of_key
from mld.core.streams import HashRange
from mld.fleet.leader.lock import LockRow, SeenLock
from mld.fleet.report.reports import (
    WorkerReport,
    is_expired,
    newest_of_each,
)
from mld.leases.lease import Lease
from mld.metrics.events import Event
from mld.operating.shard_view import (
    ShardView,
    Verdict,
    ViewRules,
    furthest,
    view_shard,
)
from mld.operating.short_ids import names_of
from mld.operating.worker_view import WorkerView, worker_steps
from mld.shards.graph import id_order
from mld.shards.holes import hole_steps

NO_HASH_KEYS = HashRange(0, 1)
"""The hash range that every shard of a DynamoDB stream has."""


class NoStreamError(MldError):
    """The stream that an operator has named has no leases. The text names the streams that have some."""


@dataclass(frozen=True, slots=True)
class FleetStatus:
    """A fleet at one moment."""

    taken_s: float
    """When the tables were read, in epoch seconds by the reader's clock."""
    shards: tuple[ShardView, ...]
    """Sorted by stream and shard id."""
    workers: tuple[WorkerView, ...]
    holes_of: Mapping[str | None, tuple[HashRange, ...]]
    """Hash keys that no open lease covers, by the label of the stream (None: the only one)."""
    corrupt: tuple[tuple[str, str], ...]
    """Keys of rows that cannot be read, with the reason."""
    leader: str | None
    labels: Mapping[str, str] = field(default_factory=dict)
    """Label of each stream by identifier, in a table with several streams."""
    events: tuple[Event, ...] = ()
    """The history, the oldest event first."""
    alerts: frozenset[str] = frozenset()
    """Alerts that were raised and have not ended."""

    @property
    def times_mentioned(self) -> list[float]:
        """All times that rows and events mention, in epoch seconds."""
        times: list[float] = [event.at_s for event in self.events]
        times += [shard.lease.status.at_s for shard in self.shards if shard.lease.status is not None]
        return times + [self.taken_s - one.heard_s for one in self.workers if one.heard_s is not None]

    @property
    def holes(self) -> tuple[HashRange, ...]:
        """Hash keys that no open lease covers, of all streams."""
        return tuple(hole for holes in self.holes_of.values() for hole in holes)

    @property
    def open_shards(self) -> tuple[ShardView, ...]:
        """All shards except those that were read to their end."""
        return tuple(shard for shard in self.shards if shard.verdict is not Verdict.ENDED)

    @property
    def behind_s(self) -> float | None:
        """Lag of the shard that is furthest behind, in seconds; None if no lag is known."""
        return furthest(self.open_shards)

    @property
    def applications(self) -> Mapping[str, tuple[str, ...]]:
        """The living workers by application, if several applications share the table; then they take each other's
        leases. Otherwise empty.
        """
        found: dict[str, list[str]] = {}
        for worker in self.workers:
            if worker.application is not None and worker.is_alive:
                found.setdefault(worker.application, []).append(worker.worker)
        return {name: tuple(workers) for name, workers in sorted(found.items())} if len(found) > 1 else {}

    @property
    def uneven(self) -> tuple[tuple[WorkerView, ...], ...]:
        """The living workers of each machine whose workers hold uneven numbers of leases.

        Uneven means a difference of more than one. Workers that an operator has drained, or has moved leases to, are
        left out.
        """
        # `meter` names the machine or container whose CPU a worker measures.
        by_meter: dict[str, list[WorkerView]] = {}
        pinned = {one.owner for one in self.open_shards if (one.lease.pinned_until_s or 0) > self.taken_s}
        for worker in self.workers:
            if worker.place.meter and worker.is_alive and worker.drained is None and worker.worker not in pinned:
                by_meter.setdefault(worker.place.meter, []).append(worker)
        counts = {meter: [one.leases for one in ones] for meter, ones in by_meter.items()}
        return tuple(tuple(ones) for meter, ones in by_meter.items() if max(counts[meter]) - min(counts[meter]) > 1)

    def count(self, verdict: Verdict) -> int:
        return sum(shard.verdict is verdict for shard in self.shards)


def fleet_status_steps(
    leases: Iterable[Lease],
    reports: Iterable[WorkerReport],
    lock: SeenLock,
    now_s: float,
    rules: ViewRules,
    *,
    corrupt: Iterable[tuple[str, str]] = (),
    labels: Mapping[str, str] | None = None,
) -> Steps[FleetStatus]:
    """Return the fleet that these rows show at `now_s`, epoch seconds by the reader's clock. It is computed in steps,
    so that other tasks can run between them (`core.steps`).

    `lock` is the row that names the leader, and `corrupt` has the keys of unreadable rows with the reasons. `labels`
    are the labels of streams by identifier. The identifier is the label of a stream without one.
    """
    newest = {report.worker: report for report in newest_of_each(reports)}
    known = labels or {}

    def label_of(lease: Lease) -> str | None:
        """Return the label of the lease's stream; None if the lease names no stream."""
        return None if lease.stream is None else known.get(lease.stream, lease.stream)

    rows = yield from in_order(leases, key=lambda lease: (label_of(lease) or "", id_order(lease.shard_id)))
    # When each worker last wrote anything: its report, or the status of a lease.
    heard = {worker: report.updated_at_s for worker, report in newest.items()}
    for number, lease in enumerate(rows):
        if number % SLICE == 0:
            yield
        owner = lease.actual_owner
        if lease.status is not None and owner is not None:
            heard[owner] = max(heard.get(owner) or 0, lease.status.at_s)
    silent = frozenset(
        worker
        for worker, report in newest.items()
        if is_expired(replace(report, updated_at_s=heard[worker]), now_s, rules.reports)
    )
    # When each dead worker was found dead, and by which worker.
    ends = {worker: (at_s, by.worker) for by in newest.values() for worker, at_s in by.ends.items()}
    # A worker that takes over a lease of a dead worker deletes the dead one's report, but other leases may still have
    # the dead worker as owner. So a worker without a report is dead if it has written nothing since it was found dead.
    unreported = ((worker, heard[worker]) for worker in ends if worker not in newest and worker in heard)
    found_dead = frozenset(worker for worker, at_s in unreported if at_s is not None and at_s <= ends[worker][0])
    # While the table refuses writes, a worker that wrote nothing may still be alive.
    dead = found_dead if rules.is_throttled else silent | found_dead
    shards = []
    for number, lease in enumerate(rows):
        if number % SLICE == 0:
            yield
        view = view_shard(lease, dead, now_s, rules)
        shards.append(view if lease.stream is None else replace(view, label=label_of(lease)))
    workers = yield from worker_steps(shards, newest, heard, silent, ends, _leader(lock), now_s, rules)
    unreadable = tuple(corrupt)
    # The hash keys of an unreadable row are unknown. It may cover what looks like a hole, so its stream shows none.
    unsure = {known.get(stream, stream) if (stream := stream_of_key(key)) else None for key, _ in unreadable}
    holes: dict[str | None, tuple[HashRange, ...]] = {}
    for label, of_stream in groupby(shards, key=lambda shard: shard.label):
        found = () if label in unsure else (yield from _holes(tuple(of_stream)))
        if found:
            holes[label] = found
    return FleetStatus(
        taken_s=now_s,
        shards=tuple(shards),
        workers=workers,
        holes_of=holes,
        corrupt=unreadable,
        leader=_leader(lock),
        labels=known,
    )


fleet_status = at_once(fleet_status_steps)
"""`fleet_status_steps`, computed in one go."""


def of_stream(status: FleetStatus, name: str) -> FleetStatus | None:
    """Return the status with the shards of one stream only, and with all workers; None if the stream has no shards.

    `name` is the stream's label, name or identifier (`ACCOUNT:NAME:EPOCH`). In a table of one stream the shards have no
    label (it is None), so there the result is None, too.
    """
    labels: set[str | None] = {name}
    if all(shard.label != name for shard in status.shards):
        ids = {shard.lease.stream: shard.label for shard in status.shards if shard.lease.stream is not None}
        labels = {label for stream, label in ids.items() if name in (stream, stream.split(":")[1])}
    shards = tuple(shard for shard in status.shards if shard.label in labels)
    if not shards or None in labels:
        return None
    holes = {label: found for label, found in status.holes_of.items() if label in labels}
    return replace(status, shards=shards, holes_of=holes)


def chosen(status: FleetStatus, name: str | None) -> FleetStatus:
    """Return the status of one stream, or all of the status if `name` is None. Raises NoStreamError."""
    if name is None:
        return status
    found = of_stream(status, name)
    if found is None:
        labels = sorted({shard.label for shard in status.shards if shard.label is not None})
        has = f"it has {names_of(labels) or 'the form of one stream'}"
        raise NoStreamError(f"the lease table has no stream {name}; {has}")
    return found


def _leader(lock: SeenLock) -> str | None:
    """Return the worker that the lock row names; None if there is no lock, or if it is damaged or released."""
    return lock.owner if isinstance(lock, LockRow) and not lock.is_released else None


def _holes(shards: Sequence[ShardView]) -> Steps[tuple[HashRange, ...]]:
    """Return the hash keys that no open lease covers. Return none if an open row has no hash range, or if the shards
    have no hash keys, as those of a DynamoDB stream.
    """
    known: list[HashRange] = []
    for number, shard in enumerate(shards):
        if number % SLICE == 0:
            yield
        if shard.lease.is_complete:
            continue
        if shard.lease.hash_range is None:
            return ()
        known.append(shard.lease.hash_range)
    if all(one == NO_HASH_KEYS for one in known):
        return ()
    return (yield from hole_steps(known))
