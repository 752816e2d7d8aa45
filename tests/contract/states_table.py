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
from mld.fleet.migrate.row_mover import RowMover
from mld.fleet.migrate.states import (
    CLIENT_VERSION,
    TABLE_MIGRATION,
    ClientVersion,
    TableStatus,
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
PENDING = first_row(TABLE_MIGRATION, TableStatus.PENDING, ME, NOW_MS)
COMPLETE = advanced(PENDING, TableStatus.COMPLETE, ME, NOW_MS + 1)


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

    async def put_lock(self, owner: str) -> None:
        item = {"key": {"S": "Leader"}, "ownerName": {"S": owner}, "leaseDuration": {"S": "120000"}}
        await self.put(self.legacy, item)

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

    async def test_a_delete_needs_the_state_that_was_read(self, states: StatesTable, tables: Tables) -> None:
        initial = first_row(TABLE_MIGRATION, TableStatus.INIT, ME, NOW_MS)
        await states.create(PENDING, tables.legacy)
        assert not await states.delete(initial, tables.legacy)
        assert await states.delete(PENDING, tables.legacy)
        assert await tables.items(tables.legacy) == {}

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

    async def test_all_rows_are_listed(self, states: StatesTable, tables: Tables) -> None:
        for number in range(20):
            await tables.put(tables.legacy, {"key": {"S": f"stream-{number}"}})
        assert len(await states.items(tables.legacy)) == 20

    async def test_the_outline_tells_a_table_of_2x(self, states: StatesTable, tables: Tables) -> None:
        assert not (await states.outline(tables.leases)).is_bare
        row = {"leaseKey": {"S": "shardId-0"}, "leaseCounter": {"N": "1"}, "checkpoint": {"S": "LATEST"}}
        await tables.put(tables.leases, row | {"leaseOwner": {"S": "w-1"}})
        found = await states.outline(tables.leases)
        assert found.is_of_2x
        assert found.leases == {"shardId-0": ("w-1", "1")}
        await states.create(UPGRADE, tables.leases)
        assert not (await states.outline(tables.leases)).is_bare

    # --- the move

    async def test_rows_are_moved_and_get_their_type(self, service: Service, tables: Tables) -> None:
        await tables.put_lock(ME)
        await StatesTable(service).create(PENDING, tables.legacy)
        item = item_of(FLIPPED, tables.legacy)
        del item["entityType"]
        await tables.put(tables.legacy, item)
        for number in range(30):
            stream = {"key": {"S": f"s-{number}"}, "entityType": {"S": "STREAM"}, "streamId": {"S": "x"}}
            await tables.put(tables.legacy, stream)
        assert await self.mover(service).move(tables.legacy, tables.leases)
        assert set(await tables.items(tables.legacy)) == {"Leader", "TableMigration3.5"}
        moved = await tables.items(tables.leases)
        assert moved["Migration3.0"] == item_of(FLIPPED, tables.leases)
        assert moved["s-7"] == {"leaseKey": {"S": "s-7"}, "entityType": {"S": "STREAM"}, "streamId": {"S": "x"}}
        assert len(moved) == 31

    async def test_who_does_not_hold_the_lock_moves_nothing(self, service: Service, tables: Tables) -> None:
        for owner in (None, "somebody-else"):
            if owner is not None:
                await tables.put_lock(owner)
            await tables.put(tables.legacy, item_of(UPGRADE, tables.legacy))
            assert not await self.mover(service).move(tables.legacy, tables.leases)
            assert "Migration3.0" in await tables.items(tables.legacy)
            assert await tables.items(tables.leases) == {}

    async def test_a_row_that_changed_since_it_was_read_is_not_moved(
        self, service: Service, states: StatesTable, tables: Tables
    ) -> None:
        await tables.put_lock(ME)
        await states.create(UPGRADE, tables.legacy)
        read = await states.get_item("Migration3.0", tables.legacy)
        assert read is not None
        await states.update(FLIPPED, UPGRADE.state, tables.legacy)
        plan = [(read, item_of(UPGRADE, tables.leases), None)]
        assert not await states.move(plan, tables.legacy, tables.leases, ME)
        assert await states.get(CLIENT_VERSION, tables.legacy) == FLIPPED
        assert await states.get(CLIENT_VERSION, tables.leases) is None

    async def test_an_old_copy_in_the_lease_table_does_not_stop_the_move(
        self, service: Service, states: StatesTable, tables: Tables
    ) -> None:
        await tables.put_lock(ME)
        await states.create(UPGRADE, tables.leases)
        await states.create(FLIPPED, tables.legacy)
        assert await self.mover(service).move(tables.legacy, tables.leases)
        assert await states.get(CLIENT_VERSION, tables.leases) == FLIPPED
        assert await states.get(CLIENT_VERSION, tables.legacy) is None

    async def test_a_lease_is_never_replaced_and_an_unknown_row_stays(self, service: Service, tables: Tables) -> None:
        await tables.put_lock(ME)
        lease = {"leaseKey": {"S": "my-stream"}, "leaseCounter": {"N": "3"}}
        await tables.put(tables.leases, lease)
        await tables.put(tables.legacy, {"key": {"S": "my-stream"}, "streamId": {"S": "x"}})
        await tables.put(tables.legacy, {"key": {"S": "what"}})
        assert await self.mover(service).move(tables.legacy, tables.leases)
        assert await tables.items(tables.leases) == {"my-stream": lease}
        assert set(await tables.items(tables.legacy)) == {"Leader", "my-stream", "what"}

    # --- the end

    async def test_finalise_writes_both_rows(self, states: StatesTable, tables: Tables) -> None:
        await tables.put_lock(ME)
        await states.create(PENDING, tables.legacy)
        assert await states.finalise(COMPLETE, PENDING.state, tables.legacy, tables.leases, ME)
        assert await states.get(TABLE_MIGRATION, tables.legacy) == COMPLETE
        assert await states.get(TABLE_MIGRATION, tables.leases) == COMPLETE

    async def test_finalise_is_done_with_a_copy_of_an_earlier_time(self, states: StatesTable, tables: Tables) -> None:
        await tables.put_lock(ME)
        await states.create(PENDING, tables.legacy)
        await states.create(COMPLETE, tables.leases)
        assert await states.finalise(COMPLETE, PENDING.state, tables.legacy, tables.leases, ME)
        assert await states.get(TABLE_MIGRATION, tables.legacy) == COMPLETE

    @pytest.mark.parametrize("owner", [None, "somebody-else"])
    async def test_finalise_needs_the_lock(self, states: StatesTable, tables: Tables, owner: str | None) -> None:
        if owner is not None:
            await tables.put_lock(owner)
        await states.create(PENDING, tables.legacy)
        assert not await states.finalise(COMPLETE, PENDING.state, tables.legacy, tables.leases, ME)
        assert await states.get(TABLE_MIGRATION, tables.legacy) == PENDING
        assert await tables.items(tables.leases) == {}

    async def test_finalise_needs_pending(self, states: StatesTable, tables: Tables) -> None:
        await tables.put_lock(ME)
        deployed = first_row(TABLE_MIGRATION, TableStatus.DEPLOYED, ME, NOW_MS)
        await states.create(deployed, tables.legacy)
        assert not await states.finalise(COMPLETE, PENDING.state, tables.legacy, tables.leases, ME)
        assert await states.get(TABLE_MIGRATION, tables.legacy) == deployed
        assert await tables.items(tables.leases) == {}

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

    @staticmethod
    def mover(service: Service) -> RowMover:
        return RowMover(StatesTable(service, request_timeout_s=REQUEST_TIMEOUT_S), worker_id=ME)
