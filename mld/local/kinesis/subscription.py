"""One subscription of enhanced fan-out, as a value that is asked for its next event (retrieval#service-limits).

The holder calls `next_step(now)` when the shard got records, when the time of the last `Idle` has come, and after each
event. The subscription itself never waits.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from mld.core.streams import HashRange
from mld.local.kinesis.errors import KinesisError
from mld.local.kinesis.records import PAGE_RECORDS_MAX, LogPage, read_page
from mld.local.kinesis.shard import READ_BYTES_PER_S, ShardState
from mld.local.kinesis.stream_state import Stream

LIFE_S = 300.0
TAKEOVER_S = 5.0
"""A second call within this time of a successful one is refused; later it takes the subscription over."""
HEARTBEAT_S = 5.0
EVENT_BYTES_MAX = 1024 * 1024


@dataclass(frozen=True, slots=True)
class SubscriptionEvent:
    """A SubscribeToShardEvent. `continuation` None: the shard has ended and the response ends after this event."""

    page: LogPage
    continuation: str | None


@dataclass(frozen=True, slots=True)
class Idle:
    """Nothing to send before `until_s`, unless the shard changes."""

    until_s: float


@dataclass(frozen=True, slots=True)
class Finished:
    """The response ends, after `error` as an exception event if there is one."""

    error: KinesisError | None = None


Step = SubscriptionEvent | Idle | Finished
Find = Callable[[float], tuple[Stream, ShardState]]


class ShardSubscription:
    """`find` looks stream and shard up again, because either may vanish; it raises KinesisError if so."""

    def __init__(self, find: Find, position: int, now: float, *, enforce: bool) -> None:
        self.started_s = now
        self.stopped: Finished | None = None
        self.event_records_max = PAGE_RECORDS_MAX
        self._find = find
        self._position = position
        self._heartbeat_s = now
        self._paced_until_s = now
        self._enforce = enforce

    @property
    def is_live(self) -> bool:
        return self.stopped is None

    def stop(self, error: KinesisError | None = None) -> None:
        """End it from outside: the client went away, another subscriber took over, the consumer was deregistered."""
        if self.stopped is None:
            self.stopped = Finished(error)

    def next_step(self, now: float) -> Step:
        if self.stopped is None and now - self.started_s >= LIFE_S:
            self.stop()
        if self.stopped is not None:
            return self.stopped
        try:
            stream, shard = self._find(now)
        except KinesisError as error:
            self.stop(error)
            return Finished(error)
        if self._enforce and now < self._paced_until_s:
            return Idle(self._paced_until_s)
        page = read_page(stream, shard, self._position, now, limit=self.event_records_max, bytes_max=EVENT_BYTES_MAX)
        if not page.fragments and page.position is not None and now < self._heartbeat_s:
            return Idle(min(self._heartbeat_s, self.started_s + LIFE_S))
        return self._send(stream, shard, page, now)

    def _send(self, stream: Stream, shard: ShardState, page: LogPage, now: float) -> SubscriptionEvent:
        self._heartbeat_s = now + HEARTBEAT_S
        self._paced_until_s = max(self._paced_until_s, now) + page.size_bytes / READ_BYTES_PER_S
        if page.position is None:
            self.stop()
            return SubscriptionEvent(page, None)
        # At the tip the continuation is the tip itself: it moves on even when this shard gets no records.
        number = stream.sequencer.tip(shard.index) if page.at_tip and shard.is_open else page.last or self._position - 1
        self._position = number + 1
        return SubscriptionEvent(page, str(number))


def hash_range_json(hash_range: HashRange) -> dict[str, str]:
    return {"StartingHashKey": str(hash_range.start), "EndingHashKey": str(hash_range.end)}


def page_json(page: LogPage, place_key: str, place: str | None) -> bytes:
    """Return a page as GetRecords and the events of SubscribeToShard show it; `place` is where the next one starts."""
    tail: dict[str, object] = {"MillisBehindLatest": page.millis_behind_latest}
    if place is not None:
        tail[place_key] = place
    if page.children:
        tail["ChildShards"] = [
            {
                "ShardId": child.shard_id,
                "ParentShards": sorted(child.parents),
                "HashKeyRange": hash_range_json(child.hash_range),
            }
            for child in page.children
        ]
    return b'{"Records":[' + b",".join(page.fragments) + b"]," + json.dumps(tail).encode()[1:]


def event_json(event: SubscriptionEvent) -> bytes:
    """Return the payload of the event's frame."""
    return page_json(event.page, "ContinuationSequenceNumber", event.continuation)
