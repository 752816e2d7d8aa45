"""`Departure`: gives away the leases of a worker that stops, or that holds more than it may.

Rules: coordination#leaving-workers, leases#release-on-stop, coordination#surplus. Before it stops, the worker marks its
report as leaving. Then it gives each lease to a living worker as soon as the lease's consumer has ended
(`GivingAway.leave_to`), instead of leaving that to the next assignment run. The receivers are chosen from a view of the
table. Workers that are leaving or dead get nothing, and drained ones get leases only if no other worker has room
(`FleetMembership`). A consumer may take long to end, so the receiver's report is read once more just before the lease
is given to it. At the end the worker releases leases that were assigned to it meanwhile.

A worker also gives away leases above its limit (its *surplus*), as far as other workers have room. While an operator
drains the worker, the limit is 0. A worker may get too many leases if two workers give it some at the same time, or
from a Java leader, which does not know which workers are drained.

The command that drains a worker marks the worker by an attribute of its report (`reports.DRAIN`), and begins the first
handoffs itself. The worker reads the attribute whenever it writes its report; leaders and failover watchers of mld
respect it, too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass

from mld.core.background_tasks import BackgroundTasks
from mld.core.clock import Clock
from mld.core.error_boundary import contained, survived
from mld.core.errors import MldError, TableError
from mld.fleet.membership import FleetMembership
from mld.fleet.report.reports import WorkerReport, is_drained
from mld.fleet.report.reports_table import StoredReports
from mld.leases import writes
from mld.leases.keeper import LeaseKeeper
from mld.leases.lease import Lease
from mld.leases.table import LeaseTable, Refusal
from mld.leases.table_view import Views

log = logging.getLogger(__name__)

LAST_LOOK_TIMEOUT_S = 2.0
"""How long to look for leases that were assigned lately. Short, because the lock and the report are deleted only
afterwards; a lease that is missed expires.
"""


@dataclass(eq=False)
class Departure:
    """Gives leases of `worker_id` to other workers; none of them gets more than `leases_max`.

    `table` and `views` show only the leases of the streams that this worker consumes, `stored` shows all leases.
    """

    table: LeaseTable
    stored: LeaseTable
    views: Views
    keeper: LeaseKeeper
    reports: StoredReports
    membership: FleetMembership
    clock: Clock
    _: KW_ONLY
    worker_id: str
    leases_max: int

    def __post_init__(self) -> None:
        self._receivers: dict[str, str] = {}
        """The chosen receiver of each lease, when the worker stops."""
        self._asking: dict[str, asyncio.Future[bool]] = {}
        """The requests under way, by receiver; the result is whether that worker may still get leases."""
        self._giving = BackgroundTasks()  # the task that gives surplus leases away
        self._is_giving = False
        """Whether surplus leases are being given away."""
        self._is_drained = False
        """Whether an operator drains this worker."""

    async def name_receivers(self) -> None:
        """Choose a receiver for each held lease; from now on the keeper gives a lease to its receiver when the lease's
        consumer has ended. Until the choice is made, only a lease with a pending handoff has a receiver.
        """
        self.keeper.giving.leave_to(self._receiver_now)
        try:
            self._receivers = await contained(self.receivers_of(self.keeper.held()), "looking for receivers")
        except TableError as error:
            log.warning("leases are released without receivers: %s", error, extra={"action": "heirs_unknown"})

    async def _receiver_now(self, lease: Lease) -> str | None:
        """Return the worker that gets this lease now: the next owner of a pending handoff, else the chosen receiver.
        Return None if neither may receive leases any more.
        """
        for receiver in (lease.handoff_to, self._receivers.get(lease.key)):
            if receiver is not None and await self._may_receive(receiver):
                return receiver
        return None

    async def _may_receive(self, receiver: str) -> bool:
        """Return whether `receiver` may receive leases. Calls for one receiver at the same time share one request."""
        if receiver not in self._asking:
            self._asking[receiver] = asyncio.ensure_future(self._ask(receiver))
            self._asking[receiver].add_done_callback(lambda _: self._asking.pop(receiver))
        return await asyncio.shield(self._asking[receiver])  # a caller that is cancelled must not end the request

    async def _ask(self, receiver: str) -> bool:
        """Read the report of a receiver; return whether it may receive leases. An error counts as no."""
        try:
            return await contained(self.reports.may_receive(receiver), "looking for a receiver")
        except TableError as error:
            log.info("receiver %s is not known to be there: %s", receiver, error, extra={"action": "heirs_unknown"})
            return False

    async def release_late_leases(self) -> None:
        """Release leases of any stream that were assigned to this worker while it was stopping, and that it has never
        held. They are found by a strongly consistent scan, because another read may miss a lease that was assigned a
        moment ago.
        """
        try:
            async with asyncio.timeout(LAST_LOOK_TIMEOUT_S):
                await contained(self._release_late_leases(), "taking a last look")
        except (TableError, TimeoutError) as error:
            log.info("no last look for leases: %s", error, extra={"action": "last_look_failed"})

    async def receivers_of(self, keys: Iterable[str]) -> dict[str, str]:
        """Return the worker that takes over each of these leases, by key, from a new view of the table and all reports.
        A lease without a receiver is not in the result. Raises TableError.
        """
        scan = (await self.views.newer_than(self.clock.monotonic())).scan
        found = await self.reports.all_reports(scan)
        now, wall_s = self.clock.monotonic(), self.clock.wall()
        return self.membership.receivers(keys, scan.leases, found, now, wall_s, self.leases_max)

    async def _release_late_leases(self) -> None:
        """Read all leases, and release those that this worker owns. Raises TableError."""
        for lease in (await self.stored.scan(consistent=True)).leases:
            if lease.actual_owner == self.worker_id and await self.stored.apply(writes.release(lease)):
                log.info("late lease %s released", lease.key, extra={"action": "late_lease", "shard": lease.key})

    # --- leases above the limit ---------------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """How many leases of open shards this worker may have now."""
        return 0 if self._is_drained else self.leases_max

    def on_own_report(self, report: WorkerReport) -> None:
        """Note from this worker's own report, which was just written, whether an operator has begun or ended its
        drain. If this worker holds more leases than it may, begin to give the surplus away.
        """
        was_drained, self._is_drained = self._is_drained, is_drained(report)
        if self._is_drained != was_drained:
            words = "drained: %s" if self._is_drained else "no longer drained%s"
            action = "worker_drained" if self._is_drained else "worker_undrained"
            log.info(words, report.mld.get("drain", ""), extra={"action": action})
        if not self._is_giving and (surplus := self._surplus()):
            self._is_giving = True
            self._giving.spawn(self._give_away(surplus))

    def abandon(self) -> None:
        """Cancel the requests and writes that are under way, without waiting for their end."""
        self._giving.cancel()
        for asking in list(self._asking.values()):
            asking.cancel()

    def _surplus(self) -> list[Lease]:
        """Return the leases to give away: as many as this worker holds above its limit (`room`). Leases of ended
        shards, and leases that are already being handed off, neither count nor are given away.

        Leases that an operator has moved here are kept first, then the leases that this worker has held the longest.
        """
        leases = (one.lease for one in self.keeper.held().values())
        staying = [lease for lease in leases if lease.is_load and lease.checkpoint_owner is None]
        # The keeper returns leases in the order in which they came here, and the sort keeps that order.
        staying.sort(key=lambda lease: lease.pinned_until_s is None)
        return staying[self.room :]

    async def _give_away(self, surplus: Sequence[Lease]) -> None:
        """Begin a handoff of each surplus lease to its receiver, if it has one. After a failure the remaining leases
        wait for the next report of this worker.
        """
        try:
            receivers = await self.receivers_of(lease.key for lease in surplus)
            for lease in surplus:
                receiver = receivers.get(lease.key)
                if receiver is None or (self._is_drained and receiver in self.membership.drained):
                    continue  # another drained worker would only give it away again
                answer = await self.table.apply(writes.begin_handoff(lease, receiver))
                if not isinstance(answer, Refusal):
                    why = "is drained" if self._is_drained else f"may have {self.room}"
                    fields = {"action": "lease_handed_on", "shard": lease.key}
                    log.info("lease %s goes to %s: this worker %s", lease.key, receiver, why, extra=fields)
        except Exception as error:
            failure: MldError = survived(error, "giving leases away")
            log.warning("not all leases are given away yet: %s", failure, extra={"action": "surplus_kept"})
        finally:
            self._is_giving = False
