"""`PollingReader`: reads one shard with GetRecords, ahead of its consumer.

Rules: retrieval#reader-promises, retrieval#one-page-at-a-time (the consumer asks for the next),
retrieval#valid-answers, retrieval#polling-errors. This is the shell; `starting_points`, `pacing` and `buffer`
decide what to do.

Promises: every record after the start is delivered once per reader, in order; the end only after all records; errors
are retried for ever, because a reader knows nothing better. It never drops a page, and never ends a shard because
Kinesis does not find it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from random import Random
from typing import TypeVar

from mld.core.clock import Clock, TimeLimit, millis_since
from mld.core.error_boundary import contained
from mld.core.errors import (
    InvalidStreamArgumentError,
    IteratorExpiredError,
    PositionRefusedError,
    StreamError,
    StreamNotFoundError,
    StreamThrottledError,
    StreamUnavailableError,
)
from mld.core.positions import InitialPosition, Position
from mld.core.streams import IteratorType, Page, StartingPoint, Streams
from mld.metrics.shard import FetchResult, ShardMetrics
from mld.retrieval import buffer, pacing, starting_points
from mld.retrieval.pacing import PollingReaction, reaction_to
from mld.retrieval.reader import ShardReader

logger = logging.getLogger(__name__)

T = TypeVar("T")

CALL_TIMEOUT_S = 30.0
"""Longest wait for an answer; Java's kinesisRequestTimeout."""
ITERATOR_AGE_MAX_S = 270.0
"""Iterators live 300 s; one older than this is replaced, not tried."""


class PollingReader(ShardReader):
    """`max_records` is the Limit of GetRecords, if the share of `budget` takes as many."""

    def __init__(
        self,
        streams: Streams,
        clock: Clock,
        rng: Random,
        *,
        shard_id: str,
        max_records: int | None,
        intervals: pacing.Pacing,
        budget: buffer.Budget,
        deliver_empty: bool = True,
        metrics: ShardMetrics | None = None,
    ) -> None:
        pages_max = buffer.PAGES_MAX
        super().__init__(
            shard_id, clock, rng, budget, pages_max=pages_max, deliver_empty=deliver_empty, metrics=metrics
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
    def anchor_s(self) -> float | None:
        """See `ShardReader.anchor_s`."""
        return None if self._state is None else self._state.anchor_s

    async def start(self, checkpoint: Position, initial: InitialPosition, anchor: float | None = None) -> None:
        """See `ShardReader.start`; gets the first iterator."""
        start = self._starting_point(checkpoint, initial, anchor)
        asked_s, asked_wall_s = self._clock.monotonic(), self._clock.wall()
        state = starting_points.started(checkpoint, start, asked_wall_s, asked_s, anchor)
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
        limit = buffer.records_wanted(self._max_records, self._budget.share, self._record_bytes)
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
        self._accept(page, asked_s, asked_wall_s)
        return self._hand_over(page, verdict, is_full=page.count >= (limit or buffer.ANSWER_RECORDS_MAX))

    def _accept(self, page: Page, asked_s: float, asked_wall_s: float) -> None:
        assert self._state is not None
        self._log_gap(self._state, page)
        self._state = starting_points.advanced(self._state, page, asked_wall_s, asked_s)
        self._iterator = page.next_iterator
        self._iterator_issued_s = asked_s
        if page.count:
            self._record_bytes = page.data_bytes / page.count
        self._pace = pacing.succeeded(self._clock.monotonic(), page.millis_behind_latest)
        self._recovered()

    async def _recover(self, error: StreamError) -> None:
        reaction = reaction_to(error)
        slower = reaction is PollingReaction.SAME_ITERATOR_SLOWER
        failure = pacing.Failure.THROTTLED if slower else pacing.Failure.ERROR
        self._pace = pacing.failed(self._pace, self._clock.monotonic(), failure)
        # An expired iterator is everyday business.
        level = self._level_of(error, logging.INFO if isinstance(error, IteratorExpiredError) else logging.WARNING)
        logger.log(
            level,
            "reading shard %s failed, going on with %s: %s",
            self.shard_id,
            reaction.value,
            error,
            extra={"action": "reader_failed", "shard": self.shard_id, "failures": self._pace.failures},
        )
        if reaction in (PollingReaction.NEW_ITERATOR, PollingReaction.ASK_CONSUMER):
            self._iterator = None
        if reaction is PollingReaction.ASK_CONSUMER:
            await self._report_missing()

    # --- iterators ----------------------------------------------------------------------------------------------------

    async def _fresh_iterator(self) -> str:
        age_s = self._clock.monotonic() - self._iterator_issued_s
        if self._iterator is not None and age_s < ITERATOR_AGE_MAX_S:
            return self._iterator
        assert self._state is not None
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
