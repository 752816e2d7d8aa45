"""`ShardReader`: a task that fetches one shard into a bounded buffer, from which its consumer takes.

Rules: retrieval#reader-promises, retrieval#prefetch-limits. The subclasses `polling.PollingReader` and
`fanout.FanOutReader` bring the coroutine that fetches. A reader never drops a page, and never ends a shard because
Kinesis does not find it. It reports records that the stream dropped before they were read (`losses`).
"""

from __future__ import annotations

import asyncio
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from dataclasses import dataclass, field
from random import Random

from mld.core.clock import Clock
from mld.core.error_boundary import survived
from mld.core.errors import (
    InvalidStreamResponseError,
    StreamError,
)
from mld.core.log_fields import about
from mld.core.positions import InitialPosition, Position
from mld.core.streams import ChildShard, FanOut, Page, StartingPoint, Streams, validate_end_of_shard
from mld.metrics.shard import ShardMetrics
from mld.retrieval import starting_points
from mld.retrieval.answer_verdicts import AnswerVerdict, judge
from mld.retrieval.losses import EVIDENCE_S, Losses, Proofs
from mld.retrieval.prefetch import Budget, PrefetchBuffer
from mld.retrieval.starting_points import ReadState, lacks_timestamp, starting_point

logger = logging.getLogger(__name__)

SAY_EVERY_S = 5.0
"""How often a reader reports progress. It does not report each of its polls, of which there may be hundreds a
second."""
TIP_MARGIN_S = 10.0
"""How far our clock may be behind the clock of Kinesis before old records are taken for records newer than the
start."""
STOP_TIMEOUT_S = 5.0
"""Longest wait for the end of the fetch task. It takes one turn of the loop, unless an adapter swallows the
cancellation."""


@dataclass(frozen=True, slots=True)
class Records:
    """The next page. It may be empty, and still shows how far the reader lags.

    `is_tip`: nothing came after it when it was read, or it arrived after the reader's start, so everything from before
    the start has been read. The second case is for streams that are never quiet and whose service does not report the
    lag.
    """

    page: Page
    is_tip: bool = False


@dataclass(frozen=True, slots=True)
class EndOfShard:
    """All records were delivered, including those of the answer that ended the shard. Nothing follows.

    `children` is empty if Kinesis ended the shard again and again without naming them: look them up in the listing.
    """

    children: tuple[ChildShard, ...]


@dataclass(frozen=True, slots=True)
class ShardMissing:
    """Kinesis answered ResourceNotFound: the shard is past its retention, or the stream is deleted or the wrong one.
    This is never the end of a shard. When asked for the next delivery, the reader tries again from the same place.
    """


Delivery = Records | EndOfShard | ShardMissing


@dataclass(frozen=True, slots=True)
class ReaderShares:
    """Objects that all readers of a worker share. `on_a_beat`: readers at the tip wake together
    (`retrieval.pacing`).
    """

    clock: Clock
    rng: Random
    budget: Budget
    on_a_beat: bool = False
    proofs: Proofs = field(default_factory=Proofs)


