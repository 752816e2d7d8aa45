"""How long somebody waits for the writes of moves, and what becomes of those that nobody waits for any more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from mld.core.clock import LoopClock
from mld.core.positions import TRIM_HORIZON
from mld.core.turns import CALLS_CONCURRENT_MAX
from mld.fleet.assign.fleet_load import Move, Why
from mld.fleet.assign.move_writer import WRITES_WAIT_S, MoveWriter, Written
from mld.fleet.observations import Observations
from mld.leases.lease import Lease
from tests.virtual_time import run_virtual

CLOCK = LoopClock()
MOVES = [Move(Lease(f"s{number:02d}", TRIM_HORIZON), "me", False, Why.FREE) for number in range(50)]


class SlowTable:
    """Answers a write once `answer` says so; None is no answer at all."""

    def __init__(self, answer: Callable[[int], Coroutine[Any, Any, None]]) -> None:
        self.sent: list[str] = []
        self._answer = answer

    async def apply(self, write: Any) -> Lease:
        self.sent.append(write.key)
        await self._answer(len(self.sent))
        return Lease(write.key, TRIM_HORIZON, owner="me", counter=1)


def writer_of(table: SlowTable, assigned: list[tuple[str, ...]]) -> MoveWriter:
    observations = Observations(lease_duration_s=10.0, handoff_timeout_s=40.0)
    return MoveWriter(table, observations, CLOCK, "me", assigned.append)  # type: ignore[arg-type]


def test_no_more_is_sent_once_nobody_waits_and_late_answers_count() -> None:
    async def story() -> None:
        silence, assigned, written = asyncio.Event(), [], Written()
        table = SlowTable(lambda _sent: silence.wait())  # type: ignore[arg-type, return-value]
        writer = writer_of(table, assigned)
        since = CLOCK.monotonic()
        assert not await writer.in_time(writer.write(MOVES, written), written, 0.0)
        assert CLOCK.monotonic() - since <= WRITES_WAIT_S + 0.1
        assert len(table.sent) == CALLS_CONCURRENT_MAX
        silence.set()
        await asyncio.sleep(100)
        assert len(table.sent) == CALLS_CONCURRENT_MAX
        assert sorted(written.done) == sorted(table.sent) == sorted(assigned[0])

    run_virtual(story())


def test_many_writes_are_waited_for_as_long_as_some_are_answered() -> None:
    async def story() -> None:
        written, assigned = Written(), []
        table = SlowTable(lambda _sent: asyncio.sleep(0.8 * WRITES_WAIT_S))
        writer = writer_of(table, assigned)
        since = CLOCK.monotonic()
        assert await writer.in_time(writer.write(MOVES, written), written, 0.0)
        assert CLOCK.monotonic() - since > 2 * WRITES_WAIT_S
        assert len(written.done) == len(MOVES)

    run_virtual(story())


def test_a_table_that_is_slow_to_read_is_given_more_time() -> None:
    async def story() -> None:
        written = Written()
        table = SlowTable(lambda _sent: asyncio.sleep(2 * WRITES_WAIT_S))
        writer = writer_of(table, [])
        assert await writer.in_time(writer.write(MOVES, written), written, 1.5 * WRITES_WAIT_S)
        assert len(written.done) == len(MOVES)

    run_virtual(story())


def test_what_goes_on_is_cancelled_at_the_end() -> None:
    async def story() -> None:
        written = Written()
        table = SlowTable(lambda _sent: asyncio.sleep(1_000))
        writer = writer_of(table, [])
        assert not await writer.in_time(writer.write(MOVES, written), written, 0.0)
        writer.close()
        await asyncio.sleep(2_000)
        assert not written.done

    run_virtual(story())
