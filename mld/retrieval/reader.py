"""`ShardReader`: a task that fetches one shard into a bounded buffer, from which its consumer takes.

Rules: retrieval#reader-promises, retrieval#prefetch-limits. The subclasses `polling.PollingReader` and
`fanout.FanOutReader` have the coroutine that fetches. A reader never drops a page with new records, and never takes a
shard for ended because Kinesis does not find it. It reports records that the stream dropped before they were read
(`losses`).
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

PROMISE_EVERY_S = 5.0
"""How often a reader reports progress to the liveness probe. It does not report each of its polls, because a worker may
make hundreds a second."""
TIP_MARGIN_S = 10.0
"""A record counts as newer than the reader's start if it arrived this much later, because our clock may be behind the
clock of Kinesis."""
STOP_TIMEOUT_S = 5.0
"""Longest wait for the end of the fetch task. Usually it ends in one turn of the loop, but an adapter might swallow the
cancellation."""


@dataclass(frozen=True, slots=True)
class Records:
    """The next page. It may be empty, and still shows how far the reader lags.

    `is_tip`: with this page, everything that was in the shard at the reader's start has been read. Either no record
    followed the page when it was read, or its records arrived after the reader's start. The second case is for streams
    that are never quiet and whose service does not report the lag.
    """

    page: Page
    is_tip: bool = False


@dataclass(frozen=True, slots=True)
class EndOfShard:
    """All records were delivered, including those of the answer that ended the shard. Nothing follows.

    `children` is empty if Kinesis has ended the shard several times without naming its children. The consumer then has
    to look for them in the list of shards.
    """

    children: tuple[ChildShard, ...]


@dataclass(frozen=True, slots=True)
class ShardMissing:
    """Kinesis answered ResourceNotFound: the shard is past its retention, or the stream is deleted or the wrong one.

    This does not mean that the shard has ended. If the consumer asks for the next delivery, the reader tries again from
    the same place.
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
    """Reads one shard ahead of its consumer. It is used once: call `start`, then `next` until `EndOfShard`, or `stop`.

    Without `deliver_empty` the consumer gets no pages without records; at the tip of a quiet shard no page has any.
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
        """Make a reader that is not started yet. `shares` has what all readers of the worker share. `source` and
        `streams` are asked whether missing records were lost (`Losses`). The buffer holds at most `pages_max` pages.
        """
        self.shard_id = shard_id
        self._metrics = ShardMetrics(shard_id, 0.0) if metrics is None else metrics
        self._losses = Losses(source, streams, shard_id, shares.clock, self._metrics, shares.proofs)
        self._promise = f"reader of {shard_id}"  # names this reader's promise to the liveness probe
        self._promise_due_s = -math.inf  # when this promise has to be repeated (monotonic)
        self._clock = shares.clock
        self._rng = shares.rng
        self._budget = shares.budget
        self._buffer = PrefetchBuffer[Delivery](shares.budget, pages_max)
        self._metrics.waiting_bytes = lambda: self._buffer.data_bytes
        self._deliver_empty = deliver_empty
        self._ends_without_children = 0  # how many answers in a row have ended the shard without usable children
        self._task: asyncio.Task[None] | None = None  # the fetch task
        self._arrived = asyncio.Event()  # a delivery is in the buffer, or the fetch task is over
        self._room = asyncio.Event()  # the consumer took a delivery
        self._asked_again = asyncio.Event()  # the consumer wants more although the shard was reported missing
        self._missing_reported = False  # whether the last delivery was `ShardMissing`
        self._began_s = math.inf  # when the fetch task was started (epoch seconds)
        self._over = False  # EndOfShard was handed out, or `stop` was called
        self._is_newest_tip = False  # `is_tip` of the last page that was fetched
        self._is_taken_tip = False  # `is_tip` of the last page that the consumer took
        self._is_awaited = False  # the consumer has processed everything it took, and waits

    @property
    @abstractmethod
    def read(self) -> ReadState | None:
        """How far the reader has come, ahead of its consumer; None before its start.

        Give its `anchor_s` to `start` of the lease's next reader, in case the checkpoint is still LATEST then
        (retrieval#restart-of-latest). It is None if no reader of the lease started from LATEST. It may be taken at any
        time: it only grows, and never exceeds the arrival time of a record that was received since the first start.
        """

    @abstractmethod
    async def start(
        self,
        checkpoint: Position,
        initial: InitialPosition,
        anchor: float | None = None,
        read_to_s: float | None = None,
    ) -> None:
        """Begin to fetch. If this raises an error, it may be called again.

        `anchor` is the `anchor_s` of an earlier reader of the lease; it is used only if the checkpoint is LATEST.
        Everything that had arrived by `read_to_s` (epoch seconds) is before the checkpoint; None if unknown. Raises
        StreamError. If the shard is not found, it raises nothing, and `next` delivers `ShardMissing`.
        """

    async def next(self) -> Delivery:
        """Wait for the next delivery, remove it from the buffer and return it.

        A caller that asks for the next delivery has processed the one before. So this call notes that the tip is
        reached, and lets a reader whose shard was missing try again.

        May be cancelled; no delivery is lost then. Any other exception is due to a bug in the fetch task, or in a
        caller that asks after `EndOfShard` or `stop`.
        """
        assert self._task is not None and not self._over, "nothing follows the end of a reader"
        if self._missing_reported:
            self._missing_reported = False
            self._asked_again.set()
        # The newest page may be missing in the buffer although nobody took it: an empty page need not be delivered.
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
        """Stop fetching, and drop what is in the buffer. May be called at any time, and repeatedly."""
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
        """Return where reading starts. Logs a warning if a time stamp is needed and none is configured."""
        assert self._task is None and not self._over, "a reader is started once"
        if lacks_timestamp(checkpoint, initial):
            logger.warning(
                "shard %s is to be read from a time stamp, but none is configured; reading from TRIM_HORIZON",
                self.shard_id,
                extra=about("reader_start", self.shard_id),
            )
        return starting_point(checkpoint, initial, anchor)

    def _begin(self, fetching: Coroutine[None, None, None]) -> None:
        """Start the fetch task, which runs `fetching`."""
        self._began_s = self._clock.wall()
        self._task = asyncio.create_task(fetching, name=f"prefetch-{self.shard_id}")
        self._task.add_done_callback(self._fetching_ended)
        self._budget.join()

    def _fetching_ended(self, _: asyncio.Task[None]) -> None:
        """Let the consumer see the end of the fetch task, and give back the share of the memory budget."""
        self._withdraw_promise()
        self._arrived.set()
        self._budget.leave()

    def _promise_progress_within(self, seconds: float) -> None:
        """Promise the liveness probe that the reader's next step ends within `seconds`, even if AWS is slow.

        The promise must be repeated from `_promise_due_s` on, or earlier if more time is needed.
        """
        now = self._clock.monotonic()
        self._promise_due_s = now + PROMISE_EVERY_S
        self._metrics.progress.step(self._promise, now, PROMISE_EVERY_S + seconds)

    def _withdraw_promise(self) -> None:
        """Take back the promise: the reader waits for its consumer, or for something without a time limit."""
        self._promise_due_s = -math.inf
        self._metrics.progress.rest(self._promise)

    async def _until_room(self) -> None:
        """Wait until the buffer has room for another page."""
        while not self._buffer.has_room:
            self._withdraw_promise()
            self._room.clear()
            await self._room.wait()

    def _judge(self, page: Page, what: str) -> AnswerVerdict:
        """Return the verdict on an answer; `what` names the answer in the error. Raises InvalidStreamResponseError for
        an answer that must be discarded. If this answer ends the shard without usable children, count it, because
        `judge` believes the last of ENDS_WITHOUT_CHILDREN_MAX of them in a row.
        """
        verdict = judge(page, self._ends_without_children)
        if verdict is AnswerVerdict.INVALID:
            if page.next_iterator is None:
                self._ends_without_children += 1
            why = validate_end_of_shard(page.next_iterator, page.child_shards)
            raise InvalidStreamResponseError(f"{what} of shard {self.shard_id}: {why}")
        return verdict

    def _hand_over(self, read: ReadState, page: Page, verdict: AnswerVerdict, *, is_full: bool = False) -> bool:
        """Deliver a page, and the end of the shard if the page ends it. Return whether it does.

        `read` is the state before the page. The page may begin with a record that was asked for a second time. The
        consumer's checkpoint filter removes this record; if the page has no other, the page is dropped here. `is_full`
        says that the page has as many records as were asked for. Such a page is not taken for the tip, because some
        stand-ins of Kinesis report "0 ms behind" even if more records follow.
        """
        self._is_newest_tip = (page.millis_behind_latest == 0 and not is_full) or self._is_newer_than_start(page)
        is_empty_wanted = verdict is AnswerVerdict.GOES_ON and self._deliver_empty
        if (page.count or is_empty_wanted) and not starting_points.is_proof_alone(read, page):
            self._deliver(Records(page, self._is_newest_tip), page)
        elif page.millis_behind_latest is not None and self._buffer.is_empty:
            # No page waits for the child, so this is the lag of the shard. Otherwise the waiting pages show the lag.
            self._metrics.saw_lag(page.millis_behind_latest, self._clock.wall())
            if self._is_awaited and self._is_newest_tip:
                self._metrics.reached_tip()  # the consumer has processed, or skipped, all that it took
        if verdict is AnswerVerdict.GOES_ON:
            return False
        self._deliver(EndOfShard(page.child_shards if verdict is AnswerVerdict.ENDED else ()))
        return True

    def _is_newer_than_start(self, page: Page) -> bool:
        """Return whether the first record of a page certainly arrived after the reader's start."""
        arrived_ms = page.first_arrival_ms
        return arrived_ms is not None and arrived_ms / 1000 >= self._began_s + TIP_MARGIN_S

    def _deliver(self, delivery: Delivery, page: Page | None = None) -> None:
        """Put a delivery into the buffer, and wake the consumer."""
        self._buffer.put(delivery, records=page.count if page else 0, data_bytes=page.data_bytes if page else 0)
        self._arrived.set()

    async def _report_missing(self) -> None:
        """Deliver `ShardMissing`, and wait until the consumer asks for the next delivery."""
        self._withdraw_promise()
        self._asked_again.clear()
        self._deliver(ShardMissing())
        await self._asked_again.wait()

    async def _report_loss(self, read: ReadState, page: Page) -> None:
        """Report records that the stream dropped between `read` and this answer, if the answer shows such a gap."""
        if starting_points.lacks_record(read, page):
            self._promise_progress_within(EVIDENCE_S)
            await self._losses.look_into(read, page)

    def _stream_error(self, error: Exception, doing: str) -> StreamError:
        """Return `error` if it is a StreamError. An exception of Python or of a library is logged, and an
        `UnexpectedError` is returned in its place. Any other error of mld, and an AssertionError, is raised.
        """
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
