"""Enhanced fan-out in a world: the door of one worker to its subscriptions, and what happens to them on the way.

The service pushes events into a connection that holds a few of them, whether the worker's process runs or not; they
arrive in order, late by the latency of the worker. What was sent before a connection broke may arrive or be lost. A
subscription whose reader has gone may live on at the service, unread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from random import Random

from mld.core.clock import Clock
from mld.core.errors import (
    StreamError,
    StreamInUseError,
    StreamNotFoundError,
    StreamThrottledError,
    StreamUnavailableError,
)
from mld.core.streams import StartingPoint, StreamConsumer
from mld.local import shard_subscription
from mld.local.kinesis import Kinesis, KinesisError
from mld.local.stream_state import Consumer
from mld.retrieval.rawpage import RawPage
from tests.simulation.world.loop import later_in_world
from tests.simulation.world.network import CALM, HANG_S, SLOW_REPLY_MAX_S, KinesisDoor, _answer, _Reply
from tests.simulation.world.plan import FanOutPlan
from tests.support.pages import page_with
from tests.twins.kinesis_model import page_of, stream_error

PUSH_S = 0.07
"""From a record's arrival to the event with it, as AWS says."""
STILL_SENT = 0.5
"""The share of connections that break from which what was sent before still arrives."""
UNNOTICED = 0.3
"""The share of closed connections of which the service hears nothing."""
OPENED_UNHEARD = 0.4
"""The share of calls without an answer that have opened a subscription."""
TICK_S = 0.001


class Traffic:
    """All open subscriptions of a world, by shard."""

    def __init__(self, plan: FanOutPlan) -> None:
        self.plan = plan
        self._open: dict[DrawnSubscription, None] = {}

    def add(self, subscription: DrawnSubscription) -> None:
        self._open[subscription] = None

    def remove(self, subscription: DrawnSubscription) -> None:
        self._open.pop(subscription, None)

    def changed(self, shard_id: str | None = None) -> None:
        """A shard has got records, or all of them have got news."""
        for subscription in [s for s in self._open if shard_id in (None, s.shard_id)]:
            subscription.push_within(PUSH_S)


