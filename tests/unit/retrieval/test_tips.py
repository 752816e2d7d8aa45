"""When a reader says that its consumer has done with everything there was."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from mld.core.positions import TRIM_HORIZON, InitialPosition
from mld.metrics.shard import ShardMetrics
from mld.retrieval.pacing import Pacing
from mld.retrieval.polling import PollingReader
from mld.retrieval.prefetch import Budget
from mld.retrieval.rawpage import RawPage
from mld.retrieval.reader import ReaderShares
from tests.support.readers import live, sequences
from tests.twins.streams import MemoryStreams

INITIAL = InitialPosition(TRIM_HORIZON)


class Tips:
    def __init__(self, *, max_records: int = 100, deliver_empty: bool = False) -> None:
        self.streams = MemoryStreams()
        self.metrics = ShardMetrics("shard-0", 0.0)
        self.metrics.on_tip = lambda key, reached: self.told.append((key, reached))
        self.told: list[tuple[str, bool]] = []
        self.max_records = max_records
        self.deliver_empty = deliver_empty

    def reader(self) -> PollingReader:
        return PollingReader(
            self.streams,
            ReaderShares(self.streams.clock, Random(1), Budget(10**9)),
            shard_id="shard-0",
            max_records=self.max_records,
            intervals=Pacing(1.0),
            deliver_empty=self.deliver_empty,
            metrics=self.metrics,
        )


def behind(page: RawPage, millis: int | None) -> RawPage:
    return replace(page, millis_behind_latest=millis)


async def waits(reader: PollingReader, seconds: float = 3.0) -> None:
    """Ask for the next delivery, which does not come."""
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.next(), seconds)


def test_not_before_the_consumer_asks_for_more() -> None:
    tips = Tips()

    async def body(reader: Any) -> None:
        tips.streams.put(3)
        await reader.start(TRIM_HORIZON, INITIAL)
        assert len(sequences(await reader.next())) == 3
        await asyncio.sleep(10.5)  # it works on them; the empty answers at the tip mean nothing
        assert tips.told == []
        await waits(reader, 0.001)
        assert tips.told == [("shard-0", True)]

    live(tips.reader, body)


@pytest.mark.parametrize("deliver_empty", [False, True])
def test_a_quiet_shard_is_at_the_tip_after_its_first_answer(deliver_empty: bool) -> None:
    tips = Tips(deliver_empty=deliver_empty)

    async def body(reader: Any) -> None:
        await reader.start(TRIM_HORIZON, INITIAL)
        if deliver_empty:
            assert sequences(await reader.next()) == []
            assert tips.told == []
        await waits(reader, 0.5)
        assert tips.told == [("shard-0", True)]

    live(tips.reader, body)


def test_not_while_pages_wait_behind_the_one_that_was_taken() -> None:
    tips = Tips(max_records=2)

    async def body(reader: Any) -> None:
        tips.streams.put(5)
        await reader.start(TRIM_HORIZON, INITIAL)
        await asyncio.sleep(10)
        for count in (2, 2, 1):
            assert len(sequences(await reader.next())) == count
            assert tips.told == []
        await waits(reader)
        assert tips.told

    live(tips.reader, body)


@pytest.mark.parametrize("said", [5, None])
def test_not_by_an_answer_that_does_not_say_so(said: int | None) -> None:
    tips = Tips()
    tips.streams.bend(*[lambda page: behind(page, said)] * 30)

    async def body(reader: Any) -> None:
        await reader.start(TRIM_HORIZON, INITIAL)
        await waits(reader, 1.5)
        assert tips.told == []
        await waits(reader, 60)
        assert tips.told

    live(tips.reader, body)


def test_not_by_a_full_page_that_says_zero() -> None:
    """As stand-ins do that always say zero."""
    tips = Tips(max_records=2)
    tips.streams.bend(lambda page: behind(page, 0))

    async def body(reader: Any) -> None:
        tips.streams.put(3)
        await reader.start(TRIM_HORIZON, INITIAL)
        assert len(sequences(await reader.next())) == 2
        assert len(sequences(await reader.next())) == 1
        assert tips.told == []
        await waits(reader)
        assert tips.told

    live(tips.reader, body)


def test_at_the_tip_nothing_is_in_hand_that_a_failed_child_had() -> None:
    """It was passed over, or is past retention, so that nobody will say that it is done."""
    tips = Tips()
    tips.metrics.oldest_wall_s = 1.0

    async def body(reader: Any) -> None:
        await reader.start(TRIM_HORIZON, INITIAL)
        await asyncio.sleep(10)
        assert tips.metrics.oldest_wall_s == 1.0, "the consumer may have it in hand"
        await waits(reader)
        assert tips.metrics.oldest_wall_s is None

    live(tips.reader, body)
