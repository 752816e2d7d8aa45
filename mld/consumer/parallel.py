"""`ParallelProcessor`: makes several children of one shard look like one record processor to the consumer.

Rules: parallel#promises, parallel#safe-prefix, parallel#failures. A page is divided by partition key
(`protocol.sharing`) and put into the queues of the children; the consumer goes on reading at once. Each child takes
from its own queue. So a slow key delays only its own child, until the waiting records fill the shard's share of memory.
Answers and checkpoints do not come in the order of the records: `SafePrefix` decides how far the row may advance, and
`PrefixWriter` stores that position.

If one child fails, all of them are ended, and the shard continues from the safe prefix with new children. If only the
failed child were restarted, all records that the other children have not checkpointed would have to be kept in memory,
without a limit. When all children are new, the records of every key come in order from the prefix on, as at any other
start.

During the search for a record that kills its child (`Bisecting`), a part is delivered only when the part before it is
answered, so that the search can treat all children as one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, Protocol, TypeVar

from mld.consumer.checkpoint_range import CheckpointRange, Illegal, Write
from mld.consumer.checkpoints import ShardCheckpoints
from mld.consumer.parts import JoinedBatch
from mld.consumer.ports import ChildProcess, Holds, Wanted, Written
from mld.consumer.prefix_writer import PrefixWriter
from mld.consumer.processor import CheckpointHandler, Processor
from mld.consumer.safe_prefix import SafePrefix, position_of
from mld.core.clock import Clock
from mld.core.positions import Position
from mld.core.steps import in_order
from mld.core.streams import ChildBatch, CountedRecords, PlainBatch
from mld.core.turns import in_turns
from mld.metrics.children import ChildLoad, ChildLoads
from mld.metrics.shard import ShardMetrics
from mld.properties.settings import ChildSettings
from mld.protocol.conversation import ProcessorError
from mld.protocol.messages import CheckpointErrorName, CheckpointRequest, Initialize
from mld.protocol.sharing import SharedLine, by_position, line_of_texts
from mld.retrieval.prefetch import Budget, memory_bytes

T = TypeVar("T")


class SharedBatch(PlainBatch):
    """The records of a page that one child gets.

    `texts` is their JSON, as `SharedLine` has cut it out of the page. `first` and `largest` are the positions of the
    first and the last of these `count` records, None if there are none.
    """

    def __init__(
        self,
        texts: Sequence[bytes],
        first: Position | None,
        largest: Position | None,
        count: int,
        millis_behind_latest: int | None,
    ) -> None:
        self.texts = texts
        self.first = first
        self.largest = largest
        self.count = count
        self.millis_behind_latest = millis_behind_latest

    @property
    def data_bytes(self) -> int:
        """The approximate size of the payloads: three quarters of the framed text, which is mostly base64."""
        return sum(map(len, self.texts)) * 3 // 4

    def line(self) -> Iterator[bytes]:
        return line_of_texts(self.texts, self.millis_behind_latest)


@dataclass(slots=True)
class PageInFlight:
    """A batch that was given to the children at `since` (monotonic seconds) and is not answered by all of them.
    `largest` is the position of its last record; None if it has none.
    """

    largest: Position | None
    count: int
    data_bytes: int
    since: float
    oldest_wall_s: float | None
    """When the first record of the batch arrived, in epoch seconds."""
    unanswered: int = 0
    """How many children have not answered their part of the batch."""

    @property
    def memory_bytes(self) -> int:
        return memory_bytes(self.count, self.data_bytes)


class Lane:
    """One child, with its queue of waiting batches, the batch that it works on, and the positions that it may
    checkpoint.
    """

    def __init__(self, processor: Processor, load: ChildLoad, checkpoint: Position) -> None:
        self.processor = processor
        self.load = load
        self.range = CheckpointRange.starting_at(checkpoint)
        self.waiting: deque[tuple[SharedBatch, PageInFlight]] = deque()
        self.in_hand: SharedBatch | None = None
        self.woken = asyncio.Event()  # set when a batch was queued
        self.refused = False
        """Whether a checkpoint was refused since the child's last answer. If it dies then, no record is blamed."""

    @property
    def is_idle(self) -> bool:
        return self.in_hand is None and not self.waiting

    def begin(self, now: float) -> None:
        """Note that the next waiting batch is being given to the child."""
        self.in_hand, _ = self.waiting.popleft()
        load = self.load
        load.in_hand, load.busy_since = self.in_hand.count, now
        load.waiting -= self.in_hand.count

    def written(self) -> None:
        """Note that the batch was written to the child's pipe, so that the child may checkpoint its records."""
        batch = self.in_hand
        if batch is not None and batch.first is not None and batch.largest is not None:
            self.range = self.range.deliver(batch.first, batch.largest)

    def answered(self) -> None:
        """Note that the child has answered the batch."""
        self.in_hand, self.load.in_hand, self.load.busy_since, self.refused = None, 0, None, False


