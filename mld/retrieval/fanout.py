"""`FanOutReader`: reads one shard by subscriptions of enhanced fan-out, ahead of its consumer.

Rules: retrieval#reader-promises, retrieval#subscription-starting-point and the rules that follow it there. This is the
shell; `Course`, `starting_points` and `pacing` decide what to do. Its consumer cannot tell it from a
`PollingReader`.

Promises: every record after the start is delivered at least once, and none before all that precede it; the end only
after all records; errors are retried for ever. The checkpoint filter removes what comes twice around a renewal or a
restart. Back-pressure: without room in the buffer nothing is taken from the subscription, which then stops reading its
connection.

`RegisteredConsumer`: the consumer of enhanced fan-out with which all readers of a worker subscribe.

Rules: retrieval#consumer-registration. A consumer that is gone is registered again, and never ends a shard. There is a
pause between attempts to register, and only the readers wait. With a configured ARN nothing is registered, and nothing
described unless a subscription finds something missing.

The first reader that asks finds or makes the consumer, for all; a failure is reported to all that ask within the next
back-off.

`Course`: the life of the subscriptions to one shard: where the next one starts, when, and what an error means. Pure.

Rules: retrieval#subscription-starting-point, retrieval#subscription-renewal and retrieval#subscription-errors. A
`Course` is what a reader knows; each of its steps is a function from a course to the next one:

=====================  ===============================================================================================
step                   what comes next
=====================  ===============================================================================================
an event is accepted   its continuation is the place of the next subscription; errors before it are forgiven
the ordinary end       at once a new subscription AFTER the continuation
`RENEW_AFTER_S`        the same beside the old one, which is read until the new one is open; what comes twice is removed
                       by the checkpoint filter, as after every restart
no event for long      a new subscription AT the last record: what followed it may have been trimmed meanwhile
an error               a wait, then a new subscription from the same place
a place is refused     the same, from the last record or the start: a continuation may be of a stream that is no more
=====================  ===============================================================================================

Only accepted events move the place. So the next subscription sends again whatever the one before still held when it was
given up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from enum import Enum
from random import Random
from typing import TypeVar

from mld.core.clock import Clock
from mld.core.errors import (
    InvalidStreamArgumentError,
    PositionRefusedError,
    StreamError,
    StreamInUseError,
    StreamNotFoundError,
    StreamThrottledError,
    StreamUnavailableError,
)
from mld.core.positions import InitialPosition, Position
from mld.core.streams import FanOut, IteratorType, Page, StartingPoint, StreamConsumer, Streams, Subscription
from mld.metrics.shard import ShardMetrics
from mld.properties.settings import FanOutSettings
from mld.retrieval import pacing, starting_points
from mld.retrieval.reader import ReaderShares, ShardReader

logger = logging.getLogger(__name__)

T = TypeVar("T")

SUBSCRIBE_INTERVAL_MIN_S = 1.0
"""Kinesis allows one SubscribeToShard a second for each consumer and shard."""
TAKEOVER_S = 5.0
"""For this long after a successful call, another for the same consumer and shard is refused as ResourceInUse."""
IN_USE_MAX = 8
"""More refusals in a row than fit into that window mean that the consumer is not ACTIVE."""
YIELD_S = TAKEOVER_S + 1.0
"""Pause after another worker took over the subscription: most likely it has the lease, and we will soon learn that."""
CONTESTED_TAKEOVERS = 3
CONTESTED_WITHIN_S = 900.0
"""So many takeovers in so long, while the lease stays, are no move of the lease: two applications have one consumer."""
LIFE_S = 300.0
"""Longest life of a subscription."""
RENEW_AFTER_S = 270.0
RENEW_SPREAD_S = 15.0
"""Time over which to spread the renewals of subscriptions that were opened together."""
RENEW_RETRY_S = 5.0
"""Pause after a renewal that failed, while the old subscription is still good."""
IDLE_MAX_S = 30.0
"""Kinesis sends events without records about every 5 s; a connection that is silent for this long is dead."""

ACTIVE = "ACTIVE"
JITTER_S = 0.1
"""Added at random to each pause, as Java does."""

OPEN_TIMEOUT_S = 30.0
"""Longest wait for an answer; Java's kinesisRequestTimeout."""
EVENT_S_MAX = IDLE_MAX_S + OPEN_TIMEOUT_S
"""Longest time between two events, be it that a new subscription takes the place of the old one."""
READING = "reading a subscription"
Opened = tuple[Subscription, StartingPoint]
EVENTS_MAX = 10
"""Events in the buffer, as in Java's queue. An event has at most 1 MB of ordinary records."""


