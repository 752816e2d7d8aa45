"""What a plan adds for a fleet in 3.x mode, and what happens in the world for it: loads, the index, the leader."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from mld.core.clock import Clock
from mld.core.errors import AwsError
from mld.daemon.worker import Worker
from mld.fleet.report import reports
from mld.fleet.report.platform import LoadUnreadableError
from mld.leases.rows import COORDINATOR_TABLE_KEY, LEASE_TABLE_KEY, REPORTS_TABLE_KEY
from tests.support.fleet import TABLE
from tests.twins.dynamo_expressions import ValidationError

if TYPE_CHECKING:
    from tests.simulation.world.network import SimulatedDynamo

INDEX_NAME = "LeaseOwnerToLeaseKeyIndex"
COORDINATOR = f"{TABLE}-CoordinatorState"
REPORTS = f"{TABLE}-WorkerMetricStats"
LOCK = "Leader"
NOISE = 3.0
STRANGER = "stranger-"
"""What the names of workers of other applications begin with."""
REPORT_PERIOD_S = 30.0
FAILING_SHARE = 0.8
INDEX_OPERATIONS = (("UpdateTable", TABLE), ("Query", TABLE))


@dataclass(frozen=True, slots=True)
class Load:
    """The processor of one machine: busy by `base` percent, and by `per_lease` more for each lease held."""

    base: float
    per_lease: float
    meter: str = ""
    """The machine, where several workers run on it."""


@dataclass(frozen=True, slots=True)
class Fleet3x:
    """`loads` by machine number, modulo; None: a machine that measures nothing."""

    loads: tuple[Load | None, ...] = (None,)
    index_creation_s: float = 0.0
    index_lag_max_s: float = 0.0
    takes: bool = False
    """Leases may be taken as well: the fleet is on its way from or to 2.x mode."""
    config: str = "3X"
    """clientVersionConfig of the first workers, without its prefix."""
    is_legacy: bool = False
    """The coordinator and worker-metrics tables of 3.0 to 3.4 are there from the beginning."""
    hot: float = 0.0
    """The share of the puts that goes to the first sixteenth of the hash keys."""


class DrawnLoad:
    """A load source whose figure follows the leases held, with noise while the trouble lasts."""

    name = "drawn"

    def __init__(self, load: Load, rng: Random, leases: Callable[[], int], is_calm: Callable[[], bool]) -> None:
        self.fails = False
        self.load = load
        self._rng = rng
        self._leases = leases
        self._is_calm = is_calm

    async def meter(self) -> str:
        return self.load.meter

    async def read(self) -> float | None:
        if self.fails and not self._is_calm() and self._rng.random() < FAILING_SHARE:
            raise LoadUnreadableError("drawn")
        return self.now()

    def now(self) -> float:
        noise = 0.0 if self._is_calm() else self._rng.uniform(-NOISE, NOISE)
        return min(100.0, max(0.0, self.load.base + self.load.per_lease * self._leases() + noise))


async def report_of_another(dynamo: SimulatedDynamo, clock: Clock, seconds: float) -> None:
    """A worker that reads another stream reports in the lease table for so long, and then leaves its last report."""
    worker, until = f"{STRANGER}{clock.monotonic():.0f}", clock.monotonic() + seconds
    while dynamo.has_table(TABLE):
        own = reports.own_report(worker, {}, clock.wall(), "0.2", members={"stream": "another"})
        dynamo.put_row(TABLE, {"leaseKey": {"S": worker}, **reports.attributes(own)})
        if clock.monotonic() + REPORT_PERIOD_S > until:
            return
        await clock.sleep(REPORT_PERIOD_S)


def create_legacy_tables(dynamo: SimulatedDynamo) -> None:
    for table, key in ((COORDINATOR, COORDINATOR_TABLE_KEY), (REPORTS, REPORTS_TABLE_KEY)):
        params = {
            "TableName": table,
            "AttributeDefinitions": [{"AttributeName": key, "AttributeType": "S"}],
            "KeySchema": [{"AttributeName": key, "KeyType": "HASH"}],
            "BillingMode": "PAY_PER_REQUEST",
        }
        dynamo.operate("CreateTable", params)


def holds_lock(worker: Worker) -> bool:
    """Whether a worker of ours would act as leader now, as far as it knows without asking anybody."""
    return worker.fleet.leader.holds_lock


def leader_of(dynamo: SimulatedDynamo) -> str | None:
    """Whom the lock row names, wherever it is."""
    for table, key in ((COORDINATOR, COORDINATOR_TABLE_KEY), (TABLE, LEASE_TABLE_KEY)):
        if dynamo.has_table(table):
            row = dynamo.row(table, LOCK)
            if row is not None and key in row and "ownerName" in row:
                return str(row["ownerName"]["S"])
    return None


async def forbid_index(dynamo: SimulatedDynamo, seconds: float) -> None:
    """Somebody takes a permission away, and gives it back."""
    dynamo.forbidden.update(INDEX_OPERATIONS)
    await asyncio.sleep(seconds)
    dynamo.forbidden.difference_update(INDEX_OPERATIONS)


def delete_index(dynamo: SimulatedDynamo) -> None:
    """As the migration tool does it at a roll-back."""
    delete = {"Delete": {"IndexName": INDEX_NAME}}
    with contextlib.suppress(AwsError, ValidationError):  # there is none, or it is just being made
        dynamo.operate("UpdateTable", {"TableName": TABLE, "GlobalSecondaryIndexUpdates": [delete]})


def is_lease(row: Mapping[str, Any]) -> bool:
    """Whether a row of the lease table is one of a lease."""
    return bool(row.get("entityType", {"S": "LEASE"})["S"] == "LEASE")
