"""`Drain`: a worker that an operator drains gives away what it holds, or is given, while others have room for it.

The mark stands on the worker's report (`reports.DRAIN`), and each report that the worker writes reads it back. Leaders
and lookouts of ours respect it, so mostly there is nothing to do here: the operator's command has begun the handoffs. A
Java leader does not know the mark, and a lease may have been on its way when it came.
"""

from __future__ import annotations

import logging

from mld.core.errors import MldError
from mld.core.surviving import survived
from mld.fleet.departure import Departure
from mld.fleet.loops import Tasks
from mld.fleet.report.reports import is_drained
from mld.fleet.values import WorkerReport
from mld.leases import writes
from mld.leases.keeper import LeaseKeeper
from mld.leases.table import LeaseTable, Refusal

log = logging.getLogger(__name__)


class Drain:
    """Told of every report of this worker as it stands in the table."""

    def __init__(self, table: LeaseTable, keeper: LeaseKeeper, departure: Departure) -> None:
        self._table = table
        self._keeper = keeper
        self._departure = departure
        self._giving = Tasks()
        self._is_giving = False
        self.is_on = False

    def on_own_report(self, report: WorkerReport) -> None:
        """The row of this worker, just written."""
        was_on, self.is_on = self.is_on, is_drained(report)
        if self.is_on != was_on:
            words = "drained: %s" if self.is_on else "no longer drained%s"
            action = "worker_drained" if self.is_on else "worker_undrained"
            log.info(words, report.mld.get("drain", ""), extra={"action": action})
        if self.is_on and not self._is_giving:
            self._is_giving = True
            self._giving.spawn(self._give_away())

    def abandon(self) -> None:
        """End without waiting."""
        self._giving.cancel()

    async def _give_away(self) -> None:
        try:
            held = [one.lease for one in self._keeper.held().values() if one.lease.checkpoint_owner is None]
            receivers = await self._departure.receivers_of(lease.key for lease in held) if held else {}
            for lease in held:
                receiver = receivers.get(lease.key)
                if receiver is None:
                    continue
                answer = await self._table.apply(writes.begin_handoff(lease, receiver))
                if not isinstance(answer, Refusal):
                    about = {"action": "lease_drained", "shard": lease.key}
                    log.info("lease %s goes to %s: this worker is drained", lease.key, receiver, extra=about)
        except Exception as error:
            failure: MldError = survived(error, "giving leases away")
            log.warning("not all leases are given away yet: %s", failure, extra={"action": "drain_failed"})
        finally:
            self._is_giving = False
