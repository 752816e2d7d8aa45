"""Drives a record processor over a span of a shard, without a lease: the shell of `mld replay`.

The child is started by the daemon's own host and spoken to by its own conversation, so that it sees what it sees in
production: the same lines, batches of the same size, the same answers to its checkpoints, which are judged by the same
rules, shown, and stored nowhere. It is given all the time it wants, because somebody may be stepping through it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mld.consumer.parts import Part, PlacedRecord, records_of
from mld.consumer.ports import ProcessorHost, ShardAddress
from mld.consumer.processor import Processor
from mld.core.clock import Clock
from mld.core.positions import Position
from mld.core.streams import ChildBatch, HashRange, Streams
from mld.leases.checkpoints import CheckpointRange, Illegal, NoWrite, Write
from mld.operating.points import Point, PointKind
from mld.operating.stream_access import SpanReader, SpanStart
from mld.protocol.conversation import ProcessorError
from mld.protocol.messages import CheckpointErrorName, CheckpointRequest, Dialect, Initialize, StreamLabel
from mld.retrieval.rawpage import RawPage

WARN_AFTER_S = 86_400.0 * 365  # never: a debugger holds the child


@dataclass(frozen=True, slots=True)
class Replay:
    """`until` is inclusive for a sequence number; a time ends before the first record that arrived then or later. The
    tip of the shard ends any span."""

    shard_id: str
    start: SpanStart
    until: Point
    max_records: int | None = None
    hash_range: HashRange | None = None
    dialect: Dialect = Dialect.KCL_2
    on_empty: bool = False
    """Also batches without records are delivered."""
    stream: StreamLabel | None = None
    """The shard's, if the application reads several."""

    @property
    def address(self) -> ShardAddress:
        """For whom the child is started."""
        key = self.shard_id if self.stream is None else f"{self.stream.id}:{self.shard_id}"
        return ShardAddress(key, self.shard_id, self.stream)


@dataclass(slots=True)
class Replayed:
    """What happened so far. `failure` None: the processor has done all that was asked of it."""

    records: int = 0
    batches: int = 0
    last: Position | None = None
    checkpoint: Position | None = None
    refused: int = 0
    is_over: bool = False
    """The shard has ended within the span."""
    in_hand: str = ""
    """What the processor was doing last."""
    failure: str | None = None
    ended: str = ""
    """How the child's process ended."""


class Replayer:
    """One replay; `tell` is given a line for each checkpoint."""

    def __init__(
        self, replay: Replay, streams: Streams, host: ProcessorHost, clock: Clock, tell: Callable[[str], None]
    ) -> None:
        self._replay = replay
        self._streams = streams
        self._host = host
        self._clock = clock
        self._tell = tell
        self._range = CheckpointRange.starting_at(replay.start.after)
        self._done = Replayed()
        self._processor: Processor | None = None

    async def run(self) -> Replayed:
        """From the start of the span to its end. Raises StreamError and ChildStartError; the child is gone then."""
        try:
            await self._drive()
        except ProcessorError as error:
            self._done.failure = str(error)
        finally:
            processor, self._processor = self._processor, None
            if processor is not None:
                self._done.ended = await processor.kill()
        return self._done

    async def _drive(self) -> None:
        replay = self._replay
        reader = SpanReader(self._streams, self._clock, replay.shard_id, replay.start.start)
        page = await reader.page(replay.max_records)  # what cannot be read needs no child
        child = await self._host.start(replay.address)
        self._processor = processor = Processor(
            child,
            replay.shard_id,
            replay.dialect,
            self._clock,
            on_checkpoint=self._checkpoint,
            reply_timeout_s=None,
            warn_after_s=WARN_AFTER_S,
            logs_fields=False,
        )
        name = replay.start.name
        self._done.in_hand = "initialize"
        await processor.initialize(Initialize(replay.shard_id, name.sequence, name.sub, replay.stream))
        while True:
            batch, is_last = await self._cut(page)
            if batch.largest is not None or replay.on_empty:
                await self._deliver(processor, batch)
            if is_last or reader.is_over or page.millis_behind_latest == 0:
                break
            page = await reader.page(replay.max_records)
        if reader.is_over and not is_last:
            await self._end_shard(processor)
        else:
            self._done.in_hand = "shutdownRequested"
            await processor.shutdown_requested(self._range.last.sequence)
            await processor.lease_lost()
        self._processor = None
        self._done.ended = await processor.end()

    async def _deliver(self, processor: Processor, batch: ChildBatch) -> None:
        def written() -> None:
            if batch.largest is not None:
                self._range = self._range.deliver(batch.largest)

        self._done.in_hand = f"the batch up to {batch.largest}"
        await processor.process_records(batch.line(), written=written)
        self._done.batches += 1
        self._done.records += batch.count
        self._done.last = batch.largest or self._done.last

    async def _end_shard(self, processor: Processor) -> None:
        self._done.is_over = True

        def written() -> None:
            self._range = self._range.at_shard_end()

        self._done.in_hand = "shardEnded"
        await processor.shard_ended(written)
        if not self._range.is_complete:
            raise ProcessorError("answered shardEnded without a successful checkpoint")

    async def _cut(self, page: RawPage) -> tuple[ChildBatch, bool]:
        """(what of the page lies in the span, whether the span ends in it)."""
        batch = page.after(self._replay.start.after, self._replay.hash_range)
        until = self._replay.until
        if until.kind not in (PointKind.TIME, PointKind.SEQUENCE) or batch.largest is None:
            return batch, False
        records = await records_of(batch)
        wanted = [record for record in records if _is_wanted(record, until)]
        if len(wanted) == len(records):
            is_last = until.position is not None and records[-1].position == until.position
            return batch, is_last
        return (Part(wanted, page.millis_behind_latest) if wanted else page.after(batch.largest)), True

    async def _checkpoint(self, request: CheckpointRequest) -> CheckpointErrorName | None:
        """As a consumer judges it; what would be stored is shown instead."""
        match self._range.resolve(request.sequence_number, request.sub_sequence_number):
            case Illegal(reason):
                self._done.refused += 1
                self._tell(f"checkpoint refused: {reason}")
                return CheckpointErrorName.ILLEGAL_ARGUMENT
            case Write(position):
                self._range = self._range.written(position)
                self._done.checkpoint = position
                self._tell(f"checkpoint {position} (not stored)")
            case NoWrite():
                self._tell(f"checkpoint {self._range.last} again (not stored)")
        return None


def _is_wanted(record: PlacedRecord, until: Point) -> bool:
    if until.position is not None:
        return record.position <= until.position
    assert until.time_s is not None
    arrived_ms = record.framed.fields()["approximateArrivalTimestamp"]
    return int(str(arrived_ms)) < until.time_s * 1000
