"""Leases covered by a worker's heartbeat: validity, marks, reads instead of renewals (`mld.leases.validity`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random
from types import SimpleNamespace

import pytest

from mld.core.clock import LoopClock
from mld.core.positions import TRIM_HORIZON, Position
from mld.leases import writes
from mld.leases.lease import Failing, Lease, Throughput
from mld.leases.table import Refusal
from mld.leases.validity import (
    CHECKPOINT_KBPS_S,
    REFRESH_S,
    Heartbeat,
    Holding,
    Validity,
    is_refresh_due,
    refresh_s,
)
from mld.leases.writes import request_of
from tests.twins.dynamo import lost_reply, lost_request, throttled
from tests.unit.leases.support import (
    DURATION_S,
    INTERVAL_S,
    TABLE,
    FaultPlan,
    Worker,
    attribute,
    counter_of,
    started,
)
from tests.virtual_time import virtual

EPOCH, OTHER = "0" * 16, "1" * 16
ROW = Lease("a", TRIM_HORIZON, counter=7, owner="me", heartbeat=EPOCH)


# --- decisions


def validity(heartbeat: Heartbeat | None, now: float = 0.0) -> Validity:
    """That of a worker whose heartbeat was accepted last, at `now`."""
    made = Validity(SimpleNamespace(monotonic=lambda: now), Random(1), 10.0)  # type: ignore[arg-type]
    if heartbeat is not None:
        made.cover(heartbeat)
    return made


@pytest.mark.parametrize(
    ("confirmed_at", "heartbeat", "until"),
    [
        (100.0, None, 110.0),
        (100.0, Heartbeat(EPOCH, 90.0), 100.0),
        (100.0, Heartbeat(EPOCH, 105.0), 110.0),
    ],
)
def test_a_covered_lease_is_valid_as_long_as_the_older_of_its_two_confirmations(
    confirmed_at: float, heartbeat: Heartbeat | None, until: float
) -> None:
    holding = Holding(ROW, "t", Throughput(None, 1.0), confirmed_at)
    holding.covered.is_certain = heartbeat is not None
    assert validity(heartbeat).until(holding) == until


@pytest.mark.parametrize(
    ("heartbeat", "now", "mark"),
    [(None, 0.0, None), (Heartbeat(EPOCH, 0.0), 5.0, EPOCH), (Heartbeat(EPOCH, 0.0), 5.1, None)],
)
def test_rows_are_marked_only_while_the_heartbeat_is_recent(
    heartbeat: Heartbeat | None, now: float, mark: str | None
) -> None:
    assert validity(heartbeat, now).mark() == mark


def test_only_the_mark_of_the_present_epoch_counts() -> None:
    assert validity(Heartbeat(EPOCH, 0.0)).covers(ROW)
    assert not validity(Heartbeat(OTHER, 0.0)).covers(ROW)
    assert not validity(None).covers(ROW)
    assert not validity(Heartbeat(EPOCH, 0.0)).covers(replace(ROW, heartbeat=None))


@pytest.mark.parametrize(
    ("row", "is_ours"),
    [
        (ROW, True),
        (replace(ROW, heartbeat=None), True),
        (replace(ROW, owner="next", checkpoint_owner="me"), True),
        (replace(ROW, counter=8), False),
        (replace(ROW, owner="other"), False),
        (replace(ROW, owner="me", checkpoint_owner="me"), False),
        (replace(ROW, owner="me", checkpoint_owner="other"), False),
        (replace(ROW, owner=None), False),
        (None, False),
    ],
)
def test_what_a_read_says_of_a_held_lease(row: Lease | None, is_ours: bool) -> None:
    answer = writes.judge_read(ROW, row)
    assert answer == row if is_ours else isinstance(answer, Refusal)


def test_a_handoff_that_was_given_back_is_found_anew() -> None:
    held = replace(ROW, owner="next", checkpoint_owner="me")
    assert isinstance(writes.judge_read(held, replace(held, owner="me", checkpoint_owner=None)), Refusal)


def test_without_marks_every_write_is_what_it_was() -> None:
    plain = replace(ROW, heartbeat=None)
    for write in (
        writes.renew(plain),
        writes.checkpoint(plain, Position("1")),
        writes.take(plain, "b"),
        writes.assign(plain, "b"),
        writes.release(plain),
        writes.begin_handoff(plain, "b"),
    ):
        request = request_of(write)
        assert "mldHeartbeat" not in str(request)
        assert "throughput" not in str(request).lower()


@pytest.mark.parametrize(
    ("figures", "seconds"), [(0, 20.0), (1, 90.0), (2, REFRESH_S), (3, REFRESH_S), (99, REFRESH_S)]
)
def test_a_lease_just_acquired_is_written_sooner(figures: int, seconds: float) -> None:
    assert refresh_s(figures, 10.0) == seconds


@pytest.mark.parametrize(
    ("told", "samples", "told_s", "due"),
    [
        (10.0, [10.0], 599.0, False),
        (10.0, [10.0], 600.0, True),
        (10.0, [], 900.0, False),
        (10.0, [4.0, 5.0], 119.0, False),
        (10.0, [4.0, 5.0], 120.0, True),
        (10.0, [5.0, 5.0], 120.0, False),
        (10.0, [20.0, 21.0], 120.0, True),
        (10.0, [0.0, 0.0], 120.0, True),
        (0.0, [0.0, 0.0], 120.0, False),
        (0.0, [0.0, 0.1], 120.0, True),
        (None, [0.0], 120.0, True),
    ],
)
def test_a_throughput_that_has_changed_is_told_before_the_time(
    told: float | None, samples: list[float], told_s: float, due: bool
) -> None:
    assert is_refresh_due(told, samples, told_s, 600.0) is due


# --- the keeper


@asynccontextmanager
async def running(worker: Worker, beats: bool = True) -> AsyncIterator[None]:
    """The keeper's loops, and heartbeats that are accepted at once, every third of the lease duration."""

    async def beat() -> None:
        while True:
            worker.keeper.validity.cover(Heartbeat(EPOCH, LoopClock().monotonic()))
            await asyncio.sleep(DURATION_S / 3)

    tasks = [asyncio.ensure_future(worker.keeper.run())]
    if beats:
        tasks.append(asyncio.ensure_future(beat()))
        await asyncio.sleep(0)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@virtual
