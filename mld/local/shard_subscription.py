"""`ShardSubscription`: a subscription of enhanced fan-out, which is asked for its next event. Pure.

Rule: retrieval#service-limits. Its owner calls `next_step(now)` when the shard got records, at the time of the last
`Idle`, and after each event. The subscription itself never waits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mld.local.kinesis_errors import KinesisError
from mld.local.shard_limits import READ_BYTES_PER_S
from mld.local.shard_reading import LogPage, read_page
from mld.local.stream_state import ShardState, Stream

PAGE_RECORDS_MAX = 10_000

LIFE_S = 300.0
HEARTBEAT_S = 5.0
EVENT_BYTES_MAX = 1024 * 1024
Find = Callable[[float], tuple[Stream, ShardState]]


@dataclass(frozen=True, slots=True)
class SubscriptionEvent:
    """A SubscribeToShardEvent. `continuation` None: the shard has ended, and the answer ends after this event."""

    page: LogPage
    continuation: str | None


@dataclass(frozen=True, slots=True)
class Idle:
    """Nothing to send until `until_s`, unless the shard changes."""

    until_s: float


@dataclass(frozen=True, slots=True)
class Finished:
    """The answer ends. If there is an `error`, it is sent before as an exception event."""

    error: KinesisError | None = None


Step = SubscriptionEvent | Idle | Finished


class ShardSubscription:
    """A subscription. `find` looks up stream and shard again, because either may vanish; then it raises
    KinesisError.
    """

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
        """End the subscription: the client left, another subscriber took over, or the consumer was deregistered."""
        if self.stopped is None:
            self.stopped = Finished(error)

    def next_step(self, now: float) -> Step:
        """Return the next event, how long to wait for one, or the end."""
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
        if not page.span.fragments and page.position is not None and now < self._heartbeat_s:
            return Idle(min(self._heartbeat_s, self.started_s + LIFE_S))
        return self._send(stream, shard, page, now)

    def _send(self, stream: Stream, shard: ShardState, page: LogPage, now: float) -> SubscriptionEvent:
        self._heartbeat_s = now + HEARTBEAT_S
        self._paced_until_s = max(self._paced_until_s, now) + page.span.size_bytes / READ_BYTES_PER_S
        if page.position is None:
            self.stop()
            return SubscriptionEvent(page, None)
        # At the tip the continuation is the tip of the stream, which moves on even if this shard gets no records.
        at_tip = not page.span.more and shard.is_open
        number = stream.sequencer.tip(shard.index) if at_tip else page.span.last or self._position - 1
        self._position = number + 1
        return SubscriptionEvent(page, str(number))
