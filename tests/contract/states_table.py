"""What a `StatesTable` must do, whatever stands behind it (coordination#state-writes).

Subclasses supply `service`; `tables` are a lease table and a legacy coordinator table, both empty.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from mld.aws.service import Service
from mld.core.clock import LoopClock
from mld.core.errors import TableMissingError
from mld.fleet.migrate.states import (
    CLIENT_VERSION,
    ClientVersion,
    UnreadableStateError,
    advanced,
    first_row,
    item_of,
)
from mld.fleet.migrate.states_table import StatesTable
from mld.leases.rows import Place
from mld.leases.table_maker import LegacyTable, on_demand
from mld.properties.values import BillingMode
from tests.contract.lease_table import RACERS, REQUEST_TIMEOUT_S
from tests.support.tables import unique_table

ME = "host-1:9f3c"
NOW_MS = 1_784_640_000_123
UPGRADE = first_row(CLIENT_VERSION, ClientVersion.UPGRADE_FROM_2X, ME, NOW_MS)
FLIPPED = advanced(UPGRADE, ClientVersion.V3X_WITH_ROLLBACK, ME, NOW_MS + 1)


class Tables:
    """The two tables of one test, as another program sees them."""

    def __init__(self, service: Service, prefix: str) -> None:
        self._service = service
        self.leases = Place(prefix, "leaseKey")
        self.legacy = Place(f"{prefix}-CoordinatorState", "key")

    async def create(self) -> None:
        for place in (self.leases, self.legacy):
            await LegacyTable(
                self._service, LoopClock(), on_demand(place.table), place.key, request_timeout_s=REQUEST_TIMEOUT_S
            ).ensure()

    async def put(self, place: Place, item: dict[str, Any]) -> None:
        await self._service.call("PutItem", {"TableName": place.table, "Item": item})

    async def items(self, place: Place) -> dict[str, Any]:
        params: dict[str, Any] = {"TableName": place.table, "ConsistentRead": True}
        found: dict[str, Any] = {}
        while True:
            answer = await self._service.call("Scan", params)
            found |= {item[place.key]["S"]: item for item in answer["Items"]}
            if "LastEvaluatedKey" not in answer:
                return found
            params |= {"ExclusiveStartKey": answer["LastEvaluatedKey"]}


class StatesTableContract:
    @pytest.fixture
    async def tables(self, service: Service) -> Tables:
        tables = Tables(service, unique_table())
        await tables.create()
        return tables

    @pytest.fixture
    async def states(self, service: Service, tables: Tables) -> StatesTable:
        return StatesTable(service, request_timeout_s=REQUEST_TIMEOUT_S)

    # --- single rows

    async def test_a_missing_row_is_none(self, states: StatesTable, tables: Tables) -> None:
        for place in (tables.leases, tables.legacy):
            assert await states.get(CLIENT_VERSION, place) is None
            assert await states.get_item("Leader", place) is None

    async def test_a_created_row_reads_back_from_its_place_only(self, states: StatesTable, tables: Tables) -> None:
        assert await states.create(UPGRADE, tables.legacy)
        assert await states.get(CLIENT_VERSION, tables.legacy) == UPGRADE
        assert await states.get(CLIENT_VERSION, tables.leases) is None
        assert (await tables.items(tables.legacy))["Migration3.0"] == item_of(UPGRADE, tables.legacy)

    async def test_a_row_is_created_once(self, states: StatesTable, tables: Tables) -> None:
        rows = [first_row(CLIENT_VERSION, ClientVersion.V3X, f"w-{number}", NOW_MS) for number in range(RACERS)]
        created = await asyncio.gather(*(states.create(row, tables.leases) for row in rows))
        assert sum(created) == 1
        assert await states.get(CLIENT_VERSION, tables.leases) == rows[created.index(True)]

    async def test_an_update_needs_the_previous_state_and_wins_once(self, states: StatesTable, tables: Tables) -> None:
        await states.create(UPGRADE, tables.leases)
        updates = [
            states.update(advanced(UPGRADE, ClientVersion.V2X, f"w-{number}", NOW_MS), UPGRADE.state, tables.leases)
            for number in range(RACERS)
        ]
        assert sum(await asyncio.gather(*updates)) == 1
        assert not await states.update(FLIPPED, UPGRADE.state, tables.leases)

    async def test_an_update_of_a_missing_row_creates_nothing(self, states: StatesTable, tables: Tables) -> None:
        assert not await states.update(FLIPPED, UPGRADE.state, tables.leases)
        assert await tables.items(tables.leases) == {}

    async def test_an_update_leaves_unknown_attributes_and_the_type_alone(
        self, states: StatesTable, tables: Tables
    ) -> None:
        item = item_of(UPGRADE, tables.legacy) | {"future": {"S": "x"}}
        del item["entityType"]  # as 3.0 to 3.4 write it
        await tables.put(tables.legacy, item)
        assert await states.update(FLIPPED, UPGRADE.state, tables.legacy)
        written = (await tables.items(tables.legacy))["Migration3.0"]
        assert written["future"] == {"S": "x"}
        assert "entityType" not in written
        assert written["cv"] == {"S": "CLIENT_VERSION_3X_WITH_ROLLBACK"}
        assert len(written["h"]["L"]) == 2

    async def test_a_row_that_says_nonsense_is_an_error(self, states: StatesTable, tables: Tables) -> None:
        await tables.put(tables.legacy, {"key": {"S": "Migration3.0"}, "cv": {"S": "?"}})
        with pytest.raises(UnreadableStateError):
            await states.get(CLIENT_VERSION, tables.legacy)

    async def test_a_missing_table_is_an_error_and_not_a_missing_row(self, states: StatesTable, tables: Tables) -> None:
        nowhere = Place("no-such-table", "key")
        with pytest.raises(TableMissingError):
            await states.get(CLIENT_VERSION, nowhere)
        with pytest.raises(TableMissingError):
            await states.create(UPGRADE, nowhere)

    async def test_the_outline_tells_a_table_of_2x(self, states: StatesTable, tables: Tables) -> None:
        assert not (await states.outline(tables.leases)).is_bare
        row = {"leaseKey": {"S": "shardId-0"}, "leaseCounter": {"N": "1"}, "checkpoint": {"S": "LATEST"}}
        await tables.put(tables.leases, row | {"leaseOwner": {"S": "w-1"}})
        found = await states.outline(tables.leases)
        assert found.is_of_2x
        assert found.leases == {"shardId-0": ("w-1", "1")}
        await states.create(UPGRADE, tables.leases)
        assert not (await states.outline(tables.leases)).is_bare

    # --- the legacy tables themselves

    async def test_a_legacy_table_is_found_created_and_created_once(self, service: Service, tables: Tables) -> None:
        name = f"{tables.leases.table}-WorkerMetricStats"
        options = replace(
            on_demand(name),
            billing_mode=BillingMode.PROVISIONED,
            read_capacity=7,
            write_capacity=8,
            point_in_time_recovery=True,
            deletion_protection=True,
            tags=(("team", "clicks"),),
        )
        table = LegacyTable(service, LoopClock(), options, "wid", request_timeout_s=REQUEST_TIMEOUT_S)
        assert not await table.exists()
        assert await table.ensure()
        assert await table.exists()
        assert not await table.ensure()
        described = (await service.call("DescribeTable", {"TableName": name}))["Table"]
        assert described["KeySchema"] == [{"AttributeName": "wid", "KeyType": "HASH"}]
        assert described["DeletionProtectionEnabled"] is True
        capacity = described["ProvisionedThroughput"]
        assert (capacity["ReadCapacityUnits"], capacity["WriteCapacityUnits"]) == (7, 8)
        backups = await service.call("DescribeContinuousBackups", {"TableName": name})
        recovery = backups["ContinuousBackupsDescription"]["PointInTimeRecoveryDescription"]
        assert recovery["PointInTimeRecoveryStatus"] == "ENABLED"
