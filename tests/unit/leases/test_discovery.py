"""Finding the leases that the leader has assigned to us (leases#discovery-of-assigned-leases)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from mld.core.clock import LoopClock
from mld.core.errors import TableUnavailableError
from mld.core.periods import DISCOVERY_PERIOD_S, QUERY_SPACING_S_MAX
from mld.core.positions import TRIM_HORIZON
from mld.leases import writes
from mld.leases.discovery import GETS_CONCURRENT_MAX, PENDING_POLL_S, LeaseDiscovery
from mld.leases.dynamodb import DynamoLeaseTable
from mld.leases.lease import Lease
from mld.leases.table import IndexStatus
from tests.twins.dynamo import Fault, MemoryDynamo, lost_reply, lost_request
from tests.unit.leases.support import DURATION_S, TABLE, FaultPlan, Worker, new_dynamo
from tests.virtual_time import virtual


class ListedIndex:
    """An owner index that has what the test wants it to have, true or not."""

    listed: tuple[str, ...] | Exception = ()
    queries = 0

    async def ensure(self) -> IndexStatus:
        return IndexStatus.ACTIVE

    async def status(self) -> IndexStatus:
        return IndexStatus.ACTIVE

    async def keys_owned_by(self, worker: str) -> tuple[str, ...]:
        self.queries += 1
        if isinstance(self.listed, Exception):
            raise self.listed
        return self.listed


class Fleet:
    """We, the leader, and another worker."""

    def __init__(self, dynamo: MemoryDynamo) -> None:
        self.dynamo = dynamo
        self.me = Worker(dynamo, "me")
        self.other = Worker(dynamo, "other")
        self.leader = DynamoLeaseTable(dynamo.client("leader"), LoopClock(), table_name=TABLE)
        self.index = ListedIndex()
        self.table = DynamoLeaseTable(dynamo.client("me"), LoopClock(), table_name=TABLE, request_timeout_s=3.0)
        self.discovery = LeaseDiscovery(self.table, self.index, self.me.keeper, LoopClock(), worker_id="me")

    async def assigned(self, *keys: str) -> None:
        for key in keys:
            lease = Lease(key, TRIM_HORIZON)
            assert await self.leader.apply(writes.create(lease))
            assert isinstance(await self.leader.apply(writes.assign(lease, "me")), Lease)

    async def handed_off(self, key: str) -> str:
        """A lease of `other` that is to become ours; the token of the other's holding."""
        (held,) = await self.other.hold(key)
        assert isinstance(await self.leader.apply(writes.begin_handoff(held.lease, "me")), Lease)
        return held.token

    def held(self) -> set[str]:
        return set(self.me.keeper.held())

    async def until(self, condition: Callable[[], bool], within_s: float) -> float:
        started_at = LoopClock().monotonic()
        while not condition():
            assert LoopClock().monotonic() - started_at < within_s, f"not within {within_s} s"
            await asyncio.sleep(0.005)
        return LoopClock().monotonic() - started_at

    def reads(self, sender: str = "me") -> int:
        return self.dynamo.calls.count((sender, "GetItem"))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        works = (self.discovery.run(), self.me.keeper.run(), self.other.keeper.run())
        tasks = [asyncio.create_task(work) for work in works]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def fleet() -> Fleet:
    return Fleet(await new_dynamo())


@virtual
async def test_an_assigned_lease_is_held_within_one_period_and_renewed_at_once() -> None:
    f = await fleet()
    async with f.running():
        await asyncio.sleep(3.3)
        await f.assigned("a")
        f.index.listed = ("a",)
        assert await f.until(lambda: f.held() == {"a"}, DISCOVERY_PERIOD_S + 0.01) > 0.1
        assert f.me.keeper.held()["a"].lease.counter == 2
        assert [applied.sender for applied in f.dynamo.history] == ["leader", "leader", "me"]


@virtual
async def test_a_wake_finds_leases_without_waiting_for_the_period() -> None:
    f = await fleet()
    async with f.running():
        await asyncio.sleep(0.1)
        await f.assigned("a", "b")
        f.discovery.wake(["a"])
        await f.until(lambda: f.held() == {"a"}, 0.02)
        f.index.listed = ("a", "b")
        f.discovery.wake()
        await f.until(lambda: f.held() == {"a", "b"}, 0.02)


@virtual
async def test_the_lease_is_believed_from_the_sending_of_the_first_renewal_and_not_from_the_read() -> None:
    f = await fleet()
    await f.assigned("a")
    f.index.listed = ("a",)
    plan = FaultPlan(f.dynamo, "me")
    plan.next(Fault(delay_after_s=2.0))
    plan.always = lost_request()
    async with f.running():
        await asyncio.sleep(1.9)
        assert f.held() == set()
        await asyncio.sleep(0.2)
        assert f.held() == {"a"}
        f.index.listed = ()
        await asyncio.sleep(DURATION_S - 2.1 - 0.01)
        assert f.held() == {"a"}
        await asyncio.sleep(0.05)
        assert f.held() == set()


@virtual
async def test_a_lagging_index_costs_reads_and_no_writes(caplog: pytest.LogCaptureFixture) -> None:
    f = await fleet()
    await f.other.hold("theirs")
    await f.leader.apply(writes.create(Lease("free", TRIM_HORIZON)))
    f.index.listed = ("theirs", "free", "deleted")
    async with f.running():
        await asyncio.sleep(5 * DISCOVERY_PERIOD_S + 0.1)
    assert f.reads() == 3 * 6
    assert "me" not in {applied.sender for applied in f.dynamo.history}
    assert f.held() == set()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@virtual
