"""A lease table in memory and workers on it, for the tests of keeper and taker. All in virtual time."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any

from mld.core.clock import Clock, LoopClock
from mld.core.periods import renew_interval_s
from mld.core.positions import TRIM_HORIZON
from mld.leases import writes
from mld.leases.dynamodb import DynamoLeaseTable
from mld.leases.keeper import LeaseKeeper
from mld.leases.lease import Lease
from mld.leases.table_view import TableView
from mld.leases.taker import LeaseTaker
from mld.leases.validity import HeldLease
from tests.support.settings import defaults, rules
from tests.twins.dynamo import Fault, MemoryDynamo

TABLE = "app"
DURATION_S = 10.0
INTERVAL_S = renew_interval_s(DURATION_S)
REQUEST_TIMEOUT_S = 3.0


class Worker:
    """One worker's keeper and taker. `changes` counts calls of `on_change`."""

    def __init__(
        self,
        dynamo: MemoryDynamo,
        name: str,
        *,
        worker_id: str | None = None,
        seed: int = 0,
        clock: Clock | None = None,
        handoff_timeout_s: float = defaults().leases.handoff_timeout_s,
        table_type: type[DynamoLeaseTable] = DynamoLeaseTable,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
        duration_s: float = DURATION_S,
    ) -> None:
        clock = clock or LoopClock()
        tokens = itertools.count(1)
        self.name = name
        self.changes = 0
        self.table = table_type(dynamo.client(name), clock, table_name=TABLE, request_timeout_s=request_timeout_s)
        rng = random.Random(seed)
        self.keeper = LeaseKeeper(
            self.table,
            clock,
            rng,
            worker_id=worker_id or name,
            settings=rules(duration_s=duration_s, handoff_timeout_s=handoff_timeout_s).leases,
            new_token=lambda: f"{name}-{next(tokens)}",
            on_change=self._changed,
        )
        self.taker = LeaseTaker(self.keeper, TableView(self.keeper.table, self.keeper.clock))

    def _changed(self) -> None:
        self.changes += 1

    @property
    def handoffs(self) -> list[tuple[str, str, str]]:
        """Key, token and next owner of each held lease of which a handoff is known to be pending."""
        held = self.keeper.held().items()
        return [(key, one.token, one.lease.handoff_to) for key, one in held if one.lease.handoff_to]

    async def row(self, key: str) -> Lease:
        """The row as the table has it."""
        lease = await self.table.get(key)
        assert lease is not None
        return lease

    async def hold(self, *keys: str) -> list[HeldLease]:
        """Create, take and adopt leases without going through the taker."""
        held = []
        for key in keys:
            await self.table.apply(writes.create(Lease(key, TRIM_HORIZON)))
            seen = await self.row(key)
            sent_at = LoopClock().monotonic()
            taken = await self.table.apply(writes.take(seen, self.name))
            assert isinstance(taken, Lease)
            adopted = self.keeper.adopt(taken, sent_at)
            assert adopted is not None
            held.append(adopted)
        return held


@asynccontextmanager
async def running(*workers: Worker) -> AsyncIterator[None]:
    """The keepers' loops."""
    tasks = [asyncio.create_task(worker.keeper.run()) for worker in workers]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def new_dynamo(**options: Any) -> MemoryDynamo:
    """A twin with the lease table in place."""
    dynamo = MemoryDynamo(LoopClock(), **options)
    await DynamoLeaseTable(dynamo, LoopClock(), table_name=TABLE).ensure()
    return dynamo


async def started() -> tuple[MemoryDynamo, Worker]:
    dynamo = await new_dynamo()
    return dynamo, Worker(dynamo, "me")


class FaultPlan:
    """Faults for the next requests among `operations` of one sender; `always` for all of them until cleared."""

    def __init__(
        self, dynamo: MemoryDynamo, sender: str | None = None, operations: Collection[str] = ("UpdateItem",)
    ) -> None:
        dynamo.faults = self
        self._sender = sender
        self._next: list[Fault | None] = []
        self.always: Fault | None = None
        self.when: Callable[[str, Mapping[str, Any]], bool] = lambda operation, _: operation in operations

    def next(self, *faults: Fault | None) -> None:
        self._next.extend(faults)

    def __call__(self, sender: str, operation: str, params: Mapping[str, Any]) -> Fault | None:
        if (self._sender is not None and sender != self._sender) or not self.when(operation, params):
            return None
        return self._next.pop(0) if self._next else self.always


def counter_of(dynamo: MemoryDynamo, key: str) -> int:
    return int(dynamo.rows(TABLE)[key]["leaseCounter"]["N"])


def attribute(dynamo: MemoryDynamo, key: str, name: str) -> str | None:
    value = dynamo.rows(TABLE)[key].get(name)
    return None if value is None else str(next(iter(value.values())))