class FanOutDoor(KinesisDoor):
    """The `Streams` and the `FanOut` of one worker."""

    def __init__(
        self, model: Kinesis, stream: str, clock: Clock, rng: Random, latency_s: float, traffic: Traffic
    ) -> None:
        super().__init__(model, stream, clock, rng, latency_s)
        self.traffic = traffic
        self.is_gone = False
        """The process is dead, and its sockets with it."""
        self._subscriptions: dict[DrawnSubscription, None] = {}

    # --- the port ----------------------------------------------------------------------------------------------------

    async def consumer_named(self, stream_arn: str, name: str) -> StreamConsumer:
        return await self._consumer(
            "DescribeStreamConsumer", lambda now: self._model.consumer(now=now, stream_arn=stream_arn, name=name)
        )

    async def consumer(self, arn: str) -> StreamConsumer:
        return await self._consumer("DescribeStreamConsumer", lambda now: self._model.consumer(now=now, arn=arn))

    async def register_consumer(self, stream_arn: str, name: str) -> StreamConsumer:
        return await self._consumer(
            "RegisterStreamConsumer", lambda now: self._model.register_consumer(stream_arn, name, now=now)
        )

    async def _consumer(self, operation: str, act: Callable[[float], Consumer]) -> StreamConsumer:
        def seen(now: float) -> StreamConsumer:
            consumer = act(now)
            return StreamConsumer(consumer.arn, consumer.status(now))

        answer: StreamConsumer = await self._ask(operation, seen)
        return answer

    async def subscribe(self, consumer_arn: str, shard_id: str, start: StartingPoint) -> DrawnSubscription:
        self.calls += 1
        if (surprise := self.surprise()) is not None:
            raise surprise
        rng, rates = self._rng, self.rates
        there = self._latency_s + rng.uniform(0.0, self.traffic.plan.answer_s)
        back = self._latency_s + rng.uniform(0.0, self.traffic.plan.answer_s)
        if rates.kinesis_slow and rng.random() < rates.kinesis_slow:
            there, back = rng.uniform(0.0, SLOW_REPLY_MAX_S), rng.uniform(0.0, SLOW_REPLY_MAX_S)
        reply: _Reply = asyncio.get_running_loop().create_future()
        unheard = self.cut or (rates.subscribe_lost > 0.0 and rng.random() < rates.subscribe_lost)
        if unheard:
            wait_s = HANG_S if rng.random() < 0.5 else there + back
            later_in_world(wait_s, _answer, reply, StreamUnavailableError("SubscribeToShard: no answer"))
            if rng.random() < OPENED_UNHEARD:
                later_in_world(there, self._arrive, None, consumer_arn, shard_id, start, back)
        else:
            later_in_world(there, self._arrive, reply, consumer_arn, shard_id, start, back)
        try:
            opened: DrawnSubscription = await reply
        except asyncio.CancelledError:
            if reply.done() and not reply.cancelled() and reply.exception() is None:
                reply.result().close()
            raise
        return opened

    def _arrive(
        self, reply: _Reply | None, consumer_arn: str, shard_id: str, start: StartingPoint, back: float
    ) -> None:
        def open_it(now: float) -> shard_subscription.ShardSubscription:
            return self._model.subscribe(consumer_arn, shard_id, start, now=now)

        try:
            opened = self._asked("SubscribeToShard", open_it)
        except StreamError as error:
            later_in_world(back, _answer, reply, error)
            return
        opened.event_records_max = self.traffic.plan.event_records
        subscription = DrawnSubscription(self, shard_id, opened, self._rng)
        self.traffic.changed(shard_id)  # whoever had it before hears of that
        later_in_world(back, self._hand_over, reply, subscription)

    def _hand_over(self, reply: _Reply | None, subscription: DrawnSubscription) -> None:
        if reply is None or reply.done() or self.is_gone:
            subscription.close()
            return
        self._subscriptions[subscription] = None
        self.traffic.add(subscription)
        subscription.push_within(TICK_S)
        reply.set_result(subscription)

    def _draw(self, operation: str) -> StreamError | None:
        if operation == "SubscribeToShard" and self._rng.random() < self.rates.subscribe_throttled:
            return StreamThrottledError(f"{operation}: drawn")
        if operation == "SubscribeToShard" and self._rng.random() < self.rates.shard_missing:
            return StreamNotFoundError(f"{operation}: drawn")
        return super()._draw(operation)

    # --- what can happen to it ----------------------------------------------------------------------------------------

    def open_shards(self) -> list[str]:
        """Of the subscriptions that the worker has not closed."""
        return [subscription.shard_id for subscription in self._subscriptions]

    def partitioned(self) -> None:
        """Open connections break at once, or stand still until the network is there again."""
        for subscription in list(self._subscriptions):
            if self._rng.random() < 0.5:
                subscription.break_off()

    def healed(self) -> None:
        for subscription in list(self._subscriptions):
            if self._rng.random() < 0.5:
                subscription.break_off()
            else:
                subscription.land()

    def gone(self) -> None:
        self.is_gone = True
        for subscription in list(self._subscriptions):
            subscription.close()

    def closed(self, subscription: DrawnSubscription) -> None:
        self._subscriptions.pop(subscription, None)

    def has_read(self, shard_id: str) -> None:
        self.read_at[shard_id] = self._clock.monotonic()

    @property
    def clock(self) -> Clock:
        return self._clock

    @property
    def latency_s(self) -> float:
        return self._latency_s