class SubscriptionReaction(Enum):
    """What a fan-out reader does about an error; each ends in a new subscription from the same place."""

    AGAIN = "a new subscription"
    SLOWER = "a new subscription, slower"
    IN_TURN = "a new subscription once the other one may be taken over"
    YIELD = "a new subscription unless the lease is lost"
    ASK = "a look at the consumer"


def reaction_to(error: StreamError, failures: int, *, was_open: bool) -> SubscriptionReaction:
    """Decide what to do about an error of a subscription that was open, or was to be opened; `failures` is the number
    of errors in a row before this one.
    """
    match error:
        case StreamNotFoundError():
            return SubscriptionReaction.ASK
        case StreamInUseError() if was_open:
            return SubscriptionReaction.YIELD
        case StreamInUseError():
            return SubscriptionReaction.ASK if failures >= IN_USE_MAX else SubscriptionReaction.IN_TURN
        case StreamThrottledError():
            return SubscriptionReaction.SLOWER
        case _:
            return SubscriptionReaction.AGAIN


@dataclass(frozen=True, slots=True)
class Course:
    """How far a reader has come by its subscriptions. Times are monotonic seconds.

    `continuation` is that of the last accepted event, which came at `accepted_s`. `failures` counts errors in a row;
    `failed_s` is the time of the last one, and `reaction` the answer to it. `yield_s` is how long to give way to
    another subscriber.
    """

    read: starting_points.ReadState
    continuation: str | None = None
    accepted_s: float = 0.0
    called_s: float | None = None
    failures: int = 0
    failed_s: float = 0.0
    reaction: SubscriptionReaction = SubscriptionReaction.AGAIN
    yield_s: float = YIELD_S
    takeovers_s: tuple[float, ...] = ()
    """When others took the last subscriptions over."""


def is_contested(course: Course) -> bool:
    """Return whether somebody who does not want the lease takes the subscription again and again."""
    times = course.takeovers_s
    return len(times) == CONTESTED_TAKEOVERS and times[-1] - times[0] <= CONTESTED_WITHIN_S


def point_of(course: Course, now_s: float, wall_s: float) -> StartingPoint:
    """Return where the next subscription starts."""
    is_fresh = now_s - course.accepted_s < LIFE_S
    is_proved = course.read.last_sequence is None or not starting_points.needs_proof(course.read, now_s, wall_s)
    if course.continuation is not None and is_fresh and is_proved:
        return StartingPoint(IteratorType.AFTER_SEQUENCE_NUMBER, sequence=course.continuation)
    if course.called_s is None:
        return course.read.start
    return starting_points.restart_point(course.read)


def called(course: Course, now_s: float) -> Course:
    """Note that SubscribeToShard is sent."""
    return replace(course, called_s=now_s)


def opened(course: Course, point: StartingPoint) -> Course:
    """Note that the events of a subscription which starts there come next."""
    return replace(course, read=starting_points.positioned(course.read, point))


def accepted(course: Course, page: Page, now_s: float, wall_s: float) -> Course:
    """Note that an event, which came just now, goes to the consumer."""
    # Events may wait unread for any time, so the anchor of a start at LATEST stays where it is.
    read = replace(starting_points.advanced(course.read, page, wall_s, now_s), anchor_s=course.read.anchor_s)
    continuation = page.next_iterator or course.continuation
    return replace(course, read=read, continuation=continuation, accepted_s=now_s, failures=0)


