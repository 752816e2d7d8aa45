"""A worker of mld 0.2 with `mld.heartbeat=worker`, as its table sees it (leases#marked-rows).

It marks its leases, and one heartbeat on its report stands for the renewals of all of them. It reads its rows now and
then, and gives a lease away when a handoff asks for it. It delivers nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from mld.aws.table_calls import TableCalls
from mld.core.clock import Clock
from mld.fleet.report.reports import own_report
from mld.fleet.report.reports_table import ReportsTable
from mld.leases import writes
from mld.leases.dynamodb import DynamoLeaseTable
from mld.leases.rows import Place
from tests.twins.dynamo import MemoryDynamo

EPOCH = "00c0ffee00c0ffee"
HEARTBEATS_PER_LEASE = 3
READ_SHARE = 0.4
REPORT_S = 30.0


class MarkingWorker:
    """`held` are the keys that it believes to hold; `taken` those that somebody else took from it meanwhile."""

    def __init__(self, dynamo: MemoryDynamo, clock: Clock, worker_id: str, table: str, duration_s: float) -> None:
        service = dynamo.client(worker_id)
        self.worker_id = worker_id
        self.held: set[str] = set()
        self.taken: set[str] = set()
        self._dynamo = dynamo
        self._clock = clock
        self._table_name = table
        self._duration_s = duration_s
        self._calls = TableCalls(service, table)
        self._leases = DynamoLeaseTable(service, clock, table_name=table)
        self._reports = ReportsTable(service, Place(table, "leaseKey"))
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, keys: Iterable[str]) -> None:
        """Take these leases, which are nobody's, and keep them."""
        await self._report()
        await self._beat(1)
        for key in keys:
            lease = await self._leases.get(key)
            assert lease is not None
            assert lease.owner is None
            await self._leases.apply(writes.take(lease, self.worker_id))
            await self._set(key, EPOCH)
            self.held.add(key)
        self._tasks = [asyncio.create_task(one) for one in (self._beat_forever(), self._read_forever(), self._tell())]

    def crash(self) -> None:
        """End as kill -9 does."""
        for task in self._tasks:
            task.cancel()

    async def _set(self, key: str, value: str) -> None:
        params = {
            "Key": {"leaseKey": {"S": key}},
            "UpdateExpression": "SET #mldHeartbeat = :value",
            "ExpressionAttributeNames": {"#mldHeartbeat": "mldHeartbeat"},
            "ExpressionAttributeValues": {":value": {"S": value}},
        }
        await self._calls.send("UpdateItem", params)

    async def _beat(self, number: int) -> None:
        await self._set(self.worker_id, f"{EPOCH}.{number}")

    async def _report(self) -> None:
        await self._reports.write(own_report(self.worker_id, {}, self._clock.wall(), "0.2.0"))

    async def _beat_forever(self) -> None:
        number = 1
        while True:
            await self._clock.sleep(self._duration_s / HEARTBEATS_PER_LEASE)
            number += 1
            await self._beat(number)

    async def _tell(self) -> None:
        while True:
            await self._clock.sleep(REPORT_S)
            await self._report()

    async def _read_forever(self) -> None:
        while True:
            await self._clock.sleep(READ_SHARE * self._duration_s)
            found = await self._leases.get_many(sorted(self.held))
            for key in sorted(self.held):
                lease = found.get(key)
                if lease is None or lease.actual_owner != self.worker_id:
                    self.held.discard(key)
                    self.taken.add(key)
                elif lease.handoff_to is not None:
                    await self._leases.apply(writes.assign(lease, lease.handoff_to))
                    self.held.discard(key)
