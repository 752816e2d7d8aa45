"""`Auditor`: the leader's audit of the lease table. It finds shards without a lease, and finished rows that no worker
deletes.

Rules: shards#audit-schedule and the rules that follow it there. `mld.shards.holes` decides what is wrong, and
`mld.shards.graph` decides which rows to create. A worker that does not lead only checks regularly whether it leads by
now.

The first audit begins as soon as a worker leads. Each audit scans the table once, and lists the shards only if the scan
shows that something is wrong. An audit creates rows only by a shard sync, and never deletes a row: abandoned rows are
passed to the clean-up.
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
from mld.shards.stream_leases import StreamLeases
from mld.shards.sync import ShardSync, SyncResult

_log = logging.getLogger(__name__)

LEADERSHIP_POLL_S = 1.0  # as in Java's run loop; usually the election knows the answer without a request
RETRY_S = 10.0  # pause after an audit that could not be completed
FILLS_MAX = 1000  # how many hash ranges one audit adds at most to rows of KCL before 2.3; takes a few seconds


@dataclass(slots=True)
class _Memory:
    """What a leader remembers from one audit to the next. A worker forgets it when it no longer leads."""

    sightings: Mapping[HashRange, int] = field(default_factory=dict)
    """How many audits in a row have seen each hole."""
    ranges: dict[str, HashRange | None] = field(default_factory=dict)
    """The hash ranges that were looked up for rows without one, by shard id; None: the shard is not listed."""
    hopeless: frozenset[str] = frozenset()
    """Missing children that are not listed any more, so that no row can be created for them."""
    finished: Mapping[str, int] = field(default_factory=dict)
    """The counter of each completed row, by shard id."""


@dataclass(eq=False)
class Auditor:
    """Audits the leases of one stream while this worker leads. `run` runs until it is cancelled.

    `on_created` is called when an audit has created rows, `on_abandoned` with each completed row that nobody renews.
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
        self._next_at_s: float | None = None  # None: this worker does not lead

    async def run(self) -> None:
        """Audit as soon as this worker leads, and then every `AUDIT_PERIOD_S` as long as it leads."""
        while True:
            await self.step(await self.is_leader())
            await self.stream.clock.sleep(LEADERSHIP_POLL_S)

    async def step(self, leads: bool) -> None:
        """Audit if this worker `leads` and an audit is due."""
        if not leads:
            self._next_at_s = None
            self._memory = _Memory()
        elif self.is_due(leads):
            completed = await self._audit_or_log()
            self._next_at_s = self.stream.clock.monotonic() + (AUDIT_PERIOD_S if completed else RETRY_S)

    def is_due(self, leads: bool) -> bool:
        """Return whether `step` has anything to do: an audit, or to forget what was found while this worker led."""
        if not leads:
            return self._next_at_s is not None
        return self._next_at_s is None or self.stream.clock.monotonic() >= self._next_at_s

    async def _audit_or_log(self) -> bool:
        """Make an audit, and log an error. Return whether the audit was completed."""
        try:
            with self._worker.operations.audits.all.timed(self.stream.clock.monotonic):
                return await self.audit()
        except Exception as error:
            failure = survived(error, "auditing the leases")
            _log.warning("audit of the leases failed: %s", failure, extra={"action": "audit_failed"})
            return False

    async def audit(self) -> bool:
        """Make one audit, whether or not this worker leads. Return False if the audit could not be completed and must
        be tried again.

        The rows are examined twice. If something is wrong at first, the shards are listed, which explains some of the
        findings; what is still wrong then is repaired by a sync. If the sync finds no missing lease for a hole, the
        hole is only counted. Raises `errors.TableError` and `errors.StreamError`.
        """
        scan = await self.stream.table.scan()
        abandoned_rows, self._memory.finished = abandoned(self._memory.finished, scan.leases)
        for lease in abandoned_rows:
            self.on_abandoned(lease)
        if not self.stream.detector.kind.has_hash_keys and not scan.is_empty:
            return self._is_done(await self.sync.sync(scan))  # without hash keys, no hole shows a missing lease
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
        """Find what is wrong in the rows of a scan. Missing children for which no row can be created are left out."""
        findings = await in_turns(examine(scan.leases, scan.unreadable, self._memory.ranges))
        return findings.without(self._memory.hopeless)

    def _note(self, findings: Findings) -> None:
        """Count the findings in the metrics. In KCL these metrics count streams; here each call is about one stream."""
        audits = self._worker.operations.audits
        audits.partial.note(bool(findings.holes))
        audits.to_sync.note(bool(findings.is_empty or findings.holes or findings.missing_children))
        audits.skipped.note(0)  # one loop audits and syncs, so no audit is skipped
        self._worker.table.holes_of[self.stream.id] = len(findings.holes)

    def _learn(self, findings: Findings, shards: tuple[Shard, ...]) -> None:
        """Remember what the list of shards shows about these findings, so that the same rows do not make the next audit
        list the shards again.
        """
        listed = {shard.shard_id: shard.hash_range for shard in shards}
        self._memory.ranges.update((key, listed.get(key)) for key in findings.rangeless)
        self._memory.hopeless |= findings.missing_children - listed.keys()

    async def _fill(self, scan: TableScan, shards: tuple[Shard, ...]) -> None:
        """Write missing hash ranges into rows (shards#missing-hash-ranges). If one cannot be written, log that and
        stop.
        """
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
        """Create missing rows by a sync with the listed `shards`. If a hole is urgent, sync with a new listing instead.
        Return whether the sync is complete.
        """
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
        """Report the rows that a sync has created, or log why it created none; return whether the sync is complete."""
        if result.created:
            self.on_created()
        if result.sentence:
            fields = {"action": "shard_sync_refused", "status": result.status.value}
            _log.warning("no leases created: %s", result.sentence, extra=fields)
        return result.is_done and not result.postponed
