"""`PollingReader`: reads one shard with GetRecords, ahead of its consumer.

Rules: retrieval#reader-promises, retrieval#one-page-at-a-time, retrieval#valid-answers, retrieval#polling-errors. This
module does the I/O; `starting_points`, `pacing` and `answer_verdicts` decide what to do.

Promises: every record after the start is delivered, in order. The last record of a page may come again at the beginning
of the next page, where the checkpoint filter removes it. The end of the shard is delivered only after all its records.
Errors are retried for ever, because a reader cannot know which errors are permanent. A "promise" (in names) tells the
liveness probe within which time the reader's next step will end.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from typing import TypeVar

from mld.core.clock import millis_since
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
from mld.core.log_fields import about
from mld.core.positions import InitialPosition, Position
from mld.core.streams import IteratorType, Page, StartingPoint, Streams
from mld.core.waits import TimeLimit
from mld.metrics.shard import FetchResult, ShardMetrics
from mld.retrieval import pacing, prefetch, starting_points
from mld.retrieval.answer_verdicts import PollingReaction, reaction_to
from mld.retrieval.reader import ReaderShares, ShardReader
from mld.retrieval.starting_points import ReadState

logger = logging.getLogger(__name__)

T = TypeVar("T")

CALL_TIMEOUT_S = 30.0
"""Longest wait for an answer; Java's kinesisRequestTimeout."""
ITERATOR_AGE_MAX_S = 270.0
"""An iterator expires after 300 s. The reader does not try an iterator that is older than this, but gets a new one."""


