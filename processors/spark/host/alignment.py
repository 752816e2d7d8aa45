"""Which shard may be fed next, so that none runs ahead of the others (`mld.spark.alignMillis`).

Streaming queries have one watermark for all shards, and it follows the newest event. After an outage shards catch up at
different speeds, and what a slow one brings would come later than the watermark of a fast one. So what a shard offers
waits in its child until the slowest other one is near; the time is that of arrival in Kinesis, which is known without
decoding. Children cut what they offer into pieces of at most half of the distance allowed.

A shard that is at its tip, has brought nothing for a while, or has ended holds nobody back. The one that is furthest
behind may always go on, so somebody always may. What waits takes no room from `mld.spark.maxInFlightBytes`.

Pure: values in, values out. Times of arrival are in milliseconds since 1970, `now` is monotonic, in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

Shard = TypeVar("Shard")


class ArrivalSpan(NamedTuple):
    """When the records of an offer arrived, in milliseconds since 1970: the first and the last of them."""

    first_ms: int
    last_ms: int


@dataclass(frozen=True, slots=True)
class ShardFeed:
    """What is known of a shard.

    `fed_ms`: arrival of the newest record that was let in. `waiting`: what it offers and may not bring yet. `is_busy`:
    what was let in is on its way. `at_tip`: its last batch was at the tip. `heard_at`: when it last did anything."""

    heard_at: float
    fed_ms: int | None = None
    waiting: ArrivalSpan | None = None
    is_busy: bool = False
    at_tip: bool = False


def earliest_to_come(feed: ShardFeed, now: float, idle_s: float) -> int | None:
    """Return the arrival before which no record is likely to come from a shard; None if it holds nobody back."""
    reached = feed.fed_ms or 0
    if feed.waiting is not None:
        return max(reached, feed.waiting.first_ms)
    if feed.is_busy:
        return reached
    return None if feed.at_tip or now - feed.heard_at >= idle_s else reached


def may_feed(shard: Shard, feeds: Mapping[Shard, ShardFeed], align_ms: int, now: float, idle_s: float) -> bool:
    """Return whether what a shard offers may be let in: it ends near the slowest other shard, or the shard is the
    slowest.
    """
    mine = feeds[shard].waiting
    assert mine is not None
    others = [
        earliest
        for one, feed in feeds.items()
        if one != shard and (earliest := earliest_to_come(feed, now, idle_s)) is not None
    ]
    slowest = min(others, default=None)
    return slowest is None or mine.last_ms <= slowest + align_ms or mine.first_ms <= slowest