def failed(course: Course, error: StreamError, now_s: float, *, was_open: bool) -> Course:
    reaction = reaction_to(error, course.failures, was_open=was_open)
    continuation, read = course.continuation, course.read
    if isinstance(error, PositionRefusedError):
        continuation = None
    elif isinstance(error, InvalidStreamArgumentError) and not was_open:
        read = starting_points.refused(read)
    takeovers_s = course.takeovers_s
    if reaction is SubscriptionReaction.YIELD:
        takeovers_s = (*takeovers_s, now_s)[-CONTESTED_TAKEOVERS:]
    return replace(
        course,
        read=read,
        failures=course.failures + 1,
        failed_s=now_s,
        reaction=reaction,
        continuation=continuation,
        takeovers_s=takeovers_s,
    )


def delay_s(course: Course, now_s: float, jitter: float) -> float:
    """Return seconds until the next SubscribeToShard, 0 for at once. `jitter` is a fresh random number in [0, 1)."""
    pace_s = 0.0 if course.called_s is None else course.called_s + SUBSCRIBE_INTERVAL_MIN_S - now_s
    if not course.failures:
        return max(0.0, pace_s)
    return max(0.0, pace_s, course.failed_s + _backoff_s(course, jitter) - now_s)


def renewal_due_s(opened_s: float, jitter: float) -> float:
    """Return when the subscription opened at `opened_s` is to be renewed."""
    return opened_s + RENEW_AFTER_S + RENEW_SPREAD_S * jitter


def _backoff_s(course: Course, jitter: float) -> float:
    match course.reaction:
        case SubscriptionReaction.YIELD:
            return course.yield_s * (1 + jitter / 4)
        case SubscriptionReaction.IN_TURN:
            return SUBSCRIBE_INTERVAL_MIN_S * (1 + jitter / 4)
        case SubscriptionReaction.SLOWER:
            return pacing.backoff_s(pacing.THROTTLE_BACKOFF_S, course.failures, jitter)
        case SubscriptionReaction.AGAIN | SubscriptionReaction.ASK:
            return pacing.backoff_s(pacing.ERROR_BACKOFF_S, course.failures, jitter)


class RegisteredConsumer:
    """The consumer that the settings name, or the one with `arn`, which wins and is used unchecked."""

    def __init__(
        self, fan_out: FanOut, clock: Clock, rng: Random, settings: FanOutSettings, *, arn: str | None
    ) -> None:
        self._fan_out = fan_out
        self._clock = clock
        self._rng = rng
        self._name = settings.consumer_name
        self._configured = arn
        self._rules = settings
        self._arn = arn
        self._finding = asyncio.Lock()
        self._failure: StreamError | None = None
        self._failed_s = 0.0

    async def arn(self) -> str:
        """Return its ARN. Raises StreamError; StreamNotFoundError only if the stream itself is missing."""
        if self._arn is not None:
            return self._arn
        async with self._finding:
            if self._arn is None:
                self._arn = await self._found()
            return self._arn

    async def is_there(self, arn: str) -> bool:
        """Return whether `arn` is still an ACTIVE consumer; if not, the next `arn` finds or makes another.

        Raises StreamError if that cannot be told, if the stream is missing, or if a configured consumer is.
        """
        async with self._finding:
            if arn != self._arn:
                return False
            try:
                consumer = await self._fan_out.consumer(arn)
            except StreamNotFoundError:
                await self._fan_out.describe()
                status = "gone"
            else:
                status = consumer.status
            if status == ACTIVE:
                return True
            if self._configured is not None:
                raise StreamInUseError(
                    f"the consumer {arn} of fanoutConfig.consumerArn is {status}: register it, or remove the key"
                )
            logger.warning(
                "the consumer %s is %s; it is looked for again", arn, status,
                extra={"action": "consumer_missing", "consumer": arn, "status": status},
            )  # fmt: skip
            self._arn = None
            return False

    async def _found(self) -> str:
        """Return the consumer's ARN: every reader asks; there is one attempt per back-off."""
        age_s = self._clock.monotonic() - self._failed_s
        if self._failure is not None and age_s < self._rules.backoff_s:
            raise type(self._failure)(str(self._failure))
        self._failure = None
        try:
            return await self._find_or_register()
        except StreamError as error:
            self._failure, self._failed_s = error, self._clock.monotonic()
            raise

    async def _find_or_register(self) -> str:
        stream_arn = (await self._patiently(self._fan_out.describe, self._rules.summary_attempts_max)).arn
        registered = False
        try:
            consumer = await self._named(stream_arn)
        except StreamNotFoundError:
            registered = True
            consumer = await self._but_never_missing(self._register(stream_arn))
        if consumer.status != ACTIVE:
            await self._but_never_missing(self._until_active(consumer.arn))
        logger.info(
            "consumer %s %s", consumer.arn, "registered" if registered else "found",
            extra={"action": "consumer_registered" if registered else "consumer_found", "consumer": consumer.arn},
        )  # fmt: skip
        return consumer.arn

    async def _register(self, stream_arn: str) -> StreamConsumer:
        try:
            return await self._patiently(
                lambda: self._fan_out.register_consumer(stream_arn, self._name), self._rules.register_attempts_max
            )
        except StreamInUseError:  # another worker was faster
            return await self._named(stream_arn)

    async def _named(self, stream_arn: str) -> StreamConsumer:
        return await self._patiently(
            lambda: self._fan_out.consumer_named(stream_arn, self._name), self._rules.describe_attempts_max
        )

    async def _until_active(self, arn: str) -> None:
        status = ""
        for _ in range(self._rules.describe_attempts_max):
            consumer = await self._patiently(lambda: self._fan_out.consumer(arn), self._rules.describe_attempts_max)
            status = consumer.status
            if status == ACTIVE:
                return
            await self._clock.sleep(self._rules.backoff_s)
        raise StreamInUseError(f"the consumer {arn} is still {status}")

    async def _patiently(self, call: Callable[[], Awaitable[T]], tries: int) -> T:
        """Return the answer to `call`, retried while it is throttled. Raises all other errors."""
        for _ in range(tries - 1):
            try:
                return await call()
            except StreamThrottledError:
                await self._clock.sleep(self._rules.backoff_s + self._rng.random() * JITTER_S)
        return await call()

    async def _but_never_missing(self, awaitable: Awaitable[T]) -> T:
        """Treat "not found" as unavailable: the stream was there a moment ago, so the consumer is coming or going."""
        try:
            return await awaitable
        except StreamNotFoundError as error:
            raise StreamUnavailableError(str(error)) from error


