"""Offers that wait because their shard is ahead of others: carries out `alignment`, before room is asked for."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace

from mld.processors.spark.high_water_marks import StreamShard
from mld.processors.spark.host.alignment import ArrivalSpan, ShardFeed, earliest_to_come, may_feed
from mld.processors.spark.host.connection import ChildConnection

log = logging.getLogger("mld.spark")

IDLE_S = 30.0
"""A shard that has brought nothing for so long, for whatever reason, holds nobody back: longer than it takes the daemon
to read a page, pauses for throttling included."""
LOOK_S = 1.0
"""How often to look at what waits: shards become idle without a word."""
LET_ALL_S = 5.0
"""When a child is asked to end, all that wait are let in for so long: they hear of the end only after an answer."""
SAY_S = 60.0
"""How often the log says who waits for whom."""


class AlignedIntake:
    """Called on the host's loop only. `admit` asks for room, as `OfferQueue.admit`."""

    def __init__(
        self,
        align_ms: int,
        admit: Callable[[ChildConnection, int], None],
        *,
        idle_s: float = IDLE_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._align_ms = align_ms
        self._admit = admit
        self._idle_s = idle_s
        self._monotonic = monotonic
        self._feeds: dict[StreamShard, ShardFeed] = {}
        self._owners: dict[StreamShard, ChildConnection] = {}
        self._held: dict[StreamShard, tuple[ChildConnection, int]] = {}
        self._let_all_until = self._say_at = -1e9
        self._timer: asyncio.Handle | None = None

    def joined(self, child: ChildConnection) -> None:
        """Note that a child of a shard will offer soon; it takes over from one before."""
        if self._align_ms and child.shard is not None:
            self._owners[child.shard] = child
            self._feeds[child.shard] = ShardFeed(self._monotonic())
            self._held.pop(child.shard, None)

    def admit(self, child: ChildConnection, size: int, span: ArrivalSpan | None) -> None:
        """Let the child go on with a line once its shard may, and there is room."""
        shard = child.shard
        if shard is None or span is None or self._owners.get(shard) is not child:
            self._admit(child, size)
            return
        self._feeds[shard] = replace(self._feeds[shard], waiting=span, heard_at=self._monotonic(), at_tip=False)
        self._look_soon()
        if self._may(shard):
            self._let_in(shard, span)
            self._admit(child, size)
        else:
            self._held[shard] = child, size
            self._say(shard)

    def brought(self, shard: StreamShard, millis_behind_latest: int | None) -> None:
        """Note that what was let in has come."""
        if shard in self._feeds:
            feed, at_tip = self._feeds[shard], millis_behind_latest == 0
            self._feeds[shard] = replace(feed, is_busy=False, at_tip=at_tip, heard_at=self._monotonic())
            self._look_soon()

    def gone(self, child: ChildConnection) -> None:
        """Note that the child of a shard is gone; another one may be there already."""
        if child.shard is not None and self._owners.get(child.shard) is child:
            del self._owners[child.shard]
            self._feeds.pop(child.shard, None)
            self._held.pop(child.shard, None)
            self._look_soon()

    def let_all(self) -> None:
        """Hold nobody for a moment."""
        self._let_all_until = self._monotonic() + LET_ALL_S
        self._look_soon()

    def _may(self, shard: StreamShard) -> bool:
        now = self._monotonic()
        return now < self._let_all_until or may_feed(shard, self._feeds, self._align_ms, now, self._idle_s)

    def _let_in(self, shard: StreamShard, span: ArrivalSpan) -> None:
        feed = self._feeds[shard]
        self._feeds[shard] = replace(feed, waiting=None, is_busy=True, fed_ms=max(feed.fed_ms or 0, span.last_ms))

    def _look_soon(self, delay_s: float = 0.0) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._held:
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._look)

    def _look(self) -> None:
        self._timer = None
        for shard, (child, size) in list(self._held.items()):
            span = self._feeds[shard].waiting
            if span is not None and self._may(shard):
                del self._held[shard]
                self._let_in(shard, span)
                self._admit(child, size)
        self._look_soon(LOOK_S)

    def _say(self, shard: StreamShard) -> None:
        now = self._monotonic()
        if now < self._say_at + SAY_S:
            return
        self._say_at = now
        span = self._feeds[shard].waiting
        others = {
            one: earliest
            for one, feed in self._feeds.items()
            if one != shard and (earliest := earliest_to_come(feed, now, self._idle_s)) is not None
        }
        slowest = min(others, key=others.__getitem__)
        ahead_s = (span.last_ms - others[slowest]) / 1000 if span is not None and others[slowest] else None
        log.info(
            "%s waits for %s, which %s (key mld.spark.alignMillis); %d of %d shards wait",
            shard.label,
            slowest.label,
            "has brought nothing yet" if ahead_s is None else f"is {ahead_s:.0f} s behind",
            len(self._held),
            len(self._feeds),
        )