class PollingReader(ShardReader):
    """Reads one shard by GetRecords. The Limit is `max_records`, or less if that many records might not fit into the
    reader's share of the memory budget.
    """

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
        """Make a reader that is not started yet. `max_records` is the configured Limit of GetRecords (None: none is
        sent), `intervals` says how often to ask. With `deliver_empty`, pages without records are delivered, too.
        """
        super().__init__(
            shard_id,
            shares,
            streams,
            pages_max=prefetch.PAGES_MAX,
            deliver_empty=deliver_empty,
            metrics=metrics,
            streams=streams,
        )
        self._streams = streams
        self._max_records = max_records
        self._pacing = intervals
        self._pace = pacing.Pace()
        self._record_bytes: float | None = None
        """The mean size of a record in the last page that had records; None before that."""
        self._state: starting_points.ReadState | None = None
        """How far this reader has come; None before `start`."""
        self._iterator: str | None = None
        """The iterator for the next call; None if a new one is needed."""
        self._iterator_issued_s = 0.0
        """When Kinesis was asked for this iterator (monotonic)."""
        self._call_limit = TimeLimit().of(CALL_TIMEOUT_S)

    @property
    def read(self) -> ReadState | None:
        """How far the reader has come, ahead of its consumer; None before its start."""
        return self._state

    async def start(
        self,
        checkpoint: Position,
        initial: InitialPosition,
        anchor: float | None = None,
        read_to_s: float | None = None,
    ) -> None:
        """Ask Kinesis for the first iterator, and start the task that reads ahead (`ShardReader.start`).

        If the shard is not found, the task begins by reporting that. If Kinesis refuses the anchor, because our clock
        is ahead of its own, the task begins with an earlier anchor (`starting_points.refused`).
        """
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
                raise  # there is no anchor that could be made earlier
            state = starting_points.refused(state)
        self._state = state
        self._begin(self._prefetch(missing))

    # --- the fetch task -----------------------------------------------------------------------------------------------

    async def _prefetch(self, missing: bool) -> None:
        """Fetch pages until the shard ends. `missing` says that the first iterator was refused as "not found"."""
        if missing:
            await self._report_missing()
        ended = False
        while not ended:
            await self._until_room()
            now = self._clock.monotonic()
            wait_s = pacing.delay_s(self._pacing, self._pace, now, self._rng.random())
            if now + wait_s >= self._promise_due_s:
                self._promise_progress_within(wait_s + CALL_TIMEOUT_S)
            if wait_s > 0:
                await self._clock.sleep(wait_s)
            try:
                ended = await self._fetch()
            except Exception as error:
                await self._recover(self._stream_error(error, "fetching records"))

    async def _fetch(self) -> bool:
        """Ask for one page. Count the answer in the metrics, check it, report records that are missing before it, note
        how far the reader has come, and deliver the page. Return whether it ended the shard.
        """
        iterator = await self._fresh_iterator()
        asked_s, asked_wall_s = self._clock.monotonic(), self._clock.wall()
        limit = prefetch.records_wanted(self._max_records, self._budget.share, self._record_bytes)
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
        return self._hand_over(before, page, verdict, is_full=page.count >= (limit or prefetch.ANSWER_RECORDS_MAX))

    def _accept(self, page: Page, asked_s: float, asked_wall_s: float) -> None:
        """Note what a valid page shows: the new position, the next iterator, the mean size of records, the lag."""
        assert self._state is not None
        self._state = starting_points.advanced(self._state, page, asked_wall_s, asked_s)
        self._iterator = page.next_iterator
        self._iterator_issued_s = asked_s
        if page.count:
            self._record_bytes = page.data_bytes / page.count
        self._pace = pacing.Pace(self._clock.monotonic(), page.millis_behind_latest)
        self._recovered()

    async def _recover(self, error: StreamError) -> None:
        """Decide what to do about an error, and log it. If the shard is not found, tell its consumer, and wait."""
        reaction = reaction_to(error)
        is_slower = reaction is PollingReaction.SAME_ITERATOR_SLOWER
        first_backoff_s = pacing.THROTTLE_BACKOFF_S if is_slower else pacing.ERROR_BACKOFF_S
        self._pace = pacing.failed(self._pace, self._clock.monotonic(), first_backoff_s)
        # An expired iterator is no reason for a warning: iterators expire in normal operation.
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
        """Return the iterator of the last answer, or a new one.

        A new one is needed if the last one is too old. It is also needed for the proof that nothing was lost to
        retention, which asks for the last record again (`starting_points.needs_proof`).
        """
        assert self._state is not None
        now_s = self._clock.monotonic()
        is_fresh = self._iterator is not None and now_s - self._iterator_issued_s < ITERATOR_AGE_MAX_S
        if is_fresh and not starting_points.needs_proof(self._state, now_s, self._clock.wall()):
            assert self._iterator is not None
            return self._iterator
        return await self._renew_iterator(starting_points.restart_point(self._state))

    async def _renew_iterator(self, point: StartingPoint) -> str:
        """Ask Kinesis for an iterator at `point`, and return it. The record at `point` is then the one with which the
        next page should begin.

        Raises PositionRefusedError if Kinesis refuses the sequence number of `point`. If it refuses the time of
        `point`, which is in the future for Kinesis, this call raises the error, and the next call uses an earlier time.
        """
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
        """Return the log fields of an event about this shard; `took_ms` counts from `asked_s`."""
        return {"action": action, "shard": self.shard_id, "took_ms": millis_since(self._clock, asked_s)}

    async def _bounded(self, call: Awaitable[T], operation: str) -> T:
        """Return the answer to `call`. Raises StreamError if it fails or takes longer than CALL_TIMEOUT_S."""
        try:
            with self._call_limit:
                return await contained(call, f"asking for {operation}", self.shard_id)
        except TimeoutError:
            reason = f"{operation} of shard {self.shard_id}: no answer within {CALL_TIMEOUT_S:g} s"
            raise StreamUnavailableError(reason) from None


def _result_of(error: StreamError) -> FetchResult:
    """Return how a failed GetRecords counts in the metrics."""
    match error:
        case StreamThrottledError():
            return FetchResult.THROTTLED
        case IteratorExpiredError():
            return FetchResult.EXPIRED
        case _:
            return FetchResult.ERROR
