"""`FanOutReader`: reads one shard by subscriptions of enhanced fan-out, ahead of its consumer.

Rules: retrieval#reader-promises, retrieval#subscription-starting-point and the rules that follow it there. This module
does the I/O; `subscriptions`, `starting_points` and `pacing` decide what to do. The shard's consumer sees no difference
between this reader and a `PollingReader`.

Promises: every record after the start is delivered at least once, in order. The end of the shard is delivered only
after all its records. Errors are retried for ever. Some records come twice after a renewal or a restart; the checkpoint
filter removes them. While the buffer has no room, the reader takes no events from the subscription, which then stops
reading its connection.

Here "subscription" means the event stream that SubscribeToShard opens. It lives for five minutes, so it is renewed
before: a second subscription is opened while the first one is still read. What the reader knows about its subscriptions
and how far it has come is one value, its `Course`; functions of `subscriptions` return the next one after each step. A
"promise" tells the liveness probe within which time the reader's next step will end.
"""

from __future__ import annotations

import asyncio
import logging

from mld.core.errors import (
    InvalidStreamArgumentError,
    PositionRefusedError,
    StreamError,
    StreamNotFoundError,
    StreamUnavailableError,
)
from mld.core.positions import InitialPosition, Position
from mld.core.streams import FanOut, Page, StartingPoint, Streams, Subscription
from mld.metrics.shard import ShardMetrics
from mld.retrieval import starting_points
from mld.retrieval.reader import ReaderShares, ShardReader
from mld.retrieval.registration import RegisteredConsumer
from mld.retrieval.subscriptions import (
    CONTESTED_WITHIN_S,
    YIELD_S,
    Course,
    SubscriptionReaction,
    accepted,
    called,
    delay_s,
    failed,
    is_contested,
    opened,
    point_of,
    renewal_due_s,
)

logger = logging.getLogger(__name__)
RENEW_RETRY_S = 5.0
"""Pause after a failed renewal, while the old subscription still delivers."""
IDLE_MAX_S = 30.0
"""Kinesis sends events without records about every 5 s, so a connection that is silent for this long is dead."""

OPEN_TIMEOUT_S = 30.0
"""Longest wait for an answer; Java's kinesisRequestTimeout."""
EVENT_S_MAX = IDLE_MAX_S + OPEN_TIMEOUT_S
"""Longest time between two events; it includes the opening of a new subscription."""
READING = "reading a subscription"
"""Words for messages about errors: what the reader was doing."""
Opened = tuple[Subscription, StartingPoint]
EVENTS_MAX = 10
"""Most events in the buffer, as in Java's queue. An event has at most 1 MB of ordinary records."""


