"""`mld replay`: gives a span of a shard to a record processor.

The daemon's own code starts the child and talks to it. So the child sees the same as in production: the same lines,
batches of the same size, and the same answers to its checkpoints. The checkpoints are judged by the same rules and
shown, but not stored. The child has no time limits, because a debugger may be attached to it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import click

from mld.consumer.checkpoint_range import CheckpointRange, Illegal, NoWrite, Write
from mld.consumer.child import PipeHost
from mld.consumer.parts import Part, PlacedRecord, records_of
from mld.consumer.ports import ChildStartError, ProcessorHost, ShardAddress
from mld.consumer.processor import Processor
from mld.core.clock import Clock, LoopClock
from mld.core.installed import find_executable, runnable
from mld.core.positions import Position
from mld.core.stream_ids import StreamId
from mld.core.streams import ChildBatch, HashRange, Streams
from mld.core.terminal import EXIT_FAILURE, EXIT_OK, say
from mld.leases.lease import Lease
from mld.operating.naming import ChosenShard
from mld.operating.points import Point, PointKind
from mld.operating.stream_access import SpanError, SpanReader, SpanStart, all_shards, arrival_ms, span_start, streams_of
from mld.properties.printable import printable
from mld.properties.settings import Settings
from mld.properties.spark_names import PREFIX
from mld.protocol.child_command import split_command
from mld.protocol.conversation import ProcessorError
from mld.protocol.messages import CheckpointErrorName, CheckpointRequest, Initialize, StreamLabel
from mld.retrieval.placement import Placement
from mld.retrieval.rawpage import RawPage
from mld.retrieval.starting_points import initial_position
from mld.tracking.stream_list import account_and_name

WARN_AFTER_S = 86_400.0 * 365  # in effect never, because a debugger may hold the child
STOP_TIMEOUT_S = 86_400.0
"""A day, because a debugger may also hold the child while it ends."""
WORKER_ID = "replay"
UNKNOWN_EPOCH = 1
"""Epoch of a stream if neither the settings, nor the table, nor the service shows when the stream was created."""
CHILD_STDERR, CHILD_STDOUT = "child_stderr", "child_stdout"


# --- a record processor over a span of a shard ------------------------------------------------------------------------


@dataclass(slots=True)
class Replayer:
    """One replay, with its progress."""

    settings: Settings
    shard_id: str
    start: SpanStart
    until: Point
    """Where the span ends. A sequence number is that of the last record. With a time, the span ends before the first
    record that arrived then or later. Every span ends at the tip of the shard.
    """
    streams: Streams
    host: ProcessorHost
    clock: Clock
    hash_range: HashRange | None = None
    stream: StreamLabel | None = None
    """Label of the shard's stream, if the application reads several."""

    records: int = 0
    batches: int = 0
    last: Position | None = None
    """Position of the last record that the processor has answered."""
    checkpoint: Position | None = None
    """Position of the last checkpoint that was accepted."""
    in_hand: str = ""
    """The message that was last sent to the processor."""
    failure: str | None = None
    """Why the processor failed; None if it processed the span."""
    ended: str = ""
    """How the child process ended."""
    _range: CheckpointRange = field(init=False)
    """The positions that the processor may checkpoint, and its last checkpoint."""
    _processor: Processor | None = None
    """The running child, if `run` must kill it in case of an error."""

    def __post_init__(self) -> None:
        self._range = CheckpointRange.starting_at(self.start.after)

    async def run(self) -> None:
        """Give the processor the records of the span, then end it. In any case the child has ended afterwards.

        Raises StreamError and ChildStartError.
        """
        try:
            await self._drive()
        except ProcessorError as error:
            self.failure = str(error)
        finally:
            processor, self._processor = self._processor, None
            if processor is not None:
                self.ended = await processor.kill()

    async def _drive(self) -> None:
        """Start the child, and send it what a daemon sends in the life of a shard: initialize, then the batches of the
        span. At the end of the shard shardEnded follows, otherwise shutdownRequested and leaseLost.
        """
        key = self.shard_id if self.stream is None else f"{self.stream.id}:{self.shard_id}"
        records_max = self.settings.reader.records_max
        unlimited = replace(self.settings.child, reply_timeout_s=None, warn_after_s=WARN_AFTER_S, logs_fields=False)
        reader = SpanReader(self.streams, self.clock, self.shard_id, self.start.start)
        page = await reader.page(records_max)  # before the child starts: an unreadable span needs no child
        child = await self.host.start(ShardAddress(key, self.shard_id, self.stream))
        self._processor = processor = Processor(child, self.shard_id, self.clock, unlimited, self._checkpoint)
        first = self.start.name
        self.in_hand = "initialize"
        await processor.initialize(Initialize(self.shard_id, first.sequence, first.sub, self.stream))
        while True:
            batch, is_last = await self._cut(page)
            if batch.largest is not None or self.settings.child.deliver_empty_batches:
                await self._deliver(processor, batch, page.first_sequence)
            if is_last or reader.is_over or page.millis_behind_latest == 0:
                break
            page = await reader.page(records_max)
        if reader.is_over and not is_last:
            await self._end_shard(processor)
        else:
            self.in_hand = "shutdownRequested"
            await processor.shutdown_requested(self._range.last.sequence)
            await processor.lease_lost()
        self._processor = None
        self.ended = await processor.end()

    async def _deliver(self, processor: Processor, batch: ChildBatch, first: str | None) -> None:
        """Give a batch to the processor, and count it when the processor has answered. `first` is the first sequence
        number of the page from which the batch was cut; None for a page without records.
        """

        def written() -> None:
            """Let the processor checkpoint these records: the batch was written to it."""
            if first is not None and batch.largest is not None:
                self._range = self._range.deliver(Position(first), batch.largest)

        self.in_hand = f"the batch up to {batch.largest}"
        await processor.process_records(batch, written=written)
        self.batches += 1
        self.records += batch.count
        self.last = batch.largest or self.last

    async def _end_shard(self, processor: Processor) -> None:
        """Tell the processor that the shard has ended. Raises ProcessorError if it answers without a checkpoint at
        SHARD_END.
        """

        def written() -> None:
            """Let the processor checkpoint SHARD_END: the message was written to it."""
            self._range = self._range.at_shard_end()

        self.in_hand = "shardEnded"
        await processor.shard_ended(written)
        if not self._range.is_complete:
            raise ProcessorError("answered shardEnded without a successful checkpoint")

    async def _cut(self, page: RawPage) -> tuple[ChildBatch, bool]:
        """Return the part of the page that is in the span, and whether the span ends with this page or within it."""
        batch = page.after(self.start.after, self.hash_range)
        until = self.until
        if until.kind not in (PointKind.TIME, PointKind.SEQUENCE) or batch.largest is None:
            return batch, False
        records = await records_of(batch)
        wanted = [record for record in records if _is_wanted(record, until)]
        if len(wanted) == len(records):
            is_last = until.position is not None and records[-1].position == until.position
            return batch, is_last
        # After its last record, a page gives an empty batch.
        return (Part(wanted, page.millis_behind_latest) if wanted else page.after(batch.largest)), True

    async def _checkpoint(self, request: CheckpointRequest) -> CheckpointErrorName | None:
        """Judge a checkpoint as the daemon does, but print the position instead of storing it. Return the error name
        for the child; None if the checkpoint is accepted.
        """
        match self._range.resolve(request.sequence_number, request.sub_sequence_number):
            case Illegal(reason):
                say(f"checkpoint refused: {reason}")
                return CheckpointErrorName.ILLEGAL_ARGUMENT
            case Write(position):
                self._range = self._range.written(position)
                self.checkpoint = position
                say(f"checkpoint {position} (not stored)")
            case NoWrite():
                say(f"checkpoint {self._range.last} again (not stored)")
        return None


