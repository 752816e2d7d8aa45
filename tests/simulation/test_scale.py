"""The bed for large fleets: its table agrees with the real one, and small fleets behave as the page on scale says."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mld.core.clock import LoopClock
from mld.core.positions import AT_TIMESTAMP_NAME, LATEST, SHARD_END, TRIM_HORIZON, Position
from mld.leases import writes
from mld.leases.dynamodb import DynamoLeaseTable
from mld.leases.lease import Lease
from mld.leases.own_writes import Span
from mld.leases.rows import CorruptRowError, parse_row
from mld.leases.table import LeaseTable
from tests.contract.lease_table import LeaseTableContract
from tests.simulation.scale import PAGE_ROWS, Fleet3x, LeanLeaseTable, Settling, lean
from tests.simulation.world.loop import run_world
from tests.support.tables import RawRows, Row
from tests.twins.dynamo import MemoryDynamo
from tests.twins.lease_rows import row_of
from tests.virtual_time import virtual

TABLE = "app"

# --- the table


class LeanRows(RawRows):
    """Plants and shows rows. What no `Lease` has a field for cannot be lost by a table of leases; it is kept here."""

    def __init__(self, table: LeanLeaseTable) -> None:
        self._table = table
        self._foreign: dict[str, Row] = {}

    async def put(self, row: Row) -> None:
        try:
            lease = parse_row(row)
        except CorruptRowError as error:
            self._table.corrupt[error.key] = error.reason
            return
        if lease is None:
            self._table.others[row["leaseKey"]["S"]] = row
        else:
            self._table.leases[lease.key] = lease
            self._foreign[lease.key] = {name: value for name, value in row.items() if name == "foreign"}

    async def get(self, key: str) -> Row | None:
        lease = self._table.leases.get(key)
        return None if lease is None else row_of(lease) | self._foreign.get(key, {})


class TestLeanLeaseTable(LeaseTableContract):
    @pytest.fixture
    async def lease_table(self) -> LeanLeaseTable:
        return LeanLeaseTable(Random(1))

    @pytest.fixture
    async def rows(self, lease_table: LeanLeaseTable) -> LeanRows:
        return LeanRows(lease_table)


KEYS = ("shardId-1", "shardId-2")
WORKERS = ("w-1", "w-2")
POSITIONS = (TRIM_HORIZON, LATEST, Position(AT_TIMESTAMP_NAME), Position("7", 2), Position("123"), SHARD_END)
Do = Callable[[LeaseTable], Coroutine[Any, Any, Any]]


def draw_write(data: st.DataObject, known: list[Lease]) -> Do:
    """A write that a worker might send that knows a row as it is now (the end of `known`) or as it once was."""
    fresh = known[-len(KEYS) :]
    lease = data.draw(st.sampled_from(fresh) | st.sampled_from(fresh) | st.sampled_from(known))
    kinds = ["create", "take", "children", "delete"]
    match data.draw(
        st.sampled_from(kinds if lease.actual_owner is None else [*kinds, *["renew", "store", "free"] * 2])
    ):
        case "create":
            return lambda table: table.apply(writes.create(Lease(lease.key, TRIM_HORIZON)))
        case "take":
            owner, resent = data.draw(st.sampled_from(WORKERS)), data.draw(st.booleans())
            return lambda table: table.apply(writes.take(lease, owner, resent=resent))
        case "children":
            children = data.draw(st.frozensets(st.sampled_from(KEYS), min_size=1))
            return lambda table: table.apply(writes.record_children(lease.key, children))
        case "delete":
            return lambda table: table.apply(writes.delete_completed(lease.key))
        case "renew":
            kbps = data.draw(st.sampled_from((None, 0.0, 412.734375)))
            span = draw_span(data, lease)
            return lambda table: table.apply(writes.renew(replace(lease, throughput_kbps=kbps), span=span))
        case "store":
            position = data.draw(st.sampled_from(POSITIONS))
            span = draw_span(data, lease)
            return lambda table: table.apply(writes.checkpoint(lease, position, span=span))
    return lambda table: table.apply(writes.release(lease))


def draw_span(data: st.DataObject, lease: Lease) -> Span:
    """What earlier writes of ours may have made of the row, in half of the cases nothing."""
    writes_open = data.draw(st.sampled_from((0, 0, 1, 3)))
    replaces = data.draw(st.frozensets(st.sampled_from(POSITIONS), max_size=writes_open))
    return Span(lease.counter, lease.counter + writes_open, replaces)


@settings(max_examples=60)
@given(st.data())
@virtual
async def test_the_lean_table_answers_every_history_as_dynamodb_does(data: st.DataObject) -> None:
    dynamo = MemoryDynamo(LoopClock())
    real, lean_table = DynamoLeaseTable(dynamo, LoopClock(), table_name=TABLE), LeanLeaseTable(Random(1))
    await real.ensure()
    known = [Lease(key, TRIM_HORIZON) for key in KEYS]
    for lease in known:
        assert await real.apply(writes.create(lease))
        assert await lean_table.apply(writes.create(lease))
    for _ in range(data.draw(st.integers(1, 25))):
        if data.draw(st.integers(0, 5)) == 0:
            await hand_over(dynamo, lean_table, data.draw(st.sampled_from(KEYS)), data.draw(st.sampled_from(WORKERS)))
        else:
            write = draw_write(data, known)
            assert await write(real) == await write(lean_table)
        seen = {lease.key: lease for lease in (await real.scan()).leases}
        assert seen == {lease.key: lease for lease in (await lean_table.scan()).leases}
        known += seen.values()


async def hand_over(dynamo: MemoryDynamo, table: LeanLeaseTable, key: str, next_owner: str) -> None:
    """A Java leader begins a handoff, on both tables."""
    row = dynamo.row(TABLE, key)
    if row is not None and "leaseOwner" in row and "checkpointOwner" not in row:
        dynamo.put_row(TABLE, row | {"leaseOwner": {"S": next_owner}, "checkpointOwner": row["leaseOwner"]})
        table.leases[key] = replace(table.leases[key], owner=next_owner, checkpoint_owner=table.leases[key].owner)


@virtual
async def test_a_scan_is_billed_by_page_and_a_write_by_row_refused_or_not() -> None:
    table = LeanLeaseTable(Random(1))
    table.leases = {f"s{n}": Lease(f"s{n}", TRIM_HORIZON) for n in range(PAGE_ROWS + 1)}
    await table.scan()
    assert (table.bill.pages, table.bill.read_units) == (2, 128.0 + 0.5)
    await table.apply(writes.take(table.leases["s0"], "w-1"))
    await table.apply(writes.take(replace(table.leases["s0"], counter=0), "w-2"))
    assert (table.bill.takes, table.bill.refused, table.bill.write_units) == (2, 1, 2)
    assert table.moves == 1


# --- fleets


@pytest.mark.parametrize("java", [False, True])
def test_a_leader_spreads_the_load_of_a_small_fleet_in_3x_mode(java: bool) -> None:
    async def main() -> list[Settling]:
        fleet = Fleet3x(120, seed=1, java=java)
        steps = (lambda: fleet.start(12), lambda: fleet.start(3), lambda: fleet.kill(5))
        return [await fleet.settle(step) for step in steps]

    with lean():
        cold, grown, shrunk = run_world(main())
    assert cold.held_s is not None
    assert cold.held_s < (40 if java else 10)
    assert cold.moves <= 2 * 120, "each lease is given once, and moves once at most when the others are there"
    assert [settling.workers for settling in (cold, grown, shrunk)] == [12, 15, 10]
    assert shrunk.held_s is not None
    assert shrunk.load_max < 2.0
