"""Handoff on the owner's side, its races, and giving leases away (leases#handoff-on-the-owner-side)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from mld.core.clock import LoopClock
from mld.core.errors import LeaseLostError
from mld.core.positions import SHARD_END, Position
from mld.leases import writes
from mld.leases.dynamodb import DynamoLeaseTable
from mld.leases.lease import Lease
from mld.leases.rows import parse_row
from mld.leases.table import Refusal
from tests.twins.dynamo import Fault, MemoryDynamo, lost_reply, lost_request, server_error, throttled
from tests.unit.leases.support import DURATION_S, INTERVAL_S, TABLE, FaultPlan, Worker, new_dynamo, running
from tests.virtual_time import run_virtual, virtual

KEY = "shardId-000000000007"
FIRST = Position("49039857314204006299212589664082056738427629321519628402", 3)
SECOND = Position("49039857314204006299212589664082056738427629458958581874")
H0 = {
    "leaseKey": {"S": KEY},
    "leaseOwner": {"S": "w-4f1c"},
    "leaseCounter": {"N": "118"},
    "ownerSwitchesSinceCheckpoint": {"N": "0"},
    "checkpoint": {"S": FIRST.sequence},
    "checkpointSubSequenceNumber": {"N": "3"},
    "throughputKBps": {"N": "412.734375"},
    "startingHashKey": {"S": "0"},
    "endingHashKey": {"S": "170141183460469231731687303715884105727"},
    "entityType": {"S": "LEASE"},
}
TIMEOUT_S = 30.0


class Scene:
    """The row of leases#handoff-example held by w-4f1c, and a leader who wants to give it to w-9b2e."""

    def __init__(self, dynamo: MemoryDynamo) -> None:
        self.dynamo = dynamo
        self.old = Worker(dynamo, "w-4f1c", handoff_timeout_s=TIMEOUT_S)
        self.leader = DynamoLeaseTable(dynamo.client("leader"), LoopClock(), table_name=TABLE)
        dynamo.put_row(TABLE, H0)
        lease = parse_row(H0)
        assert lease is not None
        held = self.old.keeper.adopt(lease, LoopClock().monotonic())
        assert held is not None
        self.token = held.token

    async def begin(self) -> Lease:
        """The leader begins the handoff."""
        answer = await self.leader.apply(writes.begin_handoff(self.row(), "w-9b2e"))
        assert isinstance(answer, Lease)
        return answer

    def row(self) -> Lease:
        lease = parse_row(self.dynamo.rows(TABLE)[KEY])
        assert lease is not None
        return lease

    def owners(self) -> tuple[str | None, str | None]:
        return self.row().owner, self.row().checkpoint_owner

    def is_held(self) -> bool:
        return self.old.keeper.is_held(KEY, self.token)

    def writes_of(self, sender: str) -> int:
        return sum(applied.sender == sender for applied in self.dynamo.history)

    def faulty_assignments(self) -> FaultPlan:
        """The plan of faults for the assignments of the old owner."""
        plan = FaultPlan(self.dynamo, "w-4f1c")
        plan.when = lambda operation, params: (
            operation == "UpdateItem" and ":newOwner" in params["ExpressionAttributeValues"]
        )
        return plan

    async def give_away(self) -> bool:
        return await self.old.keeper.give_away(KEY, self.token)