async def test_a_covered_lease_is_marked_once_and_then_only_read() -> None:
    dynamo, me = await started()
    await me.hold("a", "b")
    async with running(me):
        await asyncio.sleep(2 * INTERVAL_S)
        await asyncio.sleep(1.0)
        dynamo.forget_usage()
        await asyncio.sleep(20 * DURATION_S)
        assert set(me.keeper.held()) == {"a", "b"}
        assert dynamo.usage(operation="UpdateItem").requests == 0
        assert 40 <= dynamo.usage(operation="BatchGetItem").requests <= 60
    assert attribute(dynamo, "a", "mldHeartbeat") == EPOCH
    assert counter_of(dynamo, "a") <= 3


@virtual
async def test_without_heartbeats_covered_leases_end_a_lease_duration_after_the_last_one_was_sent() -> None:
    _, me = await started()
    (held,) = await me.hold("a")
    async with running(me, beats=False):
        await asyncio.sleep(0.1)
        me.keeper.validity.cover(Heartbeat(EPOCH, 0.1))
        await asyncio.sleep(INTERVAL_S + 0.1)
        assert me.keeper.covered() == ("a",)
        await asyncio.sleep(0.1 + DURATION_S - LoopClock().monotonic() - 0.05)
        assert me.keeper.is_held("a", held.token)
        await asyncio.sleep(0.06)
        assert not me.keeper.is_held("a", held.token)