def _is_wanted(record: PlacedRecord, until: Point) -> bool:
    """Return whether a record is not after the end of the replay: a position (inclusive) or a time (exclusive)."""
    if until.position is not None:
        return record.position <= until.position
    assert until.time_s is not None
    return arrival_ms(record.framed) < until.time_s * 1000


# --- the command ------------------------------------------------------------------------------------------------------


async def run_replay(
    shard: ChosenShard,
    start: Point,
    until: Point,
    lease: Lease | None,
    command: Sequence[str],
    properties_file: str,
    overrides: Sequence[str],
) -> int:
    """Replay the span from `start` to `until`, print the result, and return the exit code.

    `lease` is the shard's row in the lease table, if it is needed for the start or the stream's identifier. `command`
    is the record processor's command line; if it is empty, the processor of the settings is started. The child finds
    `properties_file` and `overrides` in its environment. Raises MldError if the span cannot be read.
    """
    settings, shard_id = shard.settings, shard.shard_id
    processor_command = list(command) or split_command(settings.child.command)
    if find_executable(processor_command) is None:
        raise ChildStartError(f"no executable file {processor_command[0]!r} is found; name the processor after --")
    clock = LoopClock()
    host = PipeHost(
        runnable(processor_command),
        clock,
        stop_timeout_s=STOP_TIMEOUT_S,
        logs_fields=False,
        environment={
            "MLD_STREAM_NAME": settings.stream_name,
            "MLD_APPLICATION_NAME": settings.application_name,
            "MLD_WORKER_ID": WORKER_ID,
            "MLD_PROPERTIES_FILE": properties_file,
            "MLD_OVERRIDES": "\n".join(text for text in overrides if text.startswith(PREFIX)),
            "MLD_DAEMON_PID": str(os.getpid()),
        },
    )
    with _ChildWords():
        async with streams_of(settings) as streams:
            listed = await all_shards(streams)
            if shard_id not in listed:
                raise SpanError(f"the stream has no shard {shard_id}; `mld leases` shows the shards")
            replay = Replayer(
                settings,
                shard_id,
                span_start(start, shard_id, lease, initial_position(settings.initial_position)),
                until,
                streams,
                host,
                clock,
                await Placement(streams, clock).range_of(listed[shard_id].hash_range),
                None if shard.stream is None else await _label(streams, shard, lease),
            )
            await replay.run()
    return _tell(replay)