class FanOutReader(ShardReader):
    """Reads one shard by subscriptions of `consumer`.

    If another subscriber takes over our subscription, the reader pauses for `yield_s`. Most likely this worker has lost
    the lease, and learns that within this time. `streams` is used if a record is missing, to find the oldest record of
    the shard; None: the oldest record stays unknown.
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
        """Make a reader that is not started yet. `consumer` is the registered consumer with which it subscribes. With
        `deliver_empty`, events without records are delivered, too. The class describes the other arguments.
        """
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
        """How far this reader has come; None before `start`."""
        self._arn: str | None = None  # ARN of the consumer that the last subscription used
        self._is_contested = False
        """Whether it was logged that another reader uses the same registered consumer."""
        self._open: Subscription | None = None
        """The subscription that is being read."""
        self._renewal: asyncio.Task[Opened] | None = None
        """The task that opens the next subscription while this one is still being read."""
        self._renewal_due_s = 0.0
        """When the next subscription has to be opened (monotonic)."""

    @property
    def read(self) -> starting_points.ReadState | None:
        """How far the reader has come, ahead of its consumer; None before its start."""
        return None if self._course is None else self._course.read

    async def start(
        self,
        checkpoint: Position,
        initial: InitialPosition,
        anchor: float | None = None,
        read_to_s: float | None = None,
    ) -> None:
        """Decide where reading starts, and start the task that reads ahead (`ShardReader.start`). Makes no call to
        Kinesis.
        """
        start = self._starting_point(checkpoint, initial, anchor)
        wall_s, now_s = self._clock.wall(), self._clock.monotonic()
        read = starting_points.started(checkpoint, start, wall_s, now_s, anchor, read_to_s)
        self._course = Course(read, yield_s=self._yield_s)
        self._begin(self._subscribe())

    @property
    def _at(self) -> Course:
        """How far this reader has come, once `start` was called."""
        assert self._course is not None
        return self._course

    # --- the fetch task ----------------------------------------------------------------------------------------------

    async def _subscribe(self) -> None:
        """Read by one subscription after the other until the shard ends."""
        try:
            while not await self._subscribe_once():
                pass
        finally:
            await self._close()

    async def _subscribe_once(self) -> bool:
        """Open a subscription, and read it and its renewals until they are over. Return whether the shard has ended."""
        await self._until_room()
        wait_s = delay_s(self._at, self._clock.monotonic(), self._rng.random())
        if wait_s > 0:
            self._promise_progress_within(wait_s)
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
        """Open a subscription from the place that the reader has reached. Return it and this place.

        The liveness probe is promised progress (`_promise_progress_within`), except while this waits for the
        registration.
        """
        self._arn = None
        self._withdraw_promise()  # all readers share one registration, which has no time limit
        arn = await self._consumer.arn()
        self._arn = arn
        self._promise_progress_within(EVENT_S_MAX)
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
        """Read the new subscription from now on, and close the previous one if there is one."""
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
        """Read events until the shard ends (return True) or the subscription is over (return False)."""
        while True:
            await self._until_room()
            if self._clock.monotonic() >= self._promise_due_s:
                self._promise_progress_within(EVENT_S_MAX)
            self._renew_if_due()
            page = await (self._next() if self._renewal is None else self._next_during_renewal(self._renewal))
            if page is None:
                if self._open is not None:
                    continue  # the renewal has succeeded: read the new subscription
                return False
            if await self._take(page):
                return True

    async def _next(self) -> Page | None:
        """Return the next event. If the subscription is over, close it and return None."""
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
        """Check an event, report records that are missing before it, note how far the reader has come, and put the
        event into the buffer. Return whether it ended the shard.
        """
        verdict = self._judge(page, "an event")
        now_s, wall_s = self._clock.monotonic(), self._clock.wall()
        before = self._at.read
        await self._report_loss(before, page)
        self._course = accepted(self._at, page, now_s, wall_s)
        self._recovered()
        return self._hand_over(before, page, verdict)

    # --- renewal -----------------------------------------------------------------------------------------------------

    def _renew_if_due(self) -> None:
        """Begin to open the next subscription if its time has come and it is not being opened yet."""
        if self._renewal is None and self._clock.monotonic() >= self._renewal_due_s:
            self._renewal = asyncio.create_task(self._new_subscription(), name=f"renewal-{self.shard_id}")

    async def _next_during_renewal(self, renewal: asyncio.Task[Opened]) -> Page | None:
        """Return the next event of the old subscription while a renewal is under way.

        Return None if the reader has changed to the new subscription, or if neither of them is open any more.
        """
        assert self._open is not None
        reading = asyncio.create_task(self._open.next())
        try:
            await asyncio.wait({reading, renewal}, return_when=asyncio.FIRST_COMPLETED, timeout=IDLE_MAX_S)
            if not reading.done() and renewal.done() and self._renewed(renewal):
                return None  # `_renewed` has closed the old subscription
            # The renewal has failed, or is still under way: go on with the old subscription.
            await asyncio.wait({reading}, timeout=IDLE_MAX_S)
            if not reading.done():
                raise self._silence()
            error = reading.exception()
            if error is None and (page := reading.result()) is not None:
                return page
            await asyncio.wait({renewal})  # the old subscription is over; opening the new one may be what ended it
            if self._renewal is None or not self._renewed(renewal):  # None: `_renewed` was called above, and failed
                if error is None:
                    self._metrics.subscriptions.add("ended")
                await self._close()
                if error is not None:
                    raise error
            return None
        finally:
            if not reading.done():
                reading.cancel()
                await asyncio.wait({reading})

    def _renewed(self, renewal: asyncio.Task[Opened]) -> bool:
        """Finish a renewal. Return whether it opened a subscription; if not, note when to try again."""
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
        """Close the subscription, and cancel its renewal if one is under way."""
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
        """Return the error for a subscription without events for too long."""
        return StreamUnavailableError(f"no event of shard {self.shard_id} for {IDLE_MAX_S:g} s")

    async def _recover(self, error: StreamError, *, was_open: bool) -> None:
        """Decide what to do about an error, and log it. `was_open`: it ended an open subscription; otherwise none could
        be opened.

        If the reaction is ASK, find out whether the registered consumer of fan-out still exists. If it does, and the
        error was "not found", the shard is what was not found: report that to the shard's consumer in this process.
        """
        self._withdraw_promise()
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
            self._report_if_contested()
        if reaction is not SubscriptionReaction.ASK:
            return
        if await self._consumer_is_replaced() or not isinstance(error, StreamNotFoundError):
            return
        await self._report_missing()

    def _report_if_contested(self) -> None:
        """Report it if another application takes the subscription over again and again. Each reader logs that once."""
        if not is_contested(self._at):
            return
        message = (
            f"somebody else takes the subscription by {self._arn} again and again, and this worker keeps the lease: "
            "another application uses the same consumer"
        )
        self._metrics.contested(message, self._clock.wall(), CONTESTED_WITHIN_S)
        if self._is_contested:
            return
        self._is_contested = True
        message += "; give each its own (fanoutConfig.consumerName or consumerArn)"
        self._metrics.erred(message, self._clock.wall())
        logger.error(
            "shard %s: %s", self.shard_id, message,
            extra={"action": "subscription_contested", "shard": self.shard_id, "consumer": self._arn},
        )  # fmt: skip

    async def _consumer_is_replaced(self) -> bool:
        """Return whether the registered consumer of fan-out is gone, so that the next subscription uses another one.

        If AWS does not answer, return False. An error that says "not found" is then reported to the shard's consumer in
        this process, which decides what to do.
        """
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
