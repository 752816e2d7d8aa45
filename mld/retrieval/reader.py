"""`ShardReader`: a bounded buffer between a task that fetches and a consumer that takes; and what it delivers.

Subclasses bring the coroutine that fetches: `PollingReader`, and `fanout.FanOutReader`.

`PollingReader` reads one shard with GetRecords, ahead of its consumer.

Rules: retrieval#reader-promises, retrieval#one-page-at-a-time (the consumer asks for the next),
retrieval#valid-answers, retrieval#polling-errors. This is the shell; `starting_points` and `pacing`
decide what to do.

Promises: every record after the start is delivered, in order, the last one of a page perhaps again at the head of the
next one (the checkpoint filter leaves it out); the end only after all records; errors are retried for ever, because a
reader knows nothing better. It never drops a page, never ends a shard because Kinesis does not find it, and reports
records that the stream dropped before they were read (`losses`).
"""

from __future__ import annotations

import asyncio
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Coroutine
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

from mld.core.clock import Clock, TimeLimit, millis_since
from mld.core.error_boundary import contained, survived
from mld.core.errors import (
    InvalidStreamArgumentError,
    InvalidStreamResponseError,
    IteratorExpiredError,
    PositionRefusedError,
    StreamError,
    StreamNotFoundError,
    StreamThrottledError,
    StreamUnavailableError,
)
from mld.core.log_fields import about
from mld.core.positions import InitialPosition, Position
from mld.core.streams import ChildShard, FanOut, IteratorType, Page, StartingPoint, Streams, validate_end_of_shard
from mld.metrics.shard import FetchResult, ShardMetrics
from mld.retrieval import pacing, starting_points
from mld.retrieval.losses import EVIDENCE_S, Losses, Proofs
from mld.retrieval.pacing import AnswerVerdict, Budget, PollingReaction, PrefetchBuffer, judge, reaction_to
from mld.retrieval.starting_points import ReadState, lacks_timestamp, starting_point

logger = logging.getLogger(__name__)

T = TypeVar("T")

SAY_EVERY_S = 5.0
"""How often a reader says that it goes on; not with each of its polls, of which there may be hundreds a second."""
TIP_MARGIN_S = 10.0
"""How far our clock may be behind the service's before what is read after a reader's start is taken for newer."""
STOP_TIMEOUT_S = 5.0
"""Ending the fetch task takes one turn of the loop, unless an adapter swallows its cancellation."""

CALL_TIMEOUT_S = 30.0
"""Longest wait for an answer; Java's kinesisRequestTimeout."""
ITERATOR_AGE_MAX_S = 270.0
"""Iterators live 300 s; one older than this is replaced, not tried."""


@dataclass(frozen=True, slots=True)
class Records:
    """The next page. It may be empty, and still says how far the reader lags.

    `is_tip`: there was nothing after it when it was read, or all of it arrived after the reader had begun, so that
    what was there before is read. The second is for streams that are never quiet, and whose service does not say how
    far behind its tip they are read.
    """

    page: Page
    is_tip: bool = False


@dataclass(frozen=True, slots=True)
class EndOfShard:
    """Every record was delivered, also those of the answer that ended the shard. Nothing follows.

    `children` is empty if Kinesis ended the shard again and again without naming them: look them up in the listing.
    """

    children: tuple[ChildShard, ...]


@dataclass(frozen=True, slots=True)
class ShardMissing:
    """Kinesis says ResourceNotFound: past retention, stream deleted, or the wrong stream. Never an end by itself.

    Asked for the next delivery, the reader tries again from the same place.
    """


Delivery = Records | EndOfShard | ShardMissing


@dataclass(frozen=True, slots=True)
class ReaderShares:
    """What all readers of a worker share; with `on_a_beat` those at the tip wake together (`retrieval.pacing`)."""

    clock: Clock
    rng: Random
    budget: Budget
    on_a_beat: bool = False
    proofs: Proofs = field(default_factory=Proofs)


