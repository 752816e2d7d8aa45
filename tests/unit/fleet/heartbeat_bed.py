"""Keepers with many leases and, if wanted, heartbeats: what they write when nothing else happens."""

from __future__ import annotations

import asyncio
import random

from mld.core.clock import Clock, LoopClock
from mld.core.positions import TRIM_HORIZON
from mld.fleet.heartbeat_writer import HeartbeatTable, HeartbeatWriter, JavaPeers
from mld.fleet.report import reports
from mld.fleet.report.reporter import StoredReports
from mld.leases import writes
from mld.leases.lease import Lease
from mld.leases.rows import LEASE_TABLE_KEY, Place
from mld.properties.values import HeartbeatSetting
from tests.support.settings import rules
from tests.unit.leases.support import DURATION_S, TABLE, Worker, new_dynamo

SETTLED_S = 150.0
"""Until each lease has had its first figure."""


class KeepersAtWork:
    """Each lease delivers data, so its throughput is due every now and then."""

    def __init__(self, *, workers: int, leases: int, setting: str) -> None:
        self._workers = workers
        self._leases = leases
        self._setting = setting

    async def writes_a_second(self, seconds: float) -> float:
        dynamo = await new_dynamo()
        workers = [Worker(dynamo, f"w{number}", seed=number) for number in range(self._workers)]
        tasks = [asyncio.ensure_future(worker.keeper.run()) for worker in workers]
        for number in range(self._leases):
            worker = workers[number % self._workers]
            lease = Lease(f"k{number}", TRIM_HORIZON, owner=worker.name)
            await worker.table.apply(writes.create(lease))
            await worker.keeper.resumer.reacquire([lease])
            worker.keeper.record_delivery(lease.key, 1 << 20)
        if self._setting == "worker":
            for worker in workers:
                own = reports.attributes(reports.own_report(worker.name, {}, 0.0, "1"))
                dynamo.put_row(TABLE, {"leaseKey": {"S": worker.name}, **own})
                tasks.append(asyncio.ensure_future(_heartbeat(dynamo, worker).run()))
        await asyncio.sleep(SETTLED_S)
        dynamo.forget_usage()
        await asyncio.sleep(seconds)
        held = sum(len(worker.keeper.held()) for worker in workers)
        assert held == self._leases, held
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return dynamo.usage(operation="UpdateItem").requests / seconds


def java_peers_of(dynamo, table, heartbeats: HeartbeatTable, clock: Clock, lease_duration_s: float) -> JavaPeers:
    stored = StoredReports(dynamo, lambda: (Place(TABLE, LEASE_TABLE_KEY),))
    return JavaPeers(table, stored, heartbeats, clock, rules(duration_s=lease_duration_s))


def _heartbeat(dynamo, worker: Worker) -> HeartbeatWriter:
    async def leader() -> str | None:
        return None

    table = HeartbeatTable(dynamo, TABLE, worker.name)
    heartbeat = HeartbeatWriter(
        table,
        worker.keeper,
        LoopClock(),
        random.Random(worker.name),
        worker_id=worker.name,
        settings=rules(duration_s=DURATION_S, heartbeat=HeartbeatSetting.WORKER).leases,
        leader=leader,
        java_peers=java_peers_of(dynamo, worker.table, table, LoopClock(), DURATION_S),
        on_dropped=lambda: None,
    )
    heartbeat.on_own_report()
    return heartbeat
