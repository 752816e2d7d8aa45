"""The leader's audit of the lease table: which shards lack a lease, and which rows nobody looks after.

Rules: shards#audit-schedule and the rules that follow it there; what a hole is, how sure one may be, and what to create
is in `mld.shards.graph`. Non-leaders only ask whether they lead.

The first audit comes as soon as leadership is won. One scan each; the shards are listed only if the scan has findings.
Never creates a row but by a shard sync, and never deletes one: rows without anybody to delete them go to the clean-up.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field

from mld.core.error_boundary import survived
from mld.core.log_fields import about
from mld.core.periods import AUDIT_PERIOD_S
from mld.core.streams import HashRange, Shard
from mld.core.turns import in_turns
from mld.leases import writes
from mld.leases.lease import Lease
from mld.leases.table import TableScan
from mld.shards.detector import ShardsListed
from mld.shards.holes import Findings, abandoned, examine, is_urgent, ranges_to_fill, sightings
from mld.shards.sync import ShardSync, StreamLeases, SyncResult

_log = logging.getLogger(__name__)

LEADERSHIP_POLL_S = 1.0  # as often as Java's run loop asks; the election remembers who leads
RETRY_S = 10.0  # after an audit that could not be completed: one scan, far from every second
FILLS_MAX = 1000  # rows of KCL before 2.3 that one audit completes; at some 5 ms each a few seconds


@dataclass(slots=True)
class _Memory:
    """What one leadership knows. It ends with it."""

    sightings: Mapping[HashRange, int] = field(default_factory=dict)
    ranges: dict[str, HashRange | None] = field(default_factory=dict)  # for rows that lack one; None: shard not listed
    hopeless: frozenset[str] = frozenset()  # missing children that are not listed any more: nothing to create
    finished: Mapping[str, int] = field(default_factory=dict)  # completed rows and their counters


@dataclass(eq=False)
class Auditor:
    """Audits the leases of one stream while `is_leader` says so. `run` ends only by cancellation.

    `on_created` is told that there are new rows, `on_abandoned` of completed rows that nobody renews.
    """

    stream: StreamLeases
    sync: ShardSync
    is_leader: Callable[[], Awaitable[bool]]
    _: KW_ONLY
    on_created: Callable[[], None]
    on_abandoned: Callable[[Lease], None]

    def __post_init__(self) -> None:
        self._worker = self.stream.metrics.worker
        self._memory = _Memory()
        self._next_at_s: float | None = None  # None: does not lead

    async def run(self) -> None:
        """Audit at once when leadership is won, then every `AUDIT_PERIOD_S` while it lasts."""
        while True:
            await self.step(await self.is_leader())
            await self.stream.clock.sleep(LEADERSHIP_POLL_S)

    async def step(self, leads: bool) -> None:
        """Audit if this worker `leads` and it is time."""
        if not leads:
            self._next_at_s = None
            self._memory = _Memory()
        elif self.is_due(leads):
            completed = await self._audit_or_log()
            self._next_at_s = self.stream.clock.monotonic() + (AUDIT_PERIOD_S if completed else RETRY_S)

    def is_due(self, leads: bool) -> bool:
        """Return whether `step` has something to do."""
        if not leads:
            return self._next_at_s is not None
        return self._next_at_s is None or self.stream.clock.monotonic() >= self._next_at_s

    async def _audit_or_log(self) -> bool:
        try:
            with self._worker.operations.audits.all.timed(self.stream.clock.monotonic):
                return await self.audit()
        except Exception as error:
            failure = survived(error, "auditing the leases")
            _log.warning("audit of the leases failed: %s", failure, extra={"action": "audit_failed"})
            return False

    async def audit(self) -> bool:
        """Make one audit, whoever leads. False if the stream or its list of shards was not fit for it: it is tried
        again.

        A hole that the list of shards does not explain is watched. Raises `errors.TableError` and `errors.StreamError`.
        """
        scan = await self.stream.table.scan()
        rows, self._memory.finished = abandoned(self._memory.finished, scan.leases)
        for lease in rows:
            self.on_abandoned(lease)
        if not self.stream.detector.kind.has_hash_keys and not scan.is_empty:
            return self._is_done(await self.sync.sync(scan))  # no hole would show a shard that lacks its lease
        findings = await self._examine(scan)
        if findings.is_empty or findings.is_clean:
            self._note(findings)
        if findings.is_empty:
            _log.info("the table has no leases", extra={"action": "audit_no_leases"})
            return self._is_done(await self.sync.bootstrap(scan))
        if findings.is_clean:
            self._memory.sightings = {}
            return True
        listing = await self.stream.detector.list_all()
        if not isinstance(listing, ShardsListed) or not listing.shards:
            reason = "ListShards names no shard" if isinstance(listing, ShardsListed) else listing.reason
            _log.warning("audit without a list of shards: %s", reason, extra={"action": "audit_not_done"})
            return False
        self._learn(findings, listing.shards)
        await self._fill(scan, listing.shards)
        findings = await self._examine(scan)
        self._note(findings)
        if not findings.holes and not findings.missing_children:
            self._memory.sightings = {}
            return True
        return await self._repair(scan, findings, listing.shards)

    async def _examine(self, scan: TableScan) -> Findings:
        findings = await in_turns(examine(scan.leases, scan.unreadable, self._memory.ranges))
        return findings.without(self._memory.hopeless)

    def _note(self, findings: Findings) -> None:
        """Count what is missing. KCL counts streams: here there is one."""
        audits = self._worker.operations.audits
        audits.partial.note(bool(findings.holes))
        audits.to_sync.note(bool(findings.is_empty or findings.holes or findings.missing_children))
        audits.skipped.note(0)  # one loop audits and syncs, so that none is skipped
        self._worker.table.holes_of[self.stream.id] = len(findings.holes)

    def _learn(self, findings: Findings, shards: tuple[Shard, ...]) -> None:
        """Remember what only the list of shards can tell, so that it is not listed again for the same rows."""
        listed = {shard.shard_id: shard.hash_range for shard in shards}
        self._memory.ranges.update((key, listed.get(key)) for key in findings.rangeless)
        self._memory.hopeless |= findings.missing_children - listed.keys()

    async def _fill(self, scan: TableScan, shards: tuple[Shard, ...]) -> None:
        """Write the missing hash ranges; a failure is only a warning (shards#missing-hash-ranges)."""
        filled = 0
        for key, hash_range in list(ranges_to_fill(scan.leases, shards).items())[:FILLS_MAX]:
            try:
                filled += await self.stream.table.apply(writes.fill_hash_range(key, hash_range))
            except Exception as error:
                failure = survived(error, "filling in a hash range", key)
                _log.warning("hash range not filled in: %s", failure, extra=about("fill_failed", key))
                break
        if filled:
            _log.info("hash ranges filled in", extra={"action": "ranges_filled", "leases": filled})

    async def _repair(self, scan: TableScan, findings: Findings, shards: tuple[Shard, ...]) -> bool:
        """Sync with the shards just listed; a hole that stays unexplained gets a sync with a listing of its own."""
        counts = sightings(self._memory.sightings, findings.holes)
        self._memory.sightings = counts
        urgent = is_urgent(counts)
        _log.log(
            logging.ERROR if urgent else logging.WARNING,
            "leases are missing: %s",
            findings.sentence(),
            extra={"action": "audit_findings", "sightings": max(counts.values(), default=1)},
        )
        if urgent:
            return self._is_done(await self.sync.sync(scan))
        return self._is_done(await self.sync.sync_with(scan, shards))

    def _is_done(self, result: SyncResult) -> bool:
        if result.created:
            self.on_created()
        if result.sentence:
            about = {"action": "shard_sync_refused", "status": result.status.value}
            _log.warning("no leases created: %s", result.sentence, extra=about)
        return result.is_done and not result.postponed
