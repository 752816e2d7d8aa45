"""Java workers beside ours: those of the simulation, of which each story runs the loops that it is about.

They have no consumers, and what a worker finds out at its start (where the rows live, in which mode the fleet is) the
story says. A test may write as one of them would (`assign`, `begin_handoff`, `take_lock`).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Coroutine
from random import Random
from typing import Any

from mld.core.positions import TRIM_HORIZON, InitialPosition
from mld.leases.rows import Place
from tests.simulation.world.java2 import JavaWorker as SimulatedWorker2
from tests.simulation.world.java2_table import EPSILON_S, TROUBLE, CorruptRow, Lease
from tests.simulation.world.java3 import DISCOVERY_S, HANDOFF_TIMEOUT_S, REPORT_S, JavaWorker3
from tests.simulation.world.java3_lam import AssignmentManager
from tests.simulation.world.java3_lock import HEARTBEAT_S, LockDecider
from tests.simulation.world.java3_lock import LEASE_S as LOCK_S
from tests.simulation.world.java3_table import INDEX, Lease3, Rows3, read_row3
from tests.simulation.world.plan import Rates
from tests.support.fleet import TABLE
from tests.twins.streams import VirtualClock
from tests.unit.fleet.checklists.wire import LEASES, Stage

LEASE_S = 10.0
LAM_S = 2 * LEASE_S
RENEW_S = LEASE_S / 3 - EPSILON_S
RECORDS_PER_S = 10
LOCK_VERSION = "00000001-0b0e-4b6e-9a55-6d6a0c8f4f10"

Item = dict[str, Any]
__all__ = ["DISCOVERY_S", "HANDOFF_TIMEOUT_S", "HEARTBEAT_S", "LAM_S", "LOCK_S", "REPORT_S"]


def _settings(on: Stage, worker_id: str, ahead_s: float = 0.0) -> tuple[list[Any], dict[str, Any]]:
    """What makes a worker of either generation; it reads no stream and has no children."""
    given = [worker_id, on.dynamo.client(worker_id), None, None, VirtualClock(ahead_s), Random(worker_id)]
    return given, {
        "table": TABLE,
        "failover_s": LEASE_S,
        "steals_max": 1,
        "initial": InitialPosition(TRIM_HORIZON),
        "idle_s": 1.0,
        "child_numbers": itertools.count(1),
        "rates": Rates(),
    }


class _Tasks:
    """The loops of a process."""

    _tasks: list[asyncio.Task[None]]

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        self._tasks.append(asyncio.create_task(work))
        return self._tasks[-1]

    def check(self) -> None:
        """Raises what ended one of its loops: a Java worker would have failed at that."""
        for task in self._tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error

    def crash(self) -> None:
        """Nothing more is sent; nothing is cleaned up."""
        for task in self._tasks:
            task.cancel()


class _Places:
    """Where its rows are, which a worker works out from the tables that it finds."""

    def __init__(self, reports_at: Place) -> None:
        self._reports_at = reports_at

    def report_place(self) -> tuple[str, str]:
        return self._reports_at.table, self._reports_at.key

    def legacy_reports(self) -> str | None:
        return None if self._reports_at == LEASES else self._reports_at.table

    def summarise(self, *_: object) -> None:
        return None


class JavaWorker(_Tasks, JavaWorker3):
    """A worker of 3.x that does not lead: reports, discovers by the index, renews, hands off `finish_s` later."""

    def __init__(
        self,
        on: Stage,
        worker_id: str,
        *,
        reports_at: Place = LEASES,
        supports_single_table: bool = True,
        clock_ahead_s: float = 0.0,
        finish_s: float = 1.0,
    ) -> None:
        given, settings = _settings(on, worker_id, clock_ahead_s)
        super().__init__(*given, **settings, tagged=supports_single_table)
        self._tasks = []
        self.on = on
        self.tables: Any = _Places(reports_at)
        self.finish_s = finish_s
        self.assigns = self.reports = True  # the mode of 3.x
        on.players.append(self)

    def start(self) -> Any:
        self.spawn(self._report())
        self.spawn(self._at_rate(DISCOVERY_S, self._discover))
        self.spawn(self._at_rate(RENEW_S, self.renewer.tick))
        return self

    @property
    def renewals(self) -> int:
        """How many it has sent."""
        return sum("leaseCounter = " in r.update for r in self.on.requests.of(self.worker_id, "UpdateItem"))

    async def assign(self, row: Item, to: str) -> int | None:
        """The regular update; None: its condition did not hold."""
        return await self.rows.assign(read_row3(row), to)

    async def begin_handoff(self, row: Item, to: str) -> bool | None:
        """The graceful update; None: its condition did not hold."""
        return await self.rows.begin_handoff(read_row3(row), to) or None

    def _on_handoff(self, lease: Lease3) -> None:
        if lease.token not in self._handing:
            self._handing[lease.token] = 0.0
            self.spawn(self._finish(lease))

    async def _finish(self, lease: Lease3) -> None:
        """The processor is shut down, then the lease goes to the next owner."""
        await asyncio.sleep(self.finish_s)
        with contextlib.suppress(*TROUBLE):
            await self.transfer(lease)
        self.renewer.forget(lease.key)


class JavaLeader(JavaWorker):
    """A worker of 3.x that competes for the lock and, if `assigns`, gives leases out while it has it."""

    def __init__(
        self, on: Stage, worker_id: str, *, lock_at: Place = LEASES, assigns: bool = True, **more: Any
    ) -> None:
        super().__init__(on, worker_id, **more)
        self.lock_at = lock_at
        self.acts = assigns

        async def nothing(_: bool) -> None:
            return None

        self.decider = LockDecider(
            worker_id,
            self.rows,
            self.clock,
            self.rng,
            place=lambda: (lock_at.table, lock_at.key),
            tagged=self.rows.tagged,
            hook=nothing,
            spawn=self.spawn,
        )

    def start(self) -> Any:
        super().start()
        if self.decider.holds():
            self.spawn(self.decider._keep(LOCK_VERSION))
        self.spawn(self._watch_leadership())
        if self.acts:
            self.spawn(self._assign_leases())
            self.spawn(self._at_rate(1.0, self._deliver))
        return self

    async def _deliver(self) -> None:
        """What consumers would have read: it assigns by throughput."""
        for lease in self.renewer.held():
            self.renewer.delivered(lease.key, RECORDS_PER_S)

    def take_lock(self) -> None:
        """As if it had led for long, and somebody else had only believed to."""
        row = {
            self.lock_at.key: {"S": "Leader"},
            "entityType": {"S": "LEADER"},
            "ownerName": {"S": self.worker_id},
            "leaseDuration": {"S": "120000"},
            "recordVersionNumber": {"S": LOCK_VERSION},
        }
        self.on.put(row, self.lock_at)
        self.decider._mine = (self.lock_at.table, self.lock_at.key), LOCK_VERSION, self.on.now

    async def assign_once(self) -> None:
        await AssignmentManager(self).run_once()


class Java2xWorker(_Tasks, SimulatedWorker2):
    """A worker of 2.x: takes leases, renews by counter alone, and stops working at a row that is no lease."""

    def __init__(self, on: Stage, worker_id: str) -> None:
        given, settings = _settings(on, worker_id)
        super().__init__(*given, **settings)
        self._tasks = []
        self.broken: str | None = None
        on.players.append(self)

    def start(self) -> Java2xWorker:
        self.spawn(self._take_leases())
        self.spawn(self._at_rate(RENEW_S, self.renewer.tick))
        return self

    async def _take_pass(self) -> list[Lease]:
        try:
            return await super()._take_pass()
        except CorruptRow as error:
            self.broken = str(error)
            raise


class MigrationTool:
    """KclMigrationTool: writes `Migration3.0` conditionally; after a rollback it deletes the index (and, up to 3.4,
    the metrics table)."""

    def __init__(self, on: Stage, name: str) -> None:
        self._on = on
        self._rows = Rows3(on.dynamo.client(name), on.clock, Random(name), TABLE)

    async def rollback(self, place: Place = LEASES) -> bool:
        return await self._set(place, ("UPGRADE_FROM_2X", "3X_WITH_ROLLBACK"), "2X", "KclMigrationTool-rollback")

    async def roll_forward(self, place: Place = LEASES) -> bool:
        return await self._set(place, ("2X",), "UPGRADE_FROM_2X", "KclMigrationTool-rollforward")

    async def delete_index(self) -> None:
        await self._rows.ask("UpdateTable", GlobalSecondaryIndexUpdates=[{"Delete": {"IndexName": INDEX}}])

    async def delete_table(self, place: Place) -> None:
        await self._rows.ask("DeleteTable", TableName=place.table)

    async def _set(self, place: Place, before: tuple[str, ...], after: str, by: str) -> bool:
        values = {f":{number}": {"S": f"CLIENT_VERSION_{version}"} for number, version in enumerate(before)}
        return await self._rows.try_write(
            "UpdateItem",
            TableName=place.table,
            Key={place.key: {"S": "Migration3.0"}},
            ConditionExpression=" OR ".join(f"#cv = {value}" for value in values),
            UpdateExpression="SET #cv = :new, #mb = :by, #mts = :at",
            ExpressionAttributeNames={"#cv": "cv", "#mb": "mb", "#mts": "mts"},
            ExpressionAttributeValues={
                **values,
                ":new": {"S": f"CLIENT_VERSION_{after}"},
                ":by": {"S": by},
                ":at": {"N": str(self._on.wall_ms())},
            },
        )
