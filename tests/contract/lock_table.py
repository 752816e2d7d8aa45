"""What a `LockTable` must do on any DynamoDB (coordination#leader-lock). Subclasses supply `service`.

`lock_table` is over an existing table with the hash key of `place`; `rows` plants and reads raw rows.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mld.aws.service import Service
from mld.core.errors import TableMissingError
from mld.fleet.leader.lock import DamagedLock, LockRow
from mld.fleet.leader.lock_table import LockTable, Refused
from mld.leases.rows import Place
from tests.contract.lease_table import RACERS, REQUEST_TIMEOUT_S
from tests.support.tables import RawRows, make_table, unique_table

ROW = {
    "ownerName": {"S": "w-1"},
    "leaseDuration": {"S": "120000"},
    "recordVersionNumber": {"S": "v1"},
}


class LockTableContract:
    @pytest.fixture(params=["leaseKey", "key"])
    def key(self, request: pytest.FixtureRequest) -> str:
        """The hash key of the lease table and of the legacy table."""
        return str(request.param)

    @pytest.fixture
    async def place(self, service: Service, key: str) -> Place:
        place = Place(unique_table(), key)
        await make_table(service, place.table, key)
        return place

    @pytest.fixture
    def lock_table(self, service: Service, place: Place) -> LockTable:
        return LockTable(service, place, request_timeout_s=REQUEST_TIMEOUT_S)

    @pytest.fixture
    def rows(self, service: Service, place: Place) -> RawRows:
        return RawRows(service, place.table, place.key)

    @staticmethod
    def raw(key: str, **changes: Any) -> dict[str, dict[str, Any]]:
        row = {key: {"S": "Leader"}} | ROW | changes
        return {name: value for name, value in row.items() if value is not None}

    async def test_no_lock_reads_as_none(self, lock_table: LockTable) -> None:
        assert await lock_table.read() is None

    async def test_a_claimed_lock_reads_back(self, lock_table: LockTable, rows: RawRows, key: str) -> None:
        assert await lock_table.claim(None, "w-1", "v1") is None
        assert await lock_table.read() == LockRow("w-1", 120.0, "v1")
        assert await rows.get("Leader") == self.raw(key, entityType={"S": "LEADER"})

    async def test_an_absent_lock_is_claimed_once(self, lock_table: LockTable) -> None:
        await lock_table.claim(None, "w-1", "v1")
        refusal = await lock_table.claim(None, "w-2", "v2")
        assert refusal == Refused(LockRow("w-1", 120.0, "v1"))

    async def test_a_stale_lock_is_replaced_whole(self, lock_table: LockTable, rows: RawRows, key: str) -> None:
        await rows.put(self.raw(key, data={"B": b"old"}))
        seen = await lock_table.read()
        assert seen == LockRow("w-1", 120.0, "v1")
        assert await lock_table.claim(seen, "w-2", "v2") is None
        assert await lock_table.read() == LockRow("w-2", 120.0, "v2")
        assert "data" not in (await rows.get("Leader") or {})

    async def test_a_lock_that_moved_or_went_is_not_replaced(self, lock_table: LockTable) -> None:
        await lock_table.claim(None, "w-1", "v1")
        seen = await lock_table.read()
        await lock_table.heartbeat("w-1", "v1", "v2")
        moved = LockRow("w-1", 120.0, "v2")
        assert await lock_table.claim(seen, "w-2", "v3") == Refused(moved)
        await lock_table.release("w-1", "v2")
        assert await lock_table.claim(moved, "w-2", "v3") == Refused(None)
        assert await lock_table.read() is None

    async def test_a_released_lock_is_claimed_while_it_is_released(
        self, lock_table: LockTable, rows: RawRows, key: str
    ) -> None:
        await rows.put(self.raw(key, isReleased={"S": "1"}))
        released = await lock_table.read()
        assert released == LockRow("w-1", 120.0, "v1", is_released=True)
        assert await lock_table.claim(released, "w-2", "v2") is None
        assert await lock_table.read() == LockRow("w-2", 120.0, "v2")
        assert await lock_table.claim(released, "w-3", "v3") is not None

    async def test_a_heartbeat_changes_the_version_and_keeps_the_rest(
        self, lock_table: LockTable, rows: RawRows, key: str
    ) -> None:
        await rows.put(self.raw(key, data={"B": b"kept"}))
        assert await lock_table.heartbeat("w-1", "v1", "v2") is None
        assert await lock_table.read() == LockRow("w-1", 120.0, "v2")
        assert (await rows.get("Leader") or {})["data"] == {"B": b"kept"}

    @pytest.mark.parametrize(("owner", "version"), [("w-2", "v1"), ("w-1", "v0")])
    async def test_only_the_holder_renews_and_releases(self, lock_table: LockTable, owner: str, version: str) -> None:
        await lock_table.claim(None, "w-1", "v1")
        standing = Refused(LockRow("w-1", 120.0, "v1"))
        assert await lock_table.heartbeat(owner, version, "v9") == standing
        assert await lock_table.release(owner, version) == standing
        assert await lock_table.read() == standing.lock

    async def test_a_released_lock_is_gone(self, lock_table: LockTable) -> None:
        await lock_table.claim(None, "w-1", "v1")
        assert await lock_table.release("w-1", "v1") is None
        assert await lock_table.read() is None
        assert await lock_table.release("w-1", "v1") == Refused(None)
        assert await lock_table.heartbeat("w-1", "v1", "v2") == Refused(None)
        assert await lock_table.read() is None

    @pytest.mark.parametrize(
        "damage",
        [
            {"recordVersionNumber": None},
            {"leaseDuration": {"N": "120000"}},
            {"ownerName": {"NULL": True}},
            {"ownerName": None, "leaseDuration": None, "recordVersionNumber": None},
        ],
    )
    async def test_a_damaged_lock_is_replaced_if_nobody_touched_it(
        self, lock_table: LockTable, rows: RawRows, key: str, damage: dict[str, Any]
    ) -> None:
        await rows.put(self.raw(key, **damage))
        damaged = await lock_table.read()
        assert isinstance(damaged, DamagedLock)
        touched = DamagedLock(dict(damaged.attributes) | {"leaseDuration": {"S": "touched"}}, "")
        refusal = await lock_table.claim(touched, "w-2", "v2")
        assert refusal == Refused(damaged)
        await rows.put(self.raw(key))
        assert await lock_table.claim(damaged, "w-2", "v2") == Refused(LockRow("w-1", 120.0, "v1")), "it was mended"
        await rows.put(self.raw(key, **damage))
        assert await lock_table.claim(damaged, "w-2", "v2") is None
        assert await lock_table.read() == LockRow("w-2", 120.0, "v2")

    async def test_of_many_claims_one_wins(self, lock_table: LockTable) -> None:
        names = [f"w-{number}" for number in range(RACERS)]
        for over in (None, LockRow("w-0", 120.0, "won")):
            if over is not None:
                await lock_table.release("won", "won")
                await lock_table.claim(None, "w-0", "won")
            answers = await asyncio.gather(*(lock_table.claim(over, name, name) for name in names))
            winner = await lock_table.read()
            assert isinstance(winner, LockRow)
            assert [name for name, answer in zip(names, answers, strict=True) if answer is None] == [winner.owner]
            assert await lock_table.release(winner.owner, winner.version) is None

    async def test_a_missing_table_is_named(self, service: Service) -> None:
        missing = LockTable(service, Place("missing", "key"), request_timeout_s=REQUEST_TIMEOUT_S)
        with pytest.raises(TableMissingError, match="missing"):
            await missing.read()