class ShardReader(ABC):
    """Reads one shard ahead of its consumer. Single use: `start`, then `next` until `EndOfShard`, or `stop`.

    Without `deliver_empty` the consumer gets no pages without records; at the tip of a quiet shard every page is one.
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
        self._is_newest_tip = False  # the last answer was at the tip
        self._is_taken_tip = False  # the last page that the consumer took was at the tip
        self._is_awaited = False  # the consumer has processed everything it took, and waits

    @property
    @abstractmethod
    def read(self) -> ReadState | None:
        """How far the reader has come, ahead of its consumer; None before its start.

        Its `anchor_s` is for `start` of the lease's next reader, in case the checkpoint is still LATEST then
        (retrieval#restart-of-latest); None if no reader of the lease started from LATEST. It may be read at any time:
        it only grows, but never beyond the arrival of a record received since the first start.
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

        `anchor` is the `anchor_s` of an earlier reader of the lease; it matters only if the checkpoint is LATEST.
        Everything that had arrived by `read_to_s` (epoch seconds) is before the checkpoint; None if unknown. Raises
        StreamError, but not for a shard that is not found: then `next` delivers `ShardMissing`.
        """

    async def next(self) -> Delivery:
        """Wait for the next delivery and return it. That frees its place in the buffer.

        May be cancelled without loss. Any other exception is a bug of the fetch task, or of a caller that asks after
        `EndOfShard` or `stop`.
        """
        assert self._task is not None and not self._over, "nothing follows the end of a reader"
        if self._missing_reported:
            self._missing_reported = False
            self._asked_again.set()
        if self._is_taken_tip or (self._is_newest_tip and self._buffer.is_empty):
            self._metrics.reached_tip()
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
        """Stop fetching and drop the buffer. May be called at any time, and repeatedly."""
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
        """Promise the liveness probe that the next thing the reader does ends within `seconds`, whatever AWS does.

        The promise holds until `_say_again_s`, so it need not be repeated before, unless more time is needed.
        """
        now = self._clock.monotonic()
        self._say_again_s = now + SAY_EVERY_S
        self._metrics.progress.step(self._promise, now, SAY_EVERY_S + seconds)

    def _waits_for_others(self) -> None:
        """Take back the promise: the reader waits for its consumer, or for something without a time limit."""
        self._say_again_s = -math.inf
        self._metrics.progress.rest(self._promise)

    async def _until_room(self) -> None:
        while not self._buffer.has_room:
            self._waits_for_others()
            self._room.clear()
            await self._room.wait()

    def _judge(self, page: Page, what: str) -> AnswerVerdict:
        """Return the verdict on an answer. Raises InvalidStreamResponseError for an answer that must be discarded."""
        verdict = judge(page, self._ends_without_children)
        if verdict is AnswerVerdict.INVALID:
            self._ends_without_children += page.next_iterator is None
            why = validate_end_of_shard(page.next_iterator, page.child_shards)
            raise InvalidStreamResponseError(f"{what} of shard {self.shard_id}: {why}")
        return verdict

    def _hand_over(self, read: ReadState, page: Page, verdict: AnswerVerdict, *, is_full: bool = False) -> bool:
        """Deliver a page that came after `read`, and the end of the shard if the page ended it; True if it did.

        A record that was read a second time goes along with others, for the consumer's checkpoint filter; a page that
        has nothing else is dropped. `is_full`: the page has as many records as were asked for. Some stand-ins report "0
        ms behind" even then.
        """
        self._is_newest_tip = (page.millis_behind_latest == 0 and not is_full) or self._is_newer_than_start(page)
        is_empty_wanted = verdict is AnswerVerdict.GOES_ON and self._deliver_empty
        if (page.count or is_empty_wanted) and not starting_points.is_proof_alone(read, page):
            self._deliver(Records(page, self._is_newest_tip), page)
        elif page.millis_behind_latest is not None and self._buffer.is_empty:
            # No page waits for the child, so this is the lag of the shard. Otherwise the waiting pages show it.
            self._metrics.saw_lag(page.millis_behind_latest, self._clock.wall())
            if self._is_awaited and self._is_newest_tip:
                self._metrics.reached_tip()  # records that a failed child had are processed by now, or skipped
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
        """Report records that the stream dropped between `read` and this answer, if the answer shows such a gap."""
        if starting_points.lacks_record(read, page):
            self._goes_on_within(EVIDENCE_S)
            await self._losses.look_into(read, page)

    def _stream_error(self, error: Exception, doing: str) -> StreamError:
        """Return the error as a StreamError. Raises other errors of ours, and broken invariants."""
        failure = survived(error, doing, self.shard_id)
        if not isinstance(failure, StreamError):
            raise failure
        return failure

    def _level_of(self, error: StreamError, first: int = logging.WARNING) -> int:
        """Count a failed read and return its log level: `first`, or DEBUG if the same error was logged a moment ago."""
        return first if self._metrics.failed_reads.failed(error, self._clock.wall()) else logging.DEBUG

    def _recovered(self) -> None:
        """Note that an answer was accepted, and log the end of failures if there were any."""
        self._ends_without_children = 0
        if failed := self._metrics.read_again():
            logging.getLogger(type(self).__module__).info(
                "reading shard %s again", self.shard_id, extra=about("reader_recovered", self.shard_id, failures=failed)
            )