class DrawnSubscription:
    """One connection, from the service's end to the reader's."""

    def __init__(
        self, door: FanOutDoor, shard_id: str, service: shard_subscription.ShardSubscription, rng: Random
    ) -> None:
        self.shard_id = shard_id
        self._door = door
        self._service = service
        self._rng = rng
        self._on_the_way: deque[RawPage | StreamError | None] = deque()
        self._arrived: deque[RawPage | StreamError | None] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._continuation: str | None = None
        self._is_sent = False
        """The service sends nothing more, or nobody hears it."""
        self._is_closed = False
        self._due_s: float | None = None

    # --- the reader's end ---------------------------------------------------------------------------------------------

    async def next(self) -> RawPage | None:
        while not self._arrived:
            assert not self._is_closed, "a closed subscription is not read"
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        assert not self._is_closed, "a closed subscription is not read"
        if (surprise := self._door.surprise()) is not None:
            raise surprise
        self._door.has_read(self.shard_id)
        item = self._arrived.popleft()
        self.push_within(TICK_S)
        if isinstance(item, StreamError):
            raise item
        return item

    def close(self) -> None:
        """The service hears of it, or not."""
        if self._is_closed:
            return
        self._is_closed = self._is_sent = True
        self._on_the_way.clear()
        self._door.closed(self)
        self._door.traffic.remove(self)
        if self._door.rates is CALM or self._rng.random() >= UNNOTICED:
            self._service.stop()

    # --- the service's end --------------------------------------------------------------------------------------------

    def push_within(self, seconds: float) -> None:
        """Look whether there is something to send, at the latest then."""
        at_s = self._door.clock.monotonic() + seconds
        if self._is_sent or (self._due_s is not None and self._due_s <= at_s):
            return
        self._due_s = at_s
        later_in_world(seconds, self._push, at_s)

    def _push(self, at_s: float) -> None:
        if self._due_s != at_s:
            return
        self._due_s = None
        plan = self._door.traffic.plan
        while not self._is_sent and len(self._arrived) + len(self._on_the_way) < plan.window:
            now = self._door.clock.wall()
            match self._service.next_step(now):
                case shard_subscription.SubscriptionEvent(page=page, continuation=continuation):
                    self._send_event(page_of(page, continuation))
                case shard_subscription.Finished(error=error):
                    self._send_end(None if error is None else stream_error("SubscribeToShard", error))
                case shard_subscription.Idle(until_s=until_s):
                    self.push_within(max(TICK_S, until_s - now))
                    return

    def _send_event(self, page: RawPage) -> None:
        rates, rng = self._door.rates, self._rng
        if rates.event_empty and self._continuation is not None and rng.random() < rates.event_empty:
            self._send(page_with((), self._continuation, page.millis_behind_latest, ()))
        if (trouble := self._drawn_trouble()) is not None:
            trouble()
            return
        self._continuation = page.next_iterator
        self._is_sent = page.next_iterator is None
        self._send(page)

    def _drawn_trouble(self) -> Callable[[], None] | None:
        rates = self._door.rates
        if rates is CALM:
            return None
        lucky = self._rng.random()
        for rate, trouble in (
            (rates.subscription_cut, self.break_off),
            (rates.subscription_error, self._fail),
            (rates.subscription_silent, self._fall_silent),
            (rates.subscription_short, self._end_early),
        ):
            if lucky < rate:
                return trouble
            lucky -= rate
        return None

    def _fail(self) -> None:
        """An exception in the stream."""
        kinds: list[type[StreamError]] = [StreamUnavailableError, StreamThrottledError, StreamInUseError]
        if self._door.rates.shard_missing:
            kinds.append(StreamNotFoundError)
        self._service.stop()
        self._send_end(self._rng.choice(kinds)("SubscribeToShard: drawn"))

    def _fall_silent(self) -> None:
        self._is_sent = True

    def _end_early(self) -> None:
        self._service.stop()
        self._send_end(None)

    def break_off(self) -> None:
        """The connection is gone; the service may not have noticed."""
        if self._rng.random() >= STILL_SENT:
            self._on_the_way.clear()
        if self._rng.random() >= UNNOTICED:
            self._service.stop()
        self._send_end(StreamUnavailableError("SubscribeToShard: connection reset"))
        if self._door.cut:
            self.land(even_if_cut=True)

    def _send_end(self, end: StreamError | None) -> None:
        self._is_sent = True
        self._send(end)

    def _send(self, item: RawPage | StreamError | None) -> None:
        self._on_the_way.append(item)
        later_in_world(self._door.latency_s, self.land, 1)

    # --- between the two ----------------------------------------------------------------------------------------------

    def land(self, most: int = 1_000_000, *, even_if_cut: bool = False) -> None:
        """The oldest of what is on the way arrives, unless the network is cut."""
        if self._is_closed or (self._door.cut and not even_if_cut):
            return
        while self._on_the_way and most:
            self._arrived.append(self._on_the_way.popleft())
            most -= 1
        waiter, self._waiter = self._waiter, None
        if self._arrived and waiter is not None and not waiter.done():
            waiter.set_result(None)
        elif waiter is not None:
            self._waiter = waiter


def deregister(model: Kinesis, stream: str, clock: Clock) -> None:
    """By hand: every consumer of the stream."""
    now = clock.wall()
    try:
        for consumer in model.consumers(model.stream(stream, now).arn, now=now):
            model.deregister_consumer(consumer, now=now)
    except KinesisError:
        return  # there is no stream any more
