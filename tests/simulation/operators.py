"""What operators do to a living fleet, by the plans of `mld`'s commands: shards are moved, released and paused, workers
drained, children started again and single records left out; and all that undone.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from mld.aws.service import Service
from mld.core.clock import Clock
from mld.fleet.membership import LEASES_MAX
from mld.leases.dynamodb import DynamoLeaseTable
from mld.leases.rows import LEASE_TABLE_KEY, Place
from mld.operating.fleet_reader import FleetReader, view_rules
from mld.operating.fleet_status import FleetStatus
from mld.operating.open_services import REQUEST_TIMEOUT_S
from mld.operating.plan import ActPlan, ActRefusedError, Fate
from mld.operating.steering import (
    plan_drain,
    plan_leave_out,
    plan_move,
    plan_pause,
    plan_release,
    plan_restart,
    plan_resume,
    plan_undrain,
)
from mld.operating.table_access import carry_out
from mld.properties.settings import Settings
from tests.support.fleet import TABLE

REPORTS = Place(TABLE, LEASE_TABLE_KEY)
ENDS_TRIES_MAX = 20


class Operators:
    """Acts at random, reaching the table by `service`. `put` puts a record that may be left out: (lease, sequence)."""

    def __init__(
        self,
        service: Service,
        settings: Settings,
        clock: Clock,
        rng: Random,
        put: Callable[[], tuple[str, str]],
        *,
        is_3x: bool,
        leases_max: int = LEASES_MAX,
    ) -> None:
        leases = DynamoLeaseTable(service, clock, table_name=TABLE, request_timeout_s=REQUEST_TIMEOUT_S)
        self.reader = FleetReader(settings, service, leases, clock, view_rules(settings))
        self._leases = leases
        self._clock = clock
        self._rng = rng
        self._put = put
        self._is_3x = is_3x
        self._leases_max = leases_max

    def plan(self, name: str, seen: FleetStatus) -> ActPlan:
        """A drawn act of this name. Raises ActRefusedError if it cannot be done."""
        if not seen.open_shards or not seen.workers:
            raise ActRefusedError("nothing is there")
        shard = self._rng.choice(seen.open_shards).key
        worker = self._rng.choice(seen.workers).worker
        match name:
            case "move":
                return plan_move(seen, shard, worker, is_3x=self._is_3x, now_s=self._clock.wall())
            case "release":
                return plan_release(seen, [shard], self._leases_max, is_3x=self._is_3x)
            case "drain":
                return plan_drain(seen, worker, REPORTS, "by somebody", self._leases_max, is_3x=self._is_3x)
            case "undo":
                drained = [one.worker for one in seen.workers if one.drained is not None]
                return plan_undrain(seen, self._rng.choice(drained or [worker]), REPORTS)
            case "pause":
                return plan_pause(seen, shard, "by somebody")
            case "resume":
                paused = sorted(view.key for view in seen.shards if view.lease.paused is not None)
                return plan_resume(seen, self._rng.choice(paused or [shard]))
        raise ValueError(f"no such act: {name}")

    def plan_wish(self, name: str, seen: FleetStatus, rng: Random) -> ActPlan:
        """Ask a holder for a new child, or to leave out a record. Raises ActRefusedError."""
        if not seen.open_shards:
            raise ActRefusedError("nothing is there")
        if name == "restart":
            shard = rng.choice(seen.open_shards).key
            return plan_restart(seen, shard, f"by somebody at {self._clock.monotonic()}")
        return plan_leave_out(seen, *self._put())

    async def carry_out(self, plan: ActPlan) -> bool:
        """Whether all of it was written."""
        outcomes = await carry_out(plan, lambda _: self._leases, self._clock)
        return all(one.fate is Fate.DONE for one in outcomes)

    async def resume_all(self) -> None:
        await self._end_all(
            lambda seen: [plan_resume(seen, view.key) for view in seen.shards if view.lease.paused is not None]
        )

    async def undrain_all(self) -> None:
        await self._end_all(
            lambda seen: [plan_undrain(seen, one.worker, REPORTS) for one in seen.workers if one.drained is not None]
        )

    async def _end_all(self, plans_of: Callable[[FleetStatus], list[ActPlan]]) -> None:
        """Until a look shows that nothing is left: an answer may be lost, and a row may move meanwhile."""
        for _ in range(ENDS_TRIES_MAX):
            plans = plans_of(await self.reader.look())
            if not plans:
                return
            for plan in plans:
                await self.carry_out(plan)
        raise AssertionError("what operators did cannot be undone")