@virtual
async def test_a_checkpoint_does_not_prolong_a_covered_lease() -> None:
    _, me = await started()
    (held,) = await me.hold("a")
    async with running(me, beats=False):
        me.keeper.validity.cover(Heartbeat(EPOCH, LoopClock().monotonic()))
        await asyncio.sleep(INTERVAL_S + DURATION_S / 2)
        await me.keeper.checkpoint("a", held.token, Position("5"))
        await asyncio.sleep(DURATION_S - LoopClock().monotonic() + 0.01)
        assert not me.keeper.is_held("a", held.token)


@virtual
async def test_heartbeats_alone_do_not_keep_a_lease_whose_row_cannot_be_read_or_written() -> None:
    dynamo, me = await started()
    (held,) = await me.hold("a")
    async with running(me):
        await asyncio.sleep(INTERVAL_S + 0.1)
        faults = FaultPlan(dynamo)
        faults.when = lambda operation, _: operation in ("BatchGetItem", "UpdateItem")
        faults.always = lost_request()
        await asyncio.sleep(DURATION_S)
        assert not me.keeper.is_held("a", held.token)


@virtual
async def test_a_lease_taken_by_hand_is_given_up_within_a_lease_duration() -> None:
    dynamo, me = await started()
    await me.hold("a", "b")
    async with running(me):
        await asyncio.sleep(3 * DURATION_S + 0.3)
        row = dynamo.rows(TABLE)["a"]
        dynamo.put_row(TABLE, {**row, "leaseOwner": {"S": "thief"}})
        await asyncio.sleep(DURATION_S)
        assert set(me.keeper.held()) == {"b"}


@virtual
async def test_a_hint_makes_it_look_at_once_and_a_handoff_is_reported() -> None:
    dynamo, me = await started()
    other = Worker(dynamo, "other")
    held, _ = await me.hold("a", "b")
    async with running(me):
        await asyncio.sleep(INTERVAL_S + 0.1)
        seen = await other.row("a")
        await other.table.apply(writes.begin_handoff(seen, "other"))
        await me.keeper.confirm(["a", "b"])
        assert me.handoffs == [("a", held.token, "other")]
        assert me.keeper.held()["a"].lease.handoff_to == "other"
        await asyncio.sleep(2 * DURATION_S)
        assert me.keeper.is_held("a", held.token), "it goes on until it has given the lease away"
        assert await me.keeper.give_away("a", held.token)
    assert attribute(dynamo, "a", "leaseOwner") == "other"
    assert attribute(dynamo, "a", "mldHeartbeat") is None


@virtual
async def test_fenced_it_drops_what_is_or_may_be_covered_and_nothing_else() -> None:
    dynamo, me = await started()
    await me.hold("a")
    async with running(me):
        await asyncio.sleep(INTERVAL_S + 0.1)
        await me.hold("b")  # held, and not marked yet
        me.keeper.validity.end_epoch()
        assert me.keeper.drop_covered() == ("a",)
        assert set(me.keeper.held()) == {"b"}
        assert dynamo.usage(operation="UpdateItem").requests


@virtual
async def test_a_mark_whose_reply_is_lost_already_limits_the_belief() -> None:
    dynamo, me = await started()
    await me.hold("a")
    async with running(me, beats=False):
        await asyncio.sleep(0.01)
        me.keeper.validity.cover(Heartbeat(EPOCH, 0.0))
        faults = FaultPlan(dynamo)
        faults.always = lost_reply()
        await asyncio.sleep(INTERVAL_S + 0.1)
        assert attribute(dynamo, "a", "mldHeartbeat") == EPOCH
        assert me.keeper.covered() == ("a",)
        await asyncio.sleep(DURATION_S - LoopClock().monotonic() + 0.01)
        assert not me.keeper.held()


