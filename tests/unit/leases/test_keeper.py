"""The lease keeper: renewal, expiry, checkpoints and release under lost replies (leases#lost-replies)."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace

import pytest

from mld.core.clock import LoopClock
from mld.core.error_boundary import is_broken_invariant
from mld.core.errors import LeaseLostError, TableUnavailableError
from mld.core.positions import SHARD_END, TRIM_HORIZON, Position
from mld.leases import writes
from mld.leases.dynamodb import DynamoLeaseTable
from mld.leases.lease import Failing, Lease
from mld.leases.rows import parse_row
from mld.leases.table import AnswerT, LeaseWrite
from mld.leases.validity import SUSPENDED_DURATIONS, HeldLease
from tests.twins.dynamo import Fault, MemoryDynamo, lost_reply, lost_request, server_error, throttled
from tests.unit.leases.support import (
    DURATION_S,
    INTERVAL_S,
    TABLE,
    FaultPlan,
    Worker,
    attribute,
    counter_of,
    new_dynamo,
    running,
    started,
)
from tests.virtual_time import virtual

AT, LATER = Position("100"), Position("200", 3)


async def holding() -> tuple[MemoryDynamo, Worker, HeldLease]:
    """A worker that holds the lease "a"."""
    dynamo, me = await started()
    (held,) = await me.hold("a")
    return dynamo, me, held


# --- renewal


@virtual
async def test_held_leases_are_renewed_at_a_fixed_rate() -> None:
    dynamo, me = await started()
    await me.hold("a", "b")
    async with running(me):
        await asyncio.sleep(10 * INTERVAL_S + 0.1)
    assert (counter_of(dynamo, "a"), counter_of(dynamo, "b")) == (1 + 11, 1 + 11)
    assert set(me.keeper.held()) == {"a", "b"}


class EarlyClock(LoopClock):
    async def sleep(self, seconds: float) -> None:
        await super().sleep(max(0.0, seconds - 1e-4))


@virtual
async def test_a_timer_that_fires_early_does_not_make_the_renewal_spin() -> None:
    dynamo = await new_dynamo()
    me = Worker(dynamo, "me", clock=EarlyClock())
    await me.hold("a")
    async with running(me):
        await asyncio.sleep(3 * INTERVAL_S - 0.1)
    assert counter_of(dynamo, "a") == 1 + 3


@pytest.mark.parametrize("fault", [lost_reply(), lost_request(), server_error(), throttled()])
@virtual
async def test_one_failed_renewal_does_not_cost_the_lease(fault: Fault, caplog: pytest.LogCaptureFixture) -> None:
    dynamo, me, held = await holding()
    FaultPlan(dynamo).next(fault, fault, fault)
    async with running(me):
        await asyncio.sleep(3 * INTERVAL_S)
    assert me.keeper.is_held("a", held.token)
    assert me.changes == 1
    assert "another process" not in caplog.text


@virtual
async def test_a_lease_expires_by_the_send_time_of_the_last_renewal_that_worked_without_being_asked() -> None:
    dynamo, me, held = await holding()
    began = LoopClock().monotonic()
    async with running(me):
        await asyncio.sleep(0.01)
        FaultPlan(dynamo).always = throttled()
        while me.changes == 1:
            await asyncio.sleep(0.1)
    assert LoopClock().monotonic() - began == pytest.approx(DURATION_S, abs=0.11)
    assert not me.keeper.is_held("a", held.token)
    assert me.keeper.held() == {}


@virtual
async def test_validity_counts_from_the_sending_though_the_answer_is_late() -> None:
    dynamo, me = await started()
    await me.hold("a")
    plan = FaultPlan(dynamo)
    plan.next(Fault(delay_after_s=2.9))
    plan.always = lost_request()
    async with running(me):
        await asyncio.sleep(DURATION_S - 0.01)
        assert counter_of(dynamo, "a") == 2
        assert "a" in me.keeper.held()
        await asyncio.sleep(0.02)
        assert me.keeper.held() == {}


@virtual
async def test_a_slow_lease_does_not_delay_the_others() -> None:
    dynamo, me = await started()
    await me.hold(*(f"s{number}" for number in range(10)))
    plan = FaultPlan(dynamo)
    plan.when = lambda operation, params: operation == "UpdateItem" and params["Key"]["leaseKey"]["S"] == "s3"
    plan.always = Fault(delay_before_s=60.0)
    async with running(me):
        await asyncio.sleep(4 * INTERVAL_S - 0.1)
    assert {counter_of(dynamo, f"s{number}") for number in range(10) if number != 3} == {1 + 4}
    assert set(me.keeper.held()) == {f"s{number}" for number in range(10) if number != 3}


@virtual
async def test_waking_after_a_long_pause_loses_the_holding_without_a_write() -> None:
    dynamo, me, held = await holding()
    await asyncio.sleep((1 + SUSPENDED_DURATIONS) * DURATION_S)  # as if stopped: no loop ran
    before = len(dynamo.calls)
    with pytest.raises(LeaseLostError):
        await me.keeper.checkpoint("a", held.token, AT)
    assert not me.keeper.held()
    assert len(dynamo.calls) == before


class ThrowingTable(DynamoLeaseTable):
    """Raises above the boundary of the port, which would make an error of ours of it."""

    errors: list[Exception]
    applied: bool

    async def apply(self, write: LeaseWrite[AnswerT]) -> AnswerT:
        is_due = bool(self.errors) and write.key == "a" and write.verb == "renew"
        if is_due and not self.applied:
            raise self.errors.pop()
        answer = await super().apply(write)
        if is_due:
            raise self.errors.pop()
        return answer


@pytest.mark.parametrize("error", [OSError(9, "Bad file descriptor"), MemoryError()], ids=["OSError", "MemoryError"])
@pytest.mark.parametrize("applied", [False, True], ids=["before", "after"])
@virtual
async def test_an_unexpected_exception_in_one_renewal_concerns_this_lease_only_and_means_unknown(
    error: Exception, applied: bool, caplog: pytest.LogCaptureFixture
) -> None:
    me = Worker(await new_dynamo(), "me", table_type=ThrowingTable)
    assert isinstance(me.table, ThrowingTable)
    me.table.errors, me.table.applied = [error], applied
    a, b = await me.hold("a", "b")
    async with running(me):
        await asyncio.sleep(3 * DURATION_S)
        assert me.keeper.is_held("a", a.token)
        assert me.keeper.is_held("b", b.token)
    assert not me.table.errors
    assert "unexpected, while renewing a lease" in caplog.text


@virtual
async def test_a_broken_invariant_ends_the_keeper() -> None:
    dynamo, me = await started()
    await me.hold("a")
    FaultPlan(dynamo).next(Fault(fail_before=AssertionError("broken")))
    with pytest.raises(ExceptionGroup) as ended:
        await me.keeper.run()
    assert is_broken_invariant(ended.value)


@virtual
async def test_an_answer_after_the_belief_that_explains_the_row_continues_the_holding() -> None:
    dynamo, me, held = await holding()
    plan = FaultPlan(dynamo)
    async with running(me):
        await asyncio.sleep(0.1)
        plan.always = throttled()
        await asyncio.sleep(9.0)
        plan.always = Fault(delay_after_s=2.5)
        await asyncio.sleep(1.5)
        assert me.keeper.held() == {}
        assert me.keeper.tokens() == {"a": held.token}
        await asyncio.sleep(1.9)
        assert me.keeper.held()["a"].token == held.token


@virtual
async def test_a_suspended_holding_ends_when_nothing_is_heard_of_its_row_and_comes_back_under_a_new_token() -> None:
    dynamo, me, held = await holding()
    plan = FaultPlan(dynamo)
    async with running(me):
        plan.always = throttled()
        await asyncio.sleep((1 + SUSPENDED_DURATIONS) * DURATION_S - 0.01)
        assert me.keeper.tokens() == {"a": held.token}
        await asyncio.sleep(0.02)
        assert me.keeper.tokens() == {}
        plan.always = None
        await asyncio.sleep(INTERVAL_S)
        assert me.keeper.held()["a"].token != held.token


@pytest.mark.parametrize(("owner", "switches"), [("other", "1"), ("me", "2")], ids=["taken", "taken and given back"])
@virtual
async def test_a_suspended_holding_ends_when_its_row_has_been_in_other_hands(owner: str, switches: str) -> None:
    """Also where our next renewal is accepted, because the counter stands where our own writes may have left it."""
    dynamo, me, held = await holding()
    plan = FaultPlan(dynamo)
    async with running(me):
        plan.always = throttled()
        await asyncio.sleep(DURATION_S + 1)
        assert me.keeper.tokens() == {"a": held.token}
        row = dynamo.rows(TABLE)["a"]
        moved = {"leaseOwner": {"S": owner}, "ownerSwitchesSinceCheckpoint": {"N": switches}}
        dynamo.put_row(TABLE, {**row, **moved})
        plan.always = None
        assert not await me.keeper.until_held("a", held.token)
        assert me.keeper.tokens().get("a") != held.token


@virtual
async def test_a_checkpoint_waits_while_its_holding_is_suspended_and_is_not_sent() -> None:
    dynamo, me, held = await holding()
    sent: list[str] = []
    plan = FaultPlan(dynamo)
    plan.when = lambda _, params: bool(
        [sent.append(name) for name in params.get("ExpressionAttributeValues", {}) if name == ":checkpoint"] or True
    )
    async with running(me):
        plan.always = throttled()
        await asyncio.sleep(DURATION_S + 1)
        storing = asyncio.create_task(me.keeper.checkpoint("a", held.token, LATER))
        await asyncio.sleep(DURATION_S / 2)
        assert not (storing.done() or sent)
        plan.always = None
        assert await storing == LATER
    assert sent
    assert me.keeper.tokens() == {"a": held.token}
    assert (await me.row("a")).checkpoint == LATER


@virtual
async def test_a_lease_lost_to_a_twin_is_resumed_only_when_the_twin_is_gone() -> None:
    dynamo, me = await started()
    twin = Worker(dynamo, "twin", worker_id="me")
    await me.hold("a")

    async def resume(worker: Worker) -> bool:
        row = await worker.row("a")
        return bool(await worker.keeper.resumer.reacquire([row]))

    assert await resume(twin)
    async with running(me):
        async with running(twin):
            for _ in range(3 * int(DURATION_S)):
                await asyncio.sleep(1.0)
                assert not await resume(me)
            assert twin.keeper.held()
        silent_s = 0
        while not await resume(me):
            await asyncio.sleep(1.0)
            silent_s += 1
        assert DURATION_S <= silent_s <= DURATION_S + 2


# --- checkpoints


@virtual
async def test_a_checkpoint_is_stored_and_is_a_heartbeat() -> None:
    dynamo, me, held = await holding()
    await asyncio.sleep(8.0)
    assert await me.keeper.checkpoint("a", held.token, LATER) == LATER
    await asyncio.sleep(9.0)
    assert me.keeper.held()["a"].lease.checkpoint == LATER
    assert attribute(dynamo, "a", "checkpoint") == "200"


@pytest.mark.parametrize("fault", [lost_reply(), lost_request(), server_error(), throttled(), Fault(delay_after_s=9.0)])
@virtual
async def test_a_checkpoint_survives_one_failure(fault: Fault, caplog: pytest.LogCaptureFixture) -> None:
    dynamo, me, held = await holding()
    FaultPlan(dynamo).next(fault)
    assert await me.keeper.checkpoint("a", held.token, LATER) == LATER
    assert attribute(dynamo, "a", "checkpoint") == "200"
    assert counter_of(dynamo, "a") in (2, 3)
    assert "another process" not in caplog.text


@virtual
async def test_a_checkpoint_after_a_renewal_with_lost_reply_goes_on_top_of_it() -> None:
    dynamo, me, held = await holding()
    FaultPlan(dynamo).next(Fault(delay_after_s=5.0))
    async with running(me):
        await asyncio.sleep(3.0 + 0.01)  # the renewal has just timed out and waits for its next attempt
        assert await me.keeper.checkpoint("a", held.token, LATER) == LATER
    assert attribute(dynamo, "a", "checkpoint") == "200"
    assert counter_of(dynamo, "a") >= 3


@pytest.mark.parametrize("renewed", [False, True])
@virtual
async def test_a_checkpoint_stored_without_an_answer_is_not_taken_back(renewed: bool) -> None:
    """Its child was told that it failed; the next child, which gets the records again, names an earlier one first."""
    dynamo, me, held = await holding()
    plan = FaultPlan(dynamo)
    plan.always = lost_reply()
    with pytest.raises(TableUnavailableError):
        await me.keeper.checkpoint("a", held.token, Position("200", 5))
    plan.always = None
    async with running(me):
        await asyncio.sleep(3.5 if renewed else 0.0)
        for sub in (3, 4):
            assert await me.keeper.checkpoint("a", held.token, Position("200", sub)) == Position("200", sub)
            assert attribute(dynamo, "a", "checkpointSubSequenceNumber") == "5"
        assert await me.keeper.checkpoint("a", held.token, Position("200", 6)) == Position("200", 6)
    assert attribute(dynamo, "a", "checkpointSubSequenceNumber") == "6"


@virtual
async def test_a_checkpoint_that_is_still_unknown_when_the_belief_ends_may_be_asked_for_again() -> None:
    dynamo, me, held = await holding()
    await asyncio.sleep(DURATION_S - 0.01)
    plan = FaultPlan(dynamo)
    plan.always = Fault(delay_after_s=9.0)
    with pytest.raises(TableUnavailableError):
        await me.keeper.checkpoint("a", held.token, LATER)
    plan.always = None
    async with running(me):
        assert await me.keeper.checkpoint("a", held.token, LATER) == LATER


@virtual
async def test_a_cancelled_checkpoint_leaves_an_unknown_write_that_is_recovered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    dynamo, me, held = await holding()
    FaultPlan(dynamo).next(Fault(delay_after_s=1.0))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await me.keeper.checkpoint("a", held.token, LATER)
    async with running(me):
        await asyncio.sleep(INTERVAL_S)
    assert me.keeper.is_held("a", held.token)
    assert me.keeper.held()["a"].lease.checkpoint == LATER
    assert "another process" not in caplog.text


@virtual
async def test_an_earlier_holding_cannot_checkpoint() -> None:
    _, me = await started()
    (old,) = await me.hold("a")
    (new,) = await me.hold("a")
    with pytest.raises(LeaseLostError):
        await me.keeper.checkpoint("a", old.token, AT)
    assert await me.keeper.checkpoint("a", new.token, AT) == AT


@virtual
async def test_a_checkpoint_that_waited_while_its_lease_was_given_up_is_not_sent() -> None:
    dynamo, me, held = await holding()
    FaultPlan(dynamo).next(Fault(delay_before_s=1.0))
    first = asyncio.create_task(me.keeper.checkpoint("a", held.token, AT))
    await asyncio.sleep(0.1)
    second = asyncio.create_task(me.keeper.checkpoint("a", held.token, LATER))
    await asyncio.sleep(0.1)
    me.keeper.drop("a", held.token)
    for checkpoint in (first, second):
        with pytest.raises(LeaseLostError):
            await checkpoint
    await asyncio.sleep(2.0)
    assert attribute(dynamo, "a", "checkpoint") == "100"


@virtual
async def test_a_refused_checkpoint_over_shard_end_is_no_heartbeat() -> None:
    _, me, held = await holding()
    await me.keeper.checkpoint("a", held.token, SHARD_END)
    await asyncio.sleep(DURATION_S - 1)
    await me.keeper.checkpoint("a", held.token, AT)
    await asyncio.sleep(1.1)
    assert me.keeper.held() == {}


@virtual
async def test_checkpoints_of_one_lease_never_overlap() -> None:
    dynamo, me, held = await holding()
    FaultPlan(dynamo).always = Fault(delay_before_s=0.3, delay_after_s=0.3)
    async with running(me):
        await asyncio.gather(*(me.keeper.checkpoint("a", held.token, Position(str(number))) for number in range(1, 9)))
    assert me.keeper.is_held("a", held.token)
    stored = [one for one in dynamo.history if one.before and one.before["checkpoint"] != one.after["checkpoint"]]
    assert [one.after["checkpoint"]["S"] for one in stored] == [str(number) for number in range(1, 9)]
    writes = [applied.at for applied in stored]
    assert all(later - earlier >= 0.6 - 1e-6 for earlier, later in itertools.pairwise(writes))


# --- release and drop


@pytest.mark.parametrize(
    ("fault", "known"), [(None, True), (lost_request(), True), (throttled(), True), (lost_reply(), False)]
)
@virtual
async def test_a_released_lease_is_free_and_forgotten_though_one_attempt_failed(
    fault: Fault | None, known: bool
) -> None:
    dynamo, me, held = await holding()
    FaultPlan(dynamo).next(fault)
    assert await me.keeper.give_away("a", held.token) is known
    assert attribute(dynamo, "a", "leaseOwner") is None
    assert me.keeper.held() == {}
    assert me.changes == 2


@virtual
async def test_a_release_that_cannot_work_ends_soon_and_forgets() -> None:
    dynamo, me, held = await holding()
    FaultPlan(dynamo).always = throttled()
    assert not await me.keeper.give_away("a", held.token)
    assert me.keeper.held() == {}
    assert LoopClock().monotonic() < 2.0


@virtual
async def test_dropping_tells_nobody_and_needs_the_right_token() -> None:
    dynamo, me, held = await holding()
    calls = len(dynamo.calls)
    assert not me.keeper.drop("a", "another token")
    assert me.keeper.drop("a", held.token)
    assert not me.keeper.drop("a", held.token)
    assert me.keeper.held() == {}
    assert len(dynamo.calls) == calls
    assert attribute(dynamo, "a", "leaseOwner") == "me"


# --- start


@virtual
async def test_a_restarted_worker_resumes_its_leases_and_no_others() -> None:
    dynamo, before = await started()
    await before.hold("a", "b", "c", "handed")
    await Worker(dynamo, "other").hold("d")
    await before.table.apply(writes.create(Lease("free", TRIM_HORIZON)))
    dynamo.put_row(TABLE, dynamo.rows(TABLE)["handed"] | {"checkpointOwner": {"S": "old"}})
    me = Worker(dynamo, "again", worker_id="me")
    plan = FaultPlan(dynamo, "again")
    plan.when = lambda operation, params: params.get("Key", {}).get("leaseKey") == {"S": "b"}
    plan.always = lost_request()

    resumed = await me.keeper.resumer.reacquire((await me.table.scan()).leases)

    assert set(resumed) == {"a", "c"}
    assert set(me.keeper.held()) == {"a", "c"}


@pytest.mark.parametrize("fault", [lost_reply(), lost_request(), throttled()])
@virtual
async def test_resuming_survives_one_failure(fault: Fault) -> None:
    dynamo, before = await started()
    await before.hold("a")
    me = Worker(dynamo, "again", worker_id="me")
    FaultPlan(dynamo).next(fault)
    assert await me.keeper.resumer.reacquire((await me.table.scan()).leases) == ("a",)


@virtual
async def test_a_take_answered_too_late_is_not_held() -> None:
    _, me = await started()
    await asyncio.sleep(DURATION_S)
    assert me.keeper.adopt(Lease("a", TRIM_HORIZON, 1, "me"), 0.0) is None
    assert me.keeper.held() == {}


# --- throughput


@virtual
async def test_deliveries_show_as_throughput_in_the_row() -> None:
    dynamo, me = await started()
    await me.hold("a")
    async with running(me):
        await asyncio.sleep(1.0)
        assert attribute(dynamo, "a", "throughputKBps") is None
        me.keeper.record_delivery("a", round(100 * 1024 * INTERVAL_S))
        me.keeper.record_delivery("unknown", 5)
        await asyncio.sleep(INTERVAL_S)
        assert float(attribute(dynamo, "a", "throughputKBps") or 0) == pytest.approx(100, abs=0.01)
        await asyncio.sleep(INTERVAL_S)
        assert float(attribute(dynamo, "a", "throughputKBps") or 0) == pytest.approx(50, abs=0.01)


@virtual
async def test_a_late_write_of_a_dead_predecessor_is_not_taken_for_the_renewal_that_resumes_a_lease() -> None:
    """Its reply would say when the predecessor sent it, not when we did: the lease is renewed once more, on top."""
    dynamo = await new_dynamo()
    predecessor = Worker(dynamo, "me")
    await predecessor.hold("a")
    me = Worker(dynamo, "me", seed=2)
    leases = (await me.table.scan()).leases
    FaultPlan(dynamo).next(lost_request())
    resuming = asyncio.create_task(me.keeper.resumer.reacquire(leases))
    await asyncio.sleep(0.001)
    row = dict(dynamo.row(TABLE, "a") or {})
    dynamo.put_row(TABLE, {**row, "leaseCounter": {"N": str(counter_of(dynamo, "a") + 1)}})
    assert await resuming == ("a",)
    assert counter_of(dynamo, "a") == leases[0].counter + 2


# --- the note of failures


NOTE = Failing(1, 1_763_661_600, TRIM_HORIZON, attempts=1, first=AT)


def note_of(dynamo: MemoryDynamo, key: str) -> Failing | None:
    lease = parse_row(dynamo.rows(TABLE)[key])
    assert lease is not None
    return lease.failing


@virtual
async def test_a_note_of_failures_rides_on_the_next_renewal_and_costs_no_write() -> None:
    dynamo, me, held = await holding()
    async with running(me):
        await asyncio.sleep(0.1)
        before = counter_of(dynamo, "a")
        me.keeper.note_failing("a", held.token, NOTE)
        await asyncio.sleep(INTERVAL_S)
        assert note_of(dynamo, "a") == NOTE
        await asyncio.sleep(2 * INTERVAL_S)
        me.keeper.note_failing("a", held.token, replace(NOTE, failures=0))
        await asyncio.sleep(INTERVAL_S)
        assert note_of(dynamo, "a") is None, "the processor works again"
        me.keeper.note_failing("a", held.token, NOTE)
        await asyncio.sleep(INTERVAL_S)
        assert counter_of(dynamo, "a") == before + 5
        await me.keeper.checkpoint("a", held.token, LATER)
        assert note_of(dynamo, "a") is None
        await asyncio.sleep(2 * INTERVAL_S)
        assert note_of(dynamo, "a") is None, "it is about the checkpoint before"
    assert counter_of(dynamo, "a") == before + 8


@virtual
async def test_a_note_whose_write_got_no_answer_is_taken_off_by_the_checkpoint_all_the_same() -> None:
    dynamo, me, held = await holding()
    async with running(me):
        await asyncio.sleep(0.1)
        me.keeper.note_failing("a", held.token, NOTE)
        FaultPlan(dynamo).next(lost_reply())
        await asyncio.sleep(INTERVAL_S)
        await me.keeper.checkpoint("a", held.token, LATER)
        assert note_of(dynamo, "a") is None
