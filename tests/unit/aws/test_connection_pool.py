"""Which calls are admitted when, and which connections they get."""

from __future__ import annotations

import asyncio
import socket

from mld.aws.wire.connection import Connection, Origin
from mld.aws.wire.connection_pool import IDLE_MAX_S, CallAdmission, ConnectionPool
from tests.support.patience import PATIENCE_S

NEVER_S = 3600.0
SOON_S = 0.001
HERE, THERE = Origin("here", 1, None), Origin("there", 1, None)


class Wire(Connection):
    """A connection over a pair of sockets."""

    def __init__(self, origin: Origin) -> None:
        ours, self.far = socket.socketpair()
        super().__init__(ours, origin)

    def close(self, reason: Exception | None = None) -> None:
        super().close(reason)
        self.far.close()


def used(pool: ConnectionPool, admission: CallAdmission, origin: Origin = HERE) -> Wire:
    """The call has opened a connection and is over."""
    wire = Wire(origin)
    admission.connection = wire
    pool.give_back(admission)
    return wire


async def test_an_idle_connection_is_used_again_and_others_are_not_made() -> None:
    pool = ConnectionPool(20)
    admission = await pool.admit(HERE)
    assert admission.connection is None
    wire = used(pool, admission)
    for _ in range(5):
        admission = await pool.admit(HERE)
        assert admission.connection is wire and len(pool) == 1
        pool.give_back(admission)
    pool.close()
    assert not wire.is_open


async def test_calls_that_do_not_wait_long_share_the_first_few_admissions() -> None:
    pool = ConnectionPool(20, wait_max_s=NEVER_S)
    first = [await pool.admit(HERE) for _ in range(4)]
    waiting = [asyncio.create_task(pool.admit(HERE)) for _ in range(10)]
    await asyncio.sleep(0)
    assert len(pool) == 4
    for admission in first:
        pool.give_back(admission)
    for task in waiting:
        pool.give_back(await task)
    assert len(pool) == 0


async def test_calls_that_wait_are_admitted_up_to_the_limit() -> None:
    pool = ConnectionPool(7, wait_max_s=SOON_S)
    async with asyncio.timeout(PATIENCE_S):
        admitted = [await pool.admit(HERE) for _ in range(7)]
    late = asyncio.create_task(pool.admit(HERE))
    for _ in range(10):
        await asyncio.sleep(SOON_S)
    assert not late.done() and len(pool) == 7
    pool.give_back(admitted[0])
    await late


async def test_who_gives_up_waiting_takes_no_admission_along() -> None:
    pool = ConnectionPool(1, wait_max_s=NEVER_S)
    admission = await pool.admit(HERE)
    waiting = [asyncio.create_task(pool.admit(HERE)) for _ in range(2)]
    await asyncio.sleep(0)
    wire = used(pool, admission)  # to the first, which has not run yet
    waiting[0].cancel()
    async with asyncio.timeout(PATIENCE_S):
        assert (await waiting[1]).connection is wire
    wire.close()


async def test_an_idle_connection_that_ends_leaves() -> None:
    pool = ConnectionPool(4)
    wire = used(pool, await pool.admit(HERE))
    wire.far.close()
    async with asyncio.timeout(PATIENCE_S):
        while len(pool):
            await asyncio.sleep(0)
    assert not wire.is_open
    assert (await pool.admit(HERE)).connection is None


async def test_a_connection_that_ends_on_its_way_to_the_next_caller_does_not_reach_him() -> None:
    pool = ConnectionPool(1)
    admission = await pool.admit(HERE)
    waiting = asyncio.create_task(pool.admit(HERE))
    await asyncio.sleep(0)
    wire = used(pool, admission)
    wire.far.close()  # before the one who waits runs
    assert (await waiting).connection is None and not wire.is_open


async def test_a_connection_that_cannot_be_used_again_is_not_kept() -> None:
    pool = ConnectionPool(1)
    admission = await pool.admit(HERE)
    admission.connection = wire = Wire(HERE)
    wire.may_reuse = False
    pool.give_back(admission)
    assert len(pool) == 0 and not wire.is_open


async def test_after_a_call_without_an_answer_no_idle_connection_to_there_is_used() -> None:
    pool = ConnectionPool(20)
    admitted = [await pool.admit(HERE) for _ in range(3)] + [await pool.admit(THERE)]
    idle = [used(pool, admission) for admission in admitted[1:3]]
    elsewhere = used(pool, admitted[3], THERE)
    pool.distrust(HERE)
    assert not any(wire.is_open for wire in idle) and elsewhere.is_open
    assert (await pool.admit(THERE)).connection is elsewhere
    assert (await pool.admit(HERE)).connection is None
    elsewhere.close()


async def test_an_idle_connection_is_not_used_after_a_minute() -> None:
    pool = ConnectionPool(20)
    admitted = [await pool.admit(HERE) for _ in range(3)]
    wires = [used(pool, admission) for admission in admitted]
    for wire, age_s in zip(wires, (61.0, 60.1, 50.0), strict=True):
        wire.idle_since_s -= age_s
    assert (await pool.admit(HERE)).connection is wires[2]
    assert [wire.is_open for wire in wires] == [False, False, True] and IDLE_MAX_S == 60
    wires[2].close()


async def test_a_full_house_gives_up_a_connection_to_elsewhere() -> None:
    pool = ConnectionPool(1)
    wire = used(pool, await pool.admit(THERE), THERE)
    assert (await pool.admit(HERE)).connection is None
    assert not wire.is_open and len(pool) == 1
    waiting = asyncio.create_task(pool.admit(HERE))
    await asyncio.sleep(0)
    wire = used(pool, CallAdmission(), THERE)
    assert (await waiting).connection is None and not wire.is_open


async def test_after_closing_nothing_is_kept() -> None:
    pool = ConnectionPool(2)
    admitted = [await pool.admit(HERE) for _ in range(2)]
    idle = used(pool, admitted[0])
    pool.close()
    assert not idle.is_open and not used(pool, admitted[1]).is_open
