"""What a `HeartbeatTable` must do on any DynamoDB (`mld.fleet.heartbeat_writer`). Subclasses supply `service`.

`heartbeats` is over an existing lease table, and fences as `me`; `rows` plants and reads raw rows.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mld.aws.service import Service
from mld.fleet.heartbeat_writer import HeartbeatRefusal, HeartbeatRow, HeartbeatTable
from tests.contract.lease_table import RACERS
from tests.support.tables import RawRows, make_table, unique_table

E1, E2 = "a" * 16, "b" * 16
REPORT = {
    "leaseKey": {"S": "w"},
    "entityType": {"S": "WORKER_METRIC_STATS"},
    "lut": {"N": "1"},
    "mldVersion": {"S": "1"},
}


def report(value: str | None = None, **more: Any) -> dict[str, dict[str, Any]]:
    return {**REPORT, **more} if value is None else {**REPORT, "mldHeartbeat": {"S": value}, **more}


class HeartbeatTableContract:
    @pytest.fixture
    async def table(self, service: Service) -> str:
        name = unique_table()
        await make_table(service, name, "leaseKey")
        return name

    @pytest.fixture
    def heartbeats(self, service: Service, table: str) -> HeartbeatTable:
        return HeartbeatTable(service, table, "me")

    @pytest.fixture
    def rows(self, service: Service, table: str) -> RawRows:
        return RawRows(service, table)

    async def test_no_report_reads_as_none(self, heartbeats: HeartbeatTable) -> None:
        assert await heartbeats.read("w") is None

    async def test_an_epoch_is_claimed_moves_and_ends(self, heartbeats: HeartbeatTable, rows: RawRows) -> None:
        await rows.put(report(mldStranger={"S": "java"}))
        assert await heartbeats.claim("w", None, f"{E1}.1") == HeartbeatRow(f"{E1}.1")
        assert await heartbeats.send("w", [f"{E1}.1"], f"{E1}.2") == HeartbeatRow(f"{E1}.2")
        assert await heartbeats.clear("w", f"{E1}.2")
        assert await rows.get("w") == report()

    async def test_a_heartbeat_tells_of_the_shards_until_the_next_one(
        self, heartbeats: HeartbeatTable, rows: RawRows
    ) -> None:
        await rows.put(report(f"{E1}.1"))
        told = bytes(range(256))
        answer = await heartbeats.send("w", [f"{E1}.1"], f"{E1}.2", told)
        assert isinstance(answer, HeartbeatRow)
        assert answer.room > 256, "the value is not counted against itself"
        assert await rows.get("w") == report(f"{E1}.2", mldShards={"B": told})
        assert await heartbeats.send("w", [f"{E1}.2"], f"{E1}.3") == HeartbeatRow(f"{E1}.3")
        assert await rows.get("w") == report(f"{E1}.3")
        await heartbeats.send("w", [f"{E1}.3"], f"{E1}.4", told)
        assert await heartbeats.clear("w", f"{E1}.4")
        assert await rows.get("w") == report()

    async def test_it_is_claimed_only_over_what_was_seen(self, heartbeats: HeartbeatTable, rows: RawRows) -> None:
        await rows.put(report(f"{E1}.4"))
        assert await heartbeats.claim("w", None, f"{E2}.1") == HeartbeatRefusal(HeartbeatRow(f"{E1}.4"))
        assert await heartbeats.claim("w", f"{E1}.3", f"{E2}.1") == HeartbeatRefusal(HeartbeatRow(f"{E1}.4"))
        assert await heartbeats.claim("w", f"{E1}.4", f"{E2}.1") == HeartbeatRow(f"{E2}.1")

    async def test_a_refused_heartbeat_shows_the_row(self, heartbeats: HeartbeatTable, rows: RawRows) -> None:
        assert await heartbeats.send("w", [f"{E1}.1"], f"{E1}.2") == HeartbeatRefusal(None)
        assert await rows.get("w") is None
        await rows.put(report(f"{E1}.2"))
        assert await heartbeats.send("w", [f"{E1}.1"], f"{E1}.2") == HeartbeatRefusal(HeartbeatRow(f"{E1}.2"))

    async def test_a_fence_ends_the_epoch_that_was_observed(self, heartbeats: HeartbeatTable, rows: RawRows) -> None:
        await rows.put(report(f"{E1}.2"))
        assert not await heartbeats.fence("w", f"{E1}.1", {E1})
        assert await heartbeats.fence("w", f"{E1}.2", {E1})
        assert await rows.get("w") == report("fenced by me")
        assert await heartbeats.fence("w", f"{E1}.2", {E1}), "somebody else has done it"
        assert await heartbeats.send("w", [f"{E1}.2"], f"{E1}.3") == HeartbeatRefusal(HeartbeatRow("fenced by me"))

    async def test_the_java_peer_is_told_to_those_with_heartbeats(
        self, heartbeats: HeartbeatTable, rows: RawRows
    ) -> None:
        assert not await heartbeats.tell("w", "java")
        await rows.put(report())
        assert not await heartbeats.tell("w", "java")
        await rows.put(report(f"{E1}.2"))
        assert await heartbeats.tell("w", "java")
        assert await heartbeats.send("w", [f"{E1}.2"], f"{E1}.3") == HeartbeatRow(f"{E1}.3", "java")

    @pytest.mark.parametrize("what", [{"entityType": {"S": "LEADER"}}, {"mldVersion": None}])
    async def test_rows_of_others_are_left_alone(
        self, heartbeats: HeartbeatTable, rows: RawRows, what: dict[str, Any]
    ) -> None:
        row = {name: value for name, value in {**REPORT, **what}.items() if value is not None}
        await rows.put(row)
        assert isinstance(await heartbeats.claim("w", None, f"{E1}.1"), HeartbeatRefusal)
        assert not await heartbeats.tell("w", "java")
        assert await rows.get("w") == row

    async def test_of_a_heartbeat_and_many_fences_one_wins(self, heartbeats: HeartbeatTable, rows: RawRows) -> None:
        await rows.put(report(f"{E1}.1"))
        sent, *fences = await asyncio.gather(
            heartbeats.send("w", [f"{E1}.1"], f"{E1}.2"),
            *(heartbeats.fence("w", f"{E1}.1", {E1}) for _ in range(RACERS)),
        )
        assert any(fences) is isinstance(sent, HeartbeatRefusal)