class FanOutReader(ShardReader):
    """Reads by the subscriptions of `consumer`.

    `yield_s` is how long to give way to a subscriber who took ours over: long enough to hear of a lost lease. `streams`
    is asked for the oldest record where one is missing, if it may be.
    """

    def __init__(
        self,
        fan_out: FanOut,
        consumer: RegisteredConsumer,
        shares: ReaderShares,
        *,
        shard_id: str,
        yield_s: float = YIELD_S,
        deliver_empty: bool = True,
        metrics: ShardMetrics | None = None,
        streams: Streams | None = None,
    ) -> None:
        super().__init__(
            shard_id,
            shares,
            fan_out,
            pages_max=EVENTS_MAX,
            deliver_empty=deliver_empty,
            metrics=metrics,
            streams=streams,
        )
        self._fan_out = fan_out
        self._consumer = consumer
        self._yield_s = yield_s
        self._course: Course | None = None
        self._arn: str | None = None  # the consumer of the last subscription
        self._is_contested = False
        self._open: Subscription | None = None
        self._renewal: asyncio.Task[Opened] | None = None
        self._renewal_due_s = 0.0

    @property
    def read(self) -> starting_points.ReadState | None:
        """See `ShardReader.read`."""
        return None if self._course is None else self._course.read

    async def start(
        self,
        checkpoint: Position,
        initial: InitialPosition,
        anchor: float | None = None,
        read_to_s: float | None = None,
    ) -> None:
        """See `ShardReader.start`; nothing is asked of Kinesis here."""
        start = self._starting_point(checkpoint, initial, anchor)
        wall_s, now_s = self._clock.wall(), self._clock.monotonic()
        read = starting_points.started(checkpoint, start, wall_s, now_s, anchor, read_to_s)
        self._course = Course(read, yield_s=self._yield_s)
        self._begin(self._subscribe())

    @property
    def _at(self) -> Course:
        assert self._course is not None
        return self._course

    # --- the fetch task ----------------------------------------------------------------------------------------------

    async def _subscribe(self) -> None:
        try:
            while not await self._subscribe_once():
                pass
        finally:
            await self._close()

    async def _subscribe_once(self) -> bool:
        """Read by one subscription and its renewals; True if the shard has ended."""
        await self._until_room()
        wait_s = delay_s(self._at, self._clock.monotonic(), self._rng.random())
        if wait_s > 0:
            self._goes_on_within(wait_s)
            await self._clock.sleep(wait_s)
        try:
            self._opened(await self._new_subscription())
        except Exception as error:
            await self._recover(self._stream_error(error, READING), was_open=False)
            return False
        try:
            return await self._read()
        except Exception as error:
            failure = self._stream_error(error, READING)
            await self._close()
            await self._recover(failure, was_open=True)
            return False

    async def _new_subscription(self) -> Opened:
        self._arn = None
        self._waits_for_others()  # for a registration, which all readers share
        arn = await self._consumer.arn()
        self._arn = arn
        self._goes_on_within(EVENT_S_MAX)
        point = point_of(self._at, self._clock.monotonic(), self._clock.wall())
        self._course = called(self._at, self._clock.monotonic())
        logger.debug(
            "subscribing to shard %s from %s %s", self.shard_id, point.type.value, point.sequence or point.timestamp_s,
            extra={"action": "shard_subscribing", "shard": self.shard_id, "position": point.sequence},
        )  # fmt: skip
        try:
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                return await self._fan_out.subscribe(arn, self.shard_id, point), point
        except TimeoutError:
            reason = f"SubscribeToShard of shard {self.shard_id}: no answer within {OPEN_TIMEOUT_S:g} s"
            raise StreamUnavailableError(reason) from None
        except InvalidStreamArgumentError as error:
            if point.sequence is None:
                raise
            raise PositionRefusedError(str(error)) from error

    def _opened(self, new: Opened) -> None:
        subscription, point = new
        self._course = opened(self._at, point)
        previous, self._open = self._open, subscription
        if previous is not None:
            previous.close()
        self._metrics.is_subscribed = True
        self._metrics.subscriptions.add("opened" if previous is None else "renewed")
        self._renewal_due_s = renewal_due_s(self._clock.monotonic(), self._rng.random())
        logger.debug(
            "subscribed to shard %s", self.shard_id,
            extra={"action": "shard_subscribed", "shard": self.shard_id, "renewed": previous is not None},
        )  # fmt: skip

    async def _read(self) -> bool:
        """Read until the subscription is over (False) or the shard (True)."""
        while True:
            await self._until_room()
            if self._clock.monotonic() >= self._say_again_s:
                self._goes_on_within(EVENT_S_MAX)
            self._renew_if_due()
            page = await (self._next() if self._renewal is None else self._next_beside(self._renewal))
            if page is None:
                if self._open is not None:
                    continue
                return False
            if await self._take(page):
                return True

    async def _next(self) -> Page | None:
        """Return the next event; None if the subscription is over, and now closed."""
        assert self._open is not None
        try:
            async with asyncio.timeout(IDLE_MAX_S):
                page = await self._open.next()
        except TimeoutError:
            raise self._silence() from None
        if page is None:
            self._metrics.subscriptions.add("ended")
            await self._close()
        return page

    async def _take(self, page: Page) -> bool:
        """Hand an event over; True if it ended the shard."""
        verdict = self._judge(page, "an event")
        now_s, wall_s = self._clock.monotonic(), self._clock.wall()
        before = self._at.read
        await self._report_loss(before, page)
        self._course = accepted(self._at, page, now_s, wall_s)
        self._recovered()
        return self._hand_over(before, page, verdict)

    # --- renewal -----------------------------------------------------------------------------------------------------

    def _renew_if_due(self) -> None:
        if self._renewal is None and self._clock.monotonic() >= self._renewal_due_s:
            self._renewal = asyncio.create_task(self._new_subscription(), name=f"renewal-{self.shard_id}")

    async def _next_beside(self, renewal: asyncio.Task[Opened]) -> Page | None:
        """Return the next event of the old subscription; None after the change to the new one, or if neither is
        left.
        """
        assert self._open is not None
        reading = asyncio.create_task(self._open.next())
        try:
            await asyncio.wait({reading, renewal}, return_when=asyncio.FIRST_COMPLETED, timeout=IDLE_MAX_S)
            if not reading.done() and renewal.done() and self._renewed(renewal):
                return None
            await asyncio.wait({reading}, timeout=IDLE_MAX_S)
            if not reading.done():
                raise self._silence()
            over = reading.exception()
            if over is None and (page := reading.result()) is not None:
                return page
            await asyncio.wait({renewal})  # the new one ends the old one, and that end may arrive first
            if self._renewal is None or not self._renewed(renewal):
                if over is None:
                    self._metrics.subscriptions.add("ended")
                await self._close()
                if over is not None:
                    raise over
            return None
        finally:
            if not reading.done():
                reading.cancel()
                await asyncio.wait({reading})

    def _renewed(self, renewal: asyncio.Task[Opened]) -> bool:
        """Finish a renewal; True if it opened a subscription."""
        self._renewal = None
        error = renewal.exception()
        if error is None:
            self._opened(renewal.result())
            return True
        if not isinstance(error, Exception):
            raise error
        failure = self._stream_error(error, READING)
        logger.warning(
            "the subscription to shard %s is not renewed yet: %s", self.shard_id, failure,
            extra={"action": "renewal_failed", "shard": self.shard_id},
        )  # fmt: skip
        self._renewal_due_s = self._clock.monotonic() + RENEW_RETRY_S
        return False

    async def _close(self) -> None:
        subscription, self._open = self._open, None
        self._metrics.is_subscribed = False
        if subscription is not None:
            subscription.close()
        renewal, self._renewal = self._renewal, None
        if renewal is not None:
            renewal.cancel()
            await asyncio.wait({renewal})
            if not renewal.cancelled() and renewal.exception() is None:
                renewal.result()[0].close()

    # --- trouble -----------------------------------------------------------------------------------------------------

    def _silence(self) -> StreamUnavailableError:
        return StreamUnavailableError(f"no event of shard {self.shard_id} for {IDLE_MAX_S:g} s")

    async def _recover(self, error: StreamError, *, was_open: bool) -> None:
        self._waits_for_others()
        self._course = failed(self._at, error, self._clock.monotonic(), was_open=was_open)
        reaction = self._course.reaction
        is_taken = reaction is SubscriptionReaction.YIELD
        self._metrics.subscriptions.add("taken" if is_taken else "broken" if was_open else "refused")
        logger.log(
            self._level_of(error),
            "the subscription to shard %s failed, going on with %s: %s",
            self.shard_id,
            reaction.value,
            error,
            extra={"action": "subscription_failed", "shard": self.shard_id, "failures": self._at.failures},
        )
        if is_taken:
            self._say_if_contested()
        if reaction is not SubscriptionReaction.ASK:
            return
        if await self._consumer_is_replaced() or not isinstance(error, StreamNotFoundError):
            return
        await self._report_missing()

    def _say_if_contested(self) -> None:
        """Note that its subscription is not its own, and say so once for each reader."""
        if not is_contested(self._at):
            return
        words = (
            f"somebody else takes the subscription by {self._arn} again and again, and this worker keeps the lease: "
            "another application uses the same consumer"
        )
        self._metrics.contested(words, self._clock.wall(), CONTESTED_WITHIN_S)
        if self._is_contested:
            return
        self._is_contested = True
        words += "; give each its own (fanoutConfig.consumerName or consumerArn)"
        self._metrics.erred(words, self._clock.wall())
        logger.error(
            "shard %s: %s", self.shard_id, words,
            extra={"action": "subscription_contested", "shard": self.shard_id, "consumer": self._arn},
        )  # fmt: skip

    async def _consumer_is_replaced(self) -> bool:
        """Return whether the registered consumer was missing; if that is unclear, the shard's own consumer judges."""
        if self._arn is None:
            return False
        try:
            return not await self._consumer.is_there(self._arn)
        except Exception as error:
            failure = self._stream_error(error, READING)
            logger.warning(
                "the consumer of shard %s: %s", self.shard_id, failure,
                extra={"action": "consumer_unknown", "shard": self.shard_id},
            )  # fmt: skip
            return False