class ShardReader(ABC):
    """Reads one shard ahead of its consumer. Single use: `start`, then `next` until `EndOfShard` or until `stop`.

    Without `deliver_empty`, pages without records are kept from the consumer: at the tip of
    a quiet shard every page is one.
    """

    def __init__(
        self,
        shard_id: str,
        shares: ReaderShares,
        source: Streams | FanOut,
        *,
        pages_max: int,
        deliver_empty: bool,
        metrics: ShardMetrics | None,
        streams: Streams | None,
    ) -> None:
        self.shard_id = shard_id
        self._metrics = ShardMetrics(shard_id, 0.0) if metrics is None else metrics
        self._losses = Losses(source, streams, shard_id, shares.clock, self._metrics, shares.proofs)
        self._promise = f"reader of {shard_id}"
        self._say_again_s = -math.inf
        self._clock = shares.clock
        self._rng = shares.rng
        self._budget = shares.budget
        self._buffer = PrefetchBuffer[Delivery](shares.budget, pages_max)
        self._metrics.waiting_bytes = lambda: self._buffer.data_bytes
        self._deliver_empty = deliver_empty
        self._ends_without_children = 0
        self._task: asyncio.Task[None] | None = None
        self._arrived = asyncio.Event()  # a delivery is in the buffer, or the fetch task is over
        self._room = asyncio.Event()  # the consumer took a delivery
        self._asked_again = asyncio.Event()  # the consumer wants more although the shard was reported missing
        self._missing_reported = False
        self._began_s = math.inf  # epoch seconds
        self._over = False  # EndOfShard was handed out, or `stop` was called
        self._is_newest_tip = False  # the last answer
        self._is_taken_tip = False  # the last page that was taken
        self._is_awaited = False  # the consumer has done with all that it took, and waits

    @property
    @abstractmethod
    def read(self) -> ReadState | None:
        """How far the reader has come, ahead of its consumer; None before its start.

        Its `anchor_s` is for `start` of the next reader of this lease, in case its checkpoint is still LATEST then
        (retrieval#restart-of-latest); None if no reader of the lease started from LATEST. It may be read at any time; a
        later value is a later time, but no record received since the first start lies before it.
        """

    @abstractmethod
    async def start(
        self,
        checkpoint: Position,
        initial: InitialPosition,
        anchor: float | None = None,
        read_to_s: float | None = None,
    ) -> None:
        """Begin to fetch. After an error it may be called again.

        `anchor` is the `anchor_s` of an earlier reader of the lease; it matters only if the checkpoint is LATEST. All
        that had arrived by `read_to_s` (epoch seconds) lies before the checkpoint; None if nobody knows. Raises
        StreamError; but a shard that is not found is left to `next`, which delivers `ShardMissing`.
        """

    async def next(self) -> Delivery:
        """Return the next delivery; waits for it. Taking it frees its place in the buffer.

        May be cancelled without loss. An exception other than cancellation is a bug of the fetch task, or of the
        caller, who must not ask after `EndOfShard` or `stop`.
        """
        assert self._task is not None and not self._over, "nothing follows the end of a reader"
        if self._missing_reported:
            self._missing_reported = False
            self._asked_again.set()
        if self._is_taken_tip or (self._is_newest_tip and self._buffer.is_empty):
            self._metrics.on_tip(self.shard_id, True)
        self._is_awaited = True
        try:
            while (delivery := self._buffer.take()) is None:
                if self._task.done():
                    self._task.result()
                self._arrived.clear()
                await self._arrived.wait()
                if self._over:
                    raise RuntimeError(f"the reader of shard {self.shard_id} was stopped while somebody waited for it")
        finally:
            self._is_awaited = False
        if isinstance(delivery, Records):
            self._is_taken_tip = delivery.is_tip
        self._room.set()
        self._missing_reported = isinstance(delivery, ShardMissing)
        self._over = isinstance(delivery, EndOfShard)
        return delivery

    async def stop(self) -> None:
        """Stop fetching and forget what was fetched. May be called at any time, and again."""
        self._over = True
        self._arrived.set()
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        _, late = await asyncio.wait([task], timeout=STOP_TIMEOUT_S)
        if late:
            logger.warning(
                "the fetch task of shard %s does not end; left behind",
                self.shard_id,
                extra=about("reader_stop", self.shard_id),
            )
        elif not task.cancelled() and (bug := task.exception()) is not None:
            logger.error("fetching from shard %s had failed", self.shard_id, exc_info=bug)
        self._buffer.clear()

    # --- for subclasses ----------------------------------------------------------------------------------------------

    def _starting_point(self, checkpoint: Position, initial: InitialPosition, anchor: float | None) -> StartingPoint:
        assert self._task is None and not self._over, "a reader is started once"
        if lacks_timestamp(checkpoint, initial):
            logger.warning(
                "shard %s is to be read from a time stamp, but none is configured; reading from TRIM_HORIZON",
                self.shard_id,
                extra=about("reader_start", self.shard_id),
            )
        return starting_point(checkpoint, initial, anchor)

    def _begin(self, fetching: Coroutine[None, None, None]) -> None:
        self._began_s = self._clock.wall()
        self._task = asyncio.create_task(fetching, name=f"prefetch-{self.shard_id}")
        self._task.add_done_callback(self._fetching_ended)
        self._budget.join()

    def _fetching_ended(self, _: asyncio.Task[None]) -> None:
        self._waits_for_others()
        self._arrived.set()
        self._budget.leave()

    def _goes_on_within(self, seconds: float) -> None:
        """Promise that what the reader does next is over within `seconds`, whatever AWS does; for the probe of
        liveness.

        It need not be said again before `_say_again_s`, if no longer time is needed then.
        """
        now = self._clock.monotonic()
        self._say_again_s = now + SAY_EVERY_S
        self._metrics.progress.step(self._promise, now, SAY_EVERY_S + seconds)

    def _waits_for_others(self) -> None:
        """Promise nothing: it waits for its consumer, or for what has no bound."""
        self._say_again_s = -math.inf
        self._metrics.progress.rest(self._promise)

    async def _until_room(self) -> None:
        while not self._buffer.has_room:
            self._waits_for_others()
            self._room.clear()
            await self._room.wait()

    def _judge(self, page: Page, what: str) -> AnswerVerdict:
        """Return the verdict on an answer. Raises InvalidStreamResponseError if it is to be discarded."""
        verdict = judge(page, self._ends_without_children)
        if verdict is AnswerVerdict.INVALID:
            self._ends_without_children += page.next_iterator is None
            why = validate_end_of_shard(page.next_iterator, page.child_shards)
            raise InvalidStreamResponseError(f"{what} of shard {self.shard_id}: {why}")
        return verdict

    def _hand_over(self, read: ReadState, page: Page, verdict: AnswerVerdict, *, is_full: bool = False) -> bool:
        """Deliver a page that came after `read`, and the end of the shard if it ended there; True if it did.

        A record that was read again is left to the checkpoint filter of the consumer, unless it came alone. `is_full`:
        it has as many records as were asked for. Some stand-ins say "0 ms behind" even then.
        """
        self._is_newest_tip = (page.millis_behind_latest == 0 and not is_full) or self._is_newer_than_start(page)
        is_empty_wanted = verdict is AnswerVerdict.GOES_ON and self._deliver_empty
        if (page.count or is_empty_wanted) and not starting_points.is_proof_alone(read, page):
            self._deliver(Records(page, self._is_newest_tip), page)
        elif page.millis_behind_latest is not None and self._buffer.is_empty:
            # Nothing waits for the child, so this is the lag of the shard; else the next page tells.
            self._metrics.saw_lag(page.millis_behind_latest, self._clock.wall())
            if self._is_awaited and self._is_newest_tip:
                self._metrics.oldest_wall_s = None  # what a failed child had in hand is done, or was passed over
                self._metrics.on_tip(self.shard_id, True)
        if verdict is AnswerVerdict.GOES_ON:
            return False
        self._deliver(EndOfShard(page.child_shards if verdict is AnswerVerdict.ENDED else ()))
        return True

    def _is_newer_than_start(self, page: Page) -> bool:
        arrived_ms = page.first_arrival_ms
        return arrived_ms is not None and arrived_ms / 1000 >= self._began_s + TIP_MARGIN_S

    def _deliver(self, delivery: Delivery, page: Page | None = None) -> None:
        self._buffer.put(delivery, records=page.count if page else 0, data_bytes=page.data_bytes if page else 0)
        self._arrived.set()

    async def _report_missing(self) -> None:
        self._waits_for_others()
        self._asked_again.clear()
        self._deliver(ShardMissing())
        await self._asked_again.wait()

    async def _report_loss(self, read: ReadState, page: Page) -> None:
        """Report what the stream has dropped between `read` and an answer, if it shows that."""
        if starting_points.lacks_record(read, page):
            self._goes_on_within(EVIDENCE_S)
            await self._losses.look_into(read, page)

    def _stream_error(self, error: Exception, doing: str) -> StreamError:
        """Return the error as one of the stream. Raises any other error of ours, and broken invariants."""
        failure = survived(error, doing, self.shard_id)
        if not isinstance(failure, StreamError):
            raise failure
        return failure

    def _level_of(self, error: StreamError, first: int = logging.WARNING) -> int:
        """Count a failed read, and return the level to log it at: `first`, or DEBUG for what was said just now."""
        return first if self._metrics.failed_reads.failed(error, self._clock.wall()) else logging.DEBUG

    def _recovered(self) -> None:
        """Note that an answer was accepted: whatever was wrong is over."""
        self._ends_without_children = 0
        if failed := self._metrics.read_again():
            logging.getLogger(type(self).__module__).info(
                "reading shard %s again", self.shard_id, extra=about("reader_recovered", self.shard_id, failures=failed)
            )


