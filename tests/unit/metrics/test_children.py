"""When one of several children of a shard gets most of the records, and where that is said."""

from __future__ import annotations

import pytest

from mld.metrics.activity import ShardActivity
from mld.metrics.children import WINDOW_S, ChildLoad, ChildLoads, hot_share
from mld.metrics.shard import HOT_CHILD_FROM_S, ShardMetrics

HOT = "child 1 of 4 gets 60% of the records, and a hot key cannot be shared out"


def loads(*records: int) -> ChildLoads:
    made = ChildLoads([ChildLoad(number, f"pid {number}") for number in range(len(records))], 0.0)
    for number, count in enumerate(records):
        made.given(number, count, 1.0)
    return made


@pytest.mark.parametrize(("children", "share"), [(2, 0.9), (3, 2 / 3), (4, 0.5), (64, 0.5)])
def test_twice_an_even_share_is_hot_within_bounds(children: int, share: float) -> None:
    assert hot_share(children) == pytest.approx(share)


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ((10, 60, 20, 10), HOT),
        ((0, 50, 30, 20), None),
        ((70, 30), None),
        ((95, 5), "child 0 of 2 gets 95% of the records, and a hot key cannot be shared out"),
        ((0, 0, 0, 0), None),
    ],
)
def test_a_child_that_gets_most_of_the_records_is_named(records: tuple[int, ...], words: str | None) -> None:
    assert loads(*records).hot_child == words


def test_what_was_long_ago_does_not_count() -> None:
    some = loads(0, 1000, 0, 0)
    for number in range(4):
        some.given(number, 1, 1.0 + WINDOW_S)
    assert some.hot_child is not None, "the window before still counts"
    for number in range(4):
        some.given(number, 1, 1.0 + 2 * WINDOW_S)
    assert some.hot_child is None


def test_a_pause_ends_both_windows() -> None:
    some = loads(0, 1000, 0, 0)
    for number in range(4):
        some.given(number, 1, 3600.0)
    assert some.hot_child is None


@pytest.mark.parametrize(("behind_s", "words"), [(HOT_CHILD_FROM_S - 1, None), (HOT_CHILD_FROM_S, HOT)])
def test_it_is_why_a_shard_is_behind(behind_s: float, words: str | None) -> None:
    part = ShardMetrics("shardId-000000000000", 0.0)
    part.busy_since, part.oldest_wall_s = 1.0, 1000.0 - behind_s
    assert part.activity_at(1000.0) is ShardActivity.PROCESSING
    assert part.why_at(1000.0) is None, "one child has all records, and nothing is to be said of it"
    part.children = loads(10, 60, 20, 10)
    assert part.why_at(1000.0) == words
