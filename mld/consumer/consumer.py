"""`ShardConsumer`: processes one shard, by performing the activity of each state of `lifecycle`.

Rules: shards#consumer-life-cycle, shards#checkpoints-by-the-child, retrieval#order-of-preparation,
protocol#order-of-actions and protocol#failed-children. One consumer serves one holding of a lease (key and token). It
never advances a checkpoint by itself, except past a record that was written to a dead letter. A new child starts from
the last checkpoint.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from mld.consumer.aggregate_reports import AggregateReports
from mld.consumer.checkpoints import ShardCheckpoints
from mld.consumer.consumer_parts import ConsumerParts
from mld.consumer.failure_words import in_words
from mld.consumer.failures import RESTART_REASONS, Failures
from mld.consumer.lifecycle import ACTIVITIES, ENDINGS, PARKED, ActivityOutcome, ConsumerState, StopReason, next_state
from mld.consumer.parallel import ParallelProcessor, all_or_none
from mld.consumer.parts import Part, batch_of, holding_of, holding_part, records_of
from mld.consumer.ports import ChildProcess, ChildStartError, ShardAddress
from mld.consumer.processor import CheckpointHandler, Processor
from mld.consumer.record_budgets import RecordBudgets
from mld.consumer.shard_care import EndVerdict, MissingVerdict
from mld.consumer.shard_processor import ShardProcessor
from mld.consumer.stopping import Stopping
from mld.consumer.wishes import Wishes
from mld.core.clock import millis_since
from mld.core.error_boundary import contained
from mld.core.errors import LeaseLostError, StreamError, TableError
from mld.core.log_fields import about
from mld.core.positions import Position
from mld.core.streams import ChildBatch, ChildShard, CountedRecords, Page
from mld.leases.lease import Lease, read_to_s
from mld.leases.validity import HeldLease
from mld.metrics.events import EventKind
from mld.metrics.trend import Trend
from mld.properties.settings import ChildSettings
from mld.protocol.conversation import ProcessorError, ProcessorGoneError
from mld.protocol.messages import Dialect, Initialize
from mld.retrieval.losses import Suspicion, report
from mld.retrieval.reader import Delivery, EndOfShard, Records, ShardMissing, ShardReader

log = logging.getLogger(__name__)

RETRY_DELAY_MAX_S = 20.0  # the longest pause before an iterator, or the lease table, is tried again
SHARD_END_RETRY_MAX_S = 2.0  # the longest pause while a shard ends; shorter, because its child shards wait
ENDS_DOUBTED_MAX = 6  # how often a doubtful end is read again; this takes half a minute
LAST_WORDS_LOGGED = 10  # lines of stderr that are logged when a child has failed
PARKED_POLL_FIRST_S = 2.0  # the pause before a shard that was "not found" is looked for again;
PARKED_POLL_MAX_S = 60.0  # it doubles up to this, as a person may have to correct a name or a region
TRY_ALONE = "; `mld conformance -- COMMAND` tries the program without a stream"
"""What to do about a child that has not even answered `initialize`: it may not be a record processor at all."""


class ShardConsumer:
    """Processes one shard for as long as its lease is held. `run()` returns when nothing is left to do."""

    def __init__(self, held: HeldLease, parts: ConsumerParts, settings: ChildSettings) -> None:
        self.key = held.lease.key
        self.token = held.token
        self.state = ConsumerState.WAITING_ON_PARENTS
        self.part = parts.metrics.begin(self.key, parts.clock.monotonic())  # the metrics of this shard
        if (status := held.lease.status) is not None:
            self.part.trend = Trend(status.trend or "", status.at_s)
        self.aggregates = AggregateReports(self.key, self.part.dropped_aggregates)
        self._budgets = RecordBudgets(self.key, parts.clock, self.part)
        self._trace = parts.traces.begin(self.key, parts.clock)
        self._lease = held.lease
        self._parts = parts
        self._source = parts.source_of(held.lease)
        self._settings = settings
        self._stopping = Stopping(parts.clock)
        self._pause = self._stopping.pause
        self._wishes = Wishes(held.lease, self.part.paused)
        self._processor: ShardProcessor | None = None
        self._reader: ShardReader | None = None
        self._delivered = held.lease.checkpoint  # last position that the child got; its next records come after it
        self._anchor_s: float | None = None  # epoch seconds at which reading at LATEST began, for the next reader
        self._read_to_s = read_to_s(held.lease)  # epoch seconds; all records that arrived earlier are checkpointed
        self._children: Sequence[ChildShard] = ()  # as named by the end of the shard
        self._failures = Failures(held, parts, settings, self._budgets.letters)
        self._checkpoints = ShardCheckpoints(held, parts, self.part, self._failures.moved, self.lose_lease)
        self._parked_poll_s = PARKED_POLL_FIRST_S
        self._why_parked = PARKED
        self._retries = 0  # consecutive retries of an activity
        self._ends_doubted = 0  # how often the shard's end was doubted since the last records came

    # --- requests from outside ---------------------------------------------------------------------------------------

    def request_stop(self) -> None:
        """Stop: let the child finish its batch, announce the shutdown to it, release the lease, finish."""
        self._stopping.ask(StopReason.REQUESTED)

    def hand_off(self) -> None:
        """Give the lease to the worker that waits for it: let the child finish its batch, announce the shutdown to it,
        transfer the lease, finish.
        """
        self._stopping.ask(StopReason.HANDOFF)

    def lose_lease(self) -> None:
        """Stop because the lease is lost: deliver nothing more, and send `leaseLost` to the child."""
        self._stopping.ask(StopReason.LEASE_LOST)

    def heed(self, lease: Lease) -> None:
        """Follow the operator's requests in `lease`, the row as it was just read (`Wishes`). Kill the child if the
        operator wants a new one.
        """
        if self._wishes.heed(lease, is_waiting=self.state is ConsumerState.BACKING_OFF) and self._processor:
            self._processor.kill_soon()

    def adjust(self, settings: ChildSettings) -> None:
        """Use the time limits and pauses of `settings` from now on. A wait that is under way keeps its old limit."""
        self._settings = settings
        self._failures.adjust(settings)
        if self._processor is not None:
            self._processor.adjust(settings)

    async def run(self) -> None:
        """Perform the activity of each state until the consumer is finished. Whatever ends it, the child and the reader
        do not outlive it (`_abandon`).
        """
        try:
            while self.state is not ConsumerState.FINISHED:
                outcome = await PERFORM[self.state](self)
                self._enter(next_state(self.state, outcome, self._stopping.stop))
        finally:
            try:
                await self._abandon()
            finally:
                self._parts.traces.end(
                    self._trace, self._stopping.stop, is_complete=self._checkpoints.range.is_complete
                )

    def _enter(self, state: ConsumerState) -> None:
        """Change to `state`. If that is a different state, log the change and report it to the shard's metrics."""
        if state is not self.state:
            log.debug("%s -> %s", self.state.value, state.value, extra=about("consumer_state", self.key))
            if state is ConsumerState.PARKED:
                self.part.erred(self._why_parked, self._parts.clock.wall())
            self.part.entered(ACTIVITIES.get(state), is_ending=state in ENDINGS)
        self.state = state

    # --- activities --------------------------------------------------------------------------------------------------

    async def _wait_on_parents(self) -> ActivityOutcome:
        """Check the row (`_look_at_row`) if the parents of the shard are complete. Otherwise wait until a parent has
        changed, for `parent_poll_s` at most; the outcome is then RETRY. ALREADY_COMPLETE if the shard itself is.
        """
        if self._lease.is_complete:
            self._parts.care.ended(self._lease)
            return ActivityOutcome.ALREADY_COMPLETE
        changed = self._parts.parents_changed.current()
        try:
            if await contained(self._parts.care.parents_complete(self._lease), "looking at parents", self.key):
                return await self._look_at_row()
        except TableError as error:
            log.warning("cannot read the parents' leases: %s", error, extra=about("parents_unknown", self.key))
        await self._pause(self._settings.parent_poll_s, changed)
        return ActivityOutcome.RETRY

    async def _look_at_row(self) -> ActivityOutcome:
        """Compare the row with its shard. If the row cannot belong to the shard, the outcome is ROW_ODD, which parks
        the shard: nothing may be read from the row's position. If row and shard cannot be compared now, the row counts
        as sound, and the outcome is DONE.
        """
        try:
            odd = await contained(self._parts.care.oddity(self._lease), "looking at a row", self.key)
        except (StreamError, TableError) as error:
            log.warning("cannot compare the row with its shard: %s", error, extra=about("shard_unknown", self.key))
            return ActivityOutcome.DONE
        if odd is None:
            return ActivityOutcome.DONE
        self._why_parked = odd
        return ActivityOutcome.ROW_ODD

    async def _initialize(self) -> ActivityOutcome:
        """Take the checkpoint from the row, and start the reader and, if none runs, the child. RETRY if the lease is
        not held, or the stream refuses to be read; ALREADY_COMPLETE if the checkpoint is SHARD_END.
        """
        held = self._parts.keeper.held().get(self.key) if await self._is_ours() else None
        if held is None:
            return ActivityOutcome.RETRY
        # The keeper's copy comes from the answer to our own conditional write, so it is as fresh as a consistent read.
        # The first hash range is kept: it was compared with the shard's, which never changes.
        self._lease = replace(held.lease, hash_range=self._lease.hash_range or held.lease.hash_range)
        if self._lease.is_complete:
            await self._dismiss_child()
            self._parts.care.ended(self._lease)
            return ActivityOutcome.ALREADY_COMPLETE
        try:
            await self._start_reader_and_child()
        except StreamError as error:
            is_new = self.part.failed_reads.failed(error, self._parts.clock.wall())
            level = logging.WARNING if is_new else logging.DEBUG
            log.log(level, "cannot position in the shard: %s", error, extra=about("initialize_failed", self.key))
            if self._processor is not None and not self._processor.initialized:
                await self._dismiss_child()  # the next attempt starts one from the checkpoint that the row has then
            return await self._retry_later()
        except (ChildStartError, ProcessorError) as error:
            return await self._child_failed(error)
        self._retries = 0
        return ActivityOutcome.DONE

    async def _start_reader_and_child(self) -> None:
        """Position a new reader at the checkpoint, and meanwhile start the child, if none runs; then send `initialize`
        to a new child. Raises StreamError, ChildStartError or ProcessorError. If one of the two starts fails, the error
        is raised when the other one has ended, too.
        """
        await self._stop_reader()
        self._failures.resume(self._lease)
        if self._processor is None:
            self._checkpoints.begin(self._lease.checkpoint)
            self._delivered = self._lease.checkpoint
        reader = self._source.new_reader(self._lease.shard_id, self.part)
        self._reader = reader
        positioned, started = await asyncio.gather(
            reader.start(self._lease.checkpoint, self._source.initial, self._anchor_s, self._read_to_s),
            self._ensure_child(),
            return_exceptions=True,
        )
        for result in (positioned, started):
            if isinstance(result, BaseException):
                raise result
        processor = self._processor
        assert processor is not None
        if not processor.initialized:
            at = self._lease.checkpoint
            await processor.initialize(Initialize(self._lease.shard_id, at.sequence, at.sub, self._source.label))
            self._note_answered(at)
            log.info("processing from %s", at, extra=about("consumer_started", self.key, child=processor.description))

    async def _ensure_child(self) -> None:
        """Start the child, or the several children of the shard, unless one runs."""
        if self._processor is not None:
            return
        self._wishes.restart_asked.clear()
        address = self._source.address_of(self._lease, self._parts.care.ancestors(self._lease))
        count = self._settings.children_per_shard
        if count == 1:
            self._processor = self._processor_of(await self._spawn(address), self._checkpoints.answer)
            return
        children = await all_or_none(
            [self._spawn(replace(address, child_number=number, children=count)) for number in range(count)]
        )
        self._processor = ParallelProcessor(
            children,
            self._processor_of,
            self._checkpoints,
            self._parts.clock,
            self._parts.budget,
            self.part,
            delivers_empty=self._settings.deliver_empty_batches,
            may_deliver=self._may_deliver,
            until_deliverable=self._until_deliverable,
            on_answered=self._note_batch,
        )

    async def _spawn(self, address: ShardAddress) -> ChildProcess:
        """Start one child, and log how long that took."""
        started_at = self._parts.clock.monotonic()
        child = await contained(self._parts.host.start(address), "starting a child", self.key)
        took_ms = millis_since(self._parts.clock, started_at)
        log.debug("child spawned", extra=about("child_spawned", self.key, child=child.description, took_ms=took_ms))
        return child

    def _processor_of(
        self, child: ChildProcess, on_checkpoint: CheckpointHandler, number: int | None = None
    ) -> Processor:
        """Make the processor of a started child. `number` is None if the shard has only one child."""
        return Processor(
            child,
            self.key,
            self._parts.clock,
            self._settings,
            on_checkpoint,
            metrics=self.part,
            trace=self._trace if number is None else self._trace.of_child(number),
            stream=self._source.stream_name,
            number=number,
        )

    def _may_deliver(self) -> bool:
        """Return whether children may get records now: no stop was requested, the shard is not paused, and the lease is
        held.
        """
        is_wanted = self._stopping.stop is None and not self._wishes.is_paused
        return is_wanted and self._parts.keeper.is_held(self.key, self.token)

    async def _until_deliverable(self) -> bool:
        """Wait while the shard is paused or the lease is suspended. Return False if a stop was requested or the lease
        is lost.
        """
        await self._wishes.until_unpaused()
        return self._stopping.stop is None and await self._parts.keeper.until_held(self.key, self.token)

    async def _process(self) -> ActivityOutcome:
        """Take the reader's next delivery and act on it: give its records to the child, or note the end of the shard.
        DONE if there was no delivery because of a stop; CHILD_FAILED as soon as the child is gone.
        """
        assert self._reader is not None and self._processor is not None
        gone = self._processor.gone
        taking = self._reader.next() if self._processor.has_room else self._next_with_room()
        delivery = await self._stopping.unless(self._wishes.unpaused(taking), gone)
        if gone.done() and self._stopping.stop is None:
            # Restart now, because some records may lack a checkpoint, and the next records may be hours away.
            try:
                gone.result()
            except ProcessorError as error:
                return await self._child_failed(error)
        match delivery:
            case None:
                return ActivityOutcome.DONE
            case ShardMissing():
                return ActivityOutcome.SHARD_MISSING
            case Records(page):
                arrived_ms = page.first_arrival_ms_after(self._delivered)
                if arrived_ms is not None and self._delivered <= self._checkpoints.range.last:
                    self._read_to_s = arrived_ms / 1000  # everything before this page is checkpointed
                self.part.took(page, arrived_ms, self._parts.clock.wall())
                outcome = await self._deliver(page)
                if outcome is ActivityOutcome.DONE and not self.part.outstanding:
                    self.part.done()
                return outcome
            case EndOfShard(children):
                self._children = children
                return ActivityOutcome.SHARD_ENDED

    async def _next_with_room(self) -> Delivery:
        """Wait until the processor has room for another batch; then return the reader's next delivery."""
        assert self._reader is not None and self._processor is not None
        await self._processor.until_room()
        return await self._reader.next()

    async def _deliver(self, page: Page) -> ActivityOutcome:
        """Give the child the records of a page that are new to it. They are given in parts during a search for a poison
        record, or if the operator wants some of them left out.

        RETRY if the child had to be ended before it got a poison candidate (`_end_life`). The reader then begins again
        at the checkpoint.
        """
        range_ = self._lease.hash_range
        batch = await batch_of(page, self._delivered, range_, self._source, self._stopping, self._budgets)
        if batch is None:
            return ActivityOutcome.DONE
        if batch.largest is None and not self._settings.deliver_empty_batches:
            self.aggregates.note(batch, self._lease.hash_range)
            return ActivityOutcome.DONE
        if batch.largest is None or not (self._failures.is_searching or self._wishes.concern(batch, self._delivered)):
            return await self._hand_over(batch, page.first_sequence, lambda: holding_of(page, batch))
        rest = self._wishes.kept(await records_of(batch))
        while rest and self._stopping.stop is None:
            count = self._failures.next_part(self._checkpoints.range.last, self._delivered, rest)
            if count is None:
                return await self._end_life()
            part = Part(rest[:count], page.millis_behind_latest)
            outcome = await self._hand_over(part, rest[0].position.sequence, partial(holding_part, part))
            if outcome is not ActivityOutcome.DONE:
                return outcome
            del rest[:count]
        self.aggregates.note(batch, self._lease.hash_range)
        return ActivityOutcome.DONE

    async def _hand_over(
        self, batch: ChildBatch, first: str | None, holding: Callable[[], dict[str, object]]
    ) -> ActivityOutcome:
        """Give the child a batch, and wait for its answer unless there are several children. `first` is a sequence
        number not after the batch's first record; `holding` describes the batch for a warning.

        The child may first have to finish a checkpoint. If the lease is suspended meanwhile, the batch is offered again
        when it is held. DONE also if the batch was not sent, because a stop was requested or the lease is lost.
        """
        assert self._processor is not None
        clock, before = self._parts.clock, self._delivered
        begun: list[float] = []  # when the batch was sent (monotonic seconds); empty until then

        def wanted() -> bool:
            """Return whether to send the batch. If so, note the time, and that the child has its records from now."""
            if self._stopping.stop is None and self._parts.keeper.is_held(self.key, self.token):
                begun.append(clock.monotonic())
                self.part.handed_over(begun[0])
                self._delivered = batch.largest or self._delivered
                self._ends_doubted = 0 if batch.largest else self._ends_doubted
            return bool(begun)

        written = partial(self._checkpoints.deliver, first, batch.largest)
        alone, is_answered = self._failures.is_searching, False
        try:
            while not begun and await self._is_ours():
                is_answered = await self._processor.process_records(batch, wanted, written, holding, alone=alone)
        except ProcessorError as error:
            if not begun:
                return await self._child_failed(error)
            self.part.answered(None, clock.monotonic() - begun[0], clock.wall())
            # If a checkpoint was refused, the child may have died of that, so no record is blamed.
            return await self._child_failed(error, None if self._checkpoints.refused else batch, before)
        if not begun:
            return ActivityOutcome.DONE
        self.aggregates.note(batch, self._lease.hash_range)
        self._parked_poll_s = PARKED_POLL_FIRST_S
        if is_answered:
            self._note_batch(batch, clock.monotonic() - begun[0])
        return ActivityOutcome.DONE

    def _note_batch(self, batch: CountedRecords, took_s: float) -> None:
        """Note that the child has answered a batch, and so everything before it: in the metrics, in the state of the
        failures, and in the keeper's figures of the shard's load. A checkpoint that was refused before no longer counts
        as a reason for the child's death.
        """
        self._checkpoints.refused = False
        self.part.answered(batch, took_s, self._parts.clock.wall())
        self._failures.accepted(batch.largest)
        self._note_answered(batch.largest or self._delivered)
        self._parts.keeper.record_delivery(self.key, batch.data_bytes)

    def _note_answered(self, position: Position) -> None:
        """Note that everything up to `position` is answered. If the child had been failing, and its records up to where
        it failed are answered now, the shard has recovered.
        """
        if self._failures.caught_up(position, self._checkpoints.range.last):
            self.part.recovered()

    async def _is_ours(self) -> bool:
        """Wait while the lease is suspended. Return True if it is then held, and no stop was requested. If it is lost,
        stop (`lose_lease`).
        """
        if self._stopping.stop is None and self._parts.keeper.is_held(self.key, self.token):
            return True
        is_held = await self._stopping.unless(self._parts.keeper.until_held(self.key, self.token))
        if is_held is False:  # None if a stop has ended the wait
            self.lose_lease()
        return bool(is_held)

    async def _end_shard(self) -> ActivityOutcome:
        """Wait until the child has answered everything, have the lease rows of the child shards created
        (`ShardCare.prepare_end`), and send `shardEnded` to the child. RETRY if the rows cannot be created now, or if a
        stop was requested.
        """
        assert self._processor is not None
        gone = self._processor.gone
        await self._stopping.unless(self._processor.until_answered(), gone)
        if self._stopping.stop is not None:
            return ActivityOutcome.RETRY
        if gone.done():
            try:
                gone.result()
            except ProcessorError as error:
                return await self._child_failed(error)
        try:
            preparing = self._parts.care.prepare_end(self._lease, self._children)
            match await contained(preparing, "preparing the end of a shard", self.key):
                case EndVerdict.READ_AGAIN:
                    return await self._doubt_end()
                case EndVerdict.WAIT:
                    return await self._retry_later(SHARD_END_RETRY_MAX_S)
        except LeaseLostError:
            self.lose_lease()
            return ActivityOutcome.RETRY
        except (TableError, StreamError) as error:
            log.warning("cannot prepare the end of the shard: %s", error, extra=about("shard_end_delayed", self.key))
            return await self._retry_later(SHARD_END_RETRY_MAX_S)
        if not await self._is_ours():  # the wait may have been long; after a stop, the next owner reads the end again
            return ActivityOutcome.RETRY
        return await self._send_shard_ended()

    async def _doubt_end(self) -> ActivityOutcome:
        """Pause, and have the end of the shard read again (END_DOUBTED): it contradicts itself or the listing of
        shards, so it proves nothing. If it is still in doubt after some tries, ignore the child shards that it names,
        so that they are looked up in the listing. If that does not help, release the lease: another worker may see
        more.
        """
        if self._ends_doubted < ENDS_DOUBTED_MAX:
            delay_s = min(self._settings.task_backoff_s * 2.0**self._ends_doubted, RETRY_DELAY_MAX_S)
            self._ends_doubted += 1
            await self._pause(delay_s)
            return ActivityOutcome.END_DOUBTED
        if self._children:
            self._children = ()
            return ActivityOutcome.RETRY
        log.error("the end of the shard stays in doubt; it is handed on", extra=about("shard_end_handed_on", self.key))
        self.request_stop()
        return ActivityOutcome.RETRY

    async def _send_shard_ended(self) -> ActivityOutcome:
        """Send `shardEnded` to the child, and end the child when it has answered. A child that has not checkpointed by
        then has failed.
        """
        assert self._processor is not None
        try:
            await self._processor.shard_ended(self._checkpoints.deliver_end)
            if not self._checkpoints.range.is_complete:
                raise ProcessorError(
                    "answered shardEnded without a successful checkpoint; it must call checkpoint() "
                    "without arguments there, else the child shards would wait for ever"
                )
        except ProcessorError as error:
            return await self._child_failed(error)
        await self._dismiss_child()
        self._parts.care.ended(self._lease)
        log.info("shard ended", extra=about("shard_ended", self.key, children=[c.shard_id for c in self._children]))
        return ActivityOutcome.DONE

    async def _end_life(self) -> ActivityOutcome:
        """End the child before it gets a poison candidate, so that it checkpoints the records that it has. A new child
        then begins with the candidate, after the outcome RETRY.
        """
        assert self._processor is not None
        try:
            await self._processor.shutdown_requested(self._checkpoints.range.last.sequence)
            await self._processor.lease_lost()
        except ProcessorError as error:
            return await self._child_failed(error)
        await self._dismiss_child()
        return ActivityOutcome.RETRY

    async def _back_off(self) -> ActivityOutcome:
        """Decide what follows a failure of the child: give up the shard (GAVE_UP), or set a poison record aside, or
        pause before the next start (DONE).
        """
        await self._stop_reader()
        if self._failures.is_too_much:
            self._parts.on_gave_up(self.key, self._failures.why)
            return ActivityOutcome.GAVE_UP
        asked = self._wishes.restart_asked
        if not asked.is_set() and not await self._failures.set_aside_candidate(self._stopping, self._checkpoints):
            await self._pause(self._failures.pause_s(), asked)
        return ActivityOutcome.DONE

    async def _judge_missing(self) -> ActivityOutcome:
        """Find out why the shard was not found: it has left retention, the stream is the wrong one, or the row belongs
        elsewhere. The reader keeps its place, so reading can go on afterwards.

        SHARD_ENDED if the shard has left retention, DONE if it is listed after all, RETRY if neither is known. If the
        shard was parked because of its row (ROW_ODD), there is no reader, and ROW_JUDGED stands in place of SHARD_ENDED
        and DONE.
        """
        try:
            judging = self._parts.care.judge_missing(replace(self._lease, checkpoint=self._delivered))
            verdict = await contained(judging, "judging a shard", self.key)
        except (StreamError, TableError) as error:
            log.warning("cannot tell whether the shard is over: %s", error, extra=about("shard_unknown", self.key))
            verdict = MissingVerdict.UNKNOWN
        match verdict:
            case MissingVerdict.OVER | MissingVerdict.LISTED if self._reader is None:
                return ActivityOutcome.ROW_JUDGED
            case MissingVerdict.OVER:  # whatever was not read of the shard is trimmed now
                last = self._checkpoints.range.last.sequence
                report(Suspicion(last, None, None, self._read_to_s), self.key, self.part, self._parts.clock.wall())
                self._children = ()
                return ActivityOutcome.SHARD_ENDED
            case MissingVerdict.LISTED:
                await self._pause(self._settings.task_backoff_s)
                return ActivityOutcome.DONE
            case MissingVerdict.UNKNOWN:
                await self._pause(self._parked_poll_s)
                self._parked_poll_s = min(self._parked_poll_s * 2, PARKED_POLL_MAX_S)
                return ActivityOutcome.RETRY

    async def _notify_shutdown(self) -> ActivityOutcome:
        """Stop the reader, and send `shutdownRequested` to the child, if it is initialized."""
        await self._stop_reader()
        try:
            if self._processor is not None and self._processor.initialized:
                await self._processor.shutdown_requested(self._checkpoints.range.last.sequence)
        except ProcessorError as error:
            if self._settings.protocol_version != Dialect.KCL_1.value or not isinstance(error, ProcessorGoneError):
                return await self._child_failed(error)
            await self._dismiss_child()  # a child for KCL before 1.8 does not know shutdownRequested, and may exit
        return ActivityOutcome.DONE

    async def _notify_lease_lost(self) -> ActivityOutcome:
        """Stop the reader, send `leaseLost` to the child, if it is initialized, and end the child."""
        await self._stop_reader()
        try:
            if self._processor is not None and self._processor.initialized:
                await self._processor.lease_lost()
        except ProcessorError as error:
            return await self._child_failed(error)
        await self._dismiss_child()
        return ActivityOutcome.DONE

    async def _give_lease_away(self) -> ActivityOutcome:
        """Hand the lease to the worker that waits for it, or release it."""
        await self._parts.keeper.give_away(self.key, self.token)
        return ActivityOutcome.DONE

    # --- the child and the reader ------------------------------------------------------------------------------------

    async def _child_failed(
        self, error: Exception, batch: ChildBatch | None = None, before: Position | None = None
    ) -> ActivityOutcome:
        """End the child that failed, or all children of the shard, count the failure, and return CHILD_FAILED. A
        failure that an operator's restart has caused is not counted.

        `batch` is what the child was working on, if anything; `before` is the position before that batch. Without
        `batch`, the records that several children had not answered count (`ShardProcessor.unanswered`), if there are
        any.
        """
        processor, self._processor = self._processor, None
        ended = await processor.end() if processor is not None else "never started"
        last_words = processor.last_words if processor is not None else ()
        if self._wishes.restart_asked.is_set():
            log.info("child ended, as asked: %s", ended, extra=about("child_ended", self.key))
            return ActivityOutcome.CHILD_FAILED
        what = in_words(error, ended, last_words)
        self.part.failed(RESTART_REASONS[type(error)], what, self._parts.clock.wall())
        delivered = max(self._delivered, self._checkpoints.range.largest)  # SHARD_END after `shardEnded`
        last = self._checkpoints.range.last
        is_next = batch is not None and before == last
        if batch is None and processor is not None and processor.unanswered is not None:
            batch, before = processor.unanswered
        await self._failures.note(str(error), last_words, last, batch, before or delivered, delivered, is_next=is_next)
        hint = "" if processor is None or processor.initialized else TRY_ALONE
        fields = about("child_failed", self.key, failures=self._failures.count)
        log.error("child failed: %s (%s)%s", error, ended, hint, extra=fields)
        summary = f"failure {self._failures.count} since the last checkpoint: {what}"
        self._parts.metrics.events.note(EventKind.FAILED, summary, shard=self.key, lines=last_words)
        if last_words:
            tail = "\n".join(list(last_words)[-LAST_WORDS_LOGGED:])
            log.warning("its last words on stderr:\n%s", tail, extra=about("child_last_words", self.key))
        return ActivityOutcome.CHILD_FAILED

    async def _dismiss_child(self) -> None:
        """End the child, if one runs, in the regular way."""
        processor, self._processor = self._processor, None
        if processor is not None:
            log.info("child ended: %s", await processor.end(), extra=about("child_ended", self.key))

    async def _stop_reader(self) -> None:
        """Stop the reader, if there is one. Keep two times for the next reader: when reading at LATEST began, and up to
        which time all records are checkpointed. The second is kept only if everything that this reader has read is
        checkpointed.
        """
        reader, self._reader = self._reader, None
        if reader is None:
            return
        if (read := reader.read) is not None:
            self._anchor_s = self._anchor_s if read.anchor_s is None else read.anchor_s
            if read.last_sequence is None or Position(read.last_sequence) <= self._checkpoints.range.last:
                self._read_to_s = read.read_to_s
        await reader.stop()

    async def _abandon(self) -> None:
        """Kill the child and stop the reader, so that neither outlives the consumer, even if the consumer is
        cancelled.
        """
        self.aggregates.close()
        self._parts.metrics.end(self.part)
        processor, self._processor = self._processor, None
        if processor is not None:
            log.warning("child killed: %s", await processor.kill(), extra=about("child_killed", self.key))
        await self._stop_reader()

    async def _retry_later(self, delay_max_s: float = RETRY_DELAY_MAX_S) -> ActivityOutcome:
        """Pause before the activity is tried again: `taskBackoffTimeMillis`, doubled with each consecutive retry, but
        at most `delay_max_s`. Return RETRY.
        """
        delay_s = min(self._settings.task_backoff_s * 2.0 ** min(self._retries, 30), delay_max_s)
        self._retries += 1
        await self._pause(delay_s)
        return ActivityOutcome.RETRY


PERFORM: Mapping[ConsumerState, Callable[[ShardConsumer], Awaitable[ActivityOutcome]]] = {
    ConsumerState.WAITING_ON_PARENTS: ShardConsumer._wait_on_parents,
    ConsumerState.INITIALIZING: ShardConsumer._initialize,
    ConsumerState.PROCESSING: ShardConsumer._process,
    ConsumerState.SHARD_ENDING: ShardConsumer._end_shard,
    ConsumerState.BACKING_OFF: ShardConsumer._back_off,
    ConsumerState.PARKED: ShardConsumer._judge_missing,
    ConsumerState.SHUTDOWN_REQUESTED: ShardConsumer._notify_shutdown,
    ConsumerState.LEASE_LOST: ShardConsumer._notify_lease_lost,
    ConsumerState.TRANSFERRING: ShardConsumer._give_lease_away,
    ConsumerState.RELEASING: ShardConsumer._give_lease_away,
}
"""The activity of each state; a finished consumer has none."""
