"""`LeaseDiscovery`: finds the leases that the leader has assigned to this worker, so that the keeper holds them.

Rules: leases#discovery-of-assigned-leases, leases#owner-index. Java holds a lease as soon as it has read the row. Here
a read is not enough: the row is renewed first, and the lease counts as held from the time at which that renewal was
sent.

The index of leases by owner is eventually consistent: it may name rows that are not ours any more, and each of these
costs only a read. If the previous owner of a row is still finishing, the row is read again twice a second until it
belongs to us or to a third worker. The failover watcher passes on each scan of the whole table (`saw_table`), and the
next query of the index is due one period after that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass, field

from mld.core.clock import Clock
from mld.core.error_boundary import survived
from mld.core.periods import DISCOVERY_PERIOD_S, QUERY_SPACING_S_MAX
from mld.core.waits import wait_for_event
from mld.leases.keeper import LeaseKeeper
from mld.leases.lease import Lease
from mld.leases.table import LeaseIndex, LeaseTable
from mld.metrics.registry import Metrics

log = logging.getLogger(__name__)

PENDING_POLL_S = 0.5
"""Pause between two reads of a row whose previous owner is finishing. Short, because nobody reads the shard from the
release of the lease until our next read of the row.
"""
DUE_MARGIN_S = 0.001  # added to timers, which may fire slightly early: then their work is certainly due
GETS_CONCURRENT_MAX = 10  # renewals keep the other half of the concurrent requests


@dataclass(eq=False)
class LeaseDiscovery:
    """Looks for new leases once per `DISCOVERY_PERIOD_S`, earlier when woken."""

    table: LeaseTable
    index: LeaseIndex
    keeper: LeaseKeeper
    clock: Clock
    _: KW_ONLY
    worker_id: str
    metrics: Metrics = field(default_factory=Metrics)

    def __post_init__(self) -> None:
        self._counts = self.metrics.worker.operations.discovery
        self._discovered = 0  # leases discovered since the last query of the index
        self._list_due = asyncio.Event()  # set by `wake`, to query the index now
        self._listed_at = self.clock.monotonic()
        """When the last query of the index ended."""
        self._shown_at = self.clock.monotonic()
        """When the failover watcher last passed on a scan of the whole table."""
        self._leads_alone = False
        """Whether this worker leads and there is no other worker. Then the index is queried less often, because nobody
        else can assign a lease to it.
        """
        self._waiting: dict[str, None] = {}  # keys of rows to read, in order, each once
        self._has_waiting = asyncio.Event()
        self._looking: set[str] = set()  # keys of the rows that are being read now
        self._pending: dict[str, float] = {}
        """The rows whose previous owners are still finishing, by key, with the time at which to read each again."""
        self._pending_changed = asyncio.Event()

    def wake(self, keys: Iterable[str] = ()) -> None:
        """Read these rows now; without `keys`, query the index now."""
        keys = tuple(keys)
        if keys:
            self._enqueue(keys)
        else:
            self._list_due.set()

    def saw_table(self, leases: Iterable[Lease], *, leads_alone: bool) -> None:
        """Look at the rows of a scan of the whole table. `leads_alone`: this worker leads and there is no other worker,
        so nobody else can have assigned a lease to it.
        """
        self._shown_at = self.clock.monotonic()
        self._leads_alone = leads_alone
        self._enqueue_new(lease.key for lease in leases if self.worker_id in (lease.owner, lease.checkpoint_owner))

    async def run(self) -> None:
        """Discover leases until cancelled. Failures are logged and retried. Each lease is held as soon as its row is
        ours.

        Cancel this before the worker gives its leases away; otherwise a lease that could not be given away is
        discovered again.
        """
        async with asyncio.TaskGroup() as tasks:
            for _ in range(GETS_CONCURRENT_MAX):
                tasks.create_task(self._look_forever())
            tasks.create_task(self._poll_pending_forever())
            await self._list_forever()

    @property
    def pending(self) -> frozenset[str]:
        """Keys of the leases that are assigned to us, but whose previous owners are still finishing."""
        return frozenset(self._pending)

    # --- what to look at ----------------------------------------------------------------------------------------------

    async def _list_forever(self) -> None:
        """Look up our leases in the index, again and again: when that is due, or earlier when woken."""
        while True:
            self._list_due.clear()
            await self._list()
            self._listed_at = self.clock.monotonic()
            while (wait_s := self._next_list_at() - self.clock.monotonic()) > 0:
                if await wait_for_event(self._list_due, wait_s + DUE_MARGIN_S):
                    break

    def _next_list_at(self) -> float:
        """Return when to query the index next: a period after the last query, or after the last scan of the whole table
        (`_shown_at`), which shows the same; much later if this worker leads alone.
        """
        latest = self._listed_at + QUERY_SPACING_S_MAX
        if self._leads_alone:  # nobody else assigns leases, so a query only finds leases that this worker has lost
            return latest
        return min(latest, max(self._listed_at, self._shown_at) + DISCOVERY_PERIOD_S)

    async def _list(self) -> None:
        """Look up the keys of our leases in the index, and have the rows read that we do not hold yet."""
        now = self.clock.monotonic
        try:
            with self._counts.all.timed(now), self._counts.list_keys.timed(now):
                keys = await self.index.keys_owned_by(self.worker_id)
        except Exception as error:
            failure = survived(error, "looking for assigned leases")
            log.warning("cannot look for assigned leases: %s", failure, extra={"action": "discovery_failed"})
            return
        discovered, self._discovered = self._discovered, 0
        self._counts.discovered.note(discovered)
        self._enqueue_new(keys)

    def _enqueue_new(self, keys: Iterable[str]) -> None:
        """Have the rows read that are neither held nor waiting for their previous owner."""
        self._enqueue(key for key in keys if not self.keeper.has(key) and key not in self._pending)

    async def _poll_pending_forever(self) -> None:
        """Have each pending row (its previous owner is still finishing) read again when that is due, until cancelled.
        `_look` then sets the row's next time, or removes the row; until it has done so, no timer is set for the row.
        """
        while True:
            self._pending_changed.clear()
            now = self.clock.monotonic()
            self._enqueue(key for key, due_at in self._pending.items() if due_at <= now)
            next_at = min((due_at for due_at in self._pending.values() if due_at > now), default=None)
            await wait_for_event(self._pending_changed, None if next_at is None else next_at - now + DUE_MARGIN_S)

    def _enqueue(self, keys: Iterable[str]) -> None:
        """Have these rows read, except those that are being read now."""
        self._waiting.update((key, None) for key in keys if key not in self._looking)
        if self._waiting:
            self._has_waiting.set()

    # --- looking ------------------------------------------------------------------------------------------------------

    async def _look_forever(self) -> None:
        """Read the rows that wait to be read (`_enqueue`), one after the other. Several tasks do this at the same time,
        until they are cancelled.
        """
        while True:
            while not self._waiting:
                self._has_waiting.clear()
                await self._has_waiting.wait()
            key = next(iter(self._waiting))
            del self._waiting[key]
            self._looking.add(key)
            try:
                await self._look(key)
            finally:
                self._looking.discard(key)

    async def _look(self, key: str) -> None:
        """Read one row. If it is ours, hold the lease; if its previous owner is still finishing, read it again
        later.
        """
        try:
            with self._counts.fetch_new.timed(self.clock.monotonic):
                lease = await self.table.get(key)
        except Exception as error:
            self._counts.get_lease_error.note(1)
            failure = survived(error, "looking at a lease", key)
            log.warning("cannot read %s: %s", key, failure, extra={"action": "discovery_failed", "shard": key})
            if key in self._pending:
                self._look_again(key)
            return
        if lease is not None and lease.owner == self.worker_id and lease.actual_owner != self.worker_id:
            self._await_previous_owner(lease)
            return
        self._pending.pop(key, None)
        if lease is None or lease.actual_owner != self.worker_id:
            self._counts.owner_mismatch.note(1)
        if lease is not None and await self.keeper.resumer.reacquire([lease]):
            self._discovered += 1
            log.info("lease %s discovered", key, extra={"action": "lease_discovered", "shard": key})

    def _await_previous_owner(self, lease: Lease) -> None:
        """Look at the lease again soon, because its previous owner has not released it yet. Log the first time."""
        if lease.key not in self._pending:
            log.info(
                "waiting for %s to finish %s",
                lease.checkpoint_owner,
                lease.key,
                extra={"action": "handoff_awaited", "shard": lease.key},
            )
        self._look_again(lease.key)

    def _look_again(self, key: str) -> None:
        """Have a row read again after `PENDING_POLL_S`."""
        self._pending[key] = self.clock.monotonic() + PENDING_POLL_S
        self._pending_changed.set()