def scene(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a coroutine test of a `Scene` in virtual time; the keeper is running."""

    def wrapper(**arguments: Any) -> None:
        async def main() -> None:
            stage = Scene(await new_dynamo())
            async with running(stage.old):
                await asyncio.sleep(0.1)  # the first renewal
                await test(stage, **arguments)

        run_virtual(main())

    wrapper.__name__, wrapper.__doc__ = test.__name__, test.__doc__
    return wrapper


async def told(stage: Scene) -> None:
    """The handoff has begun and the old owner knows."""
    await stage.begin()
    await asyncio.sleep(INTERVAL_S)


# --- the steps of leases#handoff-example


@virtual
async def test_the_rows_of_a_handoff_are_those_of_the_worked_table() -> None:
    stage = Scene(await new_dynamo())
    new = Worker(stage.dynamo, "w-9b2e")
    await stage.begin()
    async with running(stage.old):
        await asyncio.sleep(0.1)
        assert await stage.old.keeper.checkpoint(KEY, stage.token, SECOND) == SECOND
        assert await stage.give_away()
    assert await new.keeper.resumer.reacquire([stage.row()]) == (KEY,)
    steps = [
        tuple(
            next(iter(applied.after[name].values())) if name in applied.after else None
            for name in ("leaseOwner", "checkpointOwner", "leaseCounter", "checkpoint")
        )
        for applied in stage.dynamo.history
    ]
    assert steps == [
        ("w-9b2e", "w-4f1c", "118", FIRST.sequence),
        ("w-9b2e", "w-4f1c", "119", FIRST.sequence),
        ("w-9b2e", "w-4f1c", "120", SECOND.sequence),
        ("w-9b2e", None, "121", SECOND.sequence),
        ("w-9b2e", None, "122", SECOND.sequence),
    ]
    # a graceful handoff is no switch (leases#owner-switches), and what is not ours to write is as it was
    final = stage.dynamo.rows(TABLE)[KEY]
    assert final["ownerSwitchesSinceCheckpoint"] == {"N": "0"}
    assert {name: final[name] for name in ("startingHashKey", "endingHashKey", "entityType")} == {
        name: H0[name] for name in ("startingHashKey", "endingHashKey", "entityType")
    }


# --- hearing of it


@scene
async def test_a_handoff_is_reported_once_within_one_renewal_interval(stage: Scene) -> None:
    assert stage.old.handoffs == []
    changes = stage.old.changes
    await stage.begin()
    await asyncio.sleep(INTERVAL_S)
    assert stage.old.handoffs == [(KEY, stage.token, "w-9b2e")]
    assert stage.old.changes == changes + 1
    await asyncio.sleep(3 * INTERVAL_S)
    assert stage.old.changes == changes + 1


@scene
async def test_a_checkpoint_hears_of_a_handoff_too_and_is_stored(stage: Scene) -> None:
    await stage.begin()
    assert await stage.old.keeper.checkpoint(KEY, stage.token, SECOND) == SECOND
    assert stage.old.handoffs == [(KEY, stage.token, "w-9b2e")]


@scene
async def test_a_handoff_of_a_complete_lease_is_heard_of_though_nothing_is_written(stage: Scene) -> None:
    end = {"checkpoint": {"S": "SHARD_END"}, "checkpointSubSequenceNumber": {"N": "0"}}
    stage.dynamo.put_row(TABLE, stage.dynamo.rows(TABLE)[KEY] | end)
    await stage.begin()
    assert await stage.old.keeper.checkpoint(KEY, stage.token, SECOND) == SHARD_END
    assert stage.old.handoffs == [(KEY, stage.token, "w-9b2e")]


# --- transfer


@scene
async def test_nothing_is_transferred_under_another_token(stage: Scene) -> None:
    await told(stage)
    assert not await stage.old.keeper.give_away(KEY, "another")
    assert stage.is_held()
    assert stage.owners() == ("w-9b2e", "w-4f1c")


@pytest.mark.parametrize("fault", [lost_reply(), lost_request(), server_error(), throttled()])
@virtual
async def test_a_transfer_is_repeated_until_it_works(fault: Fault) -> None:
    stage = Scene(await new_dynamo())
    async with running(stage.old):
        await told(stage)
        stage.faulty_assignments().next(*[fault] * 5)
        assert await stage.give_away()
        assert stage.owners() == ("w-9b2e", None)


@scene
async def test_a_transfer_whose_reply_is_lost_is_known_after_the_next_owner_has_begun(stage: Scene) -> None:
    await told(stage)
    new = Worker(stage.dynamo, "w-9b2e")
    stage.faulty_assignments().next(lost_reply(), lost_request(), lost_request(), lost_request())
    transferring = asyncio.create_task(stage.give_away())
    await asyncio.sleep(0.02)
    assert await new.keeper.resumer.reacquire([stage.row()]) == (KEY,)
    assert await transferring
    assert stage.owners() == ("w-9b2e", None)


@scene
async def test_a_transfer_that_never_works_keeps_the_lease_until_it_expires_and_renews_it_no_more(
    stage: Scene,
) -> None:
    await told(stage)
    sent_at = stage.dynamo.history[-1].at
    stage.faulty_assignments().always = throttled()
    writes = stage.writes_of("w-4f1c")
    transferring = asyncio.create_task(stage.give_away())
    await asyncio.sleep(sent_at + DURATION_S - LoopClock().monotonic() - 0.1)
    assert stage.is_held()
    assert not await transferring
    assert not stage.is_held()
    assert LoopClock().monotonic() - sent_at <= DURATION_S + 0.1
    assert stage.writes_of("w-4f1c") == writes
    assert stage.owners() == ("w-9b2e", "w-4f1c")


@scene
async def test_transfers_that_hang_do_not_keep_other_leases_from_being_renewed(stage: Scene) -> None:
    others = await stage.old.hold(*(f"a-{number}" for number in range(25)))
    await told(stage)
    for held in others:
        row = await stage.leader.get(held.lease.key)
        assert row is not None
        assert isinstance(await stage.leader.apply(writes.begin_handoff(row, "w-9b2e")), Lease)
    await asyncio.sleep(INTERVAL_S)
    assert len(stage.old.handoffs) == 26
    stage.faulty_assignments().always = throttled()
    giving = [asyncio.create_task(stage.old.keeper.give_away(h.lease.key, h.token)) for h in others]
    await asyncio.sleep(2 * DURATION_S)
    assert not any(await asyncio.gather(*giving))
    assert set(stage.old.keeper.held()) == {KEY}


# --- the deadline


@scene
async def test_at_the_deadline_the_lease_is_transferred_whether_or_not_the_consumer_has_finished(stage: Scene) -> None:
    await told(stage)
    heard_at = next(a.at for a in stage.dynamo.history if a.sender == "w-4f1c" and "checkpointOwner" in a.after)
    while stage.is_held():
        await asyncio.sleep(0.01)
    assert LoopClock().monotonic() - heard_at == pytest.approx(TIMEOUT_S, abs=0.03)
    assert stage.owners() == ("w-9b2e", None)
    with pytest.raises(LeaseLostError):
        await stage.old.keeper.checkpoint(KEY, stage.token, SECOND)
    assert stage.row().checkpoint == FIRST


@scene
async def test_a_checkpoint_under_way_at_the_deadline_is_finished_first(stage: Scene) -> None:
    await told(stage)
    plan = FaultPlan(stage.dynamo, "w-4f1c")
    plan.when = lambda _, params: ":checkpoint" in params.get("ExpressionAttributeValues", {})
    plan.next(Fault(delay_before_s=2.0))
    await asyncio.sleep(TIMEOUT_S - INTERVAL_S - 1.0)
    storing = asyncio.create_task(stage.old.keeper.checkpoint(KEY, stage.token, SECOND))
    await asyncio.sleep(INTERVAL_S + 3.0)
    assert await storing == SECOND
    assert (stage.row().checkpoint, stage.owners()) == (SECOND, ("w-9b2e", None))


@scene
async def test_the_consumers_transfer_and_the_deadline_write_once(stage: Scene) -> None:
    await told(stage)
    stage.faulty_assignments().always = Fault(delay_before_s=1.0, delay_after_s=1.0)
    heard_at = next(a.at for a in stage.dynamo.history if a.sender == "w-4f1c" and "checkpointOwner" in a.after)
    await asyncio.sleep(heard_at + TIMEOUT_S - LoopClock().monotonic() - 0.5)
    counter = stage.row().counter
    assert await stage.give_away()
    await asyncio.sleep(5)
    assert (stage.owners(), stage.row().counter) == (("w-9b2e", None), counter + 1)


@virtual
async def test_a_timeout_of_zero_transfers_as_soon_as_the_handoff_is_known() -> None:
    dynamo = await new_dynamo()
    old = Worker(dynamo, "old", handoff_timeout_s=0.0)
    (held,) = await old.hold("a")
    assert isinstance(await old.table.apply(writes.begin_handoff(held.lease, "next")), Lease)
    async with running(old):
        await asyncio.sleep(0.1)
    lease = await old.table.get("a")
    assert lease is not None
    assert (lease.owner, lease.checkpoint_owner) == ("next", None)


# --- at a clean stop


def leave_to(stage: Scene, *living: str, chosen: str | None = "w-live") -> None:
    """The worker leaves: a lease goes to who waits for it, else to `chosen`, as far as they are among the living."""

    async def receiver_of(lease: Lease) -> str | None:
        return next((worker for worker in (lease.handoff_to, chosen) if worker in living), None)

    stage.old.keeper.giving.leave_to(receiver_of)


@scene
async def test_a_hand_over_that_fails_is_a_release(stage: Scene) -> None:
    stage.faulty_assignments().always = throttled()
    leave_to(stage, "w-live")
    assert await stage.give_away()
    assert stage.owners() == (None, None)


@scene
async def test_a_hand_over_whose_reply_is_lost_is_not_undone_by_the_release(stage: Scene) -> None:
    stage.faulty_assignments().next(lost_reply(), lost_request())
    leave_to(stage, "w-live")
    await stage.give_away()
    assert stage.owners() == ("w-live", None)


@pytest.mark.parametrize("living", [("w-9b2e", "w-live"), ("w-live",), ()])
@pytest.mark.parametrize("knows", [True, False])
@virtual
async def test_in_a_handoff_a_leaving_worker_gives_the_lease_to_a_live_one_or_to_nobody(
    knows: bool, living: tuple[str, ...]
) -> None:
    """Whom it was promised to may have left before: it would wait for failoverTimeMillis there."""
    stage = Scene(await new_dynamo())
    async with running(stage.old):
        await asyncio.sleep(0.1)
        await stage.begin()
        await asyncio.sleep(INTERVAL_S if knows else 0.0)
        leave_to(stage, *living)
        assert await stage.give_away()
        assert stage.owners() == (living[0] if living else None, None)


@scene
async def test_what_somebody_else_has_taken_is_left_to_him(stage: Scene) -> None:
    taken = await stage.leader.apply(writes.take(stage.row(), "thief"))
    leave_to(stage, "w-live")
    assert not await stage.give_away()
    assert stage.row() == taken


# --- leases#races-of-writes


async def both(first: Awaitable[Any], second: Awaitable[Any], *, swap: bool) -> list[Any]:
    """Both at once; the second one begins first if `swap`."""
    answers = await asyncio.gather(*((second, first) if swap else (first, second)))
    return answers[::-1] if swap else answers


@pytest.mark.parametrize("swap", [False, True])
@virtual
async def test_a_checkpoint_and_the_beginning_of_a_handoff_both_succeed(swap: bool) -> None:
    stage = Scene(await new_dynamo())
    stored, begun = await both(stage.old.keeper.checkpoint(KEY, stage.token, SECOND), stage.begin(), swap=swap)
    assert (stored, begun.owner) == (SECOND, "w-9b2e")
    assert (stage.owners(), stage.row().counter) == (("w-9b2e", "w-4f1c"), 119)


@pytest.mark.parametrize("swap", [False, True])
@virtual
async def test_an_assignment_wins_over_a_renewal_and_the_holder_loses_the_lease(swap: bool) -> None:
    stage = Scene(await new_dynamo())
    row = stage.row()
    renewed, assigned = await both(
        stage.old.table.apply(writes.renew(row)), stage.leader.apply(writes.assign(row, "w-9b2e")), swap=swap
    )
    assert isinstance(assigned, Lease)
    assert isinstance(renewed, Refusal) is swap
    with pytest.raises(LeaseLostError, match="belongs to w-9b2e"):
        await stage.old.keeper.checkpoint(KEY, stage.token, SECOND)
    assert (stage.row().owner, stage.row().checkpoint) == ("w-9b2e", FIRST)


@pytest.mark.parametrize("swap", [False, True])
@virtual
async def test_the_old_owners_deadline_and_the_leaders_assignment_make_one_owner(swap: bool) -> None:
    stage = Scene(await new_dynamo())
    row = await stage.begin()
    await stage.old.keeper.checkpoint(KEY, stage.token, SECOND)
    transferred, assigned = await both(stage.give_away(), stage.leader.apply(writes.assign(row, "third")), swap=swap)
    assert [transferred, isinstance(assigned, Lease)] == [not swap, swap]
    assert stage.owners() == ("third" if swap else "w-9b2e", None)
    assert stage.row().checkpoint == SECOND
    assert not stage.is_held()


@scene
async def test_a_lease_that_the_leader_gives_back_to_its_old_owner_is_a_new_holding_and_no_twin(stage: Scene) -> None:
    await told(stage)
    await stage.leader.apply(writes.assign(stage.row(), "w-4f1c"))
    await asyncio.sleep(INTERVAL_S)
    assert not stage.is_held()
    assert stage.old.keeper.held()[KEY].token != stage.token


@scene
async def test_a_lease_is_resumed_once_by_callers_who_ask_at_the_same_time(stage: Scene) -> None:
    await stage.old.keeper.give_away(KEY, stage.token)
    row = await stage.leader.apply(writes.assign(stage.row(), "w-4f1c"))
    assert isinstance(row, Lease)
    answers = await asyncio.gather(*(stage.old.keeper.resumer.reacquire([row]) for _ in range(3)))
    assert sorted(answers) == [(), (), (KEY,)]
    assert stage.row().counter == row.counter + 1