class PollingReader(ShardReader):
    """`max_records` is the Limit of GetRecords, if the share of the budget takes as many."""

    def __init__(
        self,
        streams: Streams,
        shares: ReaderShares,
        *,
        shard_id: str,
        max_records: int | None,
        intervals: pacing.Pacing,
        deliver_empty: bool = True,
        metrics: ShardMetrics | None = None,
    ) -> None:
        super().__init__(
            shard_id,
            shares,
            streams,
            pages_max=pacing.PAGES_MAX,
            deliver_empty=deliver_empty,
            metrics=metrics,
            streams=streams,
        )
        self._streams = streams
        self._max_records = max_records
        self._pacing = intervals
        self._pace = pacing.Pace()
        self._record_bytes: float | None = None
        self._state: starting_points.ReadState | None = None
        self._iterator: str | None = None
        self._iterator_issued_s = 0.0
        self._call_limit = TimeLimit().of(CALL_TIMEOUT_S)

    @property
    def read(self) -> ReadState | None:
        """See `ShardReader.read`."""
        return self._state

    async def start(
        self,
        checkpoint: Position,
        initial: InitialPosition,
        anchor: float | None = None,
        read_to_s: float | None = None,
    ) -> None:
        """See `ShardReader.start`; gets the first iterator."""
        start = self._starting_point(checkpoint, initial, anchor)
        asked_s, asked_wall_s = self._clock.monotonic(), self._clock.wall()
        state = starting_points.started(checkpoint, start, asked_wall_s, asked_s, anchor, read_to_s)
        missing = False
        try:
            await self._renew_iterator(start)
        except StreamNotFoundError:
            missing = True
        except InvalidStreamArgumentError:
            if starting_points.refused(state) == state or start.type is not IteratorType.AT_TIMESTAMP:
                raise
            state = starting_points.refused(state)
        self._state = state
        self._begin(self._prefetch(missing))

    # --- the fetch task -----------------------------------------------------------------------------------------------

    async def _prefetch(self, missing: bool) -> None:
        if missing:
            await self._report_missing()
        ended = False
        while not ended:
            await self._until_room()
            now = self._clock.monotonic()
            wait_s = pacing.delay_s(self._pacing, self._pace, now, self._rng.random())
            if now + wait_s >= self._say_again_s:
                self._goes_on_within(wait_s + CALL_TIMEOUT_S)
            if wait_s > 0:
                await self._clock.sleep(wait_s)
            try:
                ended = await self._fetch()
            except Exception as error:
                await self._recover(self._stream_error(error, "fetching records"))

    async def _fetch(self) -> bool:
        """Make one attempt; True if it ended the shard."""
        iterator = await self._fresh_iterator()
        asked_s, asked_wall_s = self._clock.monotonic(), self._clock.wall()
        limit = pacing.records_wanted(self._max_records, self._budget.share, self._record_bytes)
        try:
            page = await self._bounded(self._streams.get_records(iterator, limit), "GetRecords")
        except StreamError as error:
            self._metrics.fetched(_result_of(error), self._clock.monotonic() - asked_s)
            raise
        took_s = self._clock.monotonic() - asked_s
        if page.count:
            self._metrics.fetched(FetchResult.RECORDS, took_s)
        else:
            self._metrics.fetched_nothing(took_s)
        if logger.isEnabledFor(logging.DEBUG):
            about = self._about("records_fetched", asked_s)
            logger.debug("%d records of shard %s", page.count, self.shard_id, extra=about)
        verdict = self._judge(page, "GetRecords")
        assert self._state is not None
        before = self._state
        await self._report_loss(before, page)
        self._accept(page, asked_s, asked_wall_s)
        return self._hand_over(before, page, verdict, is_full=page.count >= (limit or pacing.ANSWER_RECORDS_MAX))

    def _accept(self, page: Page, asked_s: float, asked_wall_s: float) -> None:
        assert self._state is not None
        self._state = starting_points.advanced(self._state, page, asked_wall_s, asked_s)
        self._iterator = page.next_iterator
        self._iterator_issued_s = asked_s
        if page.count:
            self._record_bytes = page.data_bytes / page.count
        self._pace = pacing.Pace(self._clock.monotonic(), page.millis_behind_latest)
        self._recovered()

    async def _recover(self, error: StreamError) -> None:
        reaction = reaction_to(error)
        is_slower = reaction is PollingReaction.SAME_ITERATOR_SLOWER
        first_backoff_s = pacing.THROTTLE_BACKOFF_S if is_slower else pacing.ERROR_BACKOFF_S
        self._pace = pacing.failed(self._pace, self._clock.monotonic(), first_backoff_s)
        # An expired iterator is everyday business.
        level = self._level_of(error, logging.INFO if isinstance(error, IteratorExpiredError) else logging.WARNING)
        logger.log(
            level,
            "reading shard %s failed, going on with %s: %s",
            self.shard_id,
            reaction.value,
            error,
            extra=about("reader_failed", self.shard_id, failures=self._pace.failures),
        )
        if reaction in (PollingReaction.NEW_ITERATOR, PollingReaction.ASK_CONSUMER):
            self._iterator = None
        if reaction is PollingReaction.ASK_CONSUMER:
            await self._report_missing()

    # --- iterators ----------------------------------------------------------------------------------------------------

    async def _fresh_iterator(self) -> str:
        assert self._state is not None
        now_s = self._clock.monotonic()
        is_fresh = self._iterator is not None and now_s - self._iterator_issued_s < ITERATOR_AGE_MAX_S
        if is_fresh and not starting_points.needs_proof(self._state, now_s, self._clock.wall()):
            assert self._iterator is not None
            return self._iterator
        return await self._renew_iterator(starting_points.restart_point(self._state))

    async def _renew_iterator(self, point: StartingPoint) -> str:
        issued_s = self._clock.monotonic()
        try:
            iterator = await self._bounded(self._streams.shard_iterator(self.shard_id, point), "GetShardIterator")
        except StreamError as error:
            self._metrics.iterator.note(False, self._clock.monotonic() - issued_s)
            if not isinstance(error, InvalidStreamArgumentError):
                raise
            if point.sequence is None:
                if self._state is not None:
                    self._state = starting_points.refused(self._state)
                raise
            raise PositionRefusedError(str(error)) from error
        self._metrics.iterator.note(True, self._clock.monotonic() - issued_s)
        self._iterator, self._iterator_issued_s = iterator, issued_s
        if self._state is not None:
            self._state = starting_points.positioned(self._state, point)
        logger.debug("iterator of shard %s", self.shard_id, extra=self._about("reader_positioned", issued_s))
        return iterator

    def _about(self, action: str, asked_s: float) -> dict[str, object]:
        return {"action": action, "shard": self.shard_id, "took_ms": millis_since(self._clock, asked_s)}

    async def _bounded(self, call: Awaitable[T], operation: str) -> T:
        try:
            with self._call_limit:
                return await contained(call, f"asking for {operation}", self.shard_id)
        except TimeoutError:
            reason = f"{operation} of shard {self.shard_id}: no answer within {CALL_TIMEOUT_S:g} s"
            raise StreamUnavailableError(reason) from None


def _result_of(error: StreamError) -> FetchResult:
    match error:
        case StreamThrottledError():
            return FetchResult.THROTTLED
        case IteratorExpiredError():
            return FetchResult.EXPIRED
        case _:
            return FetchResult.ERROR
