"""How the row follows the safe prefix: when writes fail, at a stop, and after a bug."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from mld.consumer.checkpoint_range import CheckpointRange
from mld.consumer.prefix_writer import RETRY_MAX_S, STORE_INTERVAL_S, PrefixWriter
from mld.consumer.safe_prefix import SafePrefix
from mld.core.clock import LoopClock
from mld.core.positions import Position
from mld.protocol.messages import CheckpointErrorName
from tests.virtual_time import virtual

START = Position("100")


class Row:
    """A lease row whose writes are answered by `answers`, one after another, and then succeed."""

    def __init__(self, *answers: CheckpointErrorName | Exception) -> None:
        self.range = CheckpointRange.starting_at(START)
        self.answers = list(answers)
        self.writes = 0

    async def advance(self, position: Position) -> CheckpointErrorName | None:
        self.writes += 1
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        if answer is None:
            self.range = self.range.written(position)
        return answer


def writer_of(row: Row) -> PrefixWriter:
    """The writer for two children, of which the first has the record 101 and the second 102."""
    prefix = SafePrefix(2, START)
    prefix.given([(b"101", 0, 0), (b"102", 0, 1)], {})
    return PrefixWriter(prefix, cast(Any, row), LoopClock())


THROTTLED = CheckpointErrorName.THROTTLING


@virtual
async def test_a_stop_does_not_wait_for_the_long_pause_between_two_failed_writes() -> None:
    row = Row(*[THROTTLED] * 8)
    writer, clock = writer_of(row), LoopClock()
    writer.confirmed(0, Position("101"))
    await asyncio.sleep(3 * RETRY_MAX_S)
    assert row.range.last == START
    began_s = clock.monotonic()
    await writer.close()
    assert row.range.last == Position("101")
    assert clock.monotonic() - began_s <= 3 * STORE_INTERVAL_S


@virtual
async def test_a_stop_tries_on_with_pauses_while_writes_fail() -> None:
    row = Row(*[THROTTLED] * 5)
    writer = writer_of(row)
    writer.confirmed(0, Position("101"))
    began_s = LoopClock().monotonic()
    await writer.flush()
    assert LoopClock().monotonic() - began_s >= 3 * STORE_INTERVAL_S
    assert row.writes == 6


@virtual
async def test_nothing_is_written_after_the_lease_is_lost() -> None:
    row = Row(CheckpointErrorName.SHUTDOWN)
    writer = writer_of(row)
    writer.confirmed(0, Position("101"))
    await writer.flush()
    assert writer.is_closed
    writer.confirmed(1, Position("102"))
    await writer.close()
    assert row.writes == 1


@virtual
async def test_a_bug_is_raised_to_those_who_flush_or_checkpoint() -> None:
    writer = writer_of(Row(RuntimeError("a bug")))
    writer.confirmed(0, Position("101"))
    with pytest.raises(RuntimeError, match="a bug"):
        await writer.flush()
    with pytest.raises(RuntimeError, match="a bug"):
        writer.confirmed(1, Position("102"))


@virtual
async def test_what_is_confirmed_during_a_write_is_written_after_it() -> None:
    row = Row()
    writer = writer_of(row)
    writer.confirmed(0, Position("101"))
    await asyncio.sleep(0.5 * STORE_INTERVAL_S)
    writer.confirmed(1, Position("102"))
    await asyncio.sleep(STORE_INTERVAL_S)
    assert (row.range.last, row.writes) == (Position("102"), 2)