@virtual
async def test_after_heartbeats_every_lease_is_renewed_by_itself_before_it_stops_resting_on_them() -> None:
    dynamo, me = await started()
    await me.hold("a", "b")
    async with running(me):
        await asyncio.sleep(2 * INTERVAL_S)
        faults = FaultPlan(dynamo)
        faults.next(throttled())
        me.keeper.validity.stop_marking()
        me.keeper.renew_each()
        await asyncio.sleep(0.01)
        assert len(me.keeper.covered()) == 1
        await asyncio.sleep(1.0)
        assert me.keeper.covered() == ()
        assert [attribute(dynamo, key, "mldHeartbeat") for key in "ab"] == [None, None]
        before = counter_of(dynamo, "a")
        await asyncio.sleep(10 * INTERVAL_S)
        assert counter_of(dynamo, "a") == before + 10


@virtual
async def test_throughput_is_written_soon_then_now_and_then_and_with_checkpoints() -> None:
    dynamo, me = await started()
    (held,) = await me.hold("a")
    expected = pytest.approx(100 / INTERVAL_S, rel=0.05)

    def stored() -> float:
        return float(attribute(dynamo, "a", "throughputKBps") or "nan")

    async with running(me):
        await asyncio.sleep(INTERVAL_S + 1.0)
        before = counter_of(dynamo, "a")
        for count, writes_so_far in ((8, 1), (35, 2), (240, 3)):
            for _ in range(count):
                me.keeper.record_delivery("a", 102_400)
                await asyncio.sleep(INTERVAL_S)
            assert counter_of(dynamo, "a") == before + writes_so_far
            assert stored() == expected
        me.keeper.record_delivery("a", 1 << 30)
        await asyncio.sleep(INTERVAL_S)
        await me.keeper.checkpoint("a", held.token, Position("11"))
        if stored() != expected:
            assert stored() < 100_000, "a mean, not the burst"
        await asyncio.sleep(2 * CHECKPOINT_KBPS_S)
        await me.keeper.checkpoint("a", held.token, Position("12"))
        assert stored() != expected


@virtual
async def test_an_unknown_checkpoint_is_cleared_up_by_a_renewal() -> None:
    dynamo, me = await started()
    (held,) = await me.hold("a")
    async with running(me):
        await asyncio.sleep(INTERVAL_S + 0.1)
        faults = FaultPlan(dynamo)
        faults.next(lost_reply(), lost_reply(), lost_reply(), lost_reply())
        with pytest.raises(Exception, match="reset"):
            await me.keeper.checkpoint("a", held.token, Position("5"))
        await asyncio.sleep(2 * INTERVAL_S)
        assert me.keeper.is_held("a", held.token)
        assert me.keeper.held()["a"].lease.checkpoint == Position("5")


@virtual
async def test_rows_of_a_batch_that_are_left_out_are_asked_for_again() -> None:
    dynamo, me = await started()
    keys = [f"k{number}" for number in range(7)]
    for key in keys:
        await me.table.apply(writes.create(Lease(key, TRIM_HORIZON)))
    dynamo.batch_rows_max = 3
    assert sorted(await me.table.get_many([*keys, "absent"])) == keys
    assert dynamo.usage(operation="BatchGetItem").requests == 3
    dynamo.forbidden = {"BatchGetItem"}
    assert sorted(await me.table.get_many(keys)) == keys


@virtual
async def test_a_note_of_failures_is_the_one_thing_written_for_a_covered_lease() -> None:
    dynamo, me = await started()
    (held,) = await me.hold("a")
    async with running(me):
        await asyncio.sleep(2 * INTERVAL_S)
        before = counter_of(dynamo, "a")
        me.keeper.note_failing("a", held.token, Failing(1, 0, TRIM_HORIZON))
        await asyncio.sleep(5 * INTERVAL_S)
        row = dynamo.rows(TABLE)["a"]
        assert row["mldFailing"]["M"]["failures"] == {"N": "1"}
        assert row["mldHeartbeat"] == {"S": EPOCH}
        assert counter_of(dynamo, "a") == before + 1