class NewProcessor(Protocol):
    """Makes the processor of one child."""

    def __call__(self, child: ChildProcess, on_checkpoint: CheckpointHandler, number: int) -> Processor: ...


class ParallelProcessor:
    """Serves the `children` of one shard, listed by their numbers, from their start to their end.

    `may_deliver` returns whether records may be given now. `until_deliverable` waits until they may; it returns False
    if they never may again. `on_answered(batch, seconds)` is called for each batch when all children have answered this
    batch and all batches before it.
    """

    def __init__(
        self,
        children: Sequence[ChildProcess],
        new_processor: NewProcessor,
        checkpoints: ShardCheckpoints,
        clock: Clock,
        budget: Budget,
        metrics: ShardMetrics,
        *,
        delivers_empty: bool,
        may_deliver: Callable[[], bool],
        until_deliverable: Callable[[], Awaitable[bool]],
        on_answered: Callable[[CountedRecords, float], None],
    ) -> None:
        checkpoint = checkpoints.range.last
        self.initialized = False
        self.gone: asyncio.Future[NoReturn] = asyncio.get_running_loop().create_future()
        self.unanswered: tuple[ChildBatch, Position] | None = None
        self._checkpoints = checkpoints
        self._clock = clock
        self._budget = budget
        self._metrics = metrics
        self._delivers_empty = delivers_empty
        self._may_deliver = may_deliver
        self._until_deliverable = until_deliverable
        self._on_answered = on_answered
        self._prefix = SafePrefix(len(children), checkpoint)
        self._writer = PrefixWriter(self._prefix, checkpoints, clock)
        self._answered_to = checkpoint
        """Everything up to this position was answered by the child that got it."""
        self._pages: deque[PageInFlight] = deque()
        """The batches that not all children have answered, oldest first."""
        self._memory_bytes = 0
        """The memory that these batches take."""
        self._moved_wall_s: float | None = None
        """When a child last made progress (epoch seconds); None while nothing is unanswered."""
        self._progress = asyncio.Event()  # set whenever pages may have been answered
        self._turn = 0
        """The child whose turn it is to get the next record without a key."""
        self._is_closed = False
        """Whether no child gets records any more, because of a last action or a failure."""
        self._failed: Lane | None = None
        """The child that failed first."""
        loads = [ChildLoad(number, child.description) for number, child in enumerate(children)]
        self._loads = metrics.children = ChildLoads(loads, clock.monotonic())
        self._lanes = [
            Lane(new_processor(child, partial(self._note_checkpoint, load.number), load.number), load, checkpoint)
            for child, load in zip(children, loads, strict=True)
        ]
        self._serving = [asyncio.create_task(self._serve(lane)) for lane in self._lanes]
        for lane in self._lanes:
            lane.processor.gone.add_done_callback(partial(self._child_gone, lane))
        budget.join()

    # --- state --------------------------------------------------------------------------------------------------------

    @property
    def description(self) -> str:
        return f"{len(self._lanes)} children: {', '.join(lane.load.description for lane in self._lanes)}"

    @property
    def last_words(self) -> Sequence[str]:
        return () if self._failed is None else self._failed.processor.last_words

    @property
    def has_room(self) -> bool:
        """Whether another batch may be queued: the unanswered ones take less than half of the shard's share of the
        memory.
        """
        return not self._pages or self._memory_bytes < self._budget.share // 2

    async def until_room(self) -> None:
        await self._until(lambda: self.has_room)

    async def until_answered(self) -> None:
        await self._until(lambda: not self._pages)

    async def _until(self, is_so: Callable[[], bool]) -> None:
        """Wait until `is_so` returns True; it is called again whenever pages may have been answered."""
        while not is_so():
            self._progress.clear()
            await self._progress.wait()

    def adjust(self, settings: ChildSettings) -> None:
        """Apply changed settings to all children."""
        for lane in self._lanes:
            lane.processor.adjust(settings)

    # --- actions ------------------------------------------------------------------------------------------------------

    async def initialize(self, message: Initialize) -> None:
        """Send `initialize` to all children at the same time, and wait until all have answered."""
        await self._each(lambda lane: lane.processor.initialize(message))
        self.initialized = True

    async def process_records(
        self, batch: ChildBatch, wanted: Wanted, written: Written, holds: Holds, *, alone: bool
    ) -> bool:
        """Put the records of a batch into the queues of the children, if `wanted` still returns True; `written` is
        called just before that. With `alone` wait until the children have answered everything before the batch, and
        then the batch.

        Always return False, because the caller need not count the answer: `on_answered` does.
        """
        if alone:
            await self._unless_gone(self.until_answered())
        if not wanted():
            return False
        since, oldest_wall_s = self._clock.monotonic(), self._metrics.oldest_wall_s
        parts = await self._shared(batch)
        page = PageInFlight(batch.largest, batch.count, batch.data_bytes, since, oldest_wall_s)
        written()
        self._pages.append(page)
        self._memory_bytes += page.memory_bytes
        self._moved_wall_s = self._clock.wall() if self._moved_wall_s is None else self._moved_wall_s
        for lane, part in zip(self._lanes, parts, strict=True):
            if part is not None:
                page.unanswered += 1
                lane.waiting.append((part, page))
                lane.woken.set()
        self._note_answers()  # a page of which no child gets a part counts as answered
        if alone:
            await self._unless_gone(self.until_answered())
        return False

    async def shutdown_requested(self, checkpoint: str) -> None:
        await self._last_action(lambda lane: lane.processor.shutdown_requested(checkpoint))

    async def lease_lost(self) -> None:
        await self._last_action(lambda lane: lane.processor.lease_lost())

    async def shard_ended(self, written: Written) -> None:
        """Give the children `shardEnded`, and wait until all have answered. No batches wait in queues any more,
        because the consumer has waited for all answers before (`until_answered`). `written` is called for each child
        (`Lane`) to which the action was written.
        """

        def on_written(lane: Lane) -> None:
            """Note that the action was written to this child, which may checkpoint the end of the shard from now on."""
            written()
            lane.range = lane.range.at_shard_end()

        await self._last_action(lambda lane: lane.processor.shard_ended(partial(on_written, lane)))

    def kill_soon(self) -> None:
        """Kill the children, even during an action, which then fails. Call `end` afterwards."""
        for lane in self._lanes:
            lane.processor.kill_soon()

    async def end(self) -> str:
        """End all children, store the last checkpoint, and return how they ended."""
        self._is_closed = True
        self.gone.cancel()  # from now on the exit of a child is no failure
        try:
            ended = await asyncio.gather(*(lane.processor.end() for lane in self._lanes))
            await asyncio.gather(*map(self._until_served, self._lanes))
            await self._writer.close()
        finally:
            self._leave()
        return self._in_words(ended)

    async def kill(self) -> str:
        """Kill all children now, give up what is not stored yet, and return how they ended."""
        self.gone.cancel()  # from now on the exit of a child is no failure
        try:
            ended = await asyncio.gather(*(lane.processor.kill() for lane in self._lanes))
            await self._writer.cancel()
        finally:
            self._leave()
        return self._in_words(ended)

    def _in_words(self, ended: Sequence[str]) -> str:
        """Return a text that says how the children ended; if one failed, only how that one ended."""
        if self._failed is not None:
            return f"child {self._failed.load.number} of {len(ended)}: {ended[self._failed.load.number]}"
        return f"{len(ended)} children: {', '.join(sorted(set(ended)))}"

    def _leave(self) -> None:
        """Stop serving the children, and give back their share of the memory."""
        for task in self._serving:
            task.cancel()
        self._budget.leave()
        self._metrics.children = self._metrics.busy_since = None
        self._metrics.outstanding = 0

    # --- each child ---------------------------------------------------------------------------------------------------

    async def _shared(self, batch: ChildBatch) -> list[SharedBatch | None]:
        """Share a batch out among the children by partition key, and note in the safe prefix which child gets which
        record. Return each child's part; None for a child that gets no records.

        `SharedLine` cuts the line of the batch into the texts of its records. If these are not in the order of their
        positions, the order that the safe prefix needs is found by sorting. If empty batches are wanted, an idle child
        without records gets an empty one, in case it wants to checkpoint.
        """
        line = SharedLine(len(self._lanes), self._turn)
        for piece in batch.line():
            line.feed(piece)
            await asyncio.sleep(0)
        self._turn, order, lag_ms = line.turn, line.order, batch.millis_behind_latest
        first_of, last_of = line.first_of, line.last_of  # each child's first and last record
        if not line.is_ordered:
            order = await in_turns(in_order(order, by_position))
            # The third part of a shared record is the number of its child. Of several records with the same number, a
            # dict keeps the one that comes last.
            first_of = {record[2]: record for record in reversed(order)}
            last_of = {record[2]: record for record in order}
        if order:
            self._prefix.given(order, last_of)
        now = self._clock.monotonic()
        parts: list[SharedBatch | None] = []
        for lane, texts in zip(self._lanes, line.texts, strict=True):
            child = lane.load.number
            if texts:
                first, last, count = position_of(first_of[child]), position_of(last_of[child]), line.counts[child]
                parts.append(SharedBatch(texts, first, last, count, lag_ms))
                self._loads.given(child, count, now)
            elif self._delivers_empty and lane.is_idle:
                parts.append(SharedBatch((), None, None, 0, lag_ms))
            else:
                parts.append(None)
        return parts

    async def _serve(self, lane: Lane) -> None:
        """Give a child the batches in its queue (`lane.waiting`) one after another, until a stop or a failure. A
        failure is not raised here, but in the consumer (`gone`).
        """
        try:
            while not self._is_closed:
                if not lane.waiting:
                    lane.woken.clear()
                    await lane.woken.wait()
                elif await self._until_deliverable():
                    await self._give(lane, *lane.waiting[0])
                else:
                    return
        except Exception as error:  # any error, even one caused by a bug, is raised in the consumer
            self._fail(lane, error)

    async def _give(self, lane: Lane, batch: SharedBatch, page: PageInFlight) -> None:
        """Give a child `batch`, the first of its waiting batches and its part of `page`, and wait for the answer. If
        the batch may not be delivered now, it stays in the queue.
        """

        def wanted() -> bool:
            """Return whether to send the batch. If so, note that the child works on it from now on."""
            if self._is_closed or not self._may_deliver():
                return False
            lane.begin(self._clock.monotonic())
            self._show()
            return True

        def holds() -> dict[str, object]:
            return {"records": batch.count, "first": str(batch.first), "last": str(batch.largest)}

        await lane.processor.process_records(batch, wanted, lane.written, holds)
        if lane.in_hand is batch:  # it was sent, and is answered
            lane.answered()
            page.unanswered -= 1
            self._note_answers()
        else:
            await asyncio.sleep(0)  # the batch may not be delivered yet: `_serve` waits again

    def _note_answers(self) -> None:
        """Remove the pages that all children have answered, in order, and report them."""
        now = self._clock.monotonic()
        while self._pages and not self._pages[0].unanswered:
            page = self._pages.popleft()
            self._memory_bytes -= page.memory_bytes
            self._answered_to = page.largest or self._answered_to
            self._moved_wall_s = self._clock.wall() if self._pages else None
            self._on_answered(page, now - page.since)
        self._show()
        self._progress.set()

    def _show(self) -> None:
        """Report what the children have in flight, and since when they are busy, to the shard's metrics."""
        self._metrics.busy_since = self._loads.busy_since
        if self._pages:
            self._metrics.in_flight(len(self._pages), self._pages[0].oldest_wall_s, self._moved_wall_s)
        elif self._metrics.outstanding:
            self._metrics.done()

    async def _note_checkpoint(self, number: int, request: CheckpointRequest) -> CheckpointErrorName | None:
        """Check a child's checkpoint against the records that it was given, and note it in memory; the row is written
        later. Return None if it is noted, else the error name for the child.
        """
        lane = self._lanes[number]
        error = None
        match lane.range.resolve(request.sequence_number, request.sub_sequence_number):
            case Illegal(reason):
                error = self._checkpoints.refuse(f"child {number}: {reason}")
            case Write() if self._writer.is_closed:
                error = CheckpointErrorName.SHUTDOWN
            case Write(position):
                lane.range = lane.range.written(position)
                self._writer.confirmed(number, position)
        lane.refused = lane.refused or error is not None
        return error

    # --- failures and ends --------------------------------------------------------------------------------------------

    def _child_gone(self, lane: Lane, gone: asyncio.Future[NoReturn]) -> None:
        """Note the failure of a child that can no longer answer, unless its end was expected."""
        if not gone.cancelled() and (error := gone.exception()) is not None:
            self._fail(lane, error)

    def _fail(self, lane: Lane, error: BaseException) -> None:
        """Note the first failure of a child; from now on no child gets records. If the child was working on records and
        no checkpoint of it was refused, note the unanswered records of all children (`unanswered`).
        """
        if self.gone.done():
            return
        self._is_closed, self._failed = True, lane
        if lane.in_hand is not None and not lane.refused:
            in_hand = [other.in_hand for other in self._lanes]
            held = [batch for batch in in_hand if batch is not None and batch.largest is not None]
            if held:
                last = max(held, key=lambda batch: batch.largest or self._answered_to)
                self.unanswered = JoinedBatch(held, last), self._answered_to
        self.gone.set_exception(error)
        self.gone.exception()  # so that asyncio does not log it as never retrieved

    async def _unless_gone(self, waiting: Coroutine[Any, Any, None]) -> None:
        """Await `waiting`. Raises ProcessorError if a child fails before it is done."""
        task = asyncio.ensure_future(waiting)
        try:
            either: set[asyncio.Future[Any]] = {task, self.gone}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            task.cancel()
        if self.gone.done():
            self.gone.result()

    async def _until_served(self, lane: Lane) -> None:
        """Wait until a child has answered the batch that it works on, if any. Call it after `_is_closed` was set:
        then `_serve` gives the child none of its waiting batches, and ends after this answer.
        """
        serving = self._serving[lane.load.number]
        if lane.in_hand is None:
            serving.cancel()
        await asyncio.wait({serving})

    async def _last_action(self, act: Callable[[Lane], Awaitable[None]]) -> None:
        """Perform an action with each child as soon as the child has answered its present batch. From now on no child
        gets records. When all have answered, store the safe prefix.
        """

        async def finish(lane: Lane) -> None:
            """Perform the action with one child when it has answered its batch."""
            await self._until_served(lane)
            if self.gone.done():  # meanwhile a child has failed, so all of them are ended
                self.gone.result()
            await act(lane)

        self._is_closed = True
        try:
            await self._each(finish)
        finally:
            await self._writer.flush()

    async def _each(self, act: Callable[[Lane], Awaitable[None]]) -> None:
        """Perform an action with all children at the same time. When all are done, raise the first failure."""
        results = await asyncio.gather(*(act(lane) for lane in self._lanes), return_exceptions=True)
        for lane, result in zip(self._lanes, results, strict=True):
            if isinstance(result, ProcessorError):
                self._fail(lane, result)
        for result in results:
            if isinstance(result, BaseException):
                raise result


async def all_or_none(starting: Iterable[Coroutine[Any, Any, ChildProcess]]) -> list[ChildProcess]:
    """Start all children and return them. If one cannot start, or this is cancelled, kill those that have started."""
    starts = [asyncio.ensure_future(start) for start in starting]
    try:
        return await asyncio.gather(*starts)
    except BaseException:
        for start in starts:
            start.cancel()
        results = await asyncio.gather(*starts, return_exceptions=True)
        await asyncio.gather(*(result.kill() for result in results if not isinstance(result, BaseException)))
        raise
