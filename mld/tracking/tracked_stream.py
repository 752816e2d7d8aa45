"""`TrackedStream`: everything that a worker does for one stream besides holding leases.

Rules: shards#preparing-the-end, shards#parents-before-children, shards#missing-shards, shards#cleanup-schedule. It
connects packages that must not import each other: consumers ask it about their shards (`ShardCare`), and it answers by
the decisions of `mld.shards`. When there are new lease rows, it has the worker's `Fleet` take or assign the leases at
once. When a shard has ended, it wakes the consumers that wait for the parents of their shards.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from random import Random

from mld.consumer.consumer_parts import ShardSource, Signal
from mld.consumer.shard_care import EndVerdict, MissingVerdict
from mld.core.clock import Clock
from mld.core.errors import StreamUnavailableError
from mld.core.log_fields import about
from mld.core.stream_ids import key_of
from mld.core.streams import ChildShard, StreamKind, Streams
from mld.fleet.fleet import Fleet
from mld.leases.lease import Lease
from mld.metrics.registry import Metrics
from mld.properties.settings import Settings
from mld.shards.auditor import Auditor
from mld.shards.cleanup import LeaseCleanup
from mld.shards.detector import ShardsListed
from mld.shards.ending import Blocked, Invalid, Prepared, ShardEnding
from mld.shards.identity import Park, ShardIsListed, ShardIsOver, Survey, oddity
from mld.shards.stream_leases import StreamLeases
from mld.shards.sync import ShardSync
from mld.tracking.parents import ancestors_of, parents_complete

log = logging.getLogger(__name__)

SURVEY_VALID_S = 5.0  # if a stream vanishes, the consumers of all its shards ask at the same time: they share a survey


@dataclass(frozen=True, slots=True)
class TrackingNeeds:
    """The objects and settings that all streams of a worker share."""

    fleet: Fleet
    clock: Clock
    rng: Random
    settings: Settings
    metrics: Metrics
    parents_changed: Signal


class Standing(Enum):
    """What to do with a lease that this worker holds."""

    CONSUMED = "consumed"
    FORMER = "former"
    """No worker is to consume the lease, so it is given back."""
    UNKNOWN = "unknown"
    """The lease is kept for now. `FollowedStreams.on_change` is called when more may be known."""


@dataclass(frozen=True, slots=True)
class OpenedStream:
    """The sources of one stream's records and shards. `name` is the stream's name for people."""

    name: str
    streams: Streams
    source: ShardSource
    kind: StreamKind = StreamKind.KINESIS


@dataclass(eq=False)
class TrackedStream:
    """What a worker does for one stream. Implements `consumer.shard_care.ShardCare`.

    The keys of all leases here, in `leases` and in arguments, are plain shard ids. `on_sync_due` is called with this
    stream's identifier if a shard is found to lack its row.
    """

    needs: TrackingNeeds
    opened: OpenedStream
    leases: StreamLeases
    on_sync_due: Callable[[str | None], None]

    def __post_init__(self) -> None:
        """Make the parts that work on this stream: the sync, the preparation of shard ends, the cleanup and the audit.

        The audit passes abandoned rows to the cleanup. If the cleanup finds that a child has no row, a sync is due.
        """
        leases, settings, fleet = self.leases, self.needs.settings.shards, self.needs.fleet
        ignores = settings.ignores_unexpected_children
        self.sync = ShardSync(leases, initial=self.opened.source.initial, ignore_unexpected_children=ignores)
        self.ending = ShardEnding(leases, self.sync)
        self.cleanup = LeaseCleanup(
            leases, enabled=settings.cleans_up, on_missing_child=lambda _: self.on_sync_due(leases.id)
        )
        self.auditor = Auditor(
            leases,
            self.sync,
            fleet.leader.is_leader,
            on_created=fleet.wake_leases,
            on_abandoned=self.cleanup.enqueue,
        )
        self._waiting_for: dict[str, str] = {}
        """The parent for which each waiting shard waits, to log each wait once."""
        self._parked_because: dict[str, str] = {}
        """Why each parked shard is parked, as it was logged."""
        self._survey_lock = asyncio.Lock()
        self._surveyed: Survey | None = None  # the last survey of rows and shards
        self._surveyed_at = 0.0
        """When the last survey was begun."""

    async def parents_complete(self, lease: Lease) -> bool:
        """Return whether the shard may start, because all its parents have ended. Log each wait for a parent once."""
        blocking = await parents_complete(self.leases.table, lease)
        if blocking is None:
            self._waiting_for.pop(lease.key, None)
            return True
        if self._waiting_for.get(lease.key) != blocking:
            self._waiting_for[lease.key] = blocking
            log.info("waiting for the parent shard", extra=about("waiting_on_parent", lease.key, parent=blocking))
        return False

    async def oddity(self, lease: Lease) -> str | None:
        """Return why the row cannot belong to its shard as listed; None if it can, or if the shard is not known.

        If the shard was not listed yet, the shards are listed now, unless the row has neither a position nor parents: a
        position can be compared with the shard, and with parents the listing is needed for `ancestors`.
        """
        shards = self.leases.detector
        if lease.key not in shards.known and (lease.parents or not lease.checkpoint.is_sentinel):
            await self._survey()
        shard = shards.known.get(lease.key)
        odd = None if shard is None else oddity(shard, lease)
        if odd is not None:
            self._note_parked(lease, odd)
        return odd

    def ancestors(self, lease: Lease) -> tuple[str, ...]:
        return ancestors_of(lease, self.leases.detector.known)

    async def prepare_end(self, lease: Lease, children: Sequence[ChildShard]) -> EndVerdict:
        """Prepare the end of a shard that was read to its end: its child shards need rows first. If rows were created,
        have their leases taken or assigned.
        """
        match await self.ending.prepare(lease, children):
            case Prepared(created):
                if created:
                    self.needs.fleet.adopt_children(tuple(key_of(self.leases.id, shard_id) for shard_id in created))
                return EndVerdict.READY
            case Blocked(reason):
                log.warning("%s", reason, extra=about("shard_end_blocked", lease.key))
                return EndVerdict.WAIT
            case Invalid(reason):
                log.warning("%s; it is read again", reason, extra=about("shard_end_doubted", lease.key))
                return EndVerdict.READ_AGAIN

    async def judge_missing(self, lease: Lease) -> MissingVerdict:
        """Return the verdict on a shard that Kinesis does not find: it is past retention (OVER), or listed after all
        (LISTED), or neither is certain (UNKNOWN), so that the shard is parked.
        """
        match (await self._survey()).judge(lease):
            case ShardIsOver(evidence):
                log.info("the shard is past its retention: %s", evidence, extra=about("shard_expired", lease.key))
                return MissingVerdict.OVER
            case ShardIsListed():
                self._parked_because.pop(lease.key, None)
                return MissingVerdict.LISTED
            case Park(reason):
                self._note_parked(lease, reason)
                return MissingVerdict.UNKNOWN

    def _note_parked(self, lease: Lease, reason: str) -> None:
        """Log why a shard is parked, unless the same reason was logged before."""
        if self._parked_because.get(lease.key) != reason:
            self._parked_because[lease.key] = reason
            log.error("%s", reason, extra=about("shard_parked", lease.key))

    async def _survey(self) -> Survey:
        """Return the survey of rows and shards. Calls within `SURVEY_VALID_S` share one survey."""
        async with self._survey_lock:
            now = self.needs.clock.monotonic()
            if self._surveyed is None or now - self._surveyed_at > SURVEY_VALID_S:
                _, _, self._surveyed = await self.leases.survey()
                self._surveyed_at = now
            return self._surveyed

    def ended(self, lease: Lease) -> None:
        """Note that a shard has ended. Its children need not wait any more, and its row is queued for deletion."""
        self._waiting_for.pop(lease.key, None)
        self._parked_because.pop(lease.key, None)
        self.needs.parents_changed.notify()
        self.cleanup.enqueue(lease)

    async def closed_shards(self) -> frozenset[str]:
        """Return the lease keys of the shards that get no more records. Raises StreamError."""
        listing = await self.leases.detector.list_all()
        if not isinstance(listing, ShardsListed):
            raise StreamUnavailableError(listing.reason)
        return frozenset(key_of(self.leases.id, shard.shard_id) for shard in listing.shards if not shard.is_open)
