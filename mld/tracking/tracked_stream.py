"""`TrackedStream`: everything a worker does for one stream besides holding leases."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from mld.consumer.ports import ShardSource, Signal
from mld.core.clock import Clock
from mld.core.errors import StartupError, StreamNotFoundError, StreamUnavailableError
from mld.core.positions import InitialPosition
from mld.core.streams import StreamKind, Streams
from mld.fleet.fleet import Fleet
from mld.leases.table import TableScan
from mld.metrics.registry import Metrics
from mld.shards.auditor import Auditor
from mld.shards.cleanup import LeaseCleanup
from mld.shards.detector import ShardDetector, ShardsListed
from mld.shards.ending import ShardEnding
from mld.shards.ports import ShardRows
from mld.shards.sync import ShardSync, SyncResult, SyncStatus
from mld.tracking.shard_coordinator import ShardCoordinator


@dataclass(frozen=True, slots=True)
class TrackingNeeds:
    """What all streams of a worker share. `on_missing_child` is told of a finished shard whose child has no row."""

    fleet: Fleet
    clock: Clock
    new_detector: Callable[[Streams, StreamKind], ShardDetector]
    ignore_unexpected_children: bool
    cleans_up: bool
    metrics: Metrics
    parents_changed: Signal


@dataclass(frozen=True, slots=True)
class TrackedStream:
    """The parts of one stream. `name` is how people know it, `stream` its identifier among several, else None."""

    name: str
    stream: str | None
    source: ShardSource
    detector: ShardDetector
    sync: ShardSync
    auditor: Auditor
    cleanup: LeaseCleanup
    coordinator: ShardCoordinator
    take_down: Callable[[], Awaitable[None]] | None
    """What the last worker of a fleet removes of the stream's; None: nothing."""

    def key_of(self, shard_id: str) -> str:
        """The key of a shard's lease."""
        return shard_id if self.stream is None else f"{self.stream}:{shard_id}"

    async def closed_shards(self) -> frozenset[str]:
        """Keys of the shards that take no more records. Raises StreamError."""
        listing = await self.detector.list_all()
        if not isinstance(listing, ShardsListed):
            raise StreamUnavailableError(listing.reason)
        return frozenset(self.key_of(shard.shard_id) for shard in listing.shards if not shard.is_open)


def track(
    needs: TrackingNeeds,
    rows: ShardRows,
    streams: Streams,
    source: ShardSource,
    *,
    name: str,
    stream: str | None,
    kind: StreamKind,
    initial: InitialPosition,
    on_missing_child: Callable[[str], None],
    take_down: Callable[[], Awaitable[None]] | None,
) -> TrackedStream:
    """The parts of the stream behind `streams`, whose leases are `rows`."""
    fleet, clock, metrics = needs.fleet, needs.clock, needs.metrics
    detector = needs.new_detector(streams, kind)
    sync = ShardSync(
        rows,
        detector,
        clock,
        initial=initial,
        ignore_unexpected_children=needs.ignore_unexpected_children,
        metrics=metrics,
    )
    cleanup = LeaseCleanup(
        rows, detector, clock, enabled=needs.cleans_up, on_missing_child=on_missing_child, metrics=metrics
    )

    def adopt(shard_ids: tuple[str, ...]) -> None:
        fleet.adopt_children(shard_ids if stream is None else tuple(f"{stream}:{shard}" for shard in shard_ids))

    coordinator = ShardCoordinator(
        rows,
        detector,
        ShardEnding(rows, sync, detector, clock, metrics),
        cleanup,
        clock,
        parents_changed=needs.parents_changed,
        on_created=adopt,
    )
    auditor = Auditor(
        rows,
        detector,
        sync,
        clock,
        fleet.leader.is_leader,
        on_created=fleet.wake_leases,
        on_abandoned=cleanup.enqueue,
        metrics=metrics,
        stream=stream,
    )
    return TrackedStream(name, stream, source, detector, sync, auditor, cleanup, coordinator, take_down)


def require_rows(result: SyncResult, scan: TableScan) -> bool:
    """Whether a sync at the start may have made rows which `scan` lacks.

    Raises StartupError for a foreign table, `errors.StreamError` for a stream that is not there, or not yet.
    """
    match result.status:
        case SyncStatus.DONE:
            # Nothing created for an empty table means that somebody else was quicker, not that there is nothing.
            return bool(result.created) or not scan.leases
        case SyncStatus.FOREIGN_TABLE:
            raise StartupError(result.sentence)
        case SyncStatus.STREAM_MISSING | SyncStatus.NO_SHARDS:
            raise StreamNotFoundError(result.sentence)
        case SyncStatus.STREAM_NOT_READY | SyncStatus.INCONSISTENT_LISTING:
            raise StreamUnavailableError(result.sentence)
