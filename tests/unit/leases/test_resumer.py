"""Leases that lapsed come back by one guarded renewal, and our own writes are no twin's (leases#resumed-leases)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import pytest

from mld.aws.table_calls import ANSWER_S_MAX
from mld.core.positions import TRIM_HORIZON
from mld.leases import writes
from mld.leases.lease import Lease
from mld.leases.own_writes import OPEN_MAX
from mld.leases.resumer import oldest_share
from mld.leases.validity import SUSPENDED_DURATIONS
from tests.twins.dynamo import Fault, MemoryDynamo, lost_reply, lost_request, throttled
from tests.unit.leases.support import (
    DURATION_S,
    INTERVAL_S,
    FaultPlan,
    Worker,
    attribute,
    counter_of,
    new_dynamo,
    running,
    started,
)
from tests.virtual_time import virtual

# --- lapsed leases


@asynccontextmanager
async def lapsed(fault: Fault, for_s: float = DURATION_S + 1) -> AsyncIterator[tuple[MemoryDynamo, Worker, FaultPlan]]:
    """A worker that runs and has held `a`, until all its writes got this fault for so long. They still do."""
    dynamo, me = await started()
    await me.hold("a")
    plan = FaultPlan(dynamo, "me")
    async with running(me):
        await asyncio.sleep(0.1)  # the first renewal
        plan.always = fault
        await asyncio.sleep(for_s)
        assert me.keeper.held() == {}
        yield dynamo, me, plan


@pytest.mark.parametrize("fault", [throttled(), lost_request(), lost_reply()], ids=["throttled", "lost", "no reply"])
@virtual
async def test_after_an_outage_longer_than_the_lease_unchanged_rows_come_back_at_once(fault: Fault) -> None:
    dynamo, me = await started()
    before = await me.hold("a", "b")
    plan = FaultPlan(dynamo)
    async with running(me):
        await asyncio.sleep(0.1)
        plan.always = fault
        await asyncio.sleep(5 * DURATION_S)
        assert me.keeper.held() == {}
        plan.always = None
        await asyncio.sleep(INTERVAL_S + 0.1)
        held = me.keeper.held()
    assert set(held) == {"a", "b"}
    assert not {one.token for one in before} & {one.token for one in held.values()}
    assert {key: one.lease.counter for key, one in held.items()} == {key: counter_of(dynamo, key) for key in ("a", "b")}


@virtual
async def test_tries_that_fail_late_and_beside_each_other_make_no_more_of_them() -> None:
    """A row that no write can be applied to, after a time in which answers were slow."""
    dynamo, me = await started()
    await me.hold("a")
    plan = FaultPlan(dynamo)
    async with running(me):
        plan.always = replace(throttled(), delay_before_s=0.6 * DURATION_S)
        await asyncio.sleep(6 * DURATION_S)
        plan.next(*(replace(throttled(), delay_before_s=0.01 + 0.003 * (number % 3)) for number in range(10_000)))
        await asyncio.sleep(DURATION_S)
        sent = dynamo.usage(sender="me", operation="UpdateItem").requests
        await asyncio.sleep(10 * DURATION_S)
    assert dynamo.usage(sender="me", operation="UpdateItem").requests - sent < 10 * DURATION_S / (INTERVAL_S / 3)


@virtual
async def test_at_most_one_try_for_a_lapsed_lease_waits_for_a_slot() -> None:
    dynamo, me = await started()
    await me.table.apply(writes.create(Lease("a", TRIM_HORIZON, owner="me")))
    slots = me.keeper.resumer.slots
    async with AsyncExitStack() as taken, running(me):
        for _ in range(slots.room):
            await taken.enter_async_context(slots.one())
        await asyncio.sleep(0.1)
        before = len(asyncio.all_tasks())
        found = asyncio.create_task(me.keeper.resumer.reacquire([await me.row("a")]))
        await asyncio.sleep(0.25 * DURATION_S)
        assert len(asyncio.all_tasks()) - before == 3  # `found`, who waits for the one lease of it, and one try
        await taken.aclose()
        assert await found == ("a",)
    assert counter_of(dynamo, "a") == 1


@pytest.mark.parametrize("duration_s", [1.0, 3.0, DURATION_S])
@virtual
async def test_after_a_network_that_swallows_everything_a_try_is_sent_soon_although_the_swallowed_ones_still_wait(
    duration_s: float,
) -> None:
    swallowed_s = 50.0
    dynamo = await new_dynamo()
    me = Worker(dynamo, "me", request_timeout_s=ANSWER_S_MAX, duration_s=duration_s)
    await me.hold("a")
    plan = FaultPlan(dynamo)
    async with running(me):
        await asyncio.sleep(0.1)
        plan.always = replace(lost_request(), delay_before_s=ANSWER_S_MAX)
        await asyncio.sleep(swallowed_s)
        assert me.keeper.held() == {}
        plan.always = None
        assert me.keeper.resumer.rows.waiting("a") < OPEN_MAX
        await asyncio.sleep(oldest_share(duration_s) * swallowed_s + 1.0)
        assert set(me.keeper.held()) == {"a"}


@virtual
async def test_a_late_answer_to_another_try_does_not_bring_back_a_lease_that_was_given_away() -> None:
    dynamo, me = await started()
    await me.table.apply(writes.create(Lease("a", TRIM_HORIZON, owner="me")))
    plan = FaultPlan(dynamo)
    plan.next(Fault(delay_after_s=0.25 * DURATION_S))
    async with running(me):
        assert await me.keeper.resumer.reacquire([await me.row("a")]) == ("a",)
        token = me.keeper.held()["a"].token
        assert await me.keeper.give_away("a", token)
        await asyncio.sleep(0.16 * DURATION_S)  # the late answer has come, and no renewal has been refused yet
        assert me.keeper.held() == {}
    assert attribute(dynamo, "a", "leaseOwner") is None


@virtual
async def test_the_taker_leaves_a_lapsed_lease_to_the_keeper() -> None:
    async with lapsed(throttled()) as (_, me, plan):
        await me.taker.take_once()  # it sees the counter for the first time
        await asyncio.sleep(DURATION_S + 1)
        plan.always = None
        assert await me.taker.take_once() == ()
        await asyncio.sleep(INTERVAL_S)
        assert set(me.keeper.held()) == {"a"}


@virtual
async def test_a_lapsed_lease_that_another_has_taken_is_left_alone() -> None:
    async with lapsed(throttled()) as (dynamo, me, plan):
        other = Worker(dynamo, "other")
        row = await other.row("a")
        assert isinstance(await other.table.apply(writes.take(row, "other")), Lease)
        plan.always = None
        sent = dynamo.usage(sender="me", operation="UpdateItem").requests
        await asyncio.sleep(3 * DURATION_S)
        assert me.keeper.held() == {}
    assert attribute(dynamo, "a", "leaseOwner") == "other"
    assert dynamo.usage(sender="me", operation="UpdateItem").requests <= sent + 1


@virtual
async def test_who_assigns_a_lapsed_lease_to_us_again_is_no_twin(caplog: pytest.LogCaptureFixture) -> None:
    async with lapsed(lost_request()) as (dynamo, me, plan):
        leader = Worker(dynamo, "leader")
        row = await leader.row("a")
        assert isinstance(await leader.table.apply(writes.assign_expired(row, "me")), Lease)
        plan.always = None
        await asyncio.sleep(INTERVAL_S)
        row = await me.row("a")  # as discovery does
        await me.keeper.resumer.reacquire([row])
        assert set(me.keeper.held()) == {"a"}
    assert "another process" not in caplog.text


@virtual
async def test_a_lapsed_lease_that_was_promised_to_another_meanwhile_comes_back_to_be_handed_over() -> None:
    async with lapsed(lost_reply(), DURATION_S + INTERVAL_S) as (dynamo, me, plan):
        leader = Worker(dynamo, "leader")
        row = await leader.row("a")
        assert isinstance(await leader.table.apply(writes.begin_handoff(row, "leader")), Lease)
        plan.always = None
        await asyncio.sleep(INTERVAL_S)
        held = me.keeper.held()["a"]
        assert held.lease.handoff_to == "leader"
        assert await me.keeper.give_away("a", held.token)
    row = await leader.row("a")
    assert (row.owner, row.checkpoint_owner) == ("leader", None)


@virtual
async def test_a_worker_that_stops_brings_nothing_back() -> None:
    async with lapsed(throttled(), (1 + SUSPENDED_DURATIONS) * DURATION_S + 1) as (_, me, plan):
        me.keeper.resumer.close()
        plan.always = None
        await asyncio.sleep(2 * DURATION_S)
        assert me.keeper.held() == {}


# --- our own writes


@pytest.mark.parametrize("read_s", [0.05, 1.5], ids=["read before it is applied", "read after"])
@pytest.mark.parametrize("answered", [False, True], ids=["no reply", "late reply"])
@virtual
async def test_a_write_on_its_way_when_its_holding_expires_is_no_twins(
    read_s: float, answered: bool, caplog: pytest.LogCaptureFixture
) -> None:
    dynamo, me = await started()
    await me.hold("a")
    plan = FaultPlan(dynamo)
    async with running(me):
        await asyncio.sleep(0.1)
        plan.always = throttled()
        await asyncio.sleep(DURATION_S - 0.5)
        plan.always = None
        plan.next(Fault(0.6, None, None if answered else lost_reply().fail_after, 0.2))  # the last retry
        await asyncio.sleep(0.4 + read_s)
        row = await me.row("a")
        await me.keeper.resumer.reacquire([row])
        await asyncio.sleep(INTERVAL_S)
        assert set(me.keeper.held()) == {"a"}
        assert attribute(dynamo, "a", "leaseOwner") == "me"
    assert "another process" not in caplog.text


@virtual
async def test_a_write_of_an_expired_holding_that_crosses_a_found_row_is_no_twins(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The row is read, then a renewal that was on its way arrives; its reply is lost."""
    dynamo, me = await started()
    (held,) = await me.hold("a")
    seen = await me.row("a")
    FaultPlan(dynamo).next(Fault(1.0, None, lost_reply().fail_after), Fault(1.0))
    async with running(me):
        await asyncio.sleep(0.5)
        me.keeper.drop("a", held.token)  # the holding is over while its write travels
        assert await me.keeper.resumer.reacquire([seen]) == ("a",)
    assert counter_of(dynamo, "a") in (seen.counter + 2, seen.counter + 3)
    assert "another process" not in caplog.text


@virtual
async def test_a_row_that_moved_since_it_was_read_is_read_again_and_accuses_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The failover watcher, the leader or a former process of this worker may have written it."""
    _, me = await started()
    (held,) = await me.hold("a")
    me.keeper.drop("a", held.token)
    seen = await me.row("a")
    assert isinstance(await me.table.apply(writes.assign_expired(seen, "me")), Lease)
    assert await me.keeper.resumer.reacquire([seen]) == ()
    assert await me.keeper.resumer.reacquire([await me.row("a")]) == ("a",)
    assert "another process" not in caplog.text
