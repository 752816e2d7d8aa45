"""`MemoryFanOut`: the `FanOut` port in memory over `MemoryStreams`, for unit tests in virtual time.

It keeps to what Kinesis promises (retrieval#service-limits): one subscription for each consumer and shard,
taken over by a later call but not within 5 s; an event at least every 5 s; an end after 300 s. Every call is noted.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque

from mld.core.errors import StreamError, StreamInUseError, StreamNotFoundError
from mld.core.streams import StartingPoint, StreamConsumer, StreamSummary
from mld.core.waits import wait_for_event
from mld.retrieval.rawpage import RawPage
from tests.support.pages import page_with
from tests.twins.streams import Call, HangError, MemoryShard, MemoryStreams

LIFE_S = 300.0
TAKEOVER_S = 5.0
HEARTBEAT_S = 5.0


class MemoryFanOut:
    """`fail` scripts errors of calls, `cut` what open subscriptions do; each is used up once."""

    def __init__(self, streams: MemoryStreams, *, event_records: int = 10, creating_s: float = 0.0) -> None:
        self.streams = streams
        self.clock = streams.clock
        self.event_records = event_records
        self.creating_s = creating_s
        self.consumers: dict[str, float] = {}
        """ARN to the time when it is ACTIVE."""
        self.calls: list[Call] = []
        self.open: dict[str, MemorySubscription] = {}
        self.subscriptions: list[MemorySubscription] = []
        self.bends: deque[RawPage] = deque()
        """Sent instead of an event."""
        self._cuts: deque[tuple[int, StreamError | None]] = deque()
        self._faults: dict[str, deque[Exception | None]] = defaultdict(deque)
        self._registered = 0

    # --- arranging ---------------------------------------------------------------------------------------------------

    def fail(self, operation: str, *errors: Exception | None) -> None:
        self._faults[operation].extend(errors)

    def cut(self, after_events: int, error: StreamError | None) -> None:
        """The next subscription fails after so many events, or ends ordinarily (None)."""
        self._cuts.append((after_events, error))

    def times(self, operation: str) -> list[float]:
        return [call.at_s for call in self.calls if call.operation == operation]

    def points(self) -> list[StartingPoint]:
        return [call.argument for call in self.calls if isinstance(call.argument, StartingPoint)]

    def arn_of(self, name: str) -> str:
        return next(arn for arn in self.consumers if f"/{name}:" in arn)

    # --- the port ----------------------------------------------------------------------------------------------------

    async def describe(self) -> StreamSummary:
        await self._arrive("DescribeStreamSummary", None)
        return StreamSummary("stream", "arn:stream", "ACTIVE")

    async def consumer_named(self, stream_arn: str, name: str) -> StreamConsumer:
        await self._arrive("DescribeStreamConsumer", name)
        arn = next((arn for arn in self.consumers if f"/{name}:" in arn), "")
        return self._consumer(arn)

    async def consumer(self, arn: str) -> StreamConsumer:
        await self._arrive("DescribeStreamConsumer", arn)
        return self._consumer(arn)

    async def register_consumer(self, stream_arn: str, name: str) -> StreamConsumer:
        await self._arrive("RegisterStreamConsumer", name)
        if any(f"/{name}:" in arn for arn in self.consumers):
            raise StreamInUseError(f"{name} already exists")
        self._registered += 1
        arn = f"{stream_arn}/consumer/{name}:{self._registered}"
        self.consumers[arn] = self.clock.monotonic() + self.creating_s
        return StreamConsumer(arn, "CREATING")

    def _consumer(self, arn: str) -> StreamConsumer:
        if arn not in self.consumers:
            raise StreamNotFoundError(f"no consumer {arn!r}")
        return StreamConsumer(arn, "ACTIVE" if self.clock.monotonic() >= self.consumers[arn] else "CREATING")

    async def subscribe(self, consumer_arn: str, shard_id: str, start: StartingPoint) -> MemorySubscription:
        await self._arrive("SubscribeToShard", start)
        if self._consumer(consumer_arn).status != "ACTIVE":
            raise StreamInUseError(f"{consumer_arn} is not ACTIVE")
        if shard_id not in self.streams.shards:
            raise StreamNotFoundError(f"no shard {shard_id}")
        now = self.clock.monotonic()
        before = self.open.get(shard_id)
        if before is not None and before.is_live:
            if now - before.opened_s < TAKEOVER_S:
                raise StreamInUseError("another active subscription exists")
            before.taken_over = True
            before.wake.set()
        shard = self.streams.shards[shard_id]
        cut = self._cuts.popleft() if self._cuts else None
        self.open[shard_id] = MemorySubscription(self, shard, shard.index_of(start), cut)
        self.subscriptions.append(self.open[shard_id])
        return self.open[shard_id]

    async def _arrive(self, operation: str, argument: object) -> None:
        self.calls.append(Call(operation, self.clock.monotonic(), argument))
        faults = self._faults[operation]
        fault = faults.popleft() if faults else None
        if isinstance(fault, HangError):
            await asyncio.get_running_loop().create_future()
        if self.streams.latency_s:
            await asyncio.sleep(self.streams.latency_s)
        if fault is not None:
            raise fault


class MemorySubscription:
    def __init__(
        self, owner: MemoryFanOut, shard: MemoryShard, index: int, cut: tuple[int, StreamError | None] | None
    ) -> None:
        self.opened_s = owner.clock.monotonic()
        self.taken_over = False
        self.silent = False
        self.events = 0
        self.closed = False
        self._owner = owner
        self._shard = shard
        self._index = index
        self._cut = cut
        self._ended = False
        self._sent_s = self.opened_s - HEARTBEAT_S
        self.wake = asyncio.Event()
        owner.streams.on_change.append(self.wake.set)

    @property
    def is_live(self) -> bool:
        return not (self.closed or self._ended or self._owner.clock.monotonic() - self.opened_s >= LIFE_S)

    async def next(self) -> RawPage | None:
        while True:
            assert not self.closed, "a closed subscription is not read"
            if self._cut is not None and self.events >= self._cut[0]:
                self._ended = True
                if self._cut[1] is not None:
                    raise self._cut[1]
                return None
            if self.taken_over:
                raise StreamInUseError("another subscriber took over")
            if not self.is_live:
                return None
            if not self.silent and (page := self._page()) is not None:
                self.events += 1
                return page
            await self._until_something_happens()

    async def _until_something_happens(self) -> None:
        now = self._owner.clock.monotonic()
        ends_s = self.opened_s + LIFE_S
        due_s = ends_s if self.silent else min(ends_s, self._sent_s + HEARTBEAT_S)
        self.wake.clear()
        await wait_for_event(self.wake, max(0.001, due_s - now))

    def close(self) -> None:
        self.closed = True

    def _page(self) -> RawPage | None:
        now = self._owner.clock.monotonic()
        records = self._shard.records[self._index : self._index + self._owner.event_records]
        end = self._index + len(records)
        drained = end == len(self._shard.records)
        ended = drained and self._shard.children is not None
        if not records and not ended and now - self._sent_s < HEARTBEAT_S:
            return None
        self._sent_s = now
        if self._owner.bends:
            return self._owner.bends.popleft()
        continuation = records[-1].sequence_number if records else None
        if drained and not records and not ended:
            continuation = str(self._owner.streams.tip)
        self._index = end
        self._ended = ended
        return page_with(
            records=tuple(records),
            next_iterator=None if ended else continuation,
            millis_behind_latest=0 if drained else 1000,
            child_shards=(self._shard.children or ()) if ended else (),
        )
