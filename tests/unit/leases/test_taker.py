"""The taker's shell: taking, handing over, failures, and its rhythm (leases#taking-one-by-one)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from mld.core.positions import TRIM_HORIZON
from mld.leases import writes
from mld.leases.lease import Lease
from mld.leases.taker import REFUSED_IN_A_ROW_MAX, TAKES_CONCURRENT_MAX
from tests.twins.dynamo import Fault, MemoryDynamo, lost_reply, lost_request, throttled
from tests.unit.leases.support import DURATION_S, TABLE, FaultPlan, Worker, attribute, counter_of, new_dynamo
from tests.virtual_time import virtual

PERIOD_S = 20.05


async def table_with(*keys: str, **options: Any) -> tuple[MemoryDynamo, Worker]:
    dynamo = await new_dynamo(**options)
    me = Worker(dynamo, "me")
    for key in keys:
        await me.table.apply(writes.create(Lease(key, TRIM_HORIZON)))
    return dynamo, me


@virtual
async def test_a_scan_made_elsewhere_is_used() -> None:
    dynamo, me = await table_with("a")
    scan = await me.table.scan()
    dynamo.calls.clear()
    assert await me.taker.take_once(scan) == ("a",)
    assert dynamo.calls == [("me", "UpdateItem")]


@virtual
async def test_one_failing_lease_does_not_cost_the_others() -> None:
    dynamo, me = await table_with("a", "b", "c")
    plan = FaultPlan(dynamo)
    plan.when = lambda operation, params: params.get("Key") == {"leaseKey": {"S": "b"}}
    plan.always = lost_request()
    assert set(await me.taker.take_once()) == {"a", "c"}
    assert set(me.keeper.held()) == {"a", "c"}


@virtual
async def test_many_leases_are_taken_a_few_at_a_time() -> None:
    dynamo, me = await table_with(*(f"shard-{number:03d}" for number in range(200)))
    tasks_before = len(asyncio.all_tasks())
    tasks: list[int] = []

    def watch(_sender: str, operation: str, _params: Mapping[str, Any]) -> Fault | None:
        tasks.append(len(asyncio.all_tasks()) - tasks_before)
        return Fault(delay_before_s=0.01) if operation == "UpdateItem" else None

    dynamo.faults = watch
    assert len(await me.taker.take_once()) == 200
    assert TAKES_CONCURRENT_MAX < max(tasks) <= 3 * TAKES_CONCURRENT_MAX  # the twin needs some for itself


@virtual
async def test_a_pass_ends_when_others_are_ahead_everywhere() -> None:
    dynamo, me = await table_with(*(f"shard-{number:03d}" for number in range(200)))
    scan = await me.table.scan()
    assert len(await Worker(dynamo, "quicker").taker.take_once(scan)) == 200
    dynamo.calls.clear()
    assert await me.taker.take_once(scan) == ()
    tried = dynamo.calls.count(("me", "UpdateItem"))
    assert REFUSED_IN_A_ROW_MAX <= tried < REFUSED_IN_A_ROW_MAX + TAKES_CONCURRENT_MAX
    dynamo.delete_row(TABLE, "shard-000")
    await me.table.apply(writes.create(Lease("shard-000", TRIM_HORIZON)))
    assert await me.taker.take_once() == ("shard-000",), "the next pass begins anew"


@virtual
async def test_a_pass_goes_on_while_some_leases_are_still_free() -> None:
    dynamo, me = await table_with(*(f"shard-{number:03d}" for number in range(200)))
    scan = await me.table.scan()
    quicker = Worker(dynamo, "quicker")
    for lease in scan.leases[::2]:
        await quicker.table.apply(writes.take(lease, "quicker"))
    assert set(await me.taker.take_once(scan)) == {lease.key for lease in scan.leases[1::2]}


@pytest.mark.parametrize("fault", [lost_reply(), lost_request(), throttled()])
@virtual
async def test_a_take_survives_one_failure(fault: Fault) -> None:
    dynamo, me = await table_with("a")
    FaultPlan(dynamo).next(fault)
    assert await me.taker.take_once() == ("a",)
    assert me.keeper.held()["a"].lease.counter == counter_of(dynamo, "a") == 1


@pytest.mark.parametrize("renewed", [False, True], ids=["nobody renews it", "a twin with our id does"])
@virtual
async def test_a_take_that_stayed_unknown_but_was_applied_is_resumed_by_the_next_pass(renewed: bool) -> None:
    dynamo, me = await table_with("a")
    plan = FaultPlan(dynamo)
    plan.always = lost_reply()
    assert await me.taker.take_once() == ()
    assert attribute(dynamo, "a", "leaseOwner") == "me"
    assert me.keeper.held() == {}
    plan.always = None
    if renewed:
        await me.table.apply(writes.renew(await me.row("a")))
    await me.taker.take_once()
    assert set(me.keeper.held()) == (set() if renewed else {"a"})


@virtual
async def test_the_leases_of_a_dead_worker_are_taken_after_they_were_seen_to_stand_still() -> None:
    dynamo, me = await table_with()
    await Worker(dynamo, "dead").hold("a")
    assert await me.taker.take_once() == ()
    await asyncio.sleep(DURATION_S - 0.1)
    assert await me.taker.take_once() == ()
    await asyncio.sleep(0.2)
    assert await me.taker.take_once() == ("a",)


# --- stealing


async def steal_slowly(change: str) -> tuple[MemoryDynamo, tuple[str, ...], list[str]]:
    """A pass that must steal from a victim with two leases and whose scan takes 2 s; the rows change meanwhile."""
    dynamo, me = await table_with()
    victim = Worker(dynamo, "victim")
    await victim.hold("a", "b")

    def faults(sender: str, operation: str, params: Mapping[str, Any]) -> Fault | None:
        return Fault(delay_after_s=2.0) if (sender, operation) == ("me", "Scan") else None

    dynamo.faults = faults
    passing = asyncio.create_task(me.taker.take_once())
    await asyncio.sleep(1.0)
    for key in ("a", "b"):
        lease = await victim.row(key)
        match change:
            case "renewed":
                await victim.table.apply(writes.renew(lease))
            case "gone":
                dynamo.delete_row("app", key)
            case "taken":
                await victim.table.apply(writes.take(lease, "third"))
    dynamo.calls.clear()
    taken = await passing
    return dynamo, taken, [operation for sender, operation in dynamo.calls if sender == "me"]


@virtual
async def test_a_victim_is_read_again_before_its_lease_is_stolen() -> None:
    _, taken, operations = await steal_slowly("renewed")
    assert len(taken) == 1
    assert operations == ["GetItem", "UpdateItem"]


@pytest.mark.parametrize("change", ["gone", "taken"])
@virtual
async def test_a_row_that_is_not_the_victims_any_more_is_left_alone(change: str) -> None:
    _, taken, operations = await steal_slowly(change)
    assert taken == ()
    assert operations == ["GetItem"]


# --- the loop


@virtual
async def test_the_loop_passes_at_once_and_then_once_per_period() -> None:
    dynamo, me = await table_with()
    dynamo.calls.clear()
    loop = asyncio.create_task(me.taker.run())
    await asyncio.sleep(3 * PERIOD_S - 0.1)
    loop.cancel()
    assert dynamo.calls == [("me", "Scan")] * 3


@virtual
async def test_a_wake_makes_the_next_pass_now() -> None:
    _, me = await table_with()
    loop = asyncio.create_task(me.taker.run())
    await asyncio.sleep(1.0)
    await me.table.apply(writes.create(Lease("new", TRIM_HORIZON)))
    me.taker.wake()
    await asyncio.sleep(0.01)
    assert "new" in me.keeper.held()
    loop.cancel()


@virtual
async def test_a_failed_pass_does_not_end_the_loop() -> None:
    dynamo, me = await table_with("a")
    dynamo.faults = lambda *_: throttled()
    loop = asyncio.create_task(me.taker.run())
    await asyncio.sleep(6.0)
    failed_scans = sum(operation == "Scan" for _, operation in dynamo.calls)
    dynamo.faults = None
    await asyncio.sleep(PERIOD_S / 2)  # it is tried again sooner than a period later
    assert "a" in me.keeper.held()
    assert failed_scans <= 4  # 1, 2, 4 s apart
    loop.cancel()


@virtual
async def test_a_held_lease_is_never_taken_again() -> None:
    _, me = await table_with()
    (held,) = await me.hold("a")
    scan = await me.table.scan()
    pretending_free = replace(scan, leases=tuple(replace(lease, owner=None) for lease in scan.leases))
    assert await me.taker.take_once(pretending_free) == ()
    assert me.keeper.is_held("a", held.token)
