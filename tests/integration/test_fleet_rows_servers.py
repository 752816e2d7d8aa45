"""The rows that Java peers read (coordination#beside-java-peers) on real servers: whole workers over HTTP.

In virtual time, with the simulation's Java workers: `tests/scenarios/fleet_java_*.txt`.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Mapping
from random import Random
from typing import Any

import pytest

from mld.aws.client import BotoService
from mld.core.clock import LoopClock
from mld.daemon.worker import StreamPorts, assemble
from mld.leases.dynamodb import DynamoLeaseTable
from mld.local.kinesis import Kinesis
from tests.support.fleet import STREAM, settings_of
from tests.support.patience import PATIENCE_S
from tests.support.services import boto_service
from tests.support.sources import one_stream
from tests.twins.children import MemoryHost, Recorder
from tests.twins.kinesis_model import ModelStreams

WITHIN_S = PATIENCE_S
REQUEST_TIMEOUT_S = PATIENCE_S
INDEX = "LeaseOwnerToLeaseKeyIndex"
QUICK = {"failoverTimeMillis": "6000", "leaseAssignmentIntervalMillis": "2000", "shutdownGraceMillis": "20000"}
V3X = {"clientVersionConfig": "CLIENT_VERSION_CONFIG_3X"}
COMPATIBLE = {"clientVersionConfig": "CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X"}
Item = dict[str, Any]
_numbers = itertools.count(1)


class Patient:
    """A service that gives requests the time that a loaded machine needs."""

    def __init__(self, service: BotoService) -> None:
        self._service = service

    async def call(self, operation: str, params: dict[str, Any], *, timeout_s: float | None = None) -> dict[str, Any]:
        answer: dict[str, Any] = await self._service.call(operation, params, timeout_s=REQUEST_TIMEOUT_S)
        return answer


class Application:
    """One application on a server, its workers, and the tables as other programs see them."""

    def __init__(self, service: BotoService, shards: int) -> None:
        self.service = service
        self.table = f"fleet-{next(_numbers)}"
        self.states, self.reports = f"{self.table}-CoordinatorState", f"{self.table}-WorkerMetricStats"
        self.clock = LoopClock()
        self.kinesis = Kinesis()
        self.kinesis.create_stream(STREAM, now=self.clock.wall(), shard_count=shards)
        self.running: list[tuple[Any, asyncio.Task[bool]]] = []

    def start(self, worker_id: str, **keys: str) -> Any:
        settings = settings_of(**{**QUICK, "applicationName": self.table, **keys})
        dynamo = Patient(self.service)
        table = DynamoLeaseTable(
            dynamo, self.clock, table_name=self.table, request_timeout_s=settings.leases.duration_s / 2
        )
        host = MemoryHost(Recorder(self.clock))
        streams = ModelStreams(self.kinesis, STREAM, self.clock)
        ports = one_stream(StreamPorts(streams))
        worker = assemble(settings, worker_id, ports, table, dynamo, host, self.clock, Random(1))
        self.running.append((worker, asyncio.create_task(worker.run(20.0))))
        return worker

    async def stop(self) -> None:
        for worker, _ in self.running:
            worker.request_stop()
        for _, task in self.running:
            await task
        self.running.clear()

    async def close(self) -> None:
        for _, task in self.running:
            task.cancel()
        await asyncio.gather(*(task for _, task in self.running), return_exceptions=True)

    async def create(self, name: str, key: str) -> None:
        params = {
            "TableName": name,
            "KeySchema": [{"AttributeName": key, "KeyType": "HASH"}],
            "AttributeDefinitions": [{"AttributeName": key, "AttributeType": "S"}],
            "BillingMode": "PAY_PER_REQUEST",
        }
        await self.service.call("CreateTable", params)

    async def items(self, table: str | None = None, key: str = "leaseKey") -> dict[str, Item]:
        answer = await self.service.call("Scan", {"TableName": table or self.table, "ConsistentRead": True})
        return {item[key]["S"]: item for item in answer["Items"]}

    async def until(
        self, condition: Callable[[Mapping[str, Item]], bool], table: str | None = None, key: str = "leaseKey"
    ) -> dict[str, Item]:
        """The items of a table, once they are as they should be."""
        deadline = time.monotonic() + WITHIN_S
        while True:
            try:
                items = await self.items(table, key)
            except Exception:
                items = {}  # the lease table is not there yet
            if items and condition(items):
                return items
            for _, task in self.running:
                assert not task.done() or not task.exception(), task
            assert time.monotonic() < deadline, items
            await asyncio.sleep(0.1)

    async def owned_by_index(self, owner: str) -> list[str]:
        params = {
            "TableName": self.table,
            "IndexName": INDEX,
            "KeyConditionExpression": "#o = :o",
            "ExpressionAttributeNames": {"#o": "leaseOwner"},
            "ExpressionAttributeValues": {":o": {"S": owner}},
        }
        return sorted(item["leaseKey"]["S"] for item in (await self.service.call("Query", params))["Items"])

    async def report(self, worker: str) -> None:
        """As Java 3.5.1 without figures."""
        at = {"N": str(int(time.time()))}
        params = {
            "TableName": self.table,
            "Key": {"leaseKey": {"S": worker}},
            "UpdateExpression": "SET #s = :m, #o = :m, #l = :at, #e = :e, #p = :one, #u = :at",
            "ExpressionAttributeNames": {
                "#s": "sts", "#o": "opr", "#l": "lut", "#e": "entityType", "#p": "sup", "#u": "slu",
            },
            "ExpressionAttributeValues": {
                ":m": {"M": {}}, ":at": at, ":e": {"S": "WORKER_METRIC_STATS"}, ":one": {"N": "1"},
            },
        }  # fmt: skip
        await self.service.call("UpdateItem", params)

    async def renew(self, lease: Item) -> None:
        """As Java 3.5.1 before it knows of a handoff."""
        counter = int(lease["leaseCounter"]["N"])
        params = {
            "TableName": self.table,
            "Key": {"leaseKey": lease["leaseKey"]},
            "ConditionExpression": "#c = :n AND attribute_not_exists(#k)",
            "UpdateExpression": "SET #c = :next",
            "ExpressionAttributeNames": {"#c": "leaseCounter", "#k": "checkpointOwner"},
            "ExpressionAttributeValues": {":n": {"N": str(counter)}, ":next": {"N": str(counter + 1)}},
        }
        await self.service.call("UpdateItem", params)


def owned(items: Mapping[str, Item], worker: str) -> list[str]:
    return sorted(
        key
        for key, item in items.items()
        if item.get("leaseOwner") == {"S": worker} and "checkpointOwner" not in item and "leaseCounter" in item
    )


@pytest.fixture(
    params=[pytest.param("aws_server", marks=pytest.mark.full), pytest.param("ministack", marks=pytest.mark.ministack)]
)
async def application(request: pytest.FixtureRequest) -> AsyncIterator[Application]:
    service = boto_service(request.getfixturevalue(request.param))
    application = Application(service, shards=2)
    yield application
    await application.close()
    await service.close()


async def test_a_single_table_has_all_rows_and_a_java_follower_gets_its_share(application: Application) -> None:
    application.start("w1", **V3X)
    items = await application.until(lambda items: len(owned(items, "w1")) == 2 and "w1" in items)
    lock = items["Leader"]
    assert lock == {
        "leaseKey": {"S": "Leader"},
        "entityType": {"S": "LEADER"},
        "ownerName": {"S": "w1"},
        "leaseDuration": {"S": "120000"},
        "recordVersionNumber": lock["recordVersionNumber"],
    }
    report = items["w1"]
    assert report["entityType"] == {"S": "WORKER_METRIC_STATS"}
    assert (report["sts"], report["opr"], report["sup"]) == ({"M": {}}, {"M": {}}, {"N": "1"})
    assert report["slu"] == report["lut"]
    assert items["Migration3.0"]["cv"] == {"S": "CLIENT_VERSION_3X"}
    assert await application.owned_by_index("w1") == owned(items, "w1")

    await application.report("java-1")
    items = await application.until(lambda items: len(owned(items, "java-1")) == 1)
    (key,) = owned(items, "java-1")
    before = items[key]
    assert before["ownerSwitchesSinceCheckpoint"] == {"N": "0"}, "a graceful handoff is no switch"
    assert await application.owned_by_index("java-1") == [key]
    await application.renew(before)

    await application.stop()
    items = await application.items()
    assert len(owned(items, "java-1")) == 2
    assert "Leader" not in items
    assert "w1" not in items


async def test_a_java_leaders_handoff_is_completed(application: Application) -> None:
    # Nobody renews the row that is java-1's in the end, so that it is taken back after the lease duration. It reports
    # nothing, because w1, which leads here, would share out the leases itself when it saw a second worker.
    w1 = application.start("w1", **V3X, failoverTimeMillis="20000")
    items = await application.until(lambda _: len(w1.held()) == 2)
    key = owned(items, "w1")[0]
    params = {
        "TableName": application.table,
        "Key": {"leaseKey": {"S": key}},
        "ConditionExpression": "#k = :k AND #o = :me AND attribute_not_exists(#c)",
        "UpdateExpression": "SET #o = :new, #c = :me",
        "ExpressionAttributeNames": {"#k": "leaseKey", "#o": "leaseOwner", "#c": "checkpointOwner"},
        "ExpressionAttributeValues": {":k": {"S": key}, ":me": {"S": "w1"}, ":new": {"S": "java-1"}},
        "ReturnValues": "ALL_NEW",
    }
    begun = (await application.service.call("UpdateItem", params))["Attributes"]
    items = await application.until(lambda items: "checkpointOwner" not in items[key])
    assert items[key]["leaseOwner"] == {"S": "java-1"}
    assert int(items[key]["leaseCounter"]["N"]) >= int(begun["leaseCounter"]["N"]) + 2, "renewed, then given"
    assert items[key]["ownerSwitchesSinceCheckpoint"] == begun["ownerSwitchesSinceCheckpoint"]


async def test_legacy_tables_have_the_rows_that_are_no_leases(application: Application) -> None:
    await application.create(application.states, "key")
    await application.create(application.reports, "wid")
    application.start("w1", **V3X)
    items = await application.until(lambda items: "TableMigration3.5" in items, application.states, "key")
    assert set(items) == {"Leader", "Migration3.0", "TableMigration3.5"}
    row = items["TableMigration3.5"]
    past = {"tm": {"S": "TABLE_MIGRATION_STATUS_INIT"}, "mb": {"S": "w1"}, "mts": row["mts"]}
    assert row == {
        "key": {"S": "TableMigration3.5"},
        "entityType": {"S": "TABLE_MIGRATION"},
        **past,
        "h": {"L": [{"M": past}]},
    }
    assert set((await application.items(application.reports, "wid"))["w1"]) >= {
        "wid",
        "entityType",
        "lut",
        "sts",
        "opr",
        "sup",
    }
    leases = await application.until(lambda items: len(owned(items, "w1")) == 2)
    assert all(item["entityType"] == {"S": "LEASE"} for item in leases.values())
    await application.stop()
    assert await application.items(application.reports, "wid") == {}
    assert "Leader" not in await application.items(application.states, "key")


async def test_in_upgrade_there_is_a_state_an_index_and_a_report_and_no_lock(application: Application) -> None:
    application.start("w1", **COMPATIBLE)
    items = await application.until(lambda items: len(owned(items, "w1")) == 2 and "w1" in items)
    row = items["Migration3.0"]
    past = {"cv": {"S": "CLIENT_VERSION_INIT"}, "mb": {"S": "w1"}, "mts": row["mts"]}
    assert row == {
        "leaseKey": {"S": "Migration3.0"},
        "entityType": {"S": "CLIENT_VERSION_MIGRATION"},
        "cv": {"S": "CLIENT_VERSION_UPGRADE_FROM_2X"},
        "mb": {"S": "w1"},
        "mts": row["mts"],
        "h": {"L": [{"M": past}]},
    }
    assert "Leader" not in items
    assert await application.owned_by_index("w1") == owned(items, "w1")