async def test_a_held_lease_is_not_read_again() -> None:
    f = await fleet()
    await f.assigned("a")
    f.index.listed = ("a",)
    async with f.running():
        await asyncio.sleep(29.5)
    assert f.reads() == 1
    assert f.index.queries == 30


@virtual
async def test_a_row_whose_old_owner_is_finishing_is_polled_until_it_is_ours() -> None:
    f = await fleet()
    token = await f.handed_off("a")
    f.index.listed = ("a",)
    async with f.running():
        await asyncio.sleep(4.2)
        assert f.discovery.pending == {"a"}
        assert f.held() == set()
        assert f.reads() == 1 + int(4.2 / PENDING_POLL_S)
        assert "me" not in {applied.sender for applied in f.dynamo.history}
        assert await f.other.keeper.give_away("a", token)
        assert await f.until(lambda: f.held() == {"a"}, PENDING_POLL_S + 0.01) > 0
        assert f.discovery.pending == set()
        reads = f.reads()
        await asyncio.sleep(5)
        assert f.reads() == reads


@virtual
async def test_a_pending_row_that_goes_to_somebody_else_is_forgotten() -> None:
    f = await fleet()
    await f.handed_off("a")
    f.index.listed = ("a",)
    async with f.running():
        await asyncio.sleep(1.2)
        row = await f.leader.get("a")
        assert row is not None
        assert isinstance(await f.leader.apply(writes.assign(row, "third")), Lease)
        f.index.listed = ()
        await f.until(lambda: f.discovery.pending == set(), 0.6)
        reads = f.reads()
        await asyncio.sleep(5)
        assert (f.reads(), f.held()) == (reads, set())


@virtual
async def test_pending_rows_are_polled_on_while_the_index_and_the_reads_fail() -> None:
    f = await fleet()
    token = await f.handed_off("a")
    f.index.listed = ("a",)
    async with f.running():
        await asyncio.sleep(0.2)
        f.index.listed = TableUnavailableError("no index today")
        plan = FaultPlan(f.dynamo, "me", ["GetItem"])
        plan.always = lost_reply()
        assert await f.other.keeper.give_away("a", token)
        await asyncio.sleep(3)
        assert f.held() == set()
        plan.always = None
        await f.until(lambda: f.held() == {"a"}, PENDING_POLL_S + 0.1)


@virtual
async def test_an_error_costs_one_period(caplog: pytest.LogCaptureFixture) -> None:
    f = await fleet()
    await f.assigned("a", "b")
    f.index.listed = TableUnavailableError("no index today")
    plan = FaultPlan(f.dynamo, "me", ["GetItem"])
    plan.next(lost_request())
    async with f.running():
        await asyncio.sleep(0.1)
        f.index.listed = ("a", "b")
        await asyncio.sleep(DISCOVERY_PERIOD_S)
        assert f.held() == {"b"}
        await asyncio.sleep(DISCOVERY_PERIOD_S)
        assert f.held() == {"a", "b"}
    assert [getattr(r, "action", "") for r in caplog.records if r.levelno == logging.WARNING] == [
        "discovery_failed",
        "discovery_failed",
    ]


@virtual
async def test_a_thousand_assigned_leases_are_read_a_few_at_a_time() -> None:
    f = await fleet()
    keys = [f"shardId-{number:012d}" for number in range(1000)]
    await f.assigned(*keys)
    f.index.listed = tuple(keys)
    plan = FaultPlan(f.dynamo, "me", ["GetItem", "UpdateItem"])
    plan.always = Fault(delay_after_s=0.005)
    most = under_way = 0
    get = f.table.get

    async def counted(key: str) -> Lease | None:
        nonlocal most, under_way
        under_way += 1
        most = max(most, under_way)
        try:
            return await get(key)
        finally:
            under_way -= 1

    f.table.get = counted  # type: ignore[method-assign]
    async with f.running():
        await f.until(lambda: len(f.held()) == 1000, 3)
    assert most == GETS_CONCURRENT_MAX


@virtual
async def test_a_hanging_read_does_not_hold_up_the_others() -> None:
    f = await fleet()
    await f.assigned("a", "b", "c")
    f.index.listed = ("a", "b", "c")
    plan = FaultPlan(f.dynamo, "me")
    plan.when = lambda operation, params: operation == "GetItem" and params["Key"]["leaseKey"]["S"] == "a"
    plan.always = Fault(delay_before_s=60)
    async with f.running():
        await asyncio.sleep(0.1)
        assert f.held() == {"b", "c"}


@virtual
async def test_discovery_may_end_and_begin_again() -> None:
    f = await fleet()
    f.index.listed = ("a",)
    async with f.running():
        await asyncio.sleep(0.1)
    await f.assigned("a")
    await asyncio.sleep(5)
    assert f.held() == set()
    async with f.running():
        await asyncio.sleep(0.1)
        assert f.held() == {"a"}


@virtual
async def test_who_leads_alone_asks_the_index_as_seldom_as_java() -> None:
    f = await fleet()
    async with f.running():
        f.discovery.saw_table((), leads_alone=True)
        await asyncio.sleep(2 * DISCOVERY_PERIOD_S)
        before = f.index.queries
        for _ in range(10):
            f.discovery.saw_table((), leads_alone=True)
            await asyncio.sleep(QUERY_SPACING_S_MAX)
        assert f.index.queries - before == 10