async def _label(streams: Streams, shard: ChosenShard, lease: Lease | None) -> StreamLabel:
    """Return the label of the stream for the processor: from the lease if there is one, else from the service."""
    summary = await streams.describe()
    if lease is not None and lease.stream is not None:
        return StreamLabel(shard.settings.stream_name, summary.arn, lease.stream)
    account, name = account_and_name(summary.arn)
    configured = None if shard.stream is None else shard.stream.epoch
    epoch = configured or (summary.created_ms or 0) // 1000 or UNKNOWN_EPOCH
    return StreamLabel(name, summary.arn, str(StreamId(account, name, epoch)))


def _tell(done: Replayer) -> int:
    """Print how the replay went, and return the exit code."""
    last = f", the last one {done.last}" if done.last is not None else ""
    say(f"{done.records} records in {done.batches} batches of {done.shard_id} were processed{last}")
    if done.failure is None:
        say(f"the last checkpoint would have been {done.checkpoint or 'none'}; {done.ended}")
        return EXIT_OK
    say(f"the processor failed at {done.in_hand}: {done.failure} ({done.ended})")
    return EXIT_FAILURE


class _ChildWords(logging.Handler):
    """Handler of the log that prints the child's stderr, without control characters, because it may quote records.

    It also prints the warnings, and the lines of the child's stdout that are not answers. All else is left out.
    """

    def __enter__(self) -> None:
        """Print events from INFO on by this handler, and by no other, until `__exit__`."""
        root = logging.getLogger("mld")
        root.addHandler(self)
        self._before = root.level, root.propagate
        root.setLevel(logging.INFO)
        root.propagate = False

    def __exit__(self, *_: object) -> None:
        root = logging.getLogger("mld")
        root.removeHandler(self)
        root.level, root.propagate = self._before

    def emit(self, record: logging.LogRecord) -> None:
        """Print an event if it is one that the user of `mld replay` needs."""
        if getattr(record, "action", "") == CHILD_STDERR:
            click.echo(printable(record.getMessage()), err=True)
        elif record.levelno >= logging.WARNING or getattr(record, "action", "") == CHILD_STDOUT:
            click.echo(f"mld: {printable(record.getMessage())}", err=True)
