"""`PollingReader`: reads one shard with GetRecords, ahead of its consumer.

Rules: retrieval spec, 4 (polling), 5 (one batch at a time, here: the consumer asks for the next), 12.1-12.3 and
12.7-12.9. This is the shell; what to do is decided in `positions`, `pacing`, `buffer` and `faults`.

Promises: every record after the start is delivered once per reader, in order; the end only after all records;
errors are waited out for ever, because a reader never knows better than to try again. It never drops a page, and never
says that a shard is over because Kinesis does not find it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from datetime import UTC, datetime
from random import Random
from typing import TypeVar

from mld.clock import Clock, millis_since
from mld.errors import (
    InvalidStreamResponseError,
    IteratorExpiredError,
    StreamError,
    StreamNotFoundError,
    StreamUnavailableError,
)
from mld.positions import InitialPosition, Position
from mld.retrieval import buffer, pacing, positions
from mld.retrieval.deliveries import Delivery, Records, ShardEnded, ShardMissing
from mld.retrieval.faults import Reaction, Verdict, judge, reaction_to
from mld.streams import Page, StartingPoint, Streams, validate_end_of_shard

__all__ = ["Delivery", "PollingReader", "Records", "ShardEnded", "ShardMissing"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

CALL_TIMEOUT_S = 30.0
"""No answer for so long means none will come; Java's kinesisRequestTimeout."""
ITERATOR_AGE_MAX_S = 270.0
"""Iterators live 300 s; an older one than this is replaced instead of tried."""
STOP_TIMEOUT_S = 5.0
"""Ending the fetch task takes one turn of the loop, unless an adapter swallows its cancellation."""


