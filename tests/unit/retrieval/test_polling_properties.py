"""Whatever Kinesis answers and however slow the consumer is: every record once, in order, and the end after them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from mld.core import errors
from mld.core.positions import LATEST, TRIM_HORIZON, InitialPosition, Position
from mld.core.streams import HASH_KEY_MAX, ChildShard, HashRange
from mld.retrieval.pacing import Pacing
from mld.retrieval.polling import PollingReader
from mld.retrieval.prefetch import Budget
from mld.retrieval.rawpage import RawPage
from mld.retrieval.reader import EndOfShard, ReaderShares, Records, ShardMissing
from tests.support.pages import sequences_in
from tests.twins.streams import HangError, MemoryStreams, Transform
from tests.virtual_time import run_virtual

CHILD = ChildShard("child", frozenset({"shard-0"}), HashRange(0, HASH_KEY_MAX))

ERRORS: list[type[Exception]] = [
    errors.IteratorExpiredError,
    errors.InvalidStreamArgumentError,
    errors.StreamThrottledError,
    errors.StreamUnavailableError,
    errors.InvalidStreamResponseError,
    errors.StreamNotFoundError,
    HangError,
]


def children_though_it_goes_on(page: RawPage) -> RawPage:
    return replace(page, next_iterator=page.next_iterator or "goes on", child_shards=(CHILD,))


def empty_though_behind(page: RawPage) -> RawPage:
    """Nothing found yet, same place: legal as long as the iterator did not move past records."""
    return page if page.count or page.next_iterator is None else replace(page, millis_behind_latest=1)


faults = st.lists(st.none() | st.sampled_from(ERRORS).map(lambda kind: kind("scripted")), max_size=25)
bends = st.lists(st.none() | st.sampled_from([children_though_it_goes_on, empty_though_behind]), max_size=10)


@dataclass(frozen=True)
class Story:
    record_faults: list[Exception | None]
    iterator_faults: list[Exception | None]
    bends: list[Transform | None]
    writes: list[tuple[float, int]]
    consumer_pauses_s: list[float]
    limit: int
    latency_s: float
    seed: int


stories = st.builds(
    Story,
    record_faults=faults,
    iterator_faults=faults,
    bends=bends,
    writes=st.lists(st.tuples(st.sampled_from([0.0, 0.3, 5.0, 100.0, 400.0]), st.integers(0, 12)), max_size=8),
    consumer_pauses_s=st.lists(st.sampled_from([0.0, 0.1, 3.0, 290.0, 700.0]), min_size=1, max_size=6),
    limit=st.integers(1, 7),
    latency_s=st.sampled_from([0.0, 0.05, 2.0]),
    seed=st.integers(0, 2**32),
)


def new_in(page: RawPage, delivered: list[str]) -> list[str]:
    """The records of a page without the last one of the page before, which a reader may ask for again."""
    sequences = sequences_in(page)
    return sequences[1:] if sequences[:1] == delivered[-1:] else sequences


async def write(streams: MemoryStreams, story: Story, written: list[str]) -> None:
    for pause_s, count in story.writes:
        await asyncio.sleep(pause_s)
        written += streams.put(count)
    streams.close("child")


async def live(story: Story, checkpoint: Position) -> tuple[list[str], list[str], MemoryStreams]:
    """Run the story to its end: (written, delivered, streams)."""
    streams = MemoryStreams(latency_s=story.latency_s)
    streams.fail("GetRecords", *story.record_faults)
    streams.fail("GetShardIterator", None, *story.iterator_faults)
    streams.bend(*story.bends)
    reader = PollingReader(
        streams,
        ReaderShares(streams.clock, Random(story.seed), Budget(10**9)),
        shard_id="shard-0",
        max_records=story.limit,
        intervals=Pacing(1.5),
    )
    await reader.start(checkpoint, InitialPosition(checkpoint))
    written: list[str] = []
    writer = asyncio.create_task(write(streams, story, written))
    delivered: list[str] = []
    for turn in range(10_000):
        match await reader.next():
            case Records(page):
                delivered += new_in(page, delivered)
            case EndOfShard(children):
                assert [child.shard_id for child in children] == ["child"]
                break
            case ShardMissing():
                pass
        await asyncio.sleep(story.consumer_pauses_s[turn % len(story.consumer_pauses_s)])
    else:
        raise AssertionError("the story does not end")
    await writer
    await reader.stop()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    return written, delivered, streams


@given(stories)
def test_every_record_is_delivered_once_in_order_and_the_end_last_within_the_limit_of_the_service(story: Story) -> None:
    written, delivered, streams = run_virtual(live(story, TRIM_HORIZON))
    assert delivered == written
    times = streams.times("GetRecords")
    assert all(late - early >= 0.2 - 1e-6 for early, late in pairwise(times))


@given(stories)
def test_a_reader_from_latest_misses_nothing_after_its_start(story: Story) -> None:
    written, delivered, _ = run_virtual(live(story, LATEST))
    assert delivered == written
