"""`ShardSubscription`: a subscription of enhanced fan-out. It decides what is to be sent, and when. Pure.

Rule: retrieval#service-limits. The subscription itself never waits. The server calls `next_step(now)` at the beginning
and after each event. If the result is `Idle`, the server calls it again when the shard has changed, or at the time in
`Idle`.
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
"""Returns the stream and the shard of a subscription as they are at a time; raises KinesisError if one is gone."""


@dataclass(frozen=True, slots=True)
class SubscriptionEvent:
    """A SubscribeToShardEvent. If `continuation` is None, the shard has ended, and the answer ends after this event."""

    page: LogPage
    continuation: str | None


@dataclass(frozen=True, slots=True)
class Idle:
    """There is nothing to send until `until_s` (epoch seconds), unless the shard changes before."""

    until_s: float


@dataclass(frozen=True, slots=True)
class Finished:
    """The answer ends. If there is an `error`, it is sent as an exception event before the end."""

    error: KinesisError | None = None


Step = SubscriptionEvent | Idle | Finished


class ShardSubscription:
    """A subscription. `find` is called at each step to look up the stream and the shard, because either may have been
    deleted; it raises KinesisError then.
    """

    def __init__(self, find: Find, position: int, now: float, *, enforce: bool) -> None:
        self.started_s = now
        self.stopped: Finished | None = None
        self.event_records_max = PAGE_RECORDS_MAX
        self._find = find
        self._position = position
        self._heartbeat_s = now  # when an event is due even if there are no records
        self._paced_until_s = now  # until when no event may be sent, because of the limit of bytes per second
        self._enforce = enforce

    @property
    def is_live(self) -> bool:
        return self.stopped is None

    def stop(self, error: KinesisError | None = None) -> None:
        """End the subscription, for example because its client has left or a new subscription has taken over."""
        if self.stopped is None:
            self.stopped = Finished(error)

    def next_step(self, now: float) -> Step:
        """Return the next event to send, or until when to wait for one, or that the answer ends. An event is sent if
        there are records, if the shard has ended, or as a heartbeat. The subscription ends after LIFE_S, or if its
        shard is gone.
        """
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
        """Return the event for a page, and move the subscription past the page."""
        self._heartbeat_s = now + HEARTBEAT_S
        self._paced_until_s = max(self._paced_until_s, now) + page.span.size_bytes / READ_BYTES_PER_S
        if page.position is None:
            self.stop()
            return SubscriptionEvent(page, None)
        # The continuation is the number of the page's last record. At the tip of the shard it is the highest number of
        # the stream instead, which increases even if this shard gets no records.
        at_tip = not page.span.more and shard.is_open
        number = stream.sequencer.tip(shard.index) if at_tip else page.span.last or self._position - 1
        self._position = number + 1
        return SubscriptionEvent(page, str(number))