class PollingReader:
    """The reader of shard `shard_id`. Single use: `start`, then `next` until `ShardEnded` or until `stop`.

    `max_records` is the Limit of GetRecords, the intervals are those of `pacing.Pacing`, the rest the limits of 4.3;
    `budget` is what all readers share. Empty pages are kept from a consumer who has no use for them (`deliver_empty`):
    at the tip of a quiet shard every page is one.
    """

    def __init__(
        self,
        streams: Streams,
        clock: Clock,
        rng: Random,
        *,
        shard_id: str,
        max_records: int | None,
        idle_interval_s: float,
        catch_up_interval_s: float = pacing.CALL_INTERVAL_MIN_S,
        reduced_tps_threshold_ms: int = 0,
        beat_s: float = 0.0,
        pages_max: int = buffer.PAGES_MAX,
        bytes_max: int = buffer.BYTES_MAX,
        records_max: int = buffer.RECORDS_MAX,
        call_timeout_s: float = CALL_TIMEOUT_S,
        budget: buffer.Budget | None = None,
        deliver_empty: bool = True,
    ) -> None:
        self.shard_id = shard_id
        self._streams = streams
        self._clock = clock
        self._rng = rng
        self._max_records = max_records
        self._call_timeout_s = call_timeout_s
        self._pacing = pacing.Pacing(idle_interval_s, catch_up_interval_s, reduced_tps_threshold_ms, beat_s)
        self._pace = pacing.Pace()
        self._buffer: buffer.PrefetchBuffer[Delivery] = buffer.PrefetchBuffer(
            pages_max=pages_max, bytes_max=bytes_max, records_max=records_max, budget=budget
        )
        self._budget = budget
        self._deliver_empty = deliver_empty
        self._record_bytes: float | None = None
        self._state: positions.ReadState | None = None
        self._iterator: str | None = None
        self._iterator_issued_s = 0.0
        self._ends_without_children = 0
        self._trouble: type[StreamError] | None = None  # the error of the running streak, as far as it was logged
        self._task: asyncio.Task[None] | None = None
        self._arrived = asyncio.Event()  # a delivery is in the buffer, or the fetch task is over
        self._room = asyncio.Event()  # the consumer took a delivery
        self._asked_again = asyncio.Event()  # the consumer wants more although the shard was reported missing
        self._missing_reported = False
        self._over = False  # ShardEnded was handed out, or `stop` was called

    @property
    def anchor_s(self) -> float | None:
        """For `start` of the next reader of this lease, in case its checkpoint is still LATEST then (12.2).

        Epoch seconds; None if no reader of the lease started from LATEST. It may be read at any time after `start`;
        a later value is a later time, but no record received since the first start lies before it.
        """
        return None if self._state is None else self._state.anchor_s

    async def start(self, checkpoint: Position, initial: InitialPosition, anchor: float | None = None) -> None:
        """Get the first iterator and begin to fetch. After an error it may be called again.

        `anchor` is the `anchor_s` of an earlier reader of the lease; it matters only if the checkpoint is LATEST.
        Raises StreamError; but a shard that is not found is left to `next`, which delivers `ShardMissing`.
        """
        assert self._task is None and not self._over, "a reader is started once"
        if positions.lacks_timestamp(checkpoint, initial):
            logger.warning(
                "shard %s is to be read from a time stamp, but none is configured; reading from TRIM_HORIZON",
                self.shard_id,
                extra={"action": "reader_start", "shard": self.shard_id},
            )
        start = positions.starting_point(checkpoint, initial, anchor)
        asked_wall_s = self._clock.wall()
        missing = False
        try:
            await self._renew_iterator(start)
        except StreamNotFoundError:
            missing = True
        self._state = positions.started(checkpoint, start, asked_wall_s, anchor)
        self._task = asyncio.create_task(self._prefetch(missing), name=f"prefetch-{self.shard_id}")
        self._task.add_done_callback(self._fetching_ended)
        if self._budget is not None:
            self._budget.join()

    async def next(self) -> Delivery:
        """The next delivery; waits for it. Taking it frees its place in the buffer.

        May be cancelled without loss. An exception other than cancellation is a bug of the fetch task, or of the
        caller, who must not ask after `ShardEnded` or `stop`.
        """
        assert self._task is not None and not self._over, "nothing follows the end of a reader"
        if self._missing_reported:
            self._missing_reported = False
            self._asked_again.set()
        while (delivery := self._buffer.take()) is None:
            if self._task.done():
                self._task.result()
            self._arrived.clear()
            await self._arrived.wait()
            if self._over:
                raise RuntimeError(f"the reader of shard {self.shard_id} was stopped while somebody waited for it")
        self._room.set()
        self._missing_reported = isinstance(delivery, ShardMissing)
        self._over = isinstance(delivery, ShardEnded)
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
                extra={"action": "reader_stop", "shard": self.shard_id},
            )
        elif not task.cancelled() and (bug := task.exception()) is not None:
            logger.error("fetching from shard %s had failed", self.shard_id, exc_info=bug)

    def _fetching_ended(self, _: asyncio.Task[None]) -> None:
        self._arrived.set()
        if self._budget is not None:
            self._budget.leave()

    # --- the fetch task -----------------------------------------------------------------------------------------------

    async def _prefetch(self, missing: bool) -> None:
        if missing:
            await self._report_missing()
        ended = False
        while not ended:
            while not self._buffer.has_room:
                self._room.clear()
                await self._room.wait()
            wait_s = pacing.delay_s(self._pacing, self._pace, self._clock.monotonic(), self._rng.random())
            if wait_s > 0:
                await self._clock.sleep(wait_s)
            try:
                ended = await self._fetch()
            except StreamError as error:
                await self._recover(error)

    async def _fetch(self) -> bool:
        """One attempt; True if it ended the shard."""
        iterator = await self._fresh_iterator()
        asked_s, asked_wall_s = self._clock.monotonic(), self._clock.wall()
        page = await self._bounded(self._streams.get_records(iterator, self._limit()), "GetRecords")
        logger.debug("%d records of shard %s", page.count, self.shard_id, extra=self._about("records_fetched", asked_s))
        verdict = judge(page, self._ends_without_children)
        if verdict is Verdict.INVALID:
            self._ends_without_children += page.next_iterator is None
            why = validate_end_of_shard(page.next_iterator, page.child_shards)
            raise InvalidStreamResponseError(f"GetRecords of shard {self.shard_id}: {why}")
        self._accept(page, asked_s, asked_wall_s)
        if page.count or (verdict is Verdict.GOES_ON and self._deliver_empty):
            self._deliver(Records(page), page)
        if verdict is Verdict.GOES_ON:
            return False
        self._deliver(ShardEnded(page.child_shards if verdict is Verdict.ENDED else ()))
        return True

    def _limit(self) -> int | None:
        if self._budget is None:
            return self._max_records
        return buffer.records_wanted(self._max_records, self._budget.share, self._record_bytes)

    def _accept(self, page: Page, asked_s: float, asked_wall_s: float) -> None:
        assert self._state is not None
        if positions.begins_after_gap(self._state, page):
            self._log_gap(self._state.start, page)
        self._state = positions.advanced(self._state, page, asked_wall_s)
        self._iterator = page.next_iterator
        self._iterator_issued_s = asked_s
        if page.count:
            self._record_bytes = page.data_bytes / page.count
        self._ends_without_children = 0
        self._pace = pacing.succeeded(self._clock.monotonic(), page.millis_behind_latest)
        if self._trouble is not None:
            self._trouble = None
            logger.info(
                "reading shard %s again", self.shard_id, extra={"action": "reader_recovered", "shard": self.shard_id}
            )

    def _deliver(self, delivery: Delivery, page: Page | None = None) -> None:
        self._buffer.put(delivery, records=page.count if page else 0, data_bytes=page.data_bytes if page else 0)
        self._arrived.set()

    def _log_gap(self, start: StartingPoint, page: Page) -> None:
        assert page.first_arrival_ms is not None
        arrived = datetime.fromtimestamp(page.first_arrival_ms / 1000, UTC).isoformat(timespec="seconds")
        logger.warning(
            "shard %s: the record at the checkpoint %s is past retention; reading goes on at %s, which arrived %s, and "
            "what came between them is lost",
            self.shard_id,
            start.sequence,
            page.first_sequence,
            arrived,
            extra={
                "action": "checkpoint_trimmed",
                "shard": self.shard_id,
                "checkpoint": start.sequence,
                "first": page.first_sequence,
                "first_arrival": arrived,
            },
        )

    async def _recover(self, error: StreamError) -> None:
        reaction = reaction_to(error)
        slower = reaction is Reaction.SAME_ITERATOR_SLOWER
        failure = pacing.Failure.THROTTLED if slower else pacing.Failure.ERROR
        self._pace = pacing.failed(self._pace, self._clock.monotonic(), failure)
        self._log(error, reaction)
        if reaction in (Reaction.NEW_ITERATOR, Reaction.ASK_CONSUMER):
            self._iterator = None
        if reaction is Reaction.ASK_CONSUMER:
            await self._report_missing()

    async def _report_missing(self) -> None:
        self._asked_again.clear()
        self._deliver(ShardMissing())
        await self._asked_again.wait()

    def _log(self, error: StreamError, reaction: Reaction) -> None:
        """Once per streak and kind of error; an expired iterator is everyday business."""
        level = logging.INFO if isinstance(error, IteratorExpiredError) else logging.WARNING
        if self._trouble is type(error):
            level = logging.DEBUG
        self._trouble = type(error)
        logger.log(
            level,
            "reading shard %s failed, going on with %s: %s",
            self.shard_id,
            reaction.value,
            error,
            extra={"action": "reader_failed", "shard": self.shard_id, "failures": self._pace.failures},
        )

    # --- iterators ----------------------------------------------------------------------------------------------------

    async def _fresh_iterator(self) -> str:
        age_s = self._clock.monotonic() - self._iterator_issued_s
        if self._iterator is not None and age_s < ITERATOR_AGE_MAX_S:
            return self._iterator
        assert self._state is not None
        return await self._renew_iterator(positions.restart_point(self._state))

    async def _renew_iterator(self, point: StartingPoint) -> str:
        issued_s = self._clock.monotonic()
        iterator = await self._bounded(self._streams.shard_iterator(self.shard_id, point), "GetShardIterator")
        self._iterator, self._iterator_issued_s = iterator, issued_s
        logger.debug("iterator of shard %s", self.shard_id, extra=self._about("reader_positioned", issued_s))
        return iterator

    def _about(self, action: str, asked_s: float) -> dict[str, object]:
        return {"action": action, "shard": self.shard_id, "took_ms": millis_since(self._clock, asked_s)}

    async def _bounded(self, call: Awaitable[T], operation: str) -> T:
        try:
            async with asyncio.timeout(self._call_timeout_s):
                return await call
        except TimeoutError:
            reason = f"{operation} of shard {self.shard_id}: no answer within {self._call_timeout_s:g} s"
            raise StreamUnavailableError(reason) from None
