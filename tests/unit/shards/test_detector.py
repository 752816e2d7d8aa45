"""Listing the shards: pages, retries in virtual time, and the answers that are not lists."""

from __future__ import annotations

import asyncio
import random

import pytest

from mld.core.clock import LoopClock
from mld.core.errors import (
    InvalidStreamResponseError,
    IteratorExpiredError,
    StreamError,
    StreamInUseError,
    StreamNotFoundError,
    StreamThrottledError,
    StreamUnavailableError,
)
from mld.core.streams import ShardFilter, ShardFilterType, StreamKind
from mld.shards.detector import RESTARTS_MAX, TRANSIENT_ATTEMPTS_MAX, NotListed, ShardDetector, ShardsListed
from tests.unit.shards.twins import GRAPH_A, GRAPH_S, ListedStream
from tests.virtual_time import run_virtual


def _detector(stream: ListedStream, *, attempts_max: int = 50) -> ShardDetector:
    return ShardDetector(stream, LoopClock(), random.Random(7), backoff_s=1.5, attempts_max=attempts_max)


def test_all_pages_are_read_and_only_the_first_carries_the_filter() -> None:
    stream = ListedStream(GRAPH_A, page_size=4)
    at_latest = ShardFilter(ShardFilterType.AT_LATEST)

    listing = run_virtual(_detector(stream).list_all(at_latest))

    assert listing == ShardsListed(GRAPH_A)
    assert stream.calls == [(at_latest, None), (None, "4"), (None, "8")]


def test_throttling_is_waited_out_for_each_page_with_spread_pauses() -> None:
    stream = ListedStream(GRAPH_A, page_size=6)
    stream.answers = [StreamThrottledError("slow down")] * 9 + [None] + [StreamThrottledError("slow down")] * 9

    async def scenario() -> float:
        assert await _detector(stream, attempts_max=10).list_all() == ShardsListed(GRAPH_A)
        return asyncio.get_running_loop().time()

    assert 18 * 1.5 <= run_virtual(scenario()) <= 18 * 1.5 * 1.5


def test_throttling_without_end_is_an_error() -> None:
    stream = ListedStream(GRAPH_A)
    stream.answers = [StreamThrottledError("slow down")] * 10

    with pytest.raises(StreamThrottledError):
        run_virtual(_detector(stream, attempts_max=10).list_all())
    assert len(stream.calls) == 10


@pytest.mark.parametrize("error", [StreamUnavailableError("time-out"), InvalidStreamResponseError("null")])
def test_transient_errors_are_retried_a_few_times(error: StreamError) -> None:
    stream = ListedStream(GRAPH_A)
    stream.answers = [error] * (TRANSIENT_ATTEMPTS_MAX - 1)
    assert run_virtual(_detector(stream).list_all()) == ShardsListed(GRAPH_A)

    stream.answers = [error] * TRANSIENT_ATTEMPTS_MAX
    with pytest.raises(type(error)):
        run_virtual(_detector(stream).list_all())


def test_an_expired_page_token_restarts_the_listing_with_its_filter() -> None:
    stream = ListedStream(GRAPH_A, page_size=6)
    stream.answers = [None, IteratorExpiredError("token")]
    horizon = ShardFilter(ShardFilterType.AT_TRIM_HORIZON)

    assert run_virtual(_detector(stream).list_all(horizon)) == ShardsListed(GRAPH_A)
    assert stream.calls == [(horizon, None), (None, "6"), (horizon, None), (None, "6")]


def test_tokens_that_always_expire_are_an_error() -> None:
    stream = ListedStream(GRAPH_A)
    stream.answers = [IteratorExpiredError("token")] * (RESTARTS_MAX + 1)

    with pytest.raises(IteratorExpiredError):
        run_virtual(_detector(stream).list_all())


def test_a_stream_that_is_not_ready_and_one_that_is_missing_are_answers_of_their_own() -> None:
    stream = ListedStream(GRAPH_A)
    stream.answers = [StreamInUseError("CREATING"), StreamNotFoundError("no stream clicks")]

    not_ready = run_virtual(_detector(stream).list_all())
    missing = run_virtual(_detector(stream).list_all())

    assert isinstance(not_ready, NotListed)
    assert isinstance(missing, NotListed)
    assert (not_ready.is_missing, missing.is_missing) == (False, True)
    assert "CREATING" in not_ready.reason
    assert "check streamName or streamArn" in missing.reason and "regionName" in missing.reason
    assert run_virtual(_detector(ListedStream()).list_all()) == ShardsListed(())


def test_a_shard_that_comes_twice_is_taken_from_the_later_page() -> None:
    closed = GRAPH_S[0]
    still_open = type(closed)(closed.shard_id, closed.hash_range, closed.starting_sequence)

    listing = run_virtual(_detector(ListedStream((still_open, *GRAPH_S), page_size=1)).list_all())

    assert listing == ShardsListed(GRAPH_S)


def test_the_sentence_about_a_missing_stream_of_a_table_says_where_to_look() -> None:
    stream = ListedStream(GRAPH_A)
    stream.answers = [StreamNotFoundError("no stream")]

    of_table = run_virtual(ShardDetector(stream, LoopClock(), random.Random(7), kind=StreamKind.DYNAMODB).list_all())

    assert isinstance(of_table, NotListed)
    assert "the table's LatestStreamArn" in of_table.reason
